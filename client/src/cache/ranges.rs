//! A set of byte ranges within one object: which bytes are known, dirty, or on their way.

use std::collections::BTreeMap;

/// Disjoint, non-touching, non-empty ranges `start..end`, with their total length kept at hand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    ranges: BTreeMap<u32, u32>,
    total: u64,
}

impl RangeSet {
    /// Sum of the lengths.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// No range at all?
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.ranges.iter().map(|(&start, &end)| (start, end))
    }

    /// Adds `start..end`.
    pub(crate) fn insert(&mut self, start: u32, end: u32) {
        if start >= end {
            return;
        }
        let (mut low, mut high) = (start, end);
        // Whatever overlaps or touches melts into the new range.
        while let Some((&other, &other_end)) = self.ranges.range(..=high).next_back() {
            if other_end < low {
                break;
            }
            low = low.min(other);
            high = high.max(other_end);
            self.take(other, other_end);
        }
        self.put(low, high);
    }

    /// Removes `start..end`.
    pub(crate) fn remove(&mut self, start: u32, end: u32) {
        if start >= end {
            return;
        }
        while let Some((&other, &other_end)) = self.ranges.range(..end).next_back() {
            if other_end <= start {
                break;
            }
            self.take(other, other_end);
            if other_end > end {
                self.put(end, other_end);
            }
            if other < start {
                self.put(other, start);
            }
        }
    }

    /// Is all of `start..end` in the set?
    pub(crate) fn contains(&self, start: u32, end: u32) -> bool {
        start >= end
            || self
                .ranges
                .range(..=start)
                .next_back()
                .is_some_and(|(_, &other_end)| other_end >= end)
    }

    /// The parts of `start..end` that are in the set, in order.
    pub(crate) fn within(&self, start: u32, end: u32) -> Vec<(u32, u32)> {
        let first = self
            .ranges
            .range(..=start)
            .next_back()
            .map_or(start, |(&other, _)| other);
        self.ranges
            .range(first..end.max(first))
            .map(|(&low, &high)| (low.max(start), high.min(end)))
            .filter(|(low, high)| low < high)
            .collect()
    }

    /// From the first to the last byte of `start..end` that is not in the set.
    pub(crate) fn missing(&self, start: u32, end: u32) -> Option<(u32, u32)> {
        let mut low = start;
        let mut high = end;
        for (known, known_end) in self.within(start, end) {
            if known == low {
                low = known_end;
            }
            if known_end == high && known > low {
                high = known;
            }
        }
        (low < high).then_some((low, high))
    }

    /// The parts of `start..end` that are not in the set, in order.
    pub(crate) fn gaps(&self, start: u32, end: u32) -> Vec<(u32, u32)> {
        let mut gaps = Vec::new();
        let mut at = start;
        for (known, known_end) in self.within(start, end) {
            if at < known {
                gaps.push((at, known));
            }
            at = known_end;
        }
        if at < end {
            gaps.push((at, end));
        }
        gaps
    }

    fn put(&mut self, start: u32, end: u32) {
        self.total += u64::from(end - start);
        self.ranges.insert(start, end);
    }

    fn take(&mut self, start: u32, end: u32) {
        self.total -= u64::from(end - start);
        self.ranges.remove(&start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_range_set_is_a_set_of_bytes(
            steps in proptest::collection::vec((any::<bool>(), 0u32..64, 0u32..64), 0..40),
            start in 0u32..64, end in 0u32..64,
        ) {
            let mut set = RangeSet::default();
            let mut model = [false; 64];
            for (add, a, b) in steps {
                let (low, high) = (a.min(b), a.max(b));
                if add { set.insert(low, high) } else { set.remove(low, high) }
                model[low as usize..high as usize].fill(add);
            }
            prop_assert_eq!(set.total(), model.iter().filter(|held| **held).count() as u64);
            let (start, end) = (start.min(end), start.max(end));
            let part = &model[start as usize..end as usize];
            prop_assert_eq!(set.contains(start, end), part.iter().all(|held| *held));
            let mut rebuilt = [false; 64];
            for (low, high) in set.within(start, end) {
                rebuilt[low as usize..high as usize].fill(true);
            }
            prop_assert_eq!(&rebuilt[start as usize..end as usize], part);
            for (low, high) in set.gaps(start, end) {
                prop_assert!(!model[low as usize..high as usize].iter().any(|held| *held));
                rebuilt[low as usize..high as usize].fill(true);
            }
            prop_assert!(rebuilt[start as usize..end as usize].iter().all(|held| *held));
            match set.missing(start, end) {
                None => prop_assert!(part.iter().all(|held| *held)),
                Some((low, high)) => {
                    prop_assert!(!model[low as usize] && !model[high as usize - 1]);
                    prop_assert!(model[start as usize..low as usize].iter().all(|held| *held));
                    prop_assert!(model[high as usize..end as usize].iter().all(|held| *held));
                }
            }
        }
    }
}
