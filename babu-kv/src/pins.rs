//! What snapshots and iterators hold, and how they can be made to let go.
//!
//! A pin is one instant, shared by a snapshot, its clones and its iterators. All pins are listed
//! here, so that one can say how many there are and how old; and each can be emptied from the
//! outside, after which its holders get [`Error::SnapshotTooOld`]. A `get` of the database makes no
//! pin and never comes here.
//!
//! What always holds: a read that has begun when its pin is emptied ends well, because it holds the
//! state itself. An iterator that stands still keeps its cursors, and what they hold, until its next
//! step or its end.

use crate::{
    error::{Error, Result},
    events::Events,
    state::State,
    threads::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};
use arc_swap::{ArcSwapOption, Guard};
use std::{
    cell::Cell,
    collections::BTreeMap,
    ops::Deref,
    sync::{Arc, Weak},
};

/// Threads that make pins seldom meet in one shard.
const SHARDS: usize = 16;

#[derive(Default)]
struct Shard {
    /// By sequence number and a number of their own.
    pins: BTreeMap<(u64, u64), Weak<Pin>>,
    next: u64,
}

/// All pins of a database.
pub(crate) struct Pins {
    shards: [Mutex<Shard>; SHARDS],
    released: AtomicU64,
    pub events: Arc<Events>,
}

/// One instant that is held.
pub(crate) struct Pin {
    state: ArcSwapOption<State>,
    /// Whether it was emptied; cheaper to look at than the state.
    is_released: AtomicBool,
    pub sequence: u64,
    id: u64,
    shard: usize,
    pins: Arc<Pins>,
}

/// The state of a pin, for one read.
pub(crate) struct Held(Guard<Option<Arc<State>>>);

impl Deref for Held {
    type Target = State;

    fn deref(&self) -> &State {
        match &*self.0 {
            Some(state) => state,
            None => unreachable!("it is only made of a state"),
        }
    }
}

/// The shard of this thread.
fn shard_of_thread() -> usize {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    thread_local!(static SHARD: Cell<usize> = const { Cell::new(usize::MAX) });
    SHARD.with(|shard| {
        if shard.get() == usize::MAX {
            shard.set(NEXT.fetch_add(1, Relaxed) % SHARDS);
        }
        shard.get()
    })
}

impl Pins {
    pub(crate) fn new(events: Arc<Events>) -> Pins {
        Pins {
            shards: Default::default(),
            released: AtomicU64::new(0),
            events,
        }
    }

    pub(crate) fn pin(self: &Arc<Pins>, state: Arc<State>, sequence: u64) -> Arc<Pin> {
        let number = shard_of_thread();
        let mut shard = self.shards[number].lock();
        let id = shard.next;
        shard.next += 1;
        let pin = Arc::new(Pin {
            state: ArcSwapOption::new(Some(state)),
            is_released: AtomicBool::new(false),
            sequence,
            id,
            shard: number,
            pins: self.clone(),
        });
        shard.pins.insert((sequence, id), Arc::downgrade(&pin));
        pin
    }

    /// Those that still hold something.
    pub(crate) fn count(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.lock().pins.len())
            .sum()
    }

    /// The sequence number of the oldest that still holds something.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let first = |shard: &Mutex<Shard>| shard.lock().pins.keys().next().map(|key| key.0);
        self.shards.iter().filter_map(first).min()
    }

    /// Those emptied since the database was opened.
    pub(crate) fn released(&self) -> u64 {
        self.released.load(Relaxed)
    }

    /// Empties the pins with a lower sequence number; gives how many.
    pub(crate) fn release_before(&self, sequence: u64) -> usize {
        let mut count = 0;
        for shard in &self.shards {
            let mut shard = shard.lock();
            let newer = shard.pins.split_off(&(sequence, 0));
            let old = std::mem::replace(&mut shard.pins, newer);
            drop(shard);
            // What they hold ends outside of the lock.
            for pin in old.values().filter_map(Weak::upgrade) {
                pin.is_released.store(true, Relaxed);
                pin.state.store(None);
                count += 1;
            }
        }
        self.released.fetch_add(count as u64, Relaxed);
        count
    }
}

impl Pin {
    /// One that nobody counts.
    #[cfg(test)]
    pub(crate) fn alone(state: Arc<State>, sequence: u64) -> Arc<Pin> {
        Arc::new(Pins::new(Arc::new(Events::new(None)))).pin(state, sequence)
    }

    pub(crate) fn state(&self) -> Result<Held> {
        let state = self.state.load();
        match *state {
            Some(_) => Ok(Held(state)),
            None => Err(self.too_old()),
        }
    }

    /// Gives an error once the pin was emptied.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_released.load(Relaxed) {
            return Err(self.too_old());
        }
        Ok(())
    }

    fn too_old(&self) -> Error {
        Error::SnapshotTooOld {
            sequence: self.sequence,
        }
    }

    /// Tells the listener when a read met with damage.
    pub(crate) fn observe<T>(&self, result: Result<T>) -> Result<T> {
        self.pins.events.observe(result)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut shard = self.pins.shards[self.shard].lock();
        shard.pins.remove(&(self.sequence, self.id));
    }
}
