//! The newest entries, in memory.
//!
//! A lock-free skip list ordered by (full key ascending, sequence number descending). Nothing is
//! overwritten or removed; the whole list is dropped when its entries have reached a table and no
//! reader holds it. Keys and values are not copied: an entry points into the log record that
//! brought it, which is the arena of the entries of one batch.

mod cursor;

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
use crossbeam_skiplist::SkipMap;
use std::{
    borrow::Borrow,
    cmp::Ordering,
    ops::{Bound, Range},
    sync::Arc,
};

/// Estimated bytes of a skip-list node beside the record that it points into.
const NODE_BYTES: usize = 96;

/// A place in the order of a memtable.
trait Place {
    fn place(&self) -> (&[u8], u64);
}

impl PartialEq for dyn Place + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for dyn Place + '_ {}

impl PartialOrd for dyn Place + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn Place + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        let ((key, sequence), (other_key, other_sequence)) = (self.place(), other.place());
        key.cmp(other_key).then(other_sequence.cmp(&sequence))
    }
}

struct Lookup<'a>(&'a [u8], u64);

impl Place for Lookup<'_> {
    fn place(&self) -> (&[u8], u64) {
        (self.0, self.1)
    }
}

struct EntryKey {
    record: Arc<[u8]>,
    from: u32,
    to: u32,
    sequence: u64,
}

impl EntryKey {
    fn key(&self) -> &[u8] {
        &self.record[self.from as usize..self.to as usize]
    }
}

impl Place for EntryKey {
    fn place(&self) -> (&[u8], u64) {
        (self.key(), self.sequence)
    }
}

impl PartialEq for EntryKey {
    fn eq(&self, other: &EntryKey) -> bool {
        self.place() == other.place()
    }
}

impl Eq for EntryKey {}

impl PartialOrd for EntryKey {
    fn partial_cmp(&self, other: &EntryKey) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for EntryKey {
    fn cmp(&self, other: &EntryKey) -> Ordering {
        self.key()
            .cmp(other.key())
            .then(other.sequence.cmp(&self.sequence))
    }
}

impl<'a> Borrow<dyn Place + 'a> for EntryKey {
    fn borrow(&self) -> &(dyn Place + 'a) {
        self
    }
}

struct EntryValue {
    kind: Kind,
    from: u32,
    to: u32,
}

/// What a memtable or table knows of a key.
pub(crate) struct Found {
    pub kind: Kind,
    pub sequence: u64,
    pub value: Value,
}

pub(crate) struct Memtable {
    map: SkipMap<EntryKey, EntryValue>,
    tombstones: RwLock<Tombstones>,
    tombstone_count: AtomicUsize,
    bytes: AtomicUsize,
    entries: AtomicUsize,
    deletes: AtomicUsize,
    sequence_max: AtomicU64,
}

impl Memtable {
    pub(crate) fn new() -> Memtable {
        Memtable {
            map: SkipMap::new(),
            tombstones: RwLock::default(),
            tombstone_count: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
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
        for n in 0..u64::from(count) {
            let sequence = sequence + n;
            match format::next_operation(&mut d)? {
                Operation::Put { key, value } => {
                    self.insert(record, key, value, sequence, Kind::Put)
                }
                Operation::Delete { key } => {
                    deletes += 1;
                    let value = key.end..key.end;
                    self.insert(record, key, value, sequence, Kind::Delete);
                }
                Operation::DeleteRange { from, to } => {
                    let (from, to) = (record[from].to_vec(), record[to].to_vec());
                    self.tombstones
                        .write()
                        .add(RangeTombstone { from, to, sequence });
                    self.tombstone_count.fetch_add(1, Release);
                }
            }
        }
        self.bytes
            .fetch_add(record.len() + count as usize * NODE_BYTES, Relaxed);
        self.entries.fetch_add(count as usize, Relaxed);
        if deletes > 0 {
            self.deletes.fetch_add(deletes, Relaxed);
        }
        self.sequence_max
            .fetch_max(sequence + u64::from(count) - 1, Relaxed);
        d.is_at_end().then_some(())
    }

    fn insert(
        &self,
        record: &Arc<[u8]>,
        key: Range<usize>,
        value: Range<usize>,
        sequence: u64,
        kind: Kind,
    ) {
        let key = EntryKey {
            record: record.clone(),
            from: key.start as u32,
            to: key.end as u32,
            sequence,
        };
        self.map.insert(
            key,
            EntryValue {
                kind,
                from: value.start as u32,
                to: value.end as u32,
            },
        );
    }

    /// The newest entry of `key` that is not newer than `sequence`.
    pub(crate) fn get(&self, key: &[u8], sequence: u64) -> Option<Found> {
        let entry = self
            .map
            .lower_bound(Bound::Included(&Lookup(key, sequence) as &dyn Place))?;
        let at = entry.key();
        (at.key() == key).then(|| {
            let v = entry.value();
            Found {
                kind: v.kind,
                sequence: at.sequence,
                value: Value::within(&at.record, v.from as usize, v.to as usize),
            }
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
        let first = self
            .map
            .lower_bound(Bound::Included(&Lookup(&range.from, u64::MAX) as &dyn Place));
        first.is_some_and(|e| range.to.as_deref().is_none_or(|to| e.key().key() < to))
    }

    /// Bytes of memory, estimated.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
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
