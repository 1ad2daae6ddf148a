//! The file system as a library: asynchronous operations on inodes and handles.
//!
//! Operations take the [`Caller`] on whose behalf they run and answer with protocol types; they
//! know nothing of FUSE. With a connector inside the process they finish without waiting.
//!
//! - `names` — entries of directories;
//! - `attributes` — attributes, extended attributes, room;
//! - `directory` — listings;
//! - `open` — opening, creating, releasing;
//! - `content` — reading, writing, flushing, as applications ask for it;
//! - `locks` — advisory locks;
//! - `space` — preallocation, holes, copying;
//! - `inode`, `table` — what is shared by all handles of an inode.

pub(crate) mod attributes;
pub(crate) mod content;
pub(crate) mod directory;
pub(crate) mod inode;
pub(crate) mod locks;
pub(crate) mod names;
pub(crate) mod open;
pub(crate) mod space;
pub(crate) mod table;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, StreamExt};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use xtfs_protocol::ids::Ino;
use xtfs_protocol::meta::{Attr, Caller, Entry, Lease, LeaseKind, MetaOp, MetaReply, Push};
use xtfs_protocol::transport::{Connector, PushHandler};
use xtfs_protocol::{Code, Error, Result};

use crate::background::Tasks;
use crate::cache::budget::Budget;
use crate::options::ClientOptions;
use crate::session::Session;
use crate::session::renew::keep_alive;
use directory::Directory;
use inode::{Inode, State};
use open::File;
use table::{Handles, Inodes, Pinned};

/// Background sends at a time.
const SENDERS: usize = 16;
/// Read-aheads at a time.
const FETCHERS: usize = 32;

/// Age of a listing whose attributes may still be handed on.
const LISTING_AGE_MAX: Duration = Duration::from_secs(1);

/// Handles that are released at a time at the end.
const RELEASES: usize = 64;

/// An inode as an operation found it.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    /// Its attributes, own unsent writes included.
    pub attr: Attr,
    /// How long they may be cached.
    pub ttl: Duration,
    /// How long it may be cached that the name leads here: nothing for a volume that other
    /// clients have, too, because nobody is told when a name goes.
    pub name_ttl: Duration,
    mark: u64,
}

/// Told when something cached outside this library has to be forgotten.
pub trait Invalidate: Send + Sync + 'static {
    /// Attributes and content of an inode are no longer to be relied on. May block.
    fn inode(&self, ino: Ino);
    /// Its attributes are not; its content is. May block.
    fn attributes(&self, ino: Ino);
}

/// A mounted volume. Cheap to clone; all clones are one client.
#[derive(Clone)]
pub struct Vfs {
    pub(crate) inner: Arc<Inner>,
}

/// When a request was sent, to tell replies that are out of date.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    clock: u64,
    at: Instant,
}

/// What all clones share.
pub(crate) struct Inner {
    pub(crate) session: Arc<Session>,
    pub(crate) options: ClientOptions,
    pub(crate) budget: Arc<Budget>,
    pub(crate) inodes: Arc<Inodes>,
    pub(crate) files: Handles<File>,
    pub(crate) directories: Handles<Directory>,
    pub(crate) tasks: Tasks,
    pub(crate) senders: Semaphore,
    pub(crate) fetchers: Arc<Semaphore>,
    /// Inodes with something to send or tell.
    pub(crate) dirty: Mutex<BTreeMap<Ino, Arc<Inode>>>,
    /// Wakes the flusher before its time.
    pub(crate) kick: Notify,
    /// Counts our own changes.
    clock: AtomicU64,
    /// Attributes requested before this mark may miss a change of names.
    names_mark: AtomicU64,
    /// Restarts of the MRC's machine before the first change of names that may not be durable, and
    /// the mark of the last one.
    pub(crate) names_told: Mutex<Option<(u64, u64)>>,
    /// Attributes requested before this mark may miss a change by another client to an inode that
    /// was not known here.
    recall_mark: AtomicU64,
    /// The last lease said that other clients have the volume, too.
    shared: AtomicBool,
    /// Until when this client has the volume to itself, as far as it knows.
    alone_until: Mutex<Option<Instant>>,
    invalidate: RwLock<Option<Arc<dyn Invalidate>>>,
    pub(crate) access_times: AtomicBool,
    stop: watch::Sender<bool>,
    loops: Mutex<Vec<JoinHandle<()>>>,
}

impl Vfs {
    /// Opens a session on the volume and starts what keeps it alive.
    ///
    /// # Errors
    /// The volume does not exist, or the MRC does not answer by the deadline.
    pub async fn open(connector: Arc<dyn Connector>, options: ClientOptions) -> Result<Self> {
        let session = Session::open(Arc::clone(&connector), &options).await?;
        let session = Arc::new(session);
        let budget = Arc::new(Budget::new(options.cache_bytes, options.dirty_bytes_max));
        let read_only = options.read_only;
        let (stop, stopped) = watch::channel(false);
        let inner = Arc::new(Inner {
            session: Arc::clone(&session),
            inodes: Inodes::new(Arc::clone(&budget)),
            budget,
            options,
            files: Handles::default(),
            directories: Handles::default(),
            tasks: Tasks::new(tokio::runtime::Handle::current()),
            senders: Semaphore::new(SENDERS),
            fetchers: Arc::new(Semaphore::new(FETCHERS)),
            dirty: Mutex::default(),
            kick: Notify::new(),
            clock: AtomicU64::new(1),
            names_mark: AtomicU64::new(0),
            names_told: Mutex::default(),
            recall_mark: AtomicU64::new(0),
            shared: AtomicBool::new(false),
            alone_until: Mutex::default(),
            invalidate: RwLock::new(None),
            access_times: AtomicBool::new(!read_only),
            stop,
            loops: Mutex::default(),
        });
        let flusher = crate::data::flush::run(Arc::clone(&inner), stopped.clone());
        inner.loops.lock().extend([
            tokio::spawn(keep_alive(session, stopped)),
            tokio::spawn(flusher),
        ]);
        connector.set_push_handler(Arc::new(Recalls(Arc::downgrade(&inner))));
        let told = Arc::downgrade(&inner);
        inner.session.on_lost_lock(Box::new(move |lock| {
            if let Some(inner) = told.upgrade() {
                inner.lost_lock(lock);
            }
        }));
        Ok(Self { inner })
    }

    /// From now on, reading leaves access times as they are.
    pub fn keep_access_times(&self) {
        self.inner.access_times.store(false, Ordering::Relaxed);
    }

    /// How long an operation tries.
    pub(crate) fn op_deadline(&self) -> Duration {
        self.inner.options.op_deadline
    }

    /// Says who is to be told of what must be forgotten.
    pub fn set_invalidate(&self, invalidate: Option<Arc<dyn Invalidate>>) {
        *self.inner.invalidate.write() = invalidate;
    }

    /// The kernel was given an inode (once more), so it is kept until [`Vfs::forget`].
    pub fn remember(&self, found: &Found) {
        let inode = self.inner.inodes.pin(found.attr.ino);
        let mut state = inode.state.lock();
        state.lookups += 1;
        if state.attr.is_none() {
            state.attr = Some(found.attr);
            state.attr_mark = found.mark;
            let recalled = found.mark < self.inner.recall_mark.load(Ordering::Acquire);
            state.attr_until = (!recalled).then(|| Instant::now() + found.ttl);
        }
    }

    /// The kernel forgot an inode `count` times.
    pub fn forget(&self, ino: Ino, count: u64) {
        self.inner.inodes.forget(ino, count);
    }

    /// Number of inodes that are kept in memory.
    #[must_use]
    pub fn inodes_kept(&self) -> usize {
        self.inner.inodes.len()
    }

    /// Sends everything, releases every handle, ends the session and every task. Operations of
    /// other clones fail from then on.
    ///
    /// # Errors
    /// Something written could not be sent or told; what could was.
    pub async fn close(&self) -> Result<()> {
        let inner = &self.inner;
        inner.stop.send_replace(true);
        let loops = std::mem::take(&mut *inner.loops.lock());
        for task in loops {
            if task.await.is_err() {
                tracing::error!("a background task of the client failed");
            }
        }
        let limit = inner.options.op_deadline;
        let late = |_| Error::new(Code::TimedOut, "not everything was sent in time");
        let flushed = tokio::time::timeout(limit, inner.flush_all()).await;
        let releases = stream::iter(inner.files.numbers())
            .map(|number| inner.release(number))
            .buffer_unordered(RELEASES)
            .fold(Ok(()), |outcome, released| async { outcome.and(released) });
        let released = tokio::time::timeout(limit, releases).await;
        let outcome = flushed.map_err(late).and_then(|flushed| flushed);
        let outcome = outcome.and(released.map_err(late).and_then(|released| released));
        inner.tasks.finish(inner.options.op_deadline).await;
        let synced = inner.session.sync().await;
        let closed = inner.session.close().await;
        outcome.and(synced).and(closed)
    }
}

impl Inner {
    /// To be taken before a request whose reply carries attributes.
    pub(crate) fn mark(&self) -> Mark {
        Mark {
            clock: self.clock.load(Ordering::Acquire),
            at: Instant::now(),
        }
    }

    /// A new mark, later than every one before.
    pub(crate) fn advance(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// A name was added or removed: link counts and times of any inode may differ now.
    pub(crate) fn names_changed(&self) {
        let mark = self.advance();
        let first = (self.session.restarts(), mark);
        self.names_told.lock().get_or_insert(first).1 = mark;
        self.names_mark.fetch_max(mark, Ordering::AcqRel);
    }

    /// An operation whose answer is an entry.
    pub(crate) async fn entry(&self, caller: &Caller, op: MetaOp) -> Result<Entry> {
        match self.session.meta(caller, op).await? {
            MetaReply::Entry(entry) => Ok(entry),
            _ => Err(unexpected()),
        }
    }

    /// An operation whose answer says nothing.
    pub(crate) async fn done(&self, caller: &Caller, op: MetaOp) -> Result<()> {
        self.session.meta(caller, op).await.map(|_| ())
    }

    /// An operation whose answer is bytes.
    pub(crate) async fn bytes(&self, caller: &Caller, op: MetaOp) -> Result<Vec<u8>> {
        match self.session.meta(caller, op).await? {
            MetaReply::Bytes(bytes) => Ok(bytes),
            _ => Err(unexpected()),
        }
    }

    /// Takes in what a reply says of an inode, and says what applications may see of it.
    pub(crate) fn found(&self, entry: Entry, mark: Mark) -> Found {
        match self.inodes.get(entry.attr.ino) {
            Some(inode) => self.absorb(&mut inode.state.lock(), entry, mark),
            None => {
                let until = self.lease(&entry, mark);
                let recalled = mark.clock < self.recall_mark.load(Ordering::Acquire);
                Found {
                    attr: entry.attr,
                    ttl: if recalled {
                        Duration::ZERO
                    } else {
                        left(until)
                    },
                    name_ttl: self.alone(),
                    mark: mark.clock,
                }
            }
        }
    }

    /// The same for an inode whose state is at hand.
    pub(crate) fn absorb(&self, state: &mut State, entry: Entry, mark: Mark) -> Found {
        let until = self.lease(&entry, mark);
        if mark.clock >= state.changed_mark && mark.clock >= state.attr_mark {
            state.attr = Some(entry.attr);
            state.attr_until = Some(until);
            state.attr_mark = mark.clock;
        } else if mark.clock < state.changed_mark {
            // The reply may be older than a change of our own: what we have is better.
            state.attr_until = None;
        }
        self.seen(state, entry.attr)
    }

    /// What applications may see of an inode; `otherwise` where no attributes are at hand.
    pub(crate) fn seen(&self, state: &State, otherwise: Attr) -> Found {
        Found {
            attr: state.visible(state.attr.unwrap_or(otherwise)),
            ttl: self.left(state),
            name_ttl: self.alone(),
            mark: state.attr_mark,
        }
    }

    /// An inode as a listing told it a while ago.
    pub(crate) fn listed(&self, attr: Attr, mark: Mark) -> Found {
        if let Some(inode) = self.inodes.get(attr.ino) {
            let state = inode.state.lock();
            if state.attr.is_some() {
                let mut found = self.seen(&state, attr);
                if !self.is_fresh(&state) {
                    found.ttl = Duration::ZERO;
                }
                return found;
            }
        }
        // A listing brings no leases. Nobody else changes anything while this client is alone, but
        // its own changes since then may have been to this inode.
        let until = self
            .alone_until
            .lock()
            .map_or(mark.at, |alone| alone.min(mark.at + LISTING_AGE_MAX));
        let unchanged = self.clock.load(Ordering::Acquire) == mark.clock;
        let ttl = if unchanged {
            left(until)
        } else {
            Duration::ZERO
        };
        Found {
            attr,
            ttl,
            name_ttl: ttl,
            mark: mark.clock,
        }
    }

    /// Takes in the reply to a change of our own.
    pub(crate) fn absorb_change(&self, state: &mut State, entry: Entry, mark: Mark) -> Found {
        self.absorb(state, entry, mark);
        state.changed_mark = self.advance();
        if mark.clock >= self.names_mark.load(Ordering::Acquire) {
            state.attr_mark = state.changed_mark;
        }
        self.seen(state, entry.attr)
    }

    /// How long the attributes may still be relied on.
    pub(crate) fn left(&self, state: &State) -> Duration {
        state.attr_until.map_or(Duration::ZERO, left)
    }

    /// Were the attributes asked for after the last change of names of our own?
    fn is_fresh(&self, state: &State) -> bool {
        state.attr_mark >= self.names_mark.load(Ordering::Acquire)
    }

    /// Has this client the volume to itself, as far as it was told?
    pub(crate) fn is_alone(&self) -> bool {
        !self.shared.load(Ordering::Relaxed)
    }

    /// Has a recall come since then?
    pub(crate) fn was_recalled_since(&self, mark: Mark) -> bool {
        mark.clock < self.recall_mark.load(Ordering::Acquire)
    }

    /// How long this client still has the volume to itself.
    fn alone(&self) -> Duration {
        self.alone_until.lock().map_or(Duration::ZERO, left)
    }

    /// Attributes that need no request.
    pub(crate) fn cached(&self, ino: Ino) -> Option<Found> {
        let inode = self.inodes.get(ino)?;
        let state = inode.state.lock();
        let attr = state.attr?;
        let ttl = self.left(&state);
        (self.is_fresh(&state) && !ttl.is_zero()).then(|| self.seen(&state, attr))
    }

    /// The inode of an open file.
    pub(crate) fn file(&self, handle: u64) -> Result<Arc<File>> {
        self.files
            .get(handle)
            .ok_or_else(|| Error::new(Code::Invalid, format!("no open file {handle}")))
    }

    /// The inode, kept while it is used.
    pub(crate) fn pin(&self, ino: Ino) -> Pinned {
        self.inodes.pin(ino)
    }

    /// When the lease ends that came with a reply.
    fn lease(&self, entry: &Entry, mark: Mark) -> Instant {
        let Lease { kind, duration_ms } = entry.lease;
        let until = mark.at + Duration::from_millis(u64::from(duration_ms));
        if duration_ms > 0 {
            self.shared
                .store(kind != LeaseKind::Alone, Ordering::Relaxed);
            let mut alone = self.alone_until.lock();
            *alone = match kind {
                LeaseKind::Alone => Some(alone.map_or(until, |known| known.max(until))),
                LeaseKind::Read | LeaseKind::Write => None,
            };
        }
        until
    }

    /// Returns the lease on an inode after sending what is unsent.
    async fn recall(self: Arc<Self>, ino: Ino) {
        // First, for replies that are on their way: who takes one in from here on knows.
        self.shared.store(true, Ordering::Relaxed);
        *self.alone_until.lock() = None;
        self.recall_mark.fetch_max(self.advance(), Ordering::AcqRel);
        if let Some(inode) = self.inodes.get(ino) {
            // Nothing more is delayed behind what is unsent now. Where that is so already, there is
            // only what some write still waits for, perhaps until this recall is answered.
            let through = {
                let mut state = inode.state.lock();
                let through = state.through;
                state.through |= state.writers > 0;
                through
            };
            if !through && let Err(error) = self.flush_inode(&inode).await {
                tracing::warn!(ino, %error, "recall: could not send everything");
            }
            let mut state = inode.state.lock();
            inode.evict_clean(&mut state);
            state.changes += 1;
            state.version = None;
            state.attr_until = None;
            // Replies to what was asked before may not know of the change.
            state.changed_mark = self.advance();
        }
        let invalidate = self.invalidate.read().clone();
        if let Some(invalidate) = invalidate {
            let work = self.session.env.blocking(move || invalidate.inode(ino));
            if work.await.is_none() {
                tracing::error!(ino, "recall: the kernel could not be told");
            }
        }
        let returned = self
            .done(&Caller::root(), MetaOp::ReturnLease { ino })
            .await;
        if let Err(error) = returned {
            tracing::debug!(ino, %error, "the lease was not taken back");
        }
    }
}

/// Time until then.
fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// Takes what the MRC says unasked.
struct Recalls(std::sync::Weak<Inner>);

#[async_trait]
impl PushHandler for Recalls {
    async fn handle(&self, push: Push) {
        let Some(inner) = self.0.upgrade() else {
            return;
        };
        let own = inner.session.current().volume;
        match push {
            Push::Recall { volume, ino } if volume == own => {
                let work = Arc::clone(&inner).recall(ino);
                inner.tasks.spawn(work);
            }
            Push::LockHeld { volume, wait } if volume == own => inner.session.locks.told(wait),
            _ => {}
        }
    }
}

/// The MRC answered another question than the one asked.
pub(crate) fn unexpected() -> Error {
    Error::new(Code::Protocol, "mrc: unexpected kind of answer")
}
