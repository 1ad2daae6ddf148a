//! Answers calls: who may, with which bounds, and where the work runs.
//!
//! Reads and small writes run on the task that received them; what hashes many bytes or waits for
//! an fsync goes to a thread that may block, once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::bytes::Bytes;
use async_trait::async_trait;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use xtfs_layout::Layout;
use xtfs_protocol::capability::Capability;
use xtfs_protocol::env::Env;
use xtfs_protocol::ids::{FileId, ServiceId};
use xtfs_protocol::object::{ObjectOp, ObjectReply, OsdSpace, Stability};
use xtfs_protocol::transport::{Connector, Origin, Peer, Service};
use xtfs_protocol::{Answer, Call, Code, Error, KeyRing, Reply, Request, Result};

use crate::error::{self, StoreError};
use crate::heartbeat::Heartbeat;
use crate::options::OsdOptions;
use crate::store::{Store, Turn};
use crate::worker;

/// Calls that are worked on at the same time.
const CALLS_MAX: u32 = 256;

/// Writes up to this many bytes run where they arrive.
const INLINE_BYTES_MAX: usize = 32 << 10;

/// Reads up to this many bytes run where they arrive.
const INLINE_READ_BYTES_MAX: u32 = 256 << 10;

/// Pause for clients that come before the first heartbeat brought the keys.
const NO_KEYS_PAUSE_MS: u32 = 200;

/// Longest time that a call may take, whatever it says.
const DEADLINE_MAX: Duration = Duration::from_secs(300);

/// Longest wait at shutdown for calls and for background work.
const SHUTDOWN_MAX: Duration = Duration::from_secs(30);

/// Longest single piece of work that a shutdown waits for: the last checkpoint.
const LAST_CHECKPOINT_MAX: Duration = Duration::from_secs(120);

/// An object storage daemon. It answers calls from [`Osd::open`] on; [`Osd::start`] makes it known
/// to its cell, and [`Osd::shutdown`] ends it cleanly. Dropping it instead is like a crash.
pub struct Osd {
    id: ServiceId,
    env: Env,
    store: Arc<Store>,
    keys: Arc<RwLock<KeyRing>>,
    calls: Arc<Semaphore>,
    closing: AtomicBool,
    stop: watch::Sender<bool>,
    registered: watch::Sender<bool>,
    tasks: Mutex<JoinSet<()>>,
}

impl Osd {
    /// Opens the folder (created when missing) and replays what was not yet in the index. Waits
    /// for the disk.
    ///
    /// # Errors
    /// The folder belongs to another OSD or is in use, or the disk or the index fails. Damaged
    /// segments are no error.
    pub fn open(options: OsdOptions) -> std::result::Result<Arc<Self>, StoreError> {
        let store = Arc::new(Store::open(&options)?);
        Ok(Arc::new(Self {
            id: options.id,
            env: options.env,
            store,
            keys: Arc::default(),
            calls: Arc::new(Semaphore::new(CALLS_MAX as usize)),
            closing: AtomicBool::new(false),
            stop: watch::Sender::new(false),
            registered: watch::Sender::new(false),
            tasks: Mutex::default(),
        }))
    }

    /// Its identity.
    #[must_use]
    pub fn id(&self) -> ServiceId {
        self.id
    }

    /// Starts the heartbeat to the directory, which brings the keys of capabilities, and the work
    /// in the background. `addresses` are told to the cell, `HOST:PORT`, best first. Must be
    /// called within a tokio runtime.
    pub fn start(&self, connector: Arc<dyn Connector>, addresses: Vec<String>) {
        let heartbeat = Heartbeat {
            id: self.id,
            incarnation: self.env.random_u64(),
            addresses,
            connector,
            store: self.store.clone(),
            keys: self.keys.clone(),
            registered: self.registered.clone(),
        };
        let mut tasks = self.tasks.lock();
        tasks.spawn(heartbeat.run(self.stop.subscribe()));
        let work = worker::run(self.store.clone(), self.env.clone(), self.stop.subscribe());
        tasks.spawn(work);
    }

    /// Waits until the directory answered a heartbeat; false when that takes longer than `limit`.
    pub async fn wait_registered(&self, limit: Duration) -> bool {
        let mut registered = self.registered.subscribe();
        let known = registered.wait_for(|known| *known);
        matches!(tokio::time::timeout(limit, known).await, Ok(Ok(_)))
    }

    /// Sets the keys with which capabilities are verified. Heartbeats do the same.
    pub fn set_keys(&self, keys: KeyRing) {
        *self.keys.write() = keys;
    }

    /// Room and counts.
    ///
    /// # Errors
    /// The disk does not answer.
    pub fn space(&self) -> Result<OsdSpace> {
        Ok(self.store.space()?)
    }

    /// Ends background work, waits for calls in progress, and brings the index up to date. Takes
    /// at most a few minutes; everything acknowledged is kept however it ends.
    pub async fn shutdown(&self) {
        self.closing.store(true, Ordering::Release);
        self.stop.send_replace(true);
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        let ended = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(SHUTDOWN_MAX, ended).await.is_err() {
            tracing::warn!("background work did not end in time");
            tasks.shutdown().await;
        }
        let idle = self.calls.acquire_many(CALLS_MAX);
        if tokio::time::timeout(SHUTDOWN_MAX, idle).await.is_err() {
            tracing::warn!("calls did not end in time");
        }
        let store = self.store.clone();
        let last = self.env.blocking(move || store.checkpoint());
        match tokio::time::timeout(LAST_CHECKPOINT_MAX, last).await {
            Ok(Some(Ok(()))) => {}
            Ok(Some(Err(error))) => tracing::warn!(%error, "the last checkpoint failed"),
            Ok(None) | Err(_) => tracing::warn!("the last checkpoint did not end"),
        }
    }

    async fn answer(&self, origin: &Origin, call: Call) -> Result<(ObjectReply, Bytes)> {
        if self.closing.load(Ordering::Acquire) {
            return Err(Error::retryable(Code::ShuttingDown, self.name(), 500));
        }
        let Request::Object(op) = call.request else {
            return Err(Error::new(
                Code::Protocol,
                "an OSD answers object calls only",
            ));
        };
        let permit = self.calls.clone().acquire_owned().await;
        let permit = permit.map_err(|_| Error::from(Code::ShuttingDown))?;
        let turn = Turn {
            session: call.header.session,
            number: call.header.sequence,
        };
        self.object_call(&origin.peer, op, turn, call.payload, permit)
            .await
    }

    async fn object_call(
        &self,
        peer: &Peer,
        op: ObjectOp,
        turn: Turn,
        payload: Bytes,
        permit: OwnedSemaphorePermit,
    ) -> Result<(ObjectReply, Bytes)> {
        self.admit(peer, &op)?;
        let store = self.store.clone();
        let boot = self.env.boot();
        let written = |allocated_delta| ObjectReply::Written {
            allocated_delta,
            boot,
        };
        let reply = match op {
            ObjectOp::Read {
                object,
                offset,
                length,
                ..
            } => {
                if length > Layout::OBJECT_SIZE_MAX {
                    return Err(Error::new(Code::Invalid, "longer than the largest object"));
                }
                let small = length <= INLINE_READ_BYTES_MAX;
                let work = move || store.read(object, offset, length);
                let (ranges, bytes) = self.run(permit, small, work).await?;
                return Ok((ObjectReply::Data { ranges }, bytes));
            }
            ObjectOp::Write {
                capability,
                object,
                offset,
                stability,
            } => {
                let durable = stability == Stability::Durable;
                let small = payload.len() <= INLINE_BYTES_MAX && !durable;
                let epoch = capability.truncate_epoch;
                let work = move || store.write(turn, object, epoch, offset, &payload, durable);
                written(self.run(permit, small, work).await?)
            }
            ObjectOp::PunchHole {
                capability,
                object,
                offset,
                length,
            } => {
                let epoch = capability.truncate_epoch;
                let work = move || store.punch(turn, object, epoch, offset, length);
                written(self.run(permit, true, work).await?)
            }
            ObjectOp::Truncate {
                file,
                epoch,
                remove_from,
                shorten,
                ..
            } => {
                let work = move || store.truncate(file, epoch, remove_from, shorten);
                written(self.run(permit, false, work).await?)
            }
            ObjectOp::Flush { file, .. } => {
                let clean = !store.is_dirty(file);
                self.run(permit, clean, move || store.flush(file)).await?;
                ObjectReply::Flushed { boot }
            }
            ObjectOp::Delete { file } => {
                let now = self.env.now().secs;
                // Of a large file it visits every object.
                self.run(permit, false, move || store.delete(file, now))
                    .await?;
                ObjectReply::Done
            }
            ObjectOp::Statfs => ObjectReply::Statfs(store.space()?),
            ObjectOp::List { after, limit } => {
                let work = move || store.list(after, limit);
                let (objects, end) = self.run(permit, false, work).await?;
                ObjectReply::Objects { objects, end }
            }
            ObjectOp::Verify { after, limit } => {
                let work = move || store.verify(after, limit);
                let verified = self.run(permit, false, work).await?;
                ObjectReply::Verified {
                    last: verified.last,
                    objects: verified.objects,
                    bytes: verified.bytes,
                    damaged: verified.damaged,
                    end: verified.end,
                }
            }
            ObjectOp::ListVolumes => {
                ObjectReply::Volumes(self.run(permit, false, move || store.volumes()).await?)
            }
        };
        Ok((reply, Bytes::new()))
    }

    /// Runs work: here if that is wanted and it will not wait for the disk, else on a thread that
    /// may block. The permit lasts as long as the work, also when its caller gave up, so that a
    /// disk that hangs does not gather threads.
    async fn run<T: Send + 'static>(
        &self,
        permit: OwnedSemaphorePermit,
        here: bool,
        work: impl FnOnce() -> error::Result<T> + Send + 'static,
    ) -> Result<T> {
        if here && self.store.is_calm() {
            return Ok(work()?);
        }
        let held = move || {
            let outcome = work();
            drop(permit);
            outcome
        };
        match self.env.blocking(held).await {
            Some(outcome) => Ok(outcome?),
            None => Err(Error::new(Code::Io, "the work ended without an answer")),
        }
    }

    /// Whether the caller may do this.
    fn admit(&self, peer: &Peer, op: &ObjectOp) -> Result<()> {
        match op {
            ObjectOp::Write {
                capability, object, ..
            }
            | ObjectOp::PunchHole {
                capability, object, ..
            } => self.check(capability, object.file, capability.write),
            ObjectOp::Truncate {
                capability, file, ..
            } => self.check(capability, *file, capability.write),
            ObjectOp::Read {
                capability, object, ..
            } => self.check(capability, object.file, capability.read),
            ObjectOp::Flush { capability, file } => self.check(capability, *file, true),
            ObjectOp::Statfs => Ok(()),
            ObjectOp::Delete { .. }
            | ObjectOp::List { .. }
            | ObjectOp::Verify { .. }
            | ObjectOp::ListVolumes => {
                if peer.is_trusted() {
                    Ok(())
                } else {
                    Err(Error::new(
                        Code::NotPermitted,
                        "only an MRC or an administrator may do this",
                    ))
                }
            }
        }
    }

    fn check(&self, capability: &Capability, file: FileId, right: bool) -> Result<()> {
        let keys = self.keys.read();
        if keys.current_id().is_none() {
            let context = "no keys of capabilities yet";
            return Err(Error::retryable(Code::Busy, context, NO_KEYS_PAUSE_MS));
        }
        keys.verify(capability, self.env.now())?;
        if capability.file != file {
            let context = format!("capability for {} used on {file}", capability.file);
            return Err(Error::new(Code::BadCapability, context));
        }
        if !right {
            let context = format!("capability for {file} does not allow this");
            return Err(Error::new(Code::BadCapability, context));
        }
        Ok(())
    }

    fn name(&self) -> String {
        format!("OSD {}", self.id)
    }
}

#[async_trait]
impl Service for Osd {
    async fn call(&self, origin: Origin, call: Call) -> Answer {
        let deadline = Duration::from_millis(call.header.deadline_ms.into());
        let work = self.answer(&origin, call);
        match tokio::time::timeout(deadline.min(DEADLINE_MAX), work).await {
            Ok(Ok((reply, payload))) => Answer {
                reply: Ok(Reply::Object(reply)),
                payload,
            },
            Ok(Err(error)) => Answer::new(Err(error.within(self.name()))),
            Err(_) => Answer::new(Err(Error::retryable(Code::TimedOut, self.name(), 100))),
        }
    }
}
