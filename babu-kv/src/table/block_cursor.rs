//! A cursor over one block.
//!
//! It holds one group of entries (from a restart to the next) with whole keys, so that it walks in
//! both directions and a seek unfolds no more than sixteen entries. Its buffers serve one block
//! after another.

use super::block::{Block, RESTART_INTERVAL};
use crate::{
    iter::{Entry, merge::Direction},
    keys::Kind,
    slice::Value,
};
use std::ops::Range;

/// An entry of the group.
struct Place {
    key: Range<u32>,
    value: Range<u32>,
    sequence: u64,
    kind: Kind,
}

#[derive(Default)]
pub(crate) struct BlockCursor {
    block: Option<Block>,
    group: u32,
    keys: Vec<u8>,
    places: Vec<Place>,
    /// The entry in the group.
    at: usize,
}

/// Whether the cursor stands at an entry, or what is wrong with the block.
type Step = Result<bool, &'static str>;

const ILL: &str = "an entry of the block is not well formed";
const UNORDERED: &str = "the keys of the block are not in order";

impl BlockCursor {
    /// Makes this the current block. The cursor stands at no entry.
    pub(crate) fn enter(&mut self, block: Block) {
        self.block = Some(block);
        self.places.clear();
        self.keys.clear();
    }

    /// Lets go of the block.
    pub(crate) fn leave(&mut self) {
        self.block = None;
        self.places.clear();
    }

    /// Unfolds a group; without a group of that number the cursor stands at no entry.
    fn unfold(&mut self, group: u32) -> Result<(), &'static str> {
        self.group = group;
        self.keys.clear();
        self.places.clear();
        let Some(block) = self.block.as_ref().filter(|b| group < b.groups()) else {
            return Ok(());
        };
        let mut entries = block.group(group).ok_or(ILL)?;
        let mut last = 0..0;
        while !entries.is_at_end() {
            let raw = entries.next().ok_or(ILL)?;
            // The first byte that is not shared decides on the order.
            let is_first = self.places.is_empty();
            let is_after = match self.keys[last.clone()].get(raw.shared) {
                Some(byte) => raw.unshared.first() > Some(byte),
                None => raw.shared == last.len() && (is_first || !raw.unshared.is_empty()),
            };
            if !is_after {
                return Err(UNORDERED);
            }
            if self.places.len() == RESTART_INTERVAL {
                return Err(ILL);
            }
            let key = self.keys.len();
            self.keys
                .extend_from_within(last.start..last.start + raw.shared);
            self.keys.extend_from_slice(raw.unshared);
            last = key..self.keys.len();
            self.places.push(Place {
                key: last.start as u32..last.end as u32,
                value: raw.value.start as u32..raw.value.end as u32,
                sequence: raw.sequence,
                kind: raw.kind,
            });
        }
        if self.places.is_empty() {
            return Err(ILL);
        }
        Ok(())
    }

    /// Whether the last entry of this group is before the first of `group`, if there is one.
    fn ends_before(&self, group: u32) -> Step {
        let Some(block) = self.block.as_ref().filter(|b| group < b.groups()) else {
            return Ok(true);
        };
        let first = block
            .group(group)
            .and_then(|mut entries| entries.next())
            .ok_or(ILL)?;
        Ok(self
            .places
            .last()
            .is_none_or(|last| self.key(last) < first.unshared))
    }

    fn key(&self, place: &Place) -> &[u8] {
        &self.keys[place.key.start as usize..place.key.end as usize]
    }

    /// The number of entries of the group before `key`.
    fn count_before(&self, key: &[u8]) -> usize {
        self.places.partition_point(|p| self.key(p) < key)
    }

    fn is_inside(&self) -> bool {
        self.at < self.places.len()
    }

    fn groups_before(&self, is_before: impl Fn(&[u8]) -> bool) -> Result<u32, &'static str> {
        match &self.block {
            Some(block) => block.groups_before(is_before).ok_or(ILL),
            None => Ok(0),
        }
    }

    pub(crate) fn first(&mut self) -> Step {
        self.at = 0;
        self.unfold(0)?;
        Ok(self.is_inside())
    }

    /// Goes to the first entry that is not before `key`.
    pub(crate) fn seek(&mut self, key: &[u8]) -> Step {
        let group = self.groups_before(|first| first < key)?.saturating_sub(1);
        self.unfold(group)?;
        self.at = self.count_before(key);
        if !self.is_inside() && !self.places.is_empty() {
            self.unfold(group + 1)?;
            self.at = 0;
        }
        Ok(self.is_inside())
    }

    /// Goes to the last entry before `before`, or to the last of all.
    pub(crate) fn seek_back(&mut self, before: Option<&[u8]>) -> Step {
        let groups = self.groups_before(|first| before.is_none_or(|key| first < key))?;
        let Some(group) = groups.checked_sub(1) else {
            self.places.clear();
            return Ok(false);
        };
        self.unfold(group)?;
        let count = before.map_or(self.places.len(), |key| self.count_before(key));
        self.at = count.checked_sub(1).ok_or(UNORDERED)?;
        Ok(self.is_inside())
    }

    pub(crate) fn next(&mut self) -> Step {
        self.at += 1;
        if self.is_inside() || self.places.is_empty() {
            return Ok(self.is_inside());
        }
        if !self.ends_before(self.group + 1)? {
            return Err(UNORDERED);
        }
        self.unfold(self.group + 1)?;
        self.at = 0;
        Ok(self.is_inside())
    }

    pub(crate) fn prev(&mut self) -> Step {
        if self.places.is_empty() {
            return Ok(false);
        }
        if let Some(at) = self.at.checked_sub(1) {
            self.at = at;
            return Ok(true);
        }
        let Some(group) = self.group.checked_sub(1) else {
            self.places.clear();
            return Ok(false);
        };
        self.unfold(group)?;
        self.at = self.places.len().saturating_sub(1);
        Ok(self.is_inside())
    }

    /// How many entries lie ahead in the group up to the first whose key `is_inside` says no to; it
    /// must say no to all that follow.
    pub(crate) fn run(&self, direction: Direction, is_inside: impl Fn(&[u8]) -> bool) -> usize {
        let is_inside = |place: &Place| is_inside(self.key(place));
        match direction {
            Direction::Forward => {
                let ahead = self.places.get(self.at + 1..).unwrap_or_default();
                match ahead.last() {
                    Some(last) if !is_inside(last) => ahead.partition_point(is_inside),
                    _ => ahead.len(),
                }
            }
            Direction::Back => {
                let ahead = self.places.get(..self.at).unwrap_or_default();
                match ahead.first() {
                    Some(last) if !is_inside(last) => {
                        ahead.len() - ahead.partition_point(|place| !is_inside(place))
                    }
                    _ => ahead.len(),
                }
            }
        }
    }

    /// Goes on to an entry of the group that [`run`](BlockCursor::run) counted.
    #[inline]
    pub(crate) fn glide(&mut self, direction: Direction) -> Option<Kind> {
        match direction {
            Direction::Forward => self.at += 1,
            Direction::Back => self.at -= 1,
        }
        Some(self.places.get(self.at)?.kind)
    }

    /// Where it stands.
    #[inline]
    pub(crate) fn entry(&self) -> Option<Entry<'_>> {
        let place = self.places.get(self.at)?;
        Some(Entry {
            key: self.key(place),
            sequence: place.sequence,
            kind: place.kind,
        })
    }

    /// The value of the entry where it stands.
    #[inline]
    pub(crate) fn value(&self) -> Value {
        match (&self.block, self.places.get(self.at)) {
            (Some(block), Some(place)) => Value::within(
                block.data(),
                place.value.start as usize,
                place.value.end as usize,
            ),
            _ => Value::from(&[][..]),
        }
    }

    /// The same, borrowed.
    pub(crate) fn value_bytes(&self) -> &[u8] {
        match (&self.block, self.places.get(self.at)) {
            (Some(block), Some(place)) => {
                &block.data()[place.value.start as usize..place.value.end as usize]
            }
            _ => &[],
        }
    }
}
