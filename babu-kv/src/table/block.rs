//! Blocks: entries whose keys share prefixes, with restart points for a binary search. The layout is
//! in `format.rs`. Here they are built and asked for one key; `block_cursor.rs` walks them.

use crate::{
    coding::{Decoder, put_varint, u32_at},
    iter::Entry,
    keys::Kind,
    memtable::Found,
    slice::Value,
};
use std::{cmp::Ordering, ops::Range, sync::Arc};

pub(crate) const RESTART_INTERVAL: usize = 16;

pub(crate) fn shared_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// Small numbers of either sign as small numbers.
fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[derive(Default)]
pub(crate) struct BlockBuilder {
    values: Vec<u8>,
    entries: Vec<u8>,
    /// Offsets in `entries`.
    restarts: Vec<u32>,
    last_key: Vec<u8>,
    last_sequence: u64,
    count: u32,
    tombstones: u32,
}

impl BlockBuilder {
    pub(crate) fn add(&mut self, entry: &Entry<'_>, value: &[u8]) {
        let (shared, first, order) = if (self.count as usize).is_multiple_of(RESTART_INTERVAL) {
            self.restarts.push(self.entries.len() as u32);
            (0, self.values.len(), entry.sequence)
        } else {
            let more = entry.sequence.wrapping_sub(self.last_sequence);
            let shared = shared_prefix(&self.last_key, entry.key);
            (shared, shared, zigzag(more as i64))
        };
        let unshared = &entry.key[shared..];
        let kind = match entry.kind {
            Kind::Put => 0,
            Kind::Delete => 1,
        };
        put_varint(&mut self.entries, first as u64);
        put_varint(&mut self.entries, unshared.len() as u64);
        put_varint(&mut self.entries, value.len() as u64);
        put_varint(&mut self.entries, order << 1 | kind);
        self.entries.extend_from_slice(unshared);
        self.values.extend_from_slice(value);
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(unshared);
        self.last_sequence = entry.sequence;
        self.count += 1;
        self.tombstones += kind as u32;
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len() + self.entries.len() + self.restarts.len() * 4 + 4
    }

    pub(crate) fn entries(&self) -> u32 {
        self.count
    }

    pub(crate) fn tombstones(&self) -> u32 {
        self.tombstones
    }

    pub(crate) fn last_key(&self) -> &[u8] {
        &self.last_key
    }

    /// The content. Nothing may be added before it is cleared.
    pub(crate) fn finish(&mut self) -> &[u8] {
        let values = self.values.len() as u32;
        self.values.extend_from_slice(&self.entries);
        for restart in &self.restarts {
            let restart = values + restart;
            self.values.extend_from_slice(&restart.to_le_bytes());
        }
        let count = self.restarts.len() as u32;
        self.values.extend_from_slice(&count.to_le_bytes());
        &self.values
    }

    /// Empties it and keeps its buffers.
    pub(crate) fn clear(&mut self) {
        self.values.clear();
        self.entries.clear();
        self.restarts.clear();
        self.last_key.clear();
        self.count = 0;
        self.tombstones = 0;
    }
}

/// One entry as it lies in a block.
pub(crate) struct Raw<'a> {
    pub shared: usize,
    pub unshared: &'a [u8],
    pub sequence: u64,
    pub kind: Kind,
    pub value: Range<usize>,
}

/// The entries from a restart to the next, one after the other.
pub(crate) struct Group<'a> {
    entries: Decoder<'a>,
    /// Where all values end.
    values_end: usize,
    /// Of the entry before: its sequence number, and where its value ends.
    before: Option<(u64, usize)>,
}

impl<'a> Group<'a> {
    pub(crate) fn is_at_end(&self) -> bool {
        self.entries.is_at_end()
    }

    /// Reads the next entry; `None` when it is not well formed.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Raw<'a>> {
        let d = &mut self.entries;
        let (first, unshared, value) = (d.length()?, d.length()?, d.length()?);
        let packed = d.varint()?;
        let unshared = d.take(unshared)?;
        let order = packed >> 1;
        let (shared, from, sequence) = match self.before {
            None => (0, first, order),
            Some((last, end)) => (first, end, last.wrapping_add(unzigzag(order) as u64)),
        };
        let end = from.checked_add(value)?;
        if end > self.values_end {
            return None;
        }
        self.before = Some((sequence, end));
        Some(Raw {
            shared,
            unshared,
            sequence,
            kind: if packed & 1 == 0 {
                Kind::Put
            } else {
                Kind::Delete
            },
            value: from..end,
        })
    }
}

/// A block in memory; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    data: Arc<[u8]>,
    /// Where the values end and the entries begin.
    values_end: u32,
    /// Where the entries end and the restarts begin.
    entries_end: u32,
    restarts: u32,
}

impl Block {
    /// `None` when the restarts do not fit.
    pub(crate) fn new(data: Arc<[u8]>) -> Option<Block> {
        let count_at = data.len().checked_sub(4)?;
        let restarts = u32_at(&data, count_at)?;
        let entries_end = count_at.checked_sub((restarts as usize).checked_mul(4)?)?;
        let entries_end = u32::try_from(entries_end).ok()?;
        let values_end = match restarts {
            0 => entries_end,
            _ => u32_at(&data, entries_end as usize)?,
        };
        (values_end <= entries_end).then_some(Block {
            data,
            values_end,
            entries_end,
            restarts,
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Whether another clone, or a value in it, keeps it in memory.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.data) > 1
    }

    pub(crate) fn data(&self) -> &Arc<[u8]> {
        &self.data
    }

    /// The number of restarts, each of which begins a group of entries.
    pub(crate) fn groups(&self) -> u32 {
        self.restarts
    }

    /// The entries of group `n`.
    pub(crate) fn group(&self, n: u32) -> Option<Group<'_>> {
        let from = self.restart(n)?;
        let to = self.restart(n + 1)?.min(self.entries_end as usize);
        Some(Group {
            entries: Decoder::new(&self.data[..to], from),
            values_end: self.values_end as usize,
            before: None,
        })
    }

    fn restart(&self, n: u32) -> Option<usize> {
        if n >= self.restarts {
            return Some(self.entries_end as usize);
        }
        u32_at(&self.data, self.entries_end as usize + n as usize * 4).map(|at| at as usize)
    }

    /// The number of groups whose first key `is_before` says yes to; it must say no to all after
    /// the first no.
    pub(crate) fn groups_before(&self, is_before: impl Fn(&[u8]) -> bool) -> Option<u32> {
        let (mut low, mut high) = (0, self.restarts);
        while low < high {
            let middle = low + (high - low) / 2;
            let raw = self.group(middle)?.next()?;
            if is_before(raw.unshared) {
                low = middle + 1
            } else {
                high = middle
            }
        }
        Some(low)
    }

    /// The entry of `key`. The error says what is wrong with the block.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Found>, &'static str> {
        self.search(key)
            .ok_or("an entry of the block is not well formed")
    }

    fn search(&self, key: &[u8]) -> Option<Option<Found>> {
        let Some(group) = self.groups_before(|first| first <= key)?.checked_sub(1) else {
            return Some(None);
        };
        let mut entries = self.group(group)?;
        // All entries seen are before `key` and share `matched` bytes with it, so that most need no
        // comparison.
        let mut matched = 0;
        while !entries.is_at_end() {
            let raw = entries.next()?;
            match raw.shared.cmp(&matched) {
                Ordering::Greater => continue,
                Ordering::Less => return Some(None),
                Ordering::Equal => {}
            }
            let rest = key.get(matched..)?;
            match raw.unshared.cmp(rest) {
                Ordering::Less => matched += shared_prefix(raw.unshared, rest),
                Ordering::Greater => return Some(None),
                Ordering::Equal => {
                    return Some(Some(Found {
                        kind: raw.kind,
                        sequence: raw.sequence,
                        value: Value::within(&self.data, raw.value.start, raw.value.end),
                    }));
                }
            }
        }
        Some(None)
    }
}
