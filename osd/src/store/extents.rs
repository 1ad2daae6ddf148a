//! The map of one object: which bytes of it lie where.
//!
//! Pure arithmetic without I/O. An extent is a run of the object's bytes that comes from one stored
//! block, possibly from the middle of it. Extents are in order, never overlap and never reach
//! behind the object's length; what no extent covers below the length is a hole.
//!
//! Whoever changes a map passes a [`Ledger`], which learns how many bytes each segment gained or
//! lost. Because it counts the object's own bytes (not stored, perhaps compressed ones), cutting
//! an extent splits its count exactly, and a segment whose count is zero is referred to by nothing.

use std::collections::BTreeMap;

use super::block::Codec;

/// A stored block: everything that is needed to read and check it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Segment number.
    pub segment: u64,
    /// Where the stored bytes begin in the segment's file.
    pub position: u64,
    /// Distance back to the start of the record that holds the block's fingerprint.
    pub record_back: u32,
    /// Bytes as stored.
    pub stored: u32,
    /// Bytes when decoded.
    pub raw: u32,
    /// crc32c of the stored bytes.
    pub crc: u32,
    /// How the bytes are stored.
    pub codec: Codec,
}

/// A run of an object's bytes from one stored block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// First byte within the object.
    pub offset: u32,
    /// Bytes, never zero.
    pub length: u32,
    /// First byte within the decoded block.
    pub skip: u32,
    /// The block.
    pub place: Place,
}

impl Extent {
    /// The byte behind the last.
    pub(crate) const fn end(&self) -> u32 {
        self.offset.saturating_add(self.length)
    }

    /// The part of it within `from..to`, if any.
    pub(crate) fn clip(&self, from: u32, to: u32) -> Option<Self> {
        let start = self.offset.max(from);
        let end = self.end().min(to);
        (start < end).then(|| Self {
            offset: start,
            length: end - start,
            skip: self.skip + (start - self.offset),
            place: self.place,
        })
    }
}

/// What a change did to the segments, in the objects' own bytes.
#[derive(Debug, Default, Clone)]
pub(crate) struct Ledger {
    /// Gain or loss of each segment.
    pub by_segment: BTreeMap<u64, i64>,
}

impl Ledger {
    fn add(&mut self, segment: u64, bytes: i64) {
        *self.by_segment.entry(segment).or_default() += bytes;
    }

    /// Gain or loss over all segments.
    pub(crate) fn total(&self) -> i64 {
        self.by_segment.values().sum()
    }
}

/// The map of one object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ObjectMap {
    /// End of the last byte.
    pub length: u32,
    extents: Vec<Extent>,
}

impl ObjectMap {
    /// A map from its parts, if they are in order, do not overlap and fit the length and their
    /// blocks.
    pub(crate) fn from_parts(length: u32, extents: Vec<Extent>) -> Option<Self> {
        let mut at = 0u32;
        for extent in &extents {
            let end = extent.offset.checked_add(extent.length)?;
            let block_end = extent.skip.checked_add(extent.length)?;
            if extent.offset < at || extent.length == 0 || block_end > extent.place.raw {
                return None;
            }
            at = end;
        }
        (at <= length).then_some(Self { length, extents })
    }

    /// All extents, in order.
    pub(crate) fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Bytes of data, holes left out.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.extents.iter().map(|e| u64::from(e.length)).sum()
    }

    /// The parts of extents within `from..to`, in order.
    pub(crate) fn pieces(&self, from: u32, to: u32) -> impl Iterator<Item = Extent> + '_ {
        let first = self.extents.partition_point(|e| e.end() <= from);
        self.extents
            .get(first..)
            .unwrap_or_default()
            .iter()
            .take_while(move |e| e.offset < to)
            .filter_map(move |e| e.clip(from, to))
    }

    /// Makes `from..to` a hole. The length stays.
    pub(crate) fn punch(&mut self, from: u32, to: u32, ledger: &mut Ledger) {
        if from >= to {
            return;
        }
        let first = self.extents.partition_point(|e| e.end() <= from);
        let last = self.extents.partition_point(|e| e.offset < to);
        if first >= last {
            return;
        }
        let mut kept = Vec::with_capacity(2);
        for extent in &self.extents[first..last] {
            if let Some(cut) = extent.clip(from, to) {
                ledger.add(cut.place.segment, -i64::from(cut.length));
            }
            kept.extend(extent.clip(0, from));
            kept.extend(extent.clip(to, u32::MAX));
        }
        self.extents.splice(first..last, kept);
    }

    /// Puts an extent in the place of whatever it covers.
    pub(crate) fn put(&mut self, extent: Extent, ledger: &mut Ledger) {
        if extent.length == 0 {
            return;
        }
        self.punch(extent.offset, extent.end(), ledger);
        ledger.add(extent.place.segment, i64::from(extent.length));
        let at = self.extents.partition_point(|e| e.offset < extent.offset);
        self.extents.insert(at, extent);
        self.length = self.length.max(extent.end());
    }

    /// Drops what lies behind `length`; never makes the object longer.
    pub(crate) fn truncate(&mut self, length: u32, ledger: &mut Ledger) {
        if length < self.length {
            self.punch(length, u32::MAX, ledger);
            self.length = length;
        }
    }

    /// Counts everything it refers to as lost, as when the object is removed.
    pub(crate) fn release(&self, ledger: &mut Ledger) {
        for extent in &self.extents {
            ledger.add(extent.place.segment, -i64::from(extent.length));
        }
    }
}

#[cfg(test)]
pub(crate) fn test_place(segment: u64, raw: u32) -> Place {
    Place {
        segment,
        position: 64,
        record_back: 64,
        stored: raw,
        raw,
        crc: 0,
        codec: Codec::Raw,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Put(u32, u32),
        Punch(u32, u32),
        Truncate(u32),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let range = || (0u32..200, 0u32..80);
        prop::collection::vec(
            prop_oneof![
                3 => range().prop_map(|(a, n)| Step::Put(a, n)),
                1 => range().prop_map(|(a, n)| Step::Punch(a, n)),
                1 => (0u32..260).prop_map(Step::Truncate),
            ],
            1..40,
        )
    }

    proptest! {
        /// The model holds for each byte which block it came from and where in it.
        #[test]
        fn a_map_agrees_with_an_array_of_bytes(steps in steps()) {
            let mut map = ObjectMap::default();
            let mut model: Vec<Option<(u64, u32)>> = Vec::new();
            let mut live: BTreeMap<u64, i64> = BTreeMap::new();
            for (number, step) in steps.into_iter().enumerate() {
                let segment = number as u64;
                let mut ledger = Ledger::default();
                match step {
                    Step::Put(offset, length) => {
                        let skip = offset % 7;
                        let place = test_place(segment, skip + length);
                        map.put(Extent { offset, length, skip, place }, &mut ledger);
                        let end = (offset + length) as usize;
                        if length > 0 && model.len() < end {
                            model.resize(end, None);
                        }
                        for at in 0..length {
                            model[(offset + at) as usize] = Some((segment, skip + at));
                        }
                    }
                    Step::Punch(from, length) => {
                        map.punch(from, from + length, &mut ledger);
                        for at in from..from + length {
                            if let Some(byte) = model.get_mut(at as usize) {
                                *byte = None;
                            }
                        }
                    }
                    Step::Truncate(length) => {
                        map.truncate(length, &mut ledger);
                        model.truncate(length as usize);
                    }
                }
                for (segment, delta) in ledger.by_segment {
                    *live.entry(segment).or_default() += delta;
                }
                prop_assert_eq!(map.length as usize, model.len());
                let mut seen = vec![None; model.len()];
                for extent in map.pieces(0, u32::MAX) {
                    for at in 0..extent.length {
                        seen[(extent.offset + at) as usize] =
                            Some((extent.place.segment, extent.skip + at));
                    }
                }
                prop_assert_eq!(&seen, &model);
                let rebuilt = ObjectMap::from_parts(map.length, map.extents().to_vec());
                prop_assert_eq!(rebuilt.as_ref(), Some(&map));
            }
            for (segment, bytes) in live {
                let counted = model.iter().flatten().filter(|b| b.0 == segment).count();
                prop_assert_eq!(bytes, counted as i64);
            }
        }
    }

    #[test]
    fn extents_that_overlap_or_pass_their_block_are_no_map() {
        let extent = |offset, length, skip| Extent {
            offset,
            length,
            skip,
            place: test_place(1, 10),
        };
        assert!(ObjectMap::from_parts(20, vec![extent(0, 10, 0), extent(5, 5, 0)]).is_none());
        assert!(ObjectMap::from_parts(20, vec![extent(0, 10, 1)]).is_none());
        assert!(ObjectMap::from_parts(5, vec![extent(0, 10, 0)]).is_none());
        assert!(ObjectMap::from_parts(10, vec![extent(0, 10, 0)]).is_some());
    }
}
