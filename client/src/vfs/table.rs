//! The inodes and handles that are in use.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;
use xtfs_protocol::ids::Ino;

use super::inode::Inode;
use crate::cache::budget::Budget;

/// Objects that one eviction passes over because they hold unsent bytes.
const KEPT_MAX: usize = 32;

/// Inodes by number. One number never has two [`Inode`]s: whoever uses one pins it.
pub(crate) struct Inodes {
    budget: Arc<Budget>,
    map: Mutex<BTreeMap<Ino, Arc<Inode>>>,
}

/// An inode that stays in the table while this lives.
pub(crate) struct Pinned {
    table: Arc<Inodes>,
    inode: Arc<Inode>,
}

impl Deref for Pinned {
    type Target = Arc<Inode>;

    fn deref(&self) -> &Arc<Inode> {
        &self.inode
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut map = self.table.map.lock();
        self.inode.state.lock().pins -= 1;
        remove_unused(&mut map, &self.inode);
    }
}

impl Inodes {
    pub(crate) fn new(budget: Arc<Budget>) -> Arc<Self> {
        Arc::new(Self {
            budget,
            map: Mutex::default(),
        })
    }

    /// The inode, made when it is not there.
    pub(crate) fn pin(self: &Arc<Self>, ino: Ino) -> Pinned {
        let mut map = self.map.lock();
        let inode = map
            .entry(ino)
            .or_insert_with(|| Arc::new(Inode::new(ino, Arc::clone(&self.budget))));
        inode.state.lock().pins += 1;
        Pinned {
            table: Arc::clone(self),
            inode: Arc::clone(inode),
        }
    }

    /// The inode, if it is there.
    pub(crate) fn get(self: &Arc<Self>, ino: Ino) -> Option<Pinned> {
        let map = self.map.lock();
        let inode = map.get(&ino)?;
        inode.state.lock().pins += 1;
        Some(Pinned {
            table: Arc::clone(self),
            inode: Arc::clone(inode),
        })
    }

    /// The kernel forgot the inode this many times.
    pub(crate) fn forget(&self, ino: Ino, count: u64) {
        let mut map = self.map.lock();
        let Some(inode) = map.get(&ino).cloned() else {
            return;
        };
        {
            let mut state = inode.state.lock();
            state.lookups = state.lookups.saturating_sub(count);
        }
        remove_unused(&mut map, &inode);
    }

    /// Number of inodes in use.
    pub(crate) fn len(&self) -> usize {
        self.map.lock().len()
    }

    /// Evicts objects until no more is cached than allowed.
    pub(crate) fn evict(&self) {
        let mut kept = 0;
        while kept < KEPT_MAX
            && let Some((ino, object)) = self.budget.next_victim()
        {
            let Some(inode) = self.map.lock().get(&ino).cloned() else {
                continue;
            };
            let mut state = inode.state.lock();
            if state.objects.contains_key(&object) {
                inode.edit(&mut state, object, |buffer| {
                    buffer.evict();
                    // Its place in the queue is gone; what is left of it needs a new one.
                    buffer.tick = 0;
                });
                // Dirty bytes are left, and those are bounded in another way.
                kept += usize::from(state.objects.contains_key(&object));
            }
        }
    }
}

fn remove_unused(map: &mut BTreeMap<Ino, Arc<Inode>>, inode: &Arc<Inode>) {
    let state = inode.state.lock();
    if state.pins == 0 && state.lookups == 0 && state.handles == 0 && !state.is_dirty() {
        map.remove(&inode.ino);
    }
}

/// Handles by number.
pub(crate) struct Handles<T> {
    state: Mutex<(u64, BTreeMap<u64, Arc<T>>)>,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self {
            state: Mutex::new((0, BTreeMap::new())),
        }
    }
}

impl<T> Handles<T> {
    pub(crate) fn insert(&self, value: T) -> u64 {
        let mut state = self.state.lock();
        state.0 += 1;
        let number = state.0;
        state.1.insert(number, Arc::new(value));
        number
    }

    pub(crate) fn get(&self, number: u64) -> Option<Arc<T>> {
        self.state.lock().1.get(&number).cloned()
    }

    pub(crate) fn remove(&self, number: u64) -> Option<Arc<T>> {
        self.state.lock().1.remove(&number)
    }

    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.state.lock().1.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::object::ObjectBuffer;

    #[test]
    fn an_object_that_eviction_passed_over_while_it_was_dirty_is_evicted_later() {
        let budget = Arc::new(Budget::new(10, 1000));
        let inodes = Inodes::new(budget);
        let inode = inodes.pin(2);
        let edit = |change: fn(&mut ObjectBuffer)| {
            inode.edit(&mut inode.state.lock(), 0, change);
        };
        edit(|buffer| buffer.write(0, &[1; 100]));
        inodes.evict();
        assert_eq!(inode.state.lock().objects.len(), 1, "no OSD has it");
        edit(|buffer| {
            buffer.depart();
        });
        edit(ObjectBuffer::arrived);
        inodes.evict();
        assert!(inode.state.lock().objects.is_empty());
    }
}
