//! The locks that this client's applications hold, to be told again after a restart of the MRC, and
//! the waits for more.
//!
//! Locks end with their owner. The kernel tells of the end of a process's descriptor, and of the end
//! of an open file; only for the first it names the owner. So it is kept here through which handles
//! an owner locked: when the last of these is closed, whatever the owner has left is freed. A handle
//! that is closed late thus never takes locks along that were made through another one since.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use xtfs_protocol::ids::Ino;
use xtfs_protocol::lock::{FileLock, LockKind, LockRange, LockSpace, LockTarget, Ranges};

/// An owner's locks of a file.
type Key = (Ino, LockSpace, u64);

/// The locks and waits of one client.
#[derive(Default)]
pub(crate) struct Locks {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    owners: BTreeMap<Key, Owned>,
    waits: BTreeMap<u64, Arc<Notify>>,
    last_wait: u64,
}

#[derive(Default)]
struct Owned {
    ranges: Ranges,
    handles: BTreeSet<u64>,
}

fn key(target: &LockTarget) -> Key {
    (target.ino, target.space, target.owner)
}

impl Locks {
    /// An owner got a range, or freed it.
    pub(crate) fn note(
        &self,
        target: &LockTarget,
        range: LockRange,
        kind: Option<LockKind>,
        handle: u64,
    ) {
        let mut state = self.state.lock();
        let owned = state.owners.entry(key(target)).or_default();
        owned.ranges.set(range, kind, target.pid);
        owned.handles.insert(handle);
        if owned.ranges.as_slice().is_empty() {
            state.owners.remove(&key(target));
        }
    }

    /// Has anybody here a lock of the file?
    pub(crate) fn has_any(&self, ino: Ino) -> bool {
        let all = (ino, LockSpace::Record, 0)..=(ino, LockSpace::Whole, u64::MAX);
        self.state.lock().owners.range(all).next().is_some()
    }

    /// Has the owner a lock of the file?
    pub(crate) fn has(&self, ino: Ino, space: LockSpace, owner: u64) -> bool {
        self.state.lock().owners.contains_key(&(ino, space, owner))
    }

    /// A handle is closed for good: the owners that have nothing left but locks made through it.
    pub(crate) fn close(&self, ino: Ino, handle: u64) -> Vec<LockTarget> {
        let all = (ino, LockSpace::Record, 0)..=(ino, LockSpace::Whole, u64::MAX);
        let mut ended = Vec::new();
        for ((ino, space, owner), owned) in self.state.lock().owners.range_mut(all) {
            if owned.handles.remove(&handle) && owned.handles.is_empty() {
                ended.push(LockTarget {
                    ino: *ino,
                    space: *space,
                    owner: *owner,
                    pid: 0,
                });
            }
        }
        ended
    }

    /// Every lock.
    pub(crate) fn all(&self) -> Vec<FileLock> {
        let state = self.state.lock();
        let owners = state.owners.iter();
        let locks = owners.flat_map(|((ino, space, owner), owned)| {
            owned.ranges.as_slice().iter().map(|held| FileLock {
                target: LockTarget {
                    ino: *ino,
                    space: *space,
                    owner: *owner,
                    pid: held.pid,
                },
                range: held.range,
                kind: held.kind,
            })
        });
        locks.collect()
    }

    /// Another client has it by now.
    pub(crate) fn lost(&self, lock: &FileLock) {
        let mut state = self.state.lock();
        let key = key(&lock.target);
        if let Some(owned) = state.owners.get_mut(&key) {
            owned.ranges.set(lock.range, None, 0);
            if owned.ranges.as_slice().is_empty() {
                state.owners.remove(&key);
            }
        }
    }

    /// A number for a wait, and what is told when it is over.
    pub(crate) fn wait(self: &Arc<Self>) -> Waiting {
        let mut state = self.state.lock();
        state.last_wait += 1;
        let number = state.last_wait;
        let told = Arc::new(Notify::new());
        state.waits.insert(number, Arc::clone(&told));
        Waiting {
            locks: Arc::clone(self),
            number,
            told,
        }
    }

    /// The MRC says that a wait is over.
    pub(crate) fn told(&self, number: u64) {
        if let Some(told) = self.state.lock().waits.get(&number) {
            told.notify_one();
        }
    }
}

/// A wait; over when dropped.
pub(crate) struct Waiting {
    locks: Arc<Locks>,
    pub(crate) number: u64,
    pub(crate) told: Arc<Notify>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.locks.state.lock().waits.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(owner: u64) -> LockTarget {
        LockTarget {
            ino: 5,
            space: LockSpace::Record,
            owner,
            pid: 1,
        }
    }

    #[test]
    fn a_handle_that_is_closed_late_takes_no_newer_locks_along() {
        let locks = Locks::default();
        let kind = Some(LockKind::Exclusive);
        locks.note(&target(1), LockRange::ALL, kind, 10);
        locks.note(&target(2), LockRange::ALL, kind, 10);
        // Freed and locked anew through another handle, before the first was heard to be closed.
        locks.note(&target(1), LockRange::ALL, None, 10);
        locks.note(&target(1), LockRange::ALL, kind, 11);
        let ended = locks.close(5, 10);
        assert_eq!(ended.iter().map(|t| t.owner).collect::<Vec<_>>(), [2]);
        // Locked through both: the last one counts.
        locks.note(&target(1), LockRange::ALL, kind, 12);
        assert!(locks.close(5, 11).is_empty());
        assert_eq!(locks.close(5, 12).len(), 1);
    }
}
