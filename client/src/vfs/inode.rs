//! What the client knows of one inode; shared by all handles of it.

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, RwLock};
use tokio::time::Instant;
use xtfs_layout::Layout;
use xtfs_protocol::capability::Capability;
use xtfs_protocol::ids::{FileId, Ino};
use xtfs_protocol::meta::{Attr, PendingCut, Placement};
use xtfs_protocol::time::Time;
use xtfs_protocol::{Code, Error};

use crate::cache::budget::Budget;
use crate::cache::object::ObjectBuffer;

/// An inode that the kernel knows or that is open here.
pub(crate) struct Inode {
    /// Its number.
    pub(crate) ino: Ino,
    budget: Arc<Budget>,
    /// Never held over an await.
    pub(crate) state: Mutex<State>,
    /// The order of content changes: writes and sends share it, truncation has it alone. Waits
    /// for it end at the operation's deadline.
    pub(crate) turn: RwLock<()>,
    /// One flush at a time, so that updates reach the MRC in order.
    pub(crate) flushing: tokio::sync::Mutex<()>,
    /// One fsync at a time: who finds nothing left to flush has waited for who flushes it.
    pub(crate) syncing: tokio::sync::Mutex<()>,
    /// One renewal of the capability at a time.
    pub(crate) renewing: tokio::sync::Mutex<()>,
    /// One request about locks at a time: the order of the answers is that of the changes.
    pub(crate) locking: tokio::sync::Mutex<()>,
    /// Told when an object's bytes arrived, were lost or fetched.
    pub(crate) settled: Notify,
}

/// What lets the client talk to the OSDs about a file.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    /// Where the objects are.
    pub(crate) placement: Placement,
    /// What allows it.
    pub(crate) capability: Capability,
    /// A truncation to carry out first.
    pub(crate) cut: Option<PendingCut>,
    /// Counts renewals.
    pub(crate) serial: u64,
}

impl Access {
    /// The content.
    pub(crate) fn file(&self) -> FileId {
        self.capability.file
    }

    /// How the file is cut.
    pub(crate) fn layout(&self) -> Layout {
        self.placement.layout
    }
}

/// Changes that the MRC has not been told yet.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pending {
    /// End of the furthest byte written.
    pub(crate) end: u64,
    /// End of the furthest byte that an OSD has taken behind the end that the MRC knows.
    pub(crate) sent: u64,
    /// Time of the last write.
    pub(crate) written_at: Option<Time>,
    /// Time of the last read, when it is worth telling.
    pub(crate) read_at: Option<Time>,
    /// Stored bytes gained or lost.
    pub(crate) allocated: i64,
}

impl Pending {
    /// Is there something to tell after writing?
    pub(crate) fn is_due(&self) -> bool {
        self.end != 0 || self.written_at.is_some() || self.allocated != 0
    }
}

/// What the MRC was told since the last fsync, to be told again when it forgot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    /// Restarts of the MRC's machine before the first of it.
    pub(crate) restarts: u64,
    /// End of the furthest byte.
    pub(crate) end: u64,
    /// Time of the last write.
    pub(crate) written_at: Option<Time>,
}

/// The last error of a background send, and who knows it.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog {
    count: u64,
    last: Option<Error>,
    reported: bool,
}

impl ErrorLog {
    /// Notes an error for every handle.
    pub(crate) fn note(&mut self, error: Error) {
        self.count += 1;
        self.last = Some(error);
        self.reported = false;
    }

    /// Where a new handle starts: an error that nobody was told is told to it.
    pub(crate) fn start(&self) -> u64 {
        if self.reported {
            self.count
        } else {
            self.count.saturating_sub(1)
        }
    }

    /// The error that a handle has not seen yet; once.
    pub(crate) fn take(&mut self, seen: &mut u64) -> Option<Error> {
        if *seen >= self.count {
            return None;
        }
        *seen = self.count;
        self.reported = true;
        self.last.clone()
    }
}

/// The part of an inode that changes.
#[derive(Default)]
pub(crate) struct State {
    /// Attributes as the MRC last told them.
    pub(crate) attr: Option<Attr>,
    /// Until when they may be relied on.
    pub(crate) attr_until: Option<Instant>,
    /// Mark (see `Marks`) of the request that brought them.
    pub(crate) attr_mark: u64,
    /// Mark of our own last change; replies to older requests are out of date.
    pub(crate) changed_mark: u64,
    /// Mark of the last time the MRC was told that the file is open no longer.
    pub(crate) released_mark: u64,
    /// Times the kernel was given this inode and has not forgotten it.
    pub(crate) lookups: u64,
    /// Operations that are using this inode now.
    pub(crate) pins: u32,
    /// Open handles.
    pub(crate) handles: u32,
    /// Open handles that may write.
    pub(crate) writers: u32,
    /// Others look at the file: what is written is sent and told before the write returns.
    pub(crate) through: bool,
    /// Capability and placement.
    pub(crate) access: Option<Access>,
    /// Cached objects.
    pub(crate) objects: BTreeMap<u64, ObjectBuffer>,
    /// What the MRC does not know yet.
    pub(crate) pending: Pending,
    /// What the MRC knows but may forget when its machine loses power.
    pub(crate) told: Option<Told>,
    /// When the oldest unsent byte was written.
    pub(crate) dirty_since: Option<Instant>,
    /// Positions of OSDs with writes that may not be durable, and the start of the machine on
    /// which the first of them was acknowledged.
    pub(crate) unflushed: BTreeMap<usize, u64>,
    /// `unflushed` is complete: nobody wrote before this client began to keep count.
    pub(crate) unflushed_known: bool,
    /// Errors of background work.
    pub(crate) errors: ErrorLog,
    /// Version of the content that clean cached bytes (here and in the kernel) belong to.
    pub(crate) version: Option<u64>,
    /// The kernel may have cached content that is no longer right.
    pub(crate) kernel_stale: bool,
    /// The content that cached bytes belong to.
    pub(crate) file: Option<FileId>,
    /// Counts changes of the content: bytes fetched before a change are not cached after it.
    pub(crate) changes: u64,
}

impl State {
    /// Size as applications see it.
    pub(crate) fn size(&self) -> u64 {
        self.attr.map_or(0, |attr| attr.size).max(self.pending.end)
    }

    /// Attributes as applications see them.
    pub(crate) fn visible(&self, mut attr: Attr) -> Attr {
        attr.size = attr.size.max(self.pending.end);
        attr.allocated = attr.allocated.saturating_add_signed(self.pending.allocated);
        let unsent: u64 = self.objects.values().map(ObjectBuffer::unsent).sum();
        attr.allocated = attr.allocated.saturating_add(unsent);
        if let Some(written_at) = self.pending.written_at {
            attr.mtime = attr.mtime.max(written_at);
            attr.ctime = attr.ctime.max(written_at);
        }
        attr
    }

    /// A change arrived at an OSD whose machine was started as `boot`. When it was another start
    /// than at an earlier change, that one may be lost.
    pub(crate) fn arrived(&mut self, position: usize, allocated_delta: i64, boot: u64) {
        self.pending.allocated = self.pending.allocated.saturating_add(allocated_delta);
        match self.unflushed.entry(position) {
            btree_map::Entry::Vacant(slot) => {
                slot.insert(boot);
            }
            btree_map::Entry::Occupied(mut slot) => {
                if slot.insert(boot) != boot {
                    self.errors.note(forgotten(position));
                }
            }
        }
    }

    /// Bytes up to `end` arrived at OSDs.
    pub(crate) fn arrived_up_to(&mut self, end: u64) {
        if self.attr.is_none_or(|attr| end > attr.size) {
            self.pending.sent = self.pending.sent.max(end);
        }
    }

    /// The MRC was told something; notes it together with what it was told before.
    pub(crate) fn note_told(&mut self, restarts: u64) -> &mut Told {
        self.told.get_or_insert(Told {
            restarts,
            end: 0,
            written_at: None,
        })
    }

    /// Behind the last byte that no OSD has acknowledged; 0 when there is none.
    pub(crate) fn unsent_end(&self, layout: &Layout) -> u64 {
        let object_size = u64::from(layout.object_size);
        let mut backwards = self.objects.iter().rev();
        let last = backwards.find(|(_, buffer)| buffer.unsent() > 0);
        last.map_or(0, |(object, buffer)| {
            object.saturating_mul(object_size) + u64::from(buffer.unsent_end())
        })
    }

    /// Has anything to send or tell?
    pub(crate) fn is_dirty(&self) -> bool {
        self.pending.is_due()
            || self
                .objects
                .values()
                .any(|object| object.is_dirty() || object.is_departing())
    }
}

/// What was written and not yet flushed is gone: the OSD's machine was started anew.
pub(crate) fn forgotten(position: usize) -> Error {
    let text = format!("the machine of OSD {position} of the file restarted before a flush");
    tracing::error!("{text}: written bytes may be lost");
    Error::new(Code::Io, text)
}

impl Inode {
    pub(crate) fn new(ino: Ino, budget: Arc<Budget>) -> Self {
        Self {
            ino,
            budget,
            state: Mutex::default(),
            turn: RwLock::new(()),
            flushing: tokio::sync::Mutex::new(()),
            syncing: tokio::sync::Mutex::new(()),
            renewing: tokio::sync::Mutex::new(()),
            locking: tokio::sync::Mutex::new(()),
            settled: Notify::new(),
        }
    }

    /// Changes one cached object; the only way to do it, so that the budget stays exact.
    pub(crate) fn edit<T>(
        &self,
        state: &mut State,
        object: u64,
        change: impl FnOnce(&mut ObjectBuffer) -> T,
    ) -> T {
        let buffer = state.objects.entry(object).or_default();
        let (memory, unsent) = (buffer.memory(), buffer.unsent());
        let result = change(buffer);
        self.budget
            .account((memory, buffer.memory()), (unsent, buffer.unsent()));
        if buffer.is_idle() {
            self.budget.leave(buffer.tick);
            state.objects.remove(&object);
        } else {
            buffer.tick = self.budget.touch((self.ino, object), buffer.tick);
        }
        result
    }

    /// Forgets clean bytes.
    pub(crate) fn evict_clean(&self, state: &mut State) {
        let objects: Vec<u64> = state.objects.keys().copied().collect();
        for object in objects {
            self.edit(state, object, ObjectBuffer::evict);
        }
    }

    /// What is pending will not be accepted later either: only what is still to be sent stays so,
    /// and what OSDs have has to be asked for again.
    pub(crate) fn forget_pending(&self, state: &mut State) {
        let access = state.access.as_ref();
        let unsent = access.map_or(0, |access| state.unsent_end(&access.layout()));
        let pending = std::mem::take(&mut state.pending);
        if unsent > 0 {
            state.pending.end = pending.end.min(unsent);
            state.pending.written_at = pending.written_at;
        }
        self.evict_clean(state);
        state.changes += 1;
        state.kernel_stale = true;
    }

    /// Forgets every cached byte, also unsent ones, from `size` on. Nothing may be on its way.
    pub(crate) fn forget_beyond(&self, state: &mut State, layout: &Layout, size: u64) {
        let object_size = u64::from(layout.object_size.max(1));
        let first = size / object_size;
        let keep = (size % object_size) as u32;
        let objects: Vec<u64> = state
            .objects
            .range(first..)
            .map(|(&object, _)| object)
            .collect();
        for object in objects {
            let from = if object == first { keep } else { 0 };
            self.edit(state, object, |buffer| buffer.forget(from, u32::MAX));
        }
        state.changes += 1;
    }

    /// The access, or why there is none.
    pub(crate) fn access(&self) -> Result<Access, Error> {
        let access = self.state.lock().access.clone();
        access.ok_or_else(|| Error::new(Code::Stale, format!("inode {} is not open", self.ino)))
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        if state.errors.count > 0 && !state.errors.reported {
            tracing::error!(ino = self.ino, error = ?state.errors.last, "nobody was told of a lost write");
        }
        for buffer in state.objects.values() {
            self.budget.leave(buffer.tick);
            self.budget
                .account((buffer.memory(), 0), (buffer.unsent(), 0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_to_every_handle_once() {
        let mut log = ErrorLog::default();
        let (mut one, mut two) = (log.start(), log.start());
        log.note(Error::from(Code::NoSpace));
        assert_eq!(
            log.take(&mut one).map(|error| error.code),
            Some(Code::NoSpace)
        );
        assert_eq!(log.take(&mut one), None);
        assert!(log.take(&mut two).is_some());
        let mut later = log.start();
        assert_eq!(log.take(&mut later), None, "known already");
    }

    #[test]
    fn an_error_that_nobody_was_told_waits_for_the_next_handle() {
        let mut log = ErrorLog::default();
        log.note(Error::from(Code::Io));
        let mut later = log.start();
        assert!(log.take(&mut later).is_some());
    }
}
