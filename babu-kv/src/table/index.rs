//! Where the blocks of a table lie.
//!
//! The top level of an index is in memory while its table is open. For each block, or part of the
//! index when there are two levels, it has a key after all keys in there, and eight bytes of that
//! key in an array of their own: they decide nearly every comparison of a search, and the array is
//! small enough to stay in the processor's cache.

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
}

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
        let key_head = |n| head(&index.key(n)[index.common..]);
        index.heads = (0..index.len()).map(key_head).collect();
        index.keys.shrink_to_fit();
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
        let mut low = self.heads.partition_point(|head| *head < sought);
        let mut high = low + self.heads[low..].partition_point(|head| *head == sought);
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
        self.keys.len() + self.places.len() * (size_of::<Place>() + size_of::<(u32, u64)>())
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
