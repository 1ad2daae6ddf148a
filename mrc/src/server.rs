//! The MRC as a service: how a call reaches its volume, and what is added to the reply on the way
//! out.
//!
//! A call runs to completion on the thread that brought it. Only what waits for a disk flush is
//! handed to [`Env::blocking`].

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use xtfs_protocol::directory::ServiceInfo;
use xtfs_protocol::env::Env;
use xtfs_protocol::ids::{Ino, ServiceId, SessionId};
use xtfs_protocol::meta::{Caller, LeaseKind, MetaOp, MetaReply, Placement, Push, Space};
use xtfs_protocol::time::Time;
use xtfs_protocol::transport::{Connector, Origin, Peer, Pusher, Service};
use xtfs_protocol::{Answer, Call, CallHeader, Code, Error, Reply, Request, Result};

use crate::admin::Opening;
use crate::catalog::Catalog;
use crate::directory::Directory;
use crate::error::lost_work;
use crate::lease::{Asker, Waiting};
use crate::placement;
use crate::step;
use crate::volume::{Change, ContextParts, NO_PLACEMENT, Times, Volume, memtable_bytes};
use crate::workers::Workers;

/// Most recalls that wait to be sent; what does not fit is not sent, and the leases run out.
const RECALLS_MAX: usize = 4096;

/// Most bytes of the directory's memtable.
const DIRECTORY_MEMTABLE_BYTES_MAX: usize = 1 << 20;
/// Most bytes of memory for the directory: memtables in bursts, and 1 MiB for what is read.
const DIRECTORY_MEMORY_BYTES_MAX: usize = 5 << 20;

/// What an [`Mrc`] needs to know.
#[derive(Clone)]
pub struct MrcOptions {
    /// The folder that holds everything; made on first use.
    pub dir: PathBuf,
    /// Identity of this MRC; the folder belongs to it from the first start on.
    pub id: ServiceId,
    /// Options of every volume's database; that of the directory takes less. The defaults take 64
    /// MiB for each volume: 8 MiB of memtable, four times that in bursts, and the rest for what is
    /// read. A memtable is never larger, and smaller on a small disk, so that its flush fits into
    /// what is kept free; doubling `memory_bytes` leaves three times as much for what is read when
    /// memtables are full.
    pub kv: babu_kv::Options,
    /// Clock, randomness and the place for blocking work.
    pub env: Env,
    /// Addresses, `HOST:PORT`, under which this MRC lists itself.
    pub addresses: Vec<String>,
    /// How long a session lives without a call. Doubling it doubles how long the files and
    /// leases of a client that died are held.
    pub session_duration: Duration,
    /// How long a lease lasts. Doubling it halves revalidation, and doubles how long another
    /// client may see the past.
    pub lease_duration: Duration,
    /// How long a capability lasts. Doubling it halves renewals by clients that keep files open.
    pub capability_duration: Duration,
    /// Time between the heartbeats of a service; after three it is silent.
    pub heartbeat_interval: Duration,
}

impl MrcOptions {
    /// The defaults for a folder and an identity.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>, id: ServiceId, env: Env) -> Self {
        Self {
            dir: dir.into(),
            id,
            kv: babu_kv::Options {
                memtable_bytes: 8 << 20,
                memory_bytes: 64 << 20,
                ..babu_kv::Options::default()
            },
            env,
            addresses: Vec::new(),
            session_duration: Duration::from_secs(60),
            lease_duration: Duration::from_secs(1),
            capability_duration: Duration::from_secs(600),
            heartbeat_interval: Duration::from_secs(2),
        }
    }
}

/// A recall, or another message, on its way to a client.
pub(crate) struct Recall {
    pub pusher: Arc<dyn Pusher>,
    pub push: Push,
}

/// What calls and workers share.
pub(crate) struct Shared {
    pub env: Env,
    pub directory: Directory,
    pub catalog: Catalog,
    pub capability_duration: Duration,
    pub session_duration: Duration,
    /// Counts placements, so that files spread.
    rotation: AtomicU64,
    /// The deletion queue of some volume grew.
    pub deletions: Notify,
    /// Sessions or orphans changed.
    pub sessions: Notify,
    recalls: mpsc::Sender<Recall>,
    ended: AtomicBool,
}

/// A metadata and replica catalog at work.
pub struct Mrc {
    shared: Arc<Shared>,
    workers: Mutex<Workers>,
}

impl Mrc {
    /// Opens everything below the folder. May wait for the disk.
    ///
    /// # Errors
    /// When a file cannot be read or is damaged, is of a newer version, is in use by another
    /// process, or belongs to another MRC.
    pub fn open(mut options: MrcOptions) -> Result<Arc<Self>> {
        make_folder(&options.dir, &*options.kv.fs)?;
        if let Ok(space) = options.kv.fs.space(&options.dir) {
            options.kv.memtable_bytes = memtable_bytes(&space, options.kv.memtable_bytes);
        }
        let small = babu_kv::Options {
            memtable_bytes: options.kv.memtable_bytes.min(DIRECTORY_MEMTABLE_BYTES_MAX),
            memory_bytes: options.kv.memory_bytes.min(DIRECTORY_MEMORY_BYTES_MAX),
            ..options.kv.clone()
        };
        let directory = Directory::open(
            &options.dir.join("directory"),
            small,
            options.id,
            options.addresses,
            options.heartbeat_interval,
            &options.env,
        )
        .map_err(|error| error.within("directory of services"))?;
        let times = Times {
            session: options.session_duration,
            lease: options.lease_duration,
        };
        let catalog = Catalog::open(
            &options.dir,
            options.kv,
            times,
            options.env.boot(),
            &directory,
        )?;
        let (recalls, recalled) = mpsc::channel(RECALLS_MAX);
        let shared = Arc::new(Shared {
            rotation: AtomicU64::new(options.env.random_u64()),
            env: options.env,
            directory,
            catalog,
            capability_duration: options.capability_duration,
            session_duration: options.session_duration,
            deletions: Notify::new(),
            sessions: Notify::new(),
            recalls,
            ended: AtomicBool::new(false),
        });
        Ok(Arc::new(Self {
            shared,
            workers: Mutex::new(Workers::idle(recalled)),
        }))
    }

    /// Starts the background work: deletions on the OSDs that `connector` reaches, the end of
    /// sessions, and recalls. To be called once, within a tokio runtime.
    pub fn start(&self, connector: Arc<dyn Connector>) {
        self.workers.lock().start(&self.shared, connector);
    }

    /// Where a service is.
    ///
    /// # Errors
    /// [`Code::NotFound`] when it never registered.
    pub fn resolve(&self, id: ServiceId) -> Result<ServiceInfo> {
        self.shared.directory.resolve(id, self.shared.env.now())
    }

    /// Ends the background work and closes the databases; calls are refused from now on.
    ///
    /// # Errors
    /// When a database could not be closed in order. Nothing that was answered is lost then, it
    /// only may not be on the disk yet.
    pub async fn shutdown(&self) -> Result<()> {
        self.shared.ended.store(true, Ordering::SeqCst);
        let stopping = self.workers.lock().stop();
        stopping.await;
        let shared = self.shared.clone();
        let closing = move || {
            let volumes = shared.catalog.close();
            volumes.and(shared.directory.close())
        };
        let closed = self.shared.env.blocking(closing).await;
        closed.ok_or_else(|| lost_work("closing the databases"))?
    }
}

#[async_trait]
impl Service for Mrc {
    async fn call(&self, origin: Origin, call: Call) -> Answer {
        let Call {
            header, request, ..
        } = call;
        if self.shared.ended.load(Ordering::SeqCst) {
            let error = Error::retryable(Code::ShuttingDown, "MRC", 1000);
            return Answer::new(Err(error));
        }
        let shared = &self.shared;
        let reply = match request {
            Request::Meta { caller, op } => shared
                .meta(&origin, &header, &caller, op)
                .await
                .map(Reply::Meta),
            Request::Directory(op) => shared.directory(&origin, op).await.map(Reply::Directory),
            Request::Object(_) => Err(Error::new(Code::Protocol, "an MRC has no objects")),
        };
        Answer::new(reply)
    }
}

impl Shared {
    async fn directory(
        self: &Arc<Self>,
        origin: &Origin,
        op: xtfs_protocol::directory::DirectoryOp,
    ) -> Result<xtfs_protocol::directory::DirectoryReply> {
        let (reply, durable) = self.directory.answer(&origin.peer, op, self.env.now())?;
        if durable {
            let shared = self.clone();
            self.blocking("registration", move || shared.directory.sync())
                .await?;
        }
        Ok(reply)
    }

    async fn meta(
        self: &Arc<Self>,
        origin: &Origin,
        header: &CallHeader,
        caller: &Caller,
        op: MetaOp,
    ) -> Result<MetaReply> {
        check_caller(&origin.peer, caller)?;
        match op {
            MetaOp::CreateVolume { .. }
            | MetaOp::DeleteVolume { .. }
            | MetaOp::ListVolumes
            | MetaOp::SetQuota { .. }
            | MetaOp::ListQuotas { .. }
            | MetaOp::CheckQuotas { .. }
            | MetaOp::ListFiles { .. } => self.administer(origin, op).await,
            MetaOp::OpenSession {
                volume,
                client,
                resume,
                open_files,
            } => {
                let opening = Opening {
                    client,
                    resume,
                    open_files,
                };
                self.open_session(origin, &volume, opening).await
            }
            op => self.of_session(origin, header, caller, op).await,
        }
    }

    async fn of_session(
        self: &Arc<Self>,
        origin: &Origin,
        header: &CallHeader,
        caller: &Caller,
        op: MetaOp,
    ) -> Result<MetaReply> {
        let session = header.session;
        let volume = self.catalog.of_session(session)?;
        let epoch = volume.touch(session, &origin.peer, origin.pusher.as_ref())?;
        match op {
            MetaOp::RenewSession => Ok(MetaReply::Done),
            MetaOp::CloseSession => {
                volume.end_session(session)?;
                self.catalog.remove_session(session);
                self.sessions.notify_one();
                self.tell_given_locks(&volume);
                Ok(MetaReply::Done)
            }
            MetaOp::ReturnLease { ino } => {
                volume.leases.returned(ino, session);
                Ok(MetaReply::Done)
            }
            MetaOp::SetLock { .. }
            | MetaOp::CancelLock { .. }
            | MetaOp::GetLock { .. }
            | MetaOp::ReclaimLocks { .. } => self.locks(&volume, origin, header, caller, &op),
            MetaOp::Statfs => self.statfs(&volume),
            MetaOp::Sync => {
                self.blocking("sync", move || volume.sync()).await?;
                Ok(MetaReply::Synced {
                    boot: self.env.boot(),
                })
            }
            op => {
                let placement = self.placement(&volume, &op);
                let time = self.env.now();
                let parts = ContextParts {
                    caller,
                    trusted: origin.peer.is_trusted(),
                    time,
                    session,
                    session_epoch: epoch,
                    expires: self.expiry(time),
                    placement: placement.as_ref().unwrap_or(&NO_PLACEMENT),
                };
                self.namespace(&volume, header, &op, &parts).await
            }
        }
    }

    async fn namespace(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        header: &CallHeader,
        op: &MetaOp,
        parts: &ContextParts<'_>,
    ) -> Result<MetaReply> {
        let session = header.session;
        let mut mark = volume.leases.mark();
        let mut reply = if step::is_change(op) {
            let change = Change {
                op,
                session,
                sequence: header.sequence,
                answered: header.answered,
            };
            let outcome = volume.change(&change, parts)?;
            let recalled = self.recall(volume, &outcome.touched, session);
            if outcome.lingers {
                self.sessions.notify_one();
            }
            if outcome.reclaims {
                self.deletions.notify_one();
            }
            if outcome.durable {
                let volume = volume.clone();
                self.blocking("commit", move || volume.sync()).await?;
            }
            if let Some(recalled) = recalled {
                volume.leases.settled(&recalled).await;
            }
            if let MetaOp::Release { ino } = op {
                volume.leases.closed(*ino, session);
            }
            outcome.reply
        } else {
            volume.read(op, parts)?
        };
        // A writer that tells what it wrote is to hear of its own place, not of what came behind it.
        if !matches!(op, MetaOp::Update { .. })
            && let Some(ino) = looks_at(&reply)
            && self.expose(volume, ino, session).await
        {
            mark = volume.leases.mark();
            let entry = volume.read(&MetaOp::Getattr { ino }, parts)?;
            refresh(&mut reply, entry);
        }
        let asker = Asker {
            session,
            alone: volume.is_alone(session),
            file: self.file_lease(volume, &reply, session),
            mark,
        };
        volume.leases.grant_reply(asker, &mut reply);
        self.sign(&mut reply, parts.expires);
        Ok(reply)
    }

    /// Carries out an operation on locks. Who is not trusted locks only what they may read.
    fn locks(
        &self,
        volume: &Volume,
        origin: &Origin,
        header: &CallHeader,
        caller: &Caller,
        op: &MetaOp,
    ) -> Result<MetaReply> {
        if let MetaOp::SetLock { target, .. } | MetaOp::GetLock { target, .. } = op
            && !origin.peer.is_trusted()
        {
            let ino = target.ino;
            let time = self.env.now();
            let parts = ContextParts::without_changes(caller, header.session, time);
            volume.read(&MetaOp::Access { ino, mask: 4 }, &parts)?;
        }
        let change = Change {
            op,
            session: header.session,
            sequence: header.sequence,
            answered: header.answered,
        };
        let answer = volume.change_locks(&change);
        self.tell_given_locks(volume);
        answer
    }

    /// Tells clients that they have the locks that they waited for, without waiting. A client that
    /// is not told asks after a while.
    pub(crate) fn tell_given_locks(&self, volume: &Volume) {
        for (pusher, wait) in volume.take_given_locks() {
            let push = Push::LockHeld {
                volume: volume.id(),
                wait,
            };
            let _ = self.recalls.try_send(Recall { pusher, push });
        }
    }

    /// Gives the capability of a reply its code and, when the reply is an old one, its time.
    fn sign(&self, reply: &mut MetaReply, expires: Time) {
        if let MetaReply::Opened(opened) | MetaReply::Truncated(opened) = reply {
            opened.capability.expires = expires;
            opened.capability = self.directory.keys.sign(opened.capability.clone());
        }
    }

    /// Before a session looks at a file, whoever writes it sends everything. True when somebody had
    /// to.
    async fn expose(&self, volume: &Volume, ino: Ino, session: SessionId) -> bool {
        let openers = volume.openers(ino, session);
        let writers = openers.iter().filter(|(_, writes)| *writes);
        let mut waiting = Waiting::default();
        let told = volume
            .leases
            .expose(ino, writers.map(|(id, _)| *id), &mut waiting);
        self.push_recalls(volume, ino, told);
        if waiting == Waiting::default() {
            return false;
        }
        volume.leases.settled(&waiting).await;
        true
    }

    /// May a session that opened a file send later what it writes?
    fn file_lease(&self, volume: &Volume, reply: &MetaReply, session: SessionId) -> LeaseKind {
        let (MetaReply::Opened(opened) | MetaReply::Truncated(opened)) = reply else {
            return LeaseKind::Read;
        };
        let ino = opened.entry.attr.ino;
        if volume.openers(ino, session).is_empty() {
            return LeaseKind::Write;
        }
        volume.leases.writes_through(ino, session);
        LeaseKind::Read
    }

    fn push_recalls(&self, volume: &Volume, ino: Ino, sessions: Vec<SessionId>) {
        for session in sessions {
            if let Some(pusher) = volume.pusher(session) {
                let push = Push::Recall {
                    volume: volume.id(),
                    ino,
                };
                // A full queue drops it: the lease ends with its time.
                let _ = self.recalls.try_send(Recall { pusher, push });
            }
        }
    }

    /// Tells the other sessions that rely on changed inodes. Returns what the change has to wait
    /// for, if there may be anything.
    fn recall(&self, volume: &Volume, touched: &[Ino], by: SessionId) -> Option<Waiting> {
        if touched.is_empty() || volume.is_alone(by) {
            return None;
        }
        let mut waiting = Waiting::default();
        for ino in touched {
            let open = volume.openers(*ino, by);
            let told = volume.leases.recall(*ino, by, open, &mut waiting);
            self.push_recalls(volume, *ino, told);
        }
        Some(waiting)
    }

    /// Where the file that an operation may make would go.
    fn placement(&self, volume: &Volume, op: &MetaOp) -> Option<Result<Placement>> {
        if !matches!(op, MetaOp::Create { .. } | MetaOp::Mknod { .. }) {
            return None;
        }
        let online = self.directory.online_osds();
        let rotation = self.rotation.fetch_add(1, Ordering::Relaxed);
        Some(placement::choose(&online, &volume.record.layout, rotation))
    }

    fn statfs(&self, volume: &Volume) -> Result<MetaReply> {
        let (total_bytes, free_bytes) = self.directory.space();
        let info = volume.info()?;
        // A volume with a quota looks like a disk of that size.
        let limits = volume.own_limits();
        let most = limits.bytes_hard.unwrap_or(u64::MAX);
        Ok(MetaReply::Statfs(Space {
            total_bytes: total_bytes.min(most),
            free_bytes: free_bytes.min(most.saturating_sub(info.used_bytes)),
            used_inodes: info.used_inodes,
            inodes_max: limits.inodes_hard,
        }))
    }

    fn expiry(&self, now: Time) -> Time {
        let duration = self.capability_duration;
        let nanos = now.nanos.saturating_add(duration.subsec_nanos());
        let secs = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
        Time {
            secs: now
                .secs
                .saturating_add(secs)
                .saturating_add(i64::from(nanos / 1_000_000_000)),
            nanos: nanos % 1_000_000_000,
        }
    }

    /// Runs work that may wait for a disk where such work belongs.
    pub async fn blocking<T: Send + 'static>(
        &self,
        what: &str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let done = self.env.blocking(work).await;
        done.ok_or_else(|| lost_work(what))?
    }
}

/// The inode of which a reply says what it is like.
fn looks_at(reply: &MetaReply) -> Option<Ino> {
    match reply {
        MetaReply::Entry(entry) => Some(entry.attr.ino),
        MetaReply::Opened(opened) | MetaReply::Truncated(opened) => Some(opened.entry.attr.ino),
        _ => None,
    }
}

/// Puts newer attributes into a reply.
fn refresh(reply: &mut MetaReply, newer: MetaReply) {
    let MetaReply::Entry(newer) = newer else {
        return;
    };
    match reply {
        MetaReply::Entry(entry) => *entry = newer,
        MetaReply::Opened(opened) | MetaReply::Truncated(opened) => opened.entry = newer,
        _ => {}
    }
}

/// Makes the folder with its parts, durably: what lies in it is durable only if it is.
fn make_folder(dir: &Path, fs: &dyn babu_kv::fs::Fs) -> Result<()> {
    let failed = |error: std::io::Error| crate::error::file(dir, &error);
    fs.create_dir_all(&dir.join("volumes")).map_err(failed)?;
    fs.sync_dir(dir).map_err(failed)?;
    match dir.parent() {
        Some(parent) if parent != Path::new("") => fs.sync_dir(parent).map_err(failed),
        _ => Ok(()),
    }
}

/// A host acts for any of its users, a user only as themself.
fn check_caller(peer: &Peer, caller: &Caller) -> Result<()> {
    if caller.groups.len() > Caller::GROUPS_MAX {
        return Err(Error::new(Code::Invalid, "caller with too many groups"));
    }
    if let Peer::User { uid, gids } = peer {
        let known = |gid: &u32| gids.contains(gid);
        if caller.uid != *uid || !known(&caller.gid) || !caller.groups.iter().all(known) {
            let context = format!("user {uid} acts as {}:{}", caller.uid, caller.gid);
            return Err(Error::new(Code::NotPermitted, context));
        }
    }
    Ok(())
}
