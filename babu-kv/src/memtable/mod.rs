//! The newest entries, in memory.
//!
//! A skip list ordered by (full key ascending, sequence number descending). Nothing is overwritten
//! or removed; the whole list is dropped when its entries have reached a table and no reader holds
//! it.
//!
//! | module | what lives there |
//! |---|---|
//! | `node` | the nodes of the list, why reading them without a lock is sound, and buckets |
//! | `list` | finding places in the list, inserting |
//! | `cursor` | walking it as of a sequence number, past buckets in which nothing is live |
//!
//! The list is our own, because one from a library counts references to each node and protects
//! against removals that do not happen here, and because a walk over what was deleted should cost
//! less than a step for each entry: the upper levels of the list double as an index of stretches in
//! which nothing is live.

mod cursor;
mod list;
mod node;
#[cfg(test)]
mod tests;

pub(crate) use cursor::MemtableCursor;

use crate::{
    coding::Decoder,
    keys::{self, Kind, RangeTombstone},
    log::format::{self, OPERATIONS_AT, Operation},
    slice::Value,
    threads::{
        RwLock,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::Release},
    },
    tombstones::Tombstones,
};
use list::List;
use std::sync::Arc;

/// What a memtable or table knows of a key.
pub(crate) struct Found {
    pub kind: Kind,
    pub sequence: u64,
    pub value: Value,
}

pub(crate) struct Memtable {
    list: List,
    tombstones: RwLock<Tombstones>,
    tombstone_count: AtomicUsize,
    entries: AtomicUsize,
    deletes: AtomicUsize,
    sequence_max: AtomicU64,
}

impl Memtable {
    pub(crate) fn new() -> Memtable {
        Memtable {
            list: List::new(),
            tombstones: RwLock::default(),
            tombstone_count: AtomicUsize::new(0),
            entries: AtomicUsize::new(0),
            deletes: AtomicUsize::new(0),
            sequence_max: AtomicU64::new(0),
        }
    }

    /// Takes in a batch record whose operations have the numbers from `sequence` on; `None` when it
    /// is not well formed, after which a part may have been taken.
    pub(crate) fn apply(&self, record: &Arc<[u8]>, sequence: u64, count: u32) -> Option<()> {
        let mut d = Decoder::new(record, OPERATIONS_AT);
        let mut deletes = 0;
        self.list.write(record, |list| {
            for sequence in sequence..sequence + u64::from(count) {
                match format::next_operation(&mut d)? {
                    Operation::Put { key, value } => {
                        list.insert(record.get(key)?, sequence, Kind::Put, value)
                    }
                    Operation::Delete { key } => {
                        deletes += 1;
                        list.insert(record.get(key)?, sequence, Kind::Delete, 0..0)
                    }
                    Operation::DeleteRange { from, to } => {
                        let (from, to) = (record.get(from)?.to_vec(), record.get(to)?.to_vec());
                        let tombstone = RangeTombstone { from, to, sequence };
                        self.tombstones.write().add(tombstone);
                        self.tombstone_count.fetch_add(1, Release);
                    }
                }
            }
            Some(())
        })?;
        self.entries.fetch_add(count as usize, Relaxed);
        if deletes > 0 {
            self.deletes.fetch_add(deletes, Relaxed);
        }
        self.sequence_max
            .fetch_max(sequence + u64::from(count) - 1, Relaxed);
        d.is_at_end().then_some(())
    }

    /// The newest entry of `key` that is not newer than `sequence`.
    pub(crate) fn get(&self, key: &[u8], sequence: u64) -> Option<Found> {
        let node = self.list.find(Some((key, sequence))).at?;
        (node.key() == key).then(|| Found {
            kind: node.kind(),
            sequence: node.sequence(),
            value: node.value(),
        })
    }

    /// The highest sequence number, up to `sequence`, of a range tombstone that covers `key`; 0
    /// when none does.
    pub(crate) fn covering(&self, key: &[u8], sequence: u64) -> u64 {
        if self.tombstone_count.load(Relaxed) == 0 {
            return 0;
        }
        self.tombstones.read().covering(key, sequence)
    }

    /// Range tombstones up to `sequence` that share keys with `range`, in order and without overlap.
    pub(crate) fn tombstones(&self, range: &keys::Range, sequence: u64) -> Vec<RangeTombstone> {
        if self.tombstone_count.load(Relaxed) == 0 {
            return Vec::new();
        }
        self.tombstones.read().within(range, sequence).collect()
    }

    pub(crate) fn overlaps(&self, range: &keys::Range) -> bool {
        let first = self.list.find(Some((&range.from, u64::MAX))).at;
        first.is_some_and(|node| range.to.as_deref().is_none_or(|to| node.key() < to))
    }

    /// Bytes of memory that entries take. What the allocator rounds up, and the part of the last
    /// piece of the arena that was not written to yet, are not counted.
    pub(crate) fn bytes(&self) -> usize {
        self.list.bytes()
    }

    /// Entries that delete a key.
    pub(crate) fn deletes(&self) -> usize {
        self.deletes.load(Relaxed)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.load(Relaxed) == 0
    }

    pub(crate) fn sequence_max(&self) -> u64 {
        self.sequence_max.load(Relaxed)
    }
}
