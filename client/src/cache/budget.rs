//! How much memory the caches may take, and in which order objects leave.
//!
//! Clean bytes are evicted beyond [`Budget::cached_max`]; dirty bytes make writers wait beyond
//! [`Budget::dirty_max`]. The counters are exact because every change of an object buffer goes
//! through one function that measures it before and after.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use xtfs_protocol::ids::Ino;

/// One object of one inode.
pub(crate) type Place = (Ino, u64);

/// The shared counters.
#[derive(Debug)]
pub(crate) struct Budget {
    cached_max: usize,
    dirty_max: u64,
    cached: AtomicUsize,
    dirty: AtomicU64,
    tick: AtomicU64,
    queue: Mutex<BTreeMap<u64, Place>>,
    room: Notify,
}

impl Budget {
    pub(crate) fn new(cached_max: usize, dirty_max: u64) -> Self {
        Self {
            cached_max,
            dirty_max,
            cached: AtomicUsize::new(0),
            dirty: AtomicU64::new(0),
            tick: AtomicU64::new(1),
            queue: Mutex::new(BTreeMap::new()),
            room: Notify::new(),
        }
    }

    /// Bytes not acknowledged by any OSD.
    pub(crate) fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::Relaxed)
    }

    /// May a writer add this many dirty bytes now? An empty cache takes any amount.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let dirty = self.dirty();
        dirty == 0 || dirty.saturating_add(bytes) <= self.dirty_max
    }

    /// Is so much dirty that sending should start before it is due?
    pub(crate) fn is_pressed(&self) -> bool {
        self.dirty() > self.dirty_max / 2
    }

    /// Told whenever dirty bytes become fewer.
    pub(crate) fn room(&self) -> &Notify {
        &self.room
    }

    /// Accounts for a change of one object.
    pub(crate) fn account(&self, memory: (usize, usize), unsent: (u64, u64)) {
        if memory.1 >= memory.0 {
            self.cached
                .fetch_add(memory.1 - memory.0, Ordering::Relaxed);
        } else {
            self.cached
                .fetch_sub(memory.0 - memory.1, Ordering::Relaxed);
        }
        if unsent.1 >= unsent.0 {
            self.dirty.fetch_add(unsent.1 - unsent.0, Ordering::Relaxed);
        } else {
            self.dirty.fetch_sub(unsent.0 - unsent.1, Ordering::Relaxed);
            self.room.notify_waiters();
        }
    }

    /// Puts an object at the end of the queue; returns its new tick.
    pub(crate) fn touch(&self, place: Place, tick: u64) -> u64 {
        // An object used a moment ago keeps its place: exact order is not worth a lock each time.
        let now = self.tick.load(Ordering::Relaxed);
        if tick != 0 && now - tick < 16 {
            return tick;
        }
        let next = self.tick.fetch_add(1, Ordering::Relaxed);
        let mut queue = self.queue.lock();
        queue.remove(&tick);
        queue.insert(next, place);
        next
    }

    /// Takes an object out of the queue.
    pub(crate) fn leave(&self, tick: u64) {
        self.queue.lock().remove(&tick);
    }

    /// The object that should go next, when too much is cached.
    pub(crate) fn next_victim(&self) -> Option<Place> {
        if self.cached.load(Ordering::Relaxed) <= self.cached_max {
            return None;
        }
        self.queue.lock().pop_first().map(|(_, place)| place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_that_was_used_longest_ago_goes_first() {
        let budget = Budget::new(10, 100);
        let first = budget.touch((1, 0), 0);
        for object in 0..40 {
            budget.touch((2, object), 0);
        }
        let again = budget.touch((1, 0), first);
        assert_ne!(first, again);
        assert_eq!(budget.next_victim(), None, "nothing has to go");
        budget.account((0, 11), (0, 0));
        assert_eq!(budget.next_victim(), Some((2, 0)));
    }

    #[test]
    fn writers_wait_at_the_bound_but_a_large_write_into_nothing_passes() {
        let budget = Budget::new(10, 100);
        assert!(budget.has_room(1000));
        budget.account((0, 0), (0, 60));
        assert!(budget.has_room(40));
        assert!(!budget.has_room(41));
        assert!(budget.is_pressed());
    }
}
