//! Where the blocks of a table lie.
//!
//! The top level of an index is in memory while its table is open. For each block, or part of the
//! index when there are two levels, it has a key after all keys in there. What a search waits for is
//! memory that is not in the processor's cache. So twice eight bytes of each key are in arrays of
//! their own and decide nearly every comparison, and some of them are in an array that is small
//! enough to stay in that cache; a search looks at about three lines beyond it.

use super::{
    block::{Block, BlockBuilder, shared_prefix},
    block_cursor::BlockCursor,
    format::Handle,
    reader::{Reader, Reading},
};
use crate::{
    coding::{Decoder, put_varint},
    error::Result,
    iter::Entry,
    keys::Kind,
};

/// A block of a table, or a part of its index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub handle: Handle,
    pub entries: u32,
    /// How many of the entries delete.
    pub tombstones: u32,
}

impl Place {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, self.handle.offset);
        for number in [self.handle.length, self.entries, self.tombstones] {
            put_varint(&mut out, u64::from(number));
        }
        out
    }

    fn decode(bytes: &[u8]) -> Option<Place> {
        let mut d = Decoder::new(bytes, 0);
        let offset = d.number()?;
        let mut number = || u32::try_from(d.varint()?).ok();
        let place = Place {
            handle: Handle {
                offset,
                length: number()?,
            },
            entries: number()?,
            tombstones: number()?,
        };
        d.is_at_end().then_some(place)
    }
}

/// One level of an index, in memory.
#[derive(Debug, Default)]
pub(crate) struct Index {
    keys: Vec<u8>,
    /// For each place where its key ends.
    ends: Vec<u32>,
    places: Vec<Place>,
    /// Bytes that all keys begin with.
    common: usize,
    /// The eight bytes of each key after those.
    heads: Vec<u64>,
    /// One of [`STRIDE`] heads, the first one too.
    samples: Vec<u64>,
    /// The eight bytes of each key after its head.
    tails: Vec<u64>,
}

/// The heads from one sample to the next fit into a line of the processor's cache.
const STRIDE: usize = 8;

/// Eight bytes as a number that orders as they do; what is missing counts as zeros.
fn head(key: &[u8]) -> u64 {
    match key.first_chunk() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => {
            let byte = |at| u64::from(key.get(at).copied().unwrap_or(0));
            (0..8).fold(0, |n, at| n << 8 | byte(at))
        }
    }
}

/// The same for the eight bytes that follow.
fn tail(key: &[u8]) -> u64 {
    head(key.get(size_of::<u64>()..).unwrap_or_default())
}

/// How many of the numbers, which are in order, are `value` and come first. Costs more only when they
/// are many.
fn leading(numbers: &[u64], value: u64) -> usize {
    let mut end = 1;
    while numbers.get(end - 1) == Some(&value) {
        end *= 2;
    }
    let known = end / 2;
    let rest = &numbers[known..(end - 1).min(numbers.len())];
    known + rest.partition_point(|number| *number == value)
}

impl Index {
    /// Adds a place whose keys are all before `key` and not before the key of the one added last.
    /// Not to be asked before it came back from [`decode`](Index::decode).
    pub(crate) fn push(&mut self, key: &[u8], place: Place) {
        self.keys.extend_from_slice(key);
        self.ends.push(self.keys.len() as u32);
        self.places.push(place);
    }

    /// About as many bytes as its blocks will have.
    pub(crate) fn encoded_bytes(&self) -> usize {
        self.keys.len() + 12 * self.places.len()
    }

    /// Calls `part` with blocks of about `bytes` that together hold the index, each with the last
    /// key and the number of entries in it and how many of those delete.
    pub(crate) fn encode(
        &self,
        bytes: usize,
        mut part: impl FnMut(&[u8], &[u8], Place) -> Result<()>,
    ) -> Result<()> {
        let mut block = BlockBuilder::default();
        let mut sum = Place::default();
        for (n, place) in self.places.iter().enumerate() {
            let entry = Entry {
                key: self.key(n),
                sequence: 0,
                kind: Kind::Put,
            };
            block.add(&entry, &place.encode());
            sum.entries = sum.entries.saturating_add(place.entries);
            sum.tombstones = sum.tombstones.saturating_add(place.tombstones);
            if block.len() >= bytes || n + 1 == self.places.len() {
                part(block.finish(), self.key(n), sum)?;
                block.clear();
                sum = Place::default();
            }
        }
        Ok(())
    }

    /// The error says what is wrong with the block.
    pub(crate) fn decode(block: Block) -> Result<Index, &'static str> {
        let mut index = Index::default();
        let mut cursor = BlockCursor::default();
        cursor.enter(block);
        let mut is_there = cursor.first()?;
        while let Some(entry) = cursor.entry().filter(|_| is_there) {
            let place = Place::decode(cursor.value_bytes());
            index.push(
                entry.key,
                place.ok_or("a place in the index is not well formed")?,
            );
            is_there = cursor.next()?;
        }
        if let Some(last) = index.len().checked_sub(1) {
            index.common = shared_prefix(index.key(0), index.key(last));
        }
        for n in 0..index.len() {
            let rest = &index.key(n)[index.common..];
            let (first, second) = (head(rest), tail(rest));
            index.heads.push(first);
            index.tails.push(second);
        }
        index.samples = index.heads.iter().step_by(STRIDE).copied().collect();
        index.keys.shrink_to_fit();
        index.heads.shrink_to_fit();
        index.tails.shrink_to_fit();
        index.ends.shrink_to_fit();
        index.places.shrink_to_fit();
        Ok(index)
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    fn key(&self, n: usize) -> &[u8] {
        let from = n.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.keys[from as usize..self.ends[n] as usize]
    }

    pub(crate) fn place(&self, n: usize) -> Option<Place> {
        self.places.get(n).copied()
    }

    /// The first place that may have keys that are not before `key`; `len()` when there is none.
    pub(crate) fn find(&self, key: &[u8]) -> usize {
        if self.places.is_empty() {
            return 0;
        }
        let common = &self.key(0)[..self.common];
        let Some(rest) = key.strip_prefix(common) else {
            return if key < common { 0 } else { self.len() };
        };
        let sought = head(rest);
        let samples = self.samples.partition_point(|head| *head < sought);
        let from = samples.saturating_sub(1) * STRIDE;
        let heads = &self.heads[from..(samples * STRIDE).min(self.len())];
        let mut low = from + heads.partition_point(|head| *head < sought);
        let mut high = low + leading(&self.heads[low..], sought);
        if low < high {
            let sought = tail(rest);
            let tails = &self.tails[low..high];
            low += tails.partition_point(|tail| *tail < sought);
            high = low + leading(&self.tails[low..high], sought);
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if self.key(middle) <= key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    pub(crate) fn bytes(&self) -> usize {
        self.keys.len()
            + self.places.len() * (size_of::<Place>() + size_of::<(u32, [u64; 2])>())
            + self.samples.len() * size_of::<u64>()
    }
}

/// Walks the data blocks of a table, through one or both levels of its index.
#[derive(Default)]
pub(crate) struct IndexCursor {
    /// The place in the top level.
    top: usize,
    /// The part of the index with that number, when there are two levels.
    part: Option<usize>,
    inside: BlockCursor,
}

impl IndexCursor {
    /// The first block that may have keys that are not before `key`.
    pub(crate) fn seek(
        &mut self,
        reader: &Reader,
        key: &[u8],
        reading: Reading,
    ) -> Result<Option<Place>> {
        self.top = reader.index().find(key);
        if !self.enter(reader, reading)? {
            return Ok(reader.index().place(self.top));
        }
        // The key of an entry is after all keys of its block.
        let is_there = self.inside.seek(key).and_then(|is_there| {
            if self.inside.entry().is_some_and(|e| e.key == key) {
                self.inside.next()
            } else {
                Ok(is_there)
            }
        });
        self.result(reader, is_there)
    }

    pub(crate) fn first(&mut self, reader: &Reader, reading: Reading) -> Result<Option<Place>> {
        self.top = 0;
        self.near_end(reader, reading)
    }

    pub(crate) fn last(&mut self, reader: &Reader, reading: Reading) -> Result<Option<Place>> {
        self.top = reader.index().len();
        self.step_back(reader, reading)
    }

    pub(crate) fn next(&mut self, reader: &Reader, reading: Reading) -> Result<Option<Place>> {
        if self.part.is_some() {
            let is_there = self.inside.next();
            if let Some(place) = self.result(reader, is_there)? {
                return Ok(Some(place));
            }
        }
        self.top = (self.top + 1).min(reader.index().len());
        self.near_end(reader, reading)
    }

    pub(crate) fn prev(&mut self, reader: &Reader, reading: Reading) -> Result<Option<Place>> {
        if self.part.is_some() {
            let is_there = self.inside.prev();
            if let Some(place) = self.result(reader, is_there)? {
                return Ok(Some(place));
            }
        }
        self.step_back(reader, reading)
    }

    /// The first block of the current place.
    fn near_end(&mut self, reader: &Reader, reading: Reading) -> Result<Option<Place>> {
        if !self.enter(reader, reading)? {
            return Ok(reader.index().place(self.top));
        }
        let is_there = self.inside.first();
        self.result(reader, is_there)
    }

    /// The last block of the place before.
    fn step_back(&mut self, reader: &Reader, reading: Reading) -> Result<Option<Place>> {
        let Some(top) = self.top.checked_sub(1) else {
            return Ok(None);
        };
        self.top = top;
        if !self.enter(reader, reading)? {
            return Ok(reader.index().place(top));
        }
        let is_there = self.inside.seek_back(None);
        self.result(reader, is_there)
    }

    /// Enters the part of the index at the current place; `false` when there is none.
    fn enter(&mut self, reader: &Reader, reading: Reading) -> Result<bool> {
        let place = reader.index().place(self.top);
        let Some(place) = place.filter(|_| reader.has_index_parts()) else {
            self.part = None;
            return Ok(false);
        };
        if self.part != Some(self.top) {
            self.part = None;
            self.inside.enter(reader.block(place.handle, reading)?);
            self.part = Some(self.top);
        }
        Ok(true)
    }

    fn result(
        &self,
        reader: &Reader,
        is_there: Result<bool, &'static str>,
    ) -> Result<Option<Place>> {
        let part = reader.index().place(self.top).unwrap_or_default();
        let corrupt = |what| reader.corrupt(part.handle, what);
        if !is_there.map_err(corrupt)? {
            return Ok(None);
        }
        let place = Place::decode(self.inside.value_bytes());
        place
            .map(Some)
            .ok_or_else(|| corrupt("a place in the index is not well formed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::collections::BTreeSet;

    fn index(keys: &BTreeSet<Vec<u8>>) -> Index {
        let mut index = Index::default();
        for key in keys {
            index.push(key, Place::default());
        }
        let mut content = None;
        let whole = index.encode(usize::MAX, |block, _, _| {
            content = Block::new(block.into());
            Ok(())
        });
        whole.unwrap();
        Index::decode(content.unwrap()).unwrap()
    }

    /// Keys that differ in their first bytes, in later ones, or only far behind; short ones too.
    #[test]
    fn the_first_place_after_a_key_is_found() {
        let mut random = StdRng::seed_from_u64(3);
        for round in 0..60 {
            let count = random.random_range(1..600);
            let mut key = || {
                let mut key = b"same".to_vec();
                for values in [1, 4, 1 + round % 3 * 60, 3] {
                    let letter = random.random_range(0..values);
                    key.extend([letter; 5]);
                }
                key.truncate(4 + random.random_range(0..24));
                key
            };
            let keys: BTreeSet<Vec<u8>> = (0..count).map(|_| key()).collect();
            let asked: Vec<Vec<u8>> = (0..300).map(|_| key()).collect();
            let index = index(&keys);
            let others = [b"".as_slice(), b"same", b"sam", b"sane", b"aaaa"];
            for key in asked.iter().chain(&keys).map(Vec::as_slice).chain(others) {
                let expected = keys.iter().filter(|k| k.as_slice() <= key).count();
                assert_eq!(index.find(key), expected, "{key:?} among {keys:?}");
            }
        }
    }
}
