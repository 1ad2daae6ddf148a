//! Range tombstones, arranged for questions.
//!
//! Ranges may overlap as they come. Here they are cut into fragments that do not, each with the
//! sequence numbers of all the tombstones that cover it, so that a question is one search.

use crate::keys::{Range, RangeTombstone};
use std::{
    collections::BTreeMap,
    mem,
    ops::Bound::{Excluded, Included, Unbounded},
};

#[derive(Clone, Debug, Default)]
pub(crate) struct Tombstones {
    /// By their start; no two share a key.
    fragments: BTreeMap<Vec<u8>, Fragment>,
}

#[derive(Clone, Debug)]
struct Fragment {
    to: Vec<u8>,
    /// Ascending.
    sequences: Vec<u64>,
}

impl Tombstones {
    pub(crate) fn add(&mut self, tombstone: RangeTombstone) {
        let RangeTombstone { from, to, sequence } = tombstone;
        if from >= to {
            return;
        }
        self.split(&from);
        self.split(&to);
        let mut gaps = Vec::new();
        let mut at = from.clone();
        let inside = (Included(from.as_slice()), Excluded(to.as_slice()));
        for (start, fragment) in self.fragments.range_mut::<[u8], _>(inside) {
            if at < *start {
                gaps.push((at, start.clone()));
            }
            at = fragment.to.clone();
            let place = fragment.sequences.partition_point(|s| *s < sequence);
            if fragment.sequences.get(place) != Some(&sequence) {
                fragment.sequences.insert(place, sequence);
            }
        }
        if at < to {
            gaps.push((at, to));
        }
        for (from, to) in gaps {
            let sequences = vec![sequence];
            self.fragments.insert(from, Fragment { to, sequences });
        }
    }

    /// Makes `key` the start of a fragment if it lies inside of one.
    fn split(&mut self, key: &[u8]) {
        let before = (Unbounded, Excluded(key));
        let last = self.fragments.range_mut::<[u8], _>(before).next_back();
        let Some((_, fragment)) = last.filter(|(_, f)| f.to.as_slice() > key) else {
            return;
        };
        let to = mem::replace(&mut fragment.to, key.to_vec());
        let sequences = fragment.sequences.clone();
        self.fragments
            .insert(key.to_vec(), Fragment { to, sequences });
    }

    /// The highest sequence number, up to `at_most`, of a tombstone that covers `key`; 0 when none
    /// does.
    pub(crate) fn covering(&self, key: &[u8], at_most: u64) -> u64 {
        let up_to = (Unbounded, Included(key));
        let last = self.fragments.range::<[u8], _>(up_to).next_back();
        last.filter(|(_, fragment)| key < fragment.to.as_slice())
            .map_or(0, |(_, fragment)| fragment.newest(at_most))
    }

    /// The range around `key` in which the same tombstones cover all keys, and the highest of their
    /// sequence numbers.
    pub(crate) fn around(&self, key: &[u8]) -> Option<RangeTombstone> {
        let up_to = (Unbounded, Included(key));
        let (from, fragment) = self.fragments.range::<[u8], _>(up_to).next_back()?;
        (key < fragment.to.as_slice()).then(|| RangeTombstone {
            from: from.clone(),
            to: fragment.to.clone(),
            sequence: fragment.newest(u64::MAX),
        })
    }

    /// The fragments that share keys with `range`, in order, each with its highest sequence number
    /// up to `at_most`.
    pub(crate) fn within<'a>(
        &'a self,
        range: &'a Range,
        at_most: u64,
    ) -> impl Iterator<Item = RangeTombstone> + 'a {
        let up_to = (Unbounded, Included(range.from.as_slice()));
        let first = self.fragments.range::<[u8], _>(up_to).next_back();
        let after = (Excluded(range.from.as_slice()), Unbounded);
        let others = self.fragments.range::<[u8], _>(after);
        let ends = range.to.as_deref();
        first
            .into_iter()
            .chain(others.take_while(move |(from, _)| ends.is_none_or(|to| from.as_slice() < to)))
            .filter(move |(from, f)| range.overlaps(from, &f.to) && f.newest(at_most) > 0)
            .map(move |(from, f)| RangeTombstone {
                from: from.clone(),
                to: f.to.clone(),
                sequence: f.newest(at_most),
            })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.fragments.is_empty()
    }
}

impl Fragment {
    fn newest(&self, at_most: u64) -> u64 {
        let count = self.sequences.partition_point(|s| *s <= at_most);
        count.checked_sub(1).map_or(0, |n| self.sequences[n])
    }
}

impl FromIterator<RangeTombstone> for Tombstones {
    fn from_iter<T: IntoIterator<Item = RangeTombstone>>(all: T) -> Tombstones {
        let mut tombstones = Tombstones::default();
        all.into_iter().for_each(|t| tombstones.add(t));
        tombstones
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn questions_are_answered_as_by_looking_at_all(
            ranges in proptest::collection::vec((0..30u8, 0..30u8, 1..20u64), 0..20),
            (from, to, at_most) in (0..30u8, 0..30u8, 0..22u64),
        ) {
            let all: Vec<RangeTombstone> = ranges
                .into_iter()
                .map(|(a, b, sequence)| RangeTombstone { from: vec![a], to: vec![b], sequence })
                .collect();
            let tombstones: Tombstones = all.iter().cloned().collect();
            let expected = |key: &[u8]| {
                let covers = |t: &&RangeTombstone| {
                    t.from.as_slice() <= key && key < t.to.as_slice() && t.sequence <= at_most
                };
                all.iter().filter(covers).map(|t| t.sequence).max().unwrap_or(0)
            };
            let range = Range { from: vec![from], to: (to < 28).then(|| vec![to]) };
            let part: Tombstones = tombstones.within(&range, at_most).collect();
            for key in (0..30u8).flat_map(|n| [vec![n], vec![n, 7]]) {
                prop_assert_eq!(tombstones.covering(&key, at_most), expected(&key));
                if range.from <= key && range.to.as_ref().is_none_or(|to| key < *to) {
                    prop_assert_eq!(part.covering(&key, u64::MAX), expected(&key));
                }
            }
            let pieces: Vec<_> = tombstones.within(&range, at_most).collect();
            prop_assert!(pieces.windows(2).all(|pair| pair[0].to <= pair[1].from));
        }
    }
}
