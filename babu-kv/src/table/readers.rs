//! Which tables are open: a bounded number of them, and a bounded number of bytes.
//!
//! An open table costs a file descriptor and holds its filter and index in memory. Tables are
//! opened when they are read; before one is opened, others that nobody has used for a while are
//! closed. They are found by a clock: each use sets a mark, and the hand, which goes around by file
//! number, closes the first table whose mark it has already cleared.
//!
//! What always holds: no more tables are registered here than allowed, those that are just being
//! opened included. A reader in use when its table is closed lives until that use ends, which is
//! one look into one block; so the descriptors are those of the registered tables, and at most one
//! more for each thread.

use super::reader::Reader;
use crate::threads::{
    Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};
use arc_swap::{ArcSwapOption, Guard};
use std::{
    collections::BTreeMap,
    ops::{
        Bound::{Excluded, Unbounded},
        Deref,
    },
    sync::Arc,
};

/// Fewest tables that may be open at once.
pub(crate) const OPEN_MIN: usize = 8;
/// Most tables that are opened when the system sets no limit.
const OPEN_MAX: u64 = 1 << 16;

/// A quarter of the descriptors that this process may have.
pub(crate) fn open_max_of_process() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    (limit.unwrap_or(u64::MAX) / 4).min(OPEN_MAX) as usize
}

/// The reader of one table, when it is open.
#[derive(Default)]
pub(crate) struct Slot {
    reader: ArcSwapOption<Reader>,
    used: AtomicBool,
    pub opening: Mutex<()>,
}

/// An open reader, for one use.
pub(crate) struct Opened(Guard<Option<Arc<Reader>>>);

impl Deref for Opened {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        match &*self.0 {
            Some(reader) => reader,
            None => unreachable!("it is only made of a reader"),
        }
    }
}

impl Slot {
    pub(crate) fn get(&self) -> Option<Opened> {
        let reader = self.reader.load();
        reader.as_ref()?;
        // Read first: in the usual case no line changes its owner.
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
        Some(Opened(reader))
    }
}

/// The open tables of a database.
pub(crate) struct Readers {
    open_max: usize,
    bytes_max: AtomicUsize,
    bytes: AtomicUsize,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    /// By the number of the table; with the bytes that it holds.
    slots: BTreeMap<u64, (Arc<Slot>, usize)>,
    opening: usize,
    hand: u64,
}

impl Readers {
    pub(crate) fn new(open_max: usize) -> Readers {
        Readers {
            open_max: open_max.max(OPEN_MIN),
            bytes_max: AtomicUsize::new(usize::MAX),
            bytes: AtomicUsize::new(0),
            open: Mutex::default(),
        }
    }

    /// Opens a table with `read` and registers it.
    pub(crate) fn open<E>(
        &self,
        number: u64,
        slot: &Arc<Slot>,
        read: impl FnOnce() -> Result<Reader, E>,
    ) -> Result<Opened, E> {
        let closed = self.reserve();
        // Files are closed outside of the lock.
        drop(closed);
        let result = read().map(Arc::new);
        let mut open = self.open.lock();
        open.opening -= 1;
        let reader = result?;
        slot.used.store(true, Relaxed);
        slot.reader.store(Some(reader.clone()));
        let bytes = reader.bytes();
        self.bytes.fetch_add(bytes, Relaxed);
        open.slots.insert(number, (slot.clone(), bytes));
        drop(open);
        drop(self.shrink());
        Ok(Opened(Guard::from_inner(Some(reader))))
    }

    fn reserve(&self) -> Vec<Arc<Reader>> {
        let mut open = self.open.lock();
        let mut closed = Vec::new();
        while open.slots.len() + open.opening >= self.open_max {
            let Some(reader) = self.close_one(&mut open) else {
                break;
            };
            closed.extend(reader);
        }
        open.opening += 1;
        closed
    }

    /// Closes a table; `None` when all are closed. Ends because each round clears the marks that it
    /// passes, except those that are set again meanwhile, and those of two rounds are not asked.
    fn close_one(&self, open: &mut Open) -> Option<Option<Arc<Reader>>> {
        for step in 0..=open.slots.len() * 2 {
            let after = (Excluded(open.hand), Unbounded);
            let next = open.slots.range(after).next().or(open.slots.iter().next());
            let (number, (slot, _)) = next?;
            open.hand = *number;
            if !slot.used.swap(false, Relaxed) || step == open.slots.len() * 2 {
                let number = *number;
                return Some(self.remove(open, number));
            }
        }
        None
    }

    fn remove(&self, open: &mut Open, number: u64) -> Option<Arc<Reader>> {
        let (slot, bytes) = open.slots.remove(&number)?;
        self.bytes.fetch_sub(bytes, Relaxed);
        slot.reader.swap(None)
    }

    /// Closes a table that is no longer needed.
    pub(crate) fn close(&self, number: u64) {
        let closed = self.remove(&mut self.open.lock(), number);
        drop(closed);
    }

    /// Closes half of the open tables, at least one, because descriptors are scarce elsewhere in
    /// the process; `false` when none was open.
    pub(crate) fn close_half(&self) -> bool {
        let mut open = self.open.lock();
        let count = open.slots.len().div_ceil(2);
        let closed: Vec<_> = (0..count)
            .filter_map(|_| self.close_one(&mut open))
            .collect();
        drop(open);
        !closed.is_empty()
    }

    /// Sets how many bytes open tables may hold. One stays open whatever its size. Gives those that
    /// are closed by it, for the caller to drop without a lock.
    #[must_use]
    pub(crate) fn resize(&self, bytes_max: usize) -> Vec<Arc<Reader>> {
        self.bytes_max.store(bytes_max, Relaxed);
        self.shrink()
    }

    fn shrink(&self) -> Vec<Arc<Reader>> {
        let bytes_max = self.bytes_max.load(Relaxed);
        let mut closed = Vec::new();
        if self.bytes() <= bytes_max {
            return closed;
        }
        let mut open = self.open.lock();
        while self.bytes() > bytes_max && open.slots.len() > 1 {
            closed.extend(self.close_one(&mut open).flatten());
        }
        closed
    }

    /// Bytes that open tables hold.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Open tables.
    pub(crate) fn count(&self) -> usize {
        self.open.lock().slots.len()
    }
}
