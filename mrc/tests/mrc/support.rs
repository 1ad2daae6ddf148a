//! An MRC in memory with a client's session, for tests that speak to it as a client does.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use babu_kv::fs::{Fs, MemoryFs};
use tokio::sync::mpsc;
use xtfs_layout::Layout;
use xtfs_mrc::{Mrc, MrcOptions};
use xtfs_protocol::directory::{DirectoryOp, DirectoryReply, ServiceKind};
use xtfs_protocol::env::Env;
use xtfs_protocol::ids::{Ino, ROOT_INO, ServiceId, SessionId};
use xtfs_protocol::meta::{Caller, Entry, MetaOp, MetaReply, OpenMode, Opened, Push};
use xtfs_protocol::object::OsdSpace;
use xtfs_protocol::transport::{Origin, Peer, Pusher, Service};
use xtfs_protocol::{Call, Code, Error, Reply, Request, Result};

pub const MRC: ServiceId = ServiceId([0xee; 16]);

pub fn osd(number: u8) -> ServiceId {
    ServiceId([number; 16])
}

pub fn host() -> Peer {
    Peer::Host("test".into())
}

/// Opens an MRC on a disk in memory.
pub fn open(fs: &MemoryFs) -> Arc<Mrc> {
    open_on(Arc::new(fs.clone()))
}

/// Opens an MRC on a disk.
pub fn open_on(fs: Arc<dyn Fs>) -> Arc<Mrc> {
    open_in(fs, Env::simulated(1))
}

/// Opens an MRC on a disk, on another start of its machine.
pub fn open_after_boot(fs: &MemoryFs, boot: u64) -> Arc<Mrc> {
    open_in(Arc::new(fs.clone()), Env::simulated(1).with_boot(boot))
}

fn open_in(fs: Arc<dyn Fs>, env: Env) -> Arc<Mrc> {
    let mut options = MrcOptions::new(Path::new("/mrc"), MRC, env);
    options.kv = babu_kv::Options::simulated(fs);
    Mrc::open(options).unwrap()
}

/// An MRC with three OSDs and the volume `home`.
pub async fn with_volume(fs: &MemoryFs) -> Arc<Mrc> {
    let mrc = open(fs);
    for number in 1..=3 {
        heartbeat(&mrc, number, 1).await.unwrap();
    }
    ask(&mrc, create_volume("home")).await.unwrap();
    mrc
}

/// A volume whose files lie on two OSDs.
pub fn create_volume(name: &str) -> MetaOp {
    MetaOp::CreateVolume {
        name: name.into(),
        layout: Layout::striped(2),
        uid: 0,
        gid: 0,
        mode: 0o755,
    }
}

pub async fn directory(mrc: &Mrc, peer: Peer, op: DirectoryOp) -> Result<DirectoryReply> {
    let origin = Origin { peer, pusher: None };
    let call = Call::new(Request::Directory(op), 1000);
    match mrc.call(origin, call).await.reply? {
        Reply::Directory(reply) => Ok(reply),
        other => panic!("{other:?}"),
    }
}

pub async fn heartbeat(mrc: &Mrc, number: u8, incarnation: u64) -> Result<DirectoryReply> {
    let op = DirectoryOp::Heartbeat {
        id: osd(number),
        incarnation,
        kind: ServiceKind::Osd,
        addresses: vec![format!("127.0.0.{number}:{incarnation}")],
        space: OsdSpace {
            total_bytes: 1000,
            free_bytes: 600,
            ..OsdSpace::default()
        },
        version: "1".into(),
    };
    directory(mrc, Peer::Service(osd(number)), op).await
}

/// Asks as the host's root, outside of any session.
pub async fn ask(mrc: &Mrc, op: MetaOp) -> Result<MetaReply> {
    let origin = Origin {
        peer: host(),
        pusher: None,
    };
    let caller = Caller::root();
    let call = Call::new(Request::Meta { caller, op }, 1000);
    meta(mrc.call(origin, call).await.reply)
}

fn meta(reply: Result<Reply>) -> Result<MetaReply> {
    match reply? {
        Reply::Meta(reply) => Ok(reply),
        other => panic!("{other:?}"),
    }
}

struct Inbox(mpsc::UnboundedSender<Push>);

#[async_trait]
impl Pusher for Inbox {
    async fn push(&self, push: Push) -> Result<()> {
        self.0.send(push).map_err(|_| Code::Unreachable.into())
    }
}

/// A client's way back, and what comes over it.
pub fn inbox() -> (Arc<dyn Pusher>, mpsc::UnboundedReceiver<Push>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Arc::new(Inbox(sender)), receiver)
}

/// A client with a session.
pub struct Client {
    pub mrc: Arc<Mrc>,
    pub session: SessionId,
    pub epoch: u64,
    pub origin: Origin,
    pub caller: Caller,
    next: AtomicU64,
}

impl Client {
    pub async fn new(mrc: &Arc<Mrc>) -> Self {
        Self::resume(mrc, None, vec![]).await.unwrap()
    }

    pub async fn resume(
        mrc: &Arc<Mrc>,
        resume: Option<SessionId>,
        open_files: Vec<Ino>,
    ) -> Result<Self> {
        Self::start(mrc, "", resume, open_files).await
    }

    /// The same, for a client that has a name.
    pub async fn start(
        mrc: &Arc<Mrc>,
        client: &str,
        resume: Option<SessionId>,
        open_files: Vec<Ino>,
    ) -> Result<Self> {
        let op = MetaOp::OpenSession {
            volume: "home".into(),
            client: client.into(),
            resume,
            open_files,
        };
        let next = if resume.is_some() { 1000 } else { 1 };
        match ask(mrc, op).await? {
            MetaReply::Session(info) => Ok(Self {
                mrc: mrc.clone(),
                session: info.id,
                epoch: info.epoch,
                origin: Origin {
                    peer: host(),
                    pusher: None,
                },
                caller: Caller::root(),
                next: AtomicU64::new(next),
            }),
            other => panic!("{other:?}"),
        }
    }

    /// Sends a request under a new number, having received all earlier answers.
    pub async fn send(&self, op: MetaOp) -> Result<MetaReply> {
        let sequence = self.next.fetch_add(1, Ordering::Relaxed);
        self.send_as(op, sequence, sequence - 1).await
    }

    pub async fn send_as(&self, op: MetaOp, sequence: u64, answered: u64) -> Result<MetaReply> {
        let caller = self.caller.clone();
        let mut call = Call::new(Request::Meta { caller, op }, 1000);
        call.header.session = self.session;
        call.header.sequence = sequence;
        call.header.answered = answered;
        meta(self.mrc.call(self.origin.clone(), call).await.reply)
    }

    pub async fn lookup(&self, name: &str) -> Result<Entry> {
        let op = MetaOp::Lookup {
            parent: ROOT_INO,
            name: name.into(),
        };
        self.send_as(op, 0, 0).await.map(|reply| entry(&reply))
    }

    pub async fn create(&self, name: &str) -> Opened {
        let open = OpenMode {
            read: true,
            write: true,
            truncate: false,
        };
        let reply = self.send(create_op(name, open)).await.unwrap();
        opened(reply)
    }

    pub async fn unlink(&self, name: &str) -> Result<MetaReply> {
        let op = MetaOp::Unlink {
            parent: ROOT_INO,
            name: name.into(),
        };
        self.send(op).await
    }
}

pub fn create_op(name: &str, open: OpenMode) -> MetaOp {
    MetaOp::Create {
        parent: ROOT_INO,
        name: name.into(),
        mode: 0o644,
        exclusive: false,
        open,
    }
}

pub fn entry(reply: &MetaReply) -> Entry {
    match reply {
        MetaReply::Entry(entry) => *entry,
        other => panic!("{other:?}"),
    }
}

pub fn opened(reply: MetaReply) -> Opened {
    match reply {
        MetaReply::Opened(opened) | MetaReply::Truncated(opened) => *opened,
        other => panic!("{other:?}"),
    }
}

pub fn error(result: Result<MetaReply>) -> Error {
    result.unwrap_err()
}
