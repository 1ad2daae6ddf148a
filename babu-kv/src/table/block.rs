//! Data blocks: entries whose keys share prefixes, with restart points for a binary search. The
//! layout is in `format.rs`.

use crate::{
    coding::{Decoder, put_varint, u32_at},
    iter::Entry,
    keys::Kind,
    memtable::Found,
    slice::Value,
};
use std::{cmp::Ordering, sync::Arc};

const RESTART_INTERVAL: usize = 16;

fn shared_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

#[derive(Default)]
pub(crate) struct BlockBuilder {
    out: Vec<u8>,
    restarts: Vec<u32>,
    last_key: Vec<u8>,
    entries: usize,
}

impl BlockBuilder {
    pub(crate) fn add(&mut self, entry: &Entry<'_>, value: &[u8]) {
        let shared = if self.entries.is_multiple_of(RESTART_INTERVAL) {
            self.restarts.push(self.out.len() as u32);
            0
        } else {
            shared_prefix(&self.last_key, entry.key)
        };
        let unshared = &entry.key[shared..];
        let kind = match entry.kind {
            Kind::Put => 0,
            Kind::Delete => 1,
        };
        put_varint(&mut self.out, shared as u64);
        put_varint(&mut self.out, unshared.len() as u64);
        put_varint(&mut self.out, value.len() as u64);
        put_varint(&mut self.out, entry.sequence << 2 | kind);
        self.out.extend_from_slice(unshared);
        self.out.extend_from_slice(value);
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(unshared);
        self.entries += 1;
    }

    pub(crate) fn len(&self) -> usize {
        self.out.len() + self.restarts.len() * 4 + 4
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    pub(crate) fn last_key(&self) -> &[u8] {
        &self.last_key
    }

    /// The content; the builder is empty again.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let BlockBuilder {
            mut out, restarts, ..
        } = std::mem::take(self);
        for restart in &restarts {
            out.extend_from_slice(&restart.to_le_bytes());
        }
        out.extend_from_slice(&(restarts.len() as u32).to_le_bytes());
        out
    }
}

/// One entry as it lies in a block.
struct Raw<'a> {
    shared: usize,
    unshared: &'a [u8],
    kind: Kind,
    sequence: u64,
    value_from: usize,
    value_to: usize,
}

fn next_raw<'a>(d: &mut Decoder<'a>) -> Option<Raw<'a>> {
    let (shared, unshared, value) = (d.length()?, d.length()?, d.length()?);
    let packed = d.varint()?;
    let kind = match packed & 3 {
        0 => Kind::Put,
        1 => Kind::Delete,
        _ => return None,
    };
    let unshared = d.take(unshared)?;
    let value_from = d.position();
    d.take(value)?;
    Some(Raw {
        shared,
        unshared,
        kind,
        sequence: packed >> 2,
        value_from,
        value_to: d.position(),
    })
}

/// A data block in memory; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    data: Arc<[u8]>,
    /// Where the entries end and the restarts begin.
    entries_end: u32,
    restarts: u32,
}

impl Block {
    /// `None` when the restarts do not fit. `length` bytes of `data` are the content.
    pub(crate) fn new(data: Arc<[u8]>, length: usize) -> Option<Block> {
        let count_at = length.checked_sub(4)?;
        let restarts = u32_at(data.get(..length)?, count_at)?;
        let entries_end = count_at.checked_sub((restarts as usize).checked_mul(4)?)?;
        Some(Block {
            data,
            entries_end: u32::try_from(entries_end).ok()?,
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

    fn entries(&self) -> &[u8] {
        &self.data[..self.entries_end as usize]
    }

    fn restart(&self, n: u32) -> Option<usize> {
        if n >= self.restarts {
            return Some(self.entries_end as usize);
        }
        u32_at(&self.data, self.entries_end as usize + n as usize * 4).map(|at| at as usize)
    }

    /// The entry of `key`. The error says what is wrong with the block.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Found>, &'static str> {
        self.search(key)
            .ok_or("an entry of the block is not well formed")
    }

    fn search(&self, key: &[u8]) -> Option<Option<Found>> {
        // The last restart whose key is not after `key`.
        let (mut low, mut high) = (0, self.restarts);
        while low < high {
            let middle = low + (high - low) / 2;
            let raw = next_raw(&mut Decoder::new(self.entries(), self.restart(middle)?))?;
            if raw.unshared <= key {
                low = middle + 1
            } else {
                high = middle
            }
        }
        let Some(from) = low.checked_sub(1) else {
            return Some(None);
        };
        let end = self.restart(low)?.min(self.entries_end as usize);
        let mut d = Decoder::new(&self.data[..end], self.restart(from)?);
        // All entries seen are before `key` and share `matched` bytes with it, so that most need no
        // comparison.
        let mut matched = 0;
        while !d.is_at_end() {
            let raw = next_raw(&mut d)?;
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
                    let value = Value::within(&self.data, raw.value_from, raw.value_to);
                    return Some(Some(Found {
                        kind: raw.kind,
                        sequence: raw.sequence,
                        value,
                    }));
                }
            }
        }
        Some(None)
    }

    /// All entries, with whole keys.
    pub(crate) fn unfold(&self) -> Result<Unfolded, &'static str> {
        let mut unfolded = Unfolded {
            block: self.clone(),
            keys: Vec::new(),
            entries: Vec::new(),
        };
        let mut d = Decoder::new(self.entries(), 0);
        let mut last = 0..0;
        while !d.is_at_end() {
            let raw = next_raw(&mut d).ok_or("an entry of the block is not well formed")?;
            if raw.shared > last.len() {
                return Err("a key of the block shares more than there is");
            }
            let from = unfolded.keys.len();
            unfolded
                .keys
                .extend_from_within(last.start..last.start + raw.shared);
            unfolded.keys.extend_from_slice(raw.unshared);
            let key = from..unfolded.keys.len();
            if !unfolded.entries.is_empty()
                && unfolded.keys[last.clone()] >= unfolded.keys[key.clone()]
            {
                return Err("the keys of the block are not in order");
            }
            unfolded.entries.push(Place {
                key_from: key.start as u32,
                key_to: key.end as u32,
                value_from: raw.value_from as u32,
                value_to: raw.value_to as u32,
                sequence: raw.sequence,
                kind: raw.kind,
            });
            last = key;
        }
        Ok(unfolded)
    }
}

struct Place {
    key_from: u32,
    key_to: u32,
    value_from: u32,
    value_to: u32,
    sequence: u64,
    kind: Kind,
}

/// The entries of a block, ready to walk in both directions.
pub(crate) struct Unfolded {
    block: Block,
    keys: Vec<u8>,
    entries: Vec<Place>,
}

impl Unfolded {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn entry(&self, n: usize) -> Option<Entry<'_>> {
        let place = self.entries.get(n)?;
        let key = self
            .keys
            .get(place.key_from as usize..place.key_to as usize)?;
        Some(Entry {
            key,
            sequence: place.sequence,
            kind: place.kind,
        })
    }

    pub(crate) fn value(&self, n: usize) -> Value {
        match self.entries.get(n) {
            Some(place) => Value::within(
                &self.block.data,
                place.value_from as usize,
                place.value_to as usize,
            ),
            None => Value::from(&[][..]),
        }
    }

    /// The number of entries before `key`.
    pub(crate) fn find(&self, key: &[u8]) -> usize {
        self.entries
            .partition_point(|p| &self.keys[p.key_from as usize..p.key_to as usize] < key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Block, Vec<Vec<u8>>) {
        let keys: Vec<Vec<u8>> = (0..100u32)
            .map(|n| format!("key{:05}/{}", n * 7, "x".repeat(n as usize % 5)).into_bytes())
            .collect();
        let mut builder = BlockBuilder::default();
        for (n, key) in keys.iter().enumerate() {
            let kind = if n % 3 == 0 { Kind::Delete } else { Kind::Put };
            builder.add(
                &Entry {
                    key,
                    sequence: n as u64 + (1 << 40),
                    kind,
                },
                &n.to_le_bytes(),
            );
        }
        let content = builder.finish();
        let length = content.len();
        (Block::new(content.into(), length).unwrap(), keys)
    }

    #[test]
    fn every_key_is_found_and_no_other() {
        let (block, keys) = sample();
        for (n, key) in keys.iter().enumerate() {
            let found = block.get(key).unwrap().unwrap();
            assert_eq!(
                (found.sequence, &*found.value),
                (n as u64 + (1 << 40), n.to_le_bytes().as_slice())
            );
            for absent in [&key[..key.len() - 1], &[key.as_slice(), b"!"].concat()] {
                assert_eq!(
                    block.get(absent).unwrap().is_some(),
                    keys.iter().any(|k| k == absent)
                );
            }
        }
        let unfolded = block.unfold().unwrap();
        assert!((0..unfolded.len()).all(|n| unfolded.entry(n).unwrap().key == keys[n]));
        assert_eq!(unfolded.find(&keys[50]), 50);
        assert_eq!(unfolded.find(b"zzz"), 100);
    }

    #[test]
    fn hostile_bytes_give_errors_and_no_panic() {
        let (block, keys) = sample();
        for at in 0..block.data.len() {
            for mask in [1, 0x80, 0xff] {
                let mut bytes = block.data.to_vec();
                bytes[at] ^= mask;
                let length = bytes.len();
                if let Some(block) = Block::new(bytes.into(), length) {
                    for key in keys.iter().step_by(9) {
                        let _ = block.get(key);
                    }
                    let _ = block.unfold();
                }
            }
        }
    }
}
