//! An MRC and OSDs in memory, as simple as the client can bear, behind the local connector.

#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use xtfs_client::{ClientOptions, Vfs};
use xtfs_layout::Layout;
use xtfs_protocol::capability::Capability;
use xtfs_protocol::env::Env;
use xtfs_protocol::ids::{FileId, Ino, ROOT_INO, ServiceId, SessionId, VolumeId};
use xtfs_protocol::meta::*;
use xtfs_protocol::object::{DataRange, ObjectOp, ObjectReply};
use xtfs_protocol::time::Time;
use xtfs_protocol::transport::local::LocalConnector;
use xtfs_protocol::transport::{Origin, Peer, Service};
use xtfs_protocol::{Answer, Call, CallHeader, Code, Error, Reply, Request, Result};

pub const OBJECT_SIZE: u32 = 4096;

#[derive(Clone)]
struct Node {
    attr: Attr,
    data: u64,
    epoch: u64,
    cut: Option<PendingCut>,
    fenced: u64,
    entries: BTreeMap<Name, Ino>,
    parent: Ino,
}

#[derive(Default)]
pub struct MrcState {
    last: u64,
    nodes: BTreeMap<Ino, Node>,
    pub open: BTreeSet<Ino>,
    pub calls: Vec<MetaOp>,
    pub headers: Vec<CallHeader>,
    answers: BTreeMap<(SessionId, u64), Result<MetaReply>>,
    sessions: BTreeMap<SessionId, u64>,
    last_session: u64,
    /// The start of the machine.
    pub boot: u64,
    /// When capabilities given out now expire.
    pub expires: i64,
}

pub struct FakeMrc {
    pub state: Mutex<MrcState>,
    osds: Vec<ServiceId>,
    env: Env,
    lease_ms: u32,
}

fn service(number: u8) -> ServiceId {
    ServiceId::from_random([number; 16])
}

impl FakeMrc {
    fn new(osds: usize, env: Env) -> Self {
        let mut state = MrcState {
            last: ROOT_INO,
            ..MrcState::default()
        };
        let root = node(ROOT_INO, FileKind::Directory, 0o755, env.now(), ROOT_INO);
        state.nodes.insert(ROOT_INO, root);
        Self {
            state: Mutex::new(state),
            osds: (0..osds).map(|n| service(10 + n as u8)).collect(),
            env,
            lease_ms: 1000,
        }
    }

    /// How often an operation of this kind was asked for.
    pub fn count(&self, kind: impl Fn(&MetaOp) -> bool) -> usize {
        self.state.lock().calls.iter().filter(|op| kind(op)).count()
    }

    /// Ends the session, as a silence would.
    pub fn expire(&self) {
        self.state.lock().sessions.clear();
    }

    /// The machine loses power: it forgets the size of a file, or all of the file.
    pub fn lose_power(&self, ino: Ino, all: bool) {
        let mut state = self.state.lock();
        state.boot += 1;
        if all {
            state.nodes.remove(&ino);
        } else if let Some(node) = state.nodes.get_mut(&ino) {
            node.attr.size = 0;
            node.attr.data_version = 1;
        }
    }

    /// Another session takes back what was not told of a file.
    pub fn fence(&self, ino: Ino) {
        let mut state = self.state.lock();
        if let Some(node) = state.nodes.get_mut(&ino) {
            node.epoch += 1;
            node.fenced = node.epoch;
            node.attr.data_version += 1;
        }
    }

    pub fn size(&self, ino: Ino) -> u64 {
        self.state.lock().nodes[&ino].attr.size
    }

    fn entry(&self, node: &Node) -> Entry {
        Entry {
            attr: node.attr,
            lease: Lease {
                kind: LeaseKind::Alone,
                duration_ms: self.lease_ms,
            },
        }
    }

    fn opened(
        &self,
        state: &MrcState,
        session: SessionId,
        ino: Ino,
        mode: OpenMode,
    ) -> Result<Opened> {
        let node = state.nodes.get(&ino).ok_or(Code::Stale)?;
        let layout = Layout {
            object_size: OBJECT_SIZE,
            ..Layout::striped(self.osds.len() as u8)
        };
        Ok(Opened {
            entry: self.entry(node),
            placement: Placement {
                layout,
                view: 1,
                osds: self.osds.clone(),
            },
            capability: Capability {
                file: FileId {
                    volume: VolumeId::default(),
                    data: node.data,
                },
                read: mode.read,
                write: mode.write,
                session,
                session_epoch: state.sessions.get(&session).copied().unwrap_or(0),
                view: 1,
                truncate_epoch: node.epoch,
                expires: Time {
                    secs: state.expires,
                    nanos: 0,
                },
                key_id: 0,
                mac: [0; 32],
            },
            pending_cut: node.cut,
            fenced: node.fenced,
        })
    }

    fn add(
        &self,
        state: &mut MrcState,
        parent: Ino,
        name: &Name,
        kind: FileKind,
        mode: u16,
    ) -> Result<Ino> {
        let now = self.env.now();
        let ino = state.last + 1;
        let directory = state.nodes.get_mut(&parent).ok_or(Code::NotFound)?;
        if directory.entries.contains_key(name) {
            return Err(Code::Exists.into());
        }
        directory.entries.insert(name.clone(), ino);
        state.last = ino;
        state.nodes.insert(ino, node(ino, kind, mode, now, parent));
        Ok(ino)
    }

    fn truncate(&self, state: &mut MrcState, ino: Ino, size: u64) -> Result<()> {
        state.last += 1;
        let fresh = state.last;
        let node = state.nodes.get_mut(&ino).ok_or(Code::Stale)?;
        let old = node.attr.size;
        if size == 0 {
            node.data = fresh;
            node.epoch += 1;
            node.cut = None;
        } else if size < old {
            node.epoch += 1;
            node.cut = Some(PendingCut {
                epoch: node.epoch,
                size: node.cut.map_or(size, |cut| cut.size.min(size)),
                told: true,
            });
        }
        node.attr.size = size;
        node.attr.data_version += 1;
        node.attr.mtime = self.env.now();
        Ok(())
    }

    fn unlink(state: &mut MrcState, parent: Ino, name: &Name) -> Result<()> {
        let directory = state.nodes.get_mut(&parent).ok_or(Code::NotFound)?;
        let ino = directory.entries.remove(name).ok_or(Code::NotFound)?;
        if !state.open.contains(&ino) {
            state.nodes.remove(&ino);
        } else if let Some(node) = state.nodes.get_mut(&ino) {
            node.attr.nlink = 0;
        }
        Ok(())
    }

    fn step(&self, state: &mut MrcState, session: SessionId, op: &MetaOp) -> Result<MetaReply> {
        let found = |state: &MrcState, ino: Ino| -> Result<MetaReply> {
            let node = state.nodes.get(&ino).ok_or(Code::Stale)?;
            Ok(MetaReply::Entry(self.entry(node)))
        };
        match op {
            MetaOp::OpenSession { .. } => {
                state.last_session += 1;
                let epoch = state.last_session;
                let id = SessionId::from_random([epoch as u8; 16]);
                state.sessions.insert(id, epoch);
                Ok(MetaReply::Session(SessionInfo {
                    id,
                    epoch,
                    boot: state.boot,
                    duration_ms: 60_000,
                    volume: VolumeInfo {
                        id: VolumeId::default(),
                        name: "volume".into(),
                        layout: Layout::striped(1),
                        used_bytes: 0,
                        used_inodes: 0,
                    },
                }))
            }
            MetaOp::Lookup { parent, name } => {
                let directory = state.nodes.get(parent).ok_or(Code::NotFound)?;
                let ino = *directory.entries.get(name).ok_or(Code::NotFound)?;
                found(state, ino)
            }
            MetaOp::Getattr { ino } => found(state, *ino),
            MetaOp::Mkdir { parent, name, mode } => {
                let ino = self.add(state, *parent, name, FileKind::Directory, *mode)?;
                found(state, ino)
            }
            MetaOp::Setattr { ino, set, .. } => {
                if let Some(size) = set.size {
                    self.truncate(state, *ino, size)?;
                    let mode = OpenMode {
                        read: true,
                        write: true,
                        truncate: false,
                    };
                    return Ok(MetaReply::Truncated(Box::new(
                        self.opened(state, session, *ino, mode)?,
                    )));
                }
                let node = state.nodes.get_mut(ino).ok_or(Code::Stale)?;
                node.attr.mode = set.mode.unwrap_or(node.attr.mode);
                if let Some(SetTime::At(time)) = set.mtime {
                    node.attr.mtime = time;
                }
                found(state, *ino)
            }
            MetaOp::TruncateDone { ino, epoch } => {
                let node = state.nodes.get_mut(ino).ok_or(Code::Stale)?;
                if node.cut.is_some_and(|cut| cut.epoch <= *epoch) {
                    node.cut = None;
                }
                Ok(MetaReply::Done)
            }
            MetaOp::Create {
                parent,
                name,
                mode,
                exclusive,
                open,
            } => {
                let known = state
                    .nodes
                    .get(parent)
                    .and_then(|node| node.entries.get(name).copied());
                let ino = match known {
                    Some(_) if *exclusive => return Err(Code::Exists.into()),
                    Some(ino) => ino,
                    None => self.add(state, *parent, name, FileKind::File, *mode)?,
                };
                self.step(state, session, &MetaOp::Open { ino, open: *open })
            }
            MetaOp::Open { ino, open } => {
                if open.truncate {
                    self.truncate(state, *ino, 0)?;
                }
                state.open.insert(*ino);
                Ok(MetaReply::Opened(Box::new(
                    self.opened(state, session, *ino, *open)?,
                )))
            }
            MetaOp::Release { ino } => {
                state.open.remove(ino);
                if state
                    .nodes
                    .get(ino)
                    .is_some_and(|node| node.attr.nlink == 0)
                {
                    state.nodes.remove(ino);
                }
                Ok(MetaReply::Done)
            }
            MetaOp::Update { ino, update } => {
                let node = state.nodes.get_mut(ino).ok_or(Code::Stale)?;
                let wrote = update.written_at.is_some() || update.size_at_least > 0;
                if wrote && update.truncate_epoch < node.fenced {
                    return Err(Code::Io.into());
                }
                let grows = update.size_at_least > node.attr.size;
                if update.truncate_epoch == node.epoch && grows {
                    node.attr.size = update.size_at_least;
                }
                if let Some(at) = update.written_at {
                    node.attr.mtime = at;
                }
                if update.written_at.is_some() || grows {
                    node.attr.data_version += 1;
                }
                found(state, *ino)
            }
            MetaOp::Unlink { parent, name } => {
                Self::unlink(state, *parent, name).map(|()| MetaReply::Done)
            }
            MetaOp::Readdir {
                ino,
                after,
                limit,
                with_attr,
            } => {
                let directory = state.nodes.get(ino).ok_or(Code::Stale)?;
                let behind = directory.entries.iter().filter(|(name, _)| *name > after);
                let entries: Vec<DirEntry> = behind
                    .take(*limit as usize)
                    .map(|(name, ino)| DirEntry {
                        name: name.clone(),
                        ino: *ino,
                        kind: state.nodes[ino].attr.kind,
                        attr: with_attr.then(|| state.nodes[ino].attr),
                    })
                    .collect();
                Ok(MetaReply::Page {
                    end: entries.len() < *limit as usize,
                    entries,
                    parent: directory.parent,
                })
            }
            MetaOp::ReclaimLocks { .. } => Ok(MetaReply::LostLocks(Vec::new())),
            MetaOp::Sync => Ok(MetaReply::Synced { boot: state.boot }),
            MetaOp::RenewSession | MetaOp::CloseSession | MetaOp::ReturnLease { .. } => {
                Ok(MetaReply::Done)
            }
            _ => Err(Code::Unsupported.into()),
        }
    }
}

fn node(ino: Ino, kind: FileKind, mode: u16, now: Time, parent: Ino) -> Node {
    Node {
        attr: Attr {
            ino,
            kind,
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            allocated: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            data_version: 1,
            has_acl: false,
        },
        data: ino,
        epoch: 1,
        cut: None,
        fenced: 0,
        entries: BTreeMap::new(),
        parent,
    }
}

#[async_trait]
impl Service for FakeMrc {
    async fn call(&self, _origin: Origin, call: Call) -> Answer {
        let Request::Meta { op, .. } = call.request else {
            return Answer::new(Err(Code::Protocol.into()));
        };
        let mut state = self.state.lock();
        let opens = matches!(op, MetaOp::OpenSession { .. });
        let session = call.header.session;
        if !opens && !state.sessions.contains_key(&session) {
            return Answer::new(Err(Error::reopen(Code::SessionExpired, "")));
        }
        let sequence = call.header.sequence;
        let kept = state
            .answers
            .get(&(session, sequence))
            .filter(|_| sequence != 0)
            .cloned();
        state.headers.push(call.header);
        let reply = match kept {
            Some(reply) => reply,
            None => {
                state.calls.push(op.clone());
                let reply = self.step(&mut state, session, &op);
                if sequence != 0 {
                    state.answers.insert((session, sequence), reply.clone());
                }
                reply
            }
        };
        Answer::new(reply.map(Reply::Meta))
    }
}

/// A kind of calls.
pub type Kind = fn(&ObjectOp) -> bool;

/// Holds the objects that were written to it.
#[derive(Default)]
pub struct FakeOsd {
    pub state: Mutex<OsdState>,
}

#[derive(Default)]
pub struct OsdState {
    objects: BTreeMap<(FileId, u64), Vec<u8>>,
    epochs: BTreeMap<FileId, u64>,
    /// Every write gets this answer.
    pub write_error: Option<Error>,
    pub writes: usize,
    pub flushes: usize,
    pub reads: Vec<(u64, u32, u32)>,
    /// Session epoch below which capabilities are refused.
    pub session_epoch_min: u64,
    /// The start of the machine.
    pub boot: u64,
    /// Capabilities that expire before this second are refused.
    pub expires_min: i64,
    /// Calls of this kind wait for the semaphore.
    pub held: Option<(Kind, Arc<Semaphore>)>,
    /// Good answers to calls of this kind wait for the semaphore.
    pub answers_held: Option<(Kind, Arc<Semaphore>)>,
    /// Calls that wait for it or did.
    pub waited: usize,
    /// Who called.
    pub clients: BTreeSet<SessionId>,
}

fn written(state: &OsdState, allocated_delta: i64) -> ObjectReply {
    ObjectReply::Written {
        allocated_delta,
        boot: state.boot,
    }
}

#[async_trait]
impl Service for FakeOsd {
    async fn call(&self, _origin: Origin, call: Call) -> Answer {
        let Request::Object(op) = call.request else {
            return Answer::new(Err(Code::Protocol.into()));
        };
        self.state.lock().clients.insert(call.header.session);
        let held = self.state.lock().held.clone();
        if let Some((kind, gate)) = held
            && kind(&op)
        {
            self.state.lock().waited += 1;
            drop(gate.acquire().await);
        }
        let held = self.state.lock().answers_held.clone();
        let held = held.filter(|(kind, _)| kind(&op));
        let done = self.step(op, call.payload);
        if done.is_ok()
            && let Some((_, gate)) = held
        {
            drop(gate.acquire().await);
        }
        match done {
            Ok((reply, payload)) => Answer {
                reply: Ok(Reply::Object(reply)),
                payload,
            },
            Err(error) => Answer::new(Err(error)),
        }
    }
}

impl FakeOsd {
    fn check(state: &OsdState, capability: &Capability, write: bool) -> Result<()> {
        let stale = state
            .epochs
            .get(&capability.file)
            .is_some_and(|epoch| write && *epoch > capability.truncate_epoch);
        let right = if write {
            capability.write
        } else {
            capability.read
        };
        let expired = capability.expires.secs < state.expires_min;
        if stale || !right || expired || capability.session_epoch < state.session_epoch_min {
            return Err(Error::reopen(Code::BadCapability, "old"));
        }
        Ok(())
    }

    fn step(&self, op: ObjectOp, payload: Bytes) -> Result<(ObjectReply, Bytes)> {
        let mut state = self.state.lock();
        match op {
            ObjectOp::Write {
                capability,
                object,
                offset,
                ..
            } => {
                Self::check(&state, &capability, true)?;
                if let Some(error) = &state.write_error {
                    return Err(error.clone());
                }
                assert!(offset as usize + payload.len() <= OBJECT_SIZE as usize);
                state.writes += 1;
                let bytes = state
                    .objects
                    .entry((object.file, object.object))
                    .or_default();
                let end = offset as usize + payload.len();
                let before = bytes.len();
                bytes.resize(before.max(end), 0);
                bytes[offset as usize..end].copy_from_slice(&payload);
                let allocated_delta = (bytes.len() - before) as i64;
                Ok((written(&state, allocated_delta), Bytes::new()))
            }
            ObjectOp::Read {
                capability,
                object,
                offset,
                length,
            } => {
                Self::check(&state, &capability, false)?;
                state.reads.push((object.object, offset, length));
                let none = Vec::new();
                let bytes = state
                    .objects
                    .get(&(object.file, object.object))
                    .unwrap_or(&none);
                let end = bytes.len().min((offset + length) as usize);
                let data = bytes.get(offset as usize..end).unwrap_or(&[]);
                let ranges = (!data.is_empty()).then_some(DataRange {
                    offset,
                    length: data.len() as u32,
                });
                let reply = ObjectReply::Data {
                    ranges: ranges.into_iter().collect(),
                };
                Ok((reply, Bytes::copy_from_slice(data)))
            }
            ObjectOp::PunchHole {
                capability,
                object,
                offset,
                length,
            } => {
                Self::check(&state, &capability, true)?;
                if let Some(bytes) = state.objects.get_mut(&(object.file, object.object)) {
                    let end = bytes.len().min((offset + length) as usize);
                    if let Some(hole) = bytes.get_mut(offset as usize..end) {
                        hole.fill(0);
                    }
                }
                Ok((written(&state, 0), Bytes::new()))
            }
            ObjectOp::Truncate {
                capability,
                file,
                epoch,
                remove_from,
                shorten,
            } => {
                Self::check(&state, &capability, true)?;
                if state.epochs.get(&file).is_none_or(|known| *known < epoch) {
                    state.epochs.insert(file, epoch);
                    state
                        .objects
                        .retain(|(other, object), _| *other != file || *object < remove_from);
                    if let Some((object, bytes)) = shorten
                        && let Some(stored) = state.objects.get_mut(&(file, object))
                    {
                        stored.truncate(bytes as usize);
                    }
                }
                Ok((written(&state, 0), Bytes::new()))
            }
            ObjectOp::Flush { .. } => {
                state.flushes += 1;
                let boot = state.boot;
                Ok((ObjectReply::Flushed { boot }, Bytes::new()))
            }
            _ => Err(Code::Unsupported.into()),
        }
    }
}

/// A cell of fakes.
pub struct Cell {
    pub mrc: Arc<FakeMrc>,
    pub osds: Vec<Arc<FakeOsd>>,
    pub env: Env,
}

impl Cell {
    pub fn new(osds: usize) -> Self {
        let env = Env::simulated(7);
        Self {
            mrc: Arc::new(FakeMrc::new(osds, env.clone())),
            osds: (0..osds).map(|_| Arc::default()).collect(),
            env,
        }
    }

    pub fn connector(&self) -> Arc<LocalConnector> {
        let connector = LocalConnector::new(Peer::Host("test".into()));
        connector.set_mrc(self.mrc.clone());
        for (number, osd) in self.osds.iter().enumerate() {
            connector.add_osd(service(10 + number as u8), osd.clone());
        }
        Arc::new(connector)
    }

    pub fn options(&self) -> ClientOptions {
        ClientOptions {
            env: self.env.clone(),
            volume: "volume".into(),
            ..ClientOptions::default()
        }
    }

    pub async fn client(&self) -> Vfs {
        Vfs::open(self.connector(), self.options()).await.unwrap()
    }

    pub fn writes(&self) -> usize {
        self.osds.iter().map(|osd| osd.state.lock().writes).sum()
    }

    /// Another session takes back what was not told of a file, and cuts all of it.
    pub fn take_back(&self, ino: Ino) {
        self.mrc.fence(ino);
        let (data, epoch) = {
            let node = &self.mrc.state.lock().nodes[&ino];
            (node.data, node.epoch)
        };
        let file = FileId {
            volume: VolumeId::default(),
            data,
        };
        for osd in &self.osds {
            let mut state = osd.state.lock();
            state.objects.retain(|(of, _), _| *of != file);
            state.epochs.insert(file, epoch);
        }
    }

    pub fn set_write_error(&self, error: Option<Error>) {
        for osd in &self.osds {
            osd.state.lock().write_error = error.clone();
        }
    }
}
