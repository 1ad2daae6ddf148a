//! Closed segments: how long they are, and the hash of their bytes.
//!
//! A torn end is a matter of the segment that was being written to. A closed segment whose end is
//! durable is *sealed*: the next edit of the manifest names its length and hash, and from then on
//! anything missing from it is damage, also where it breaks off between two records.

use crate::{
    coding::{Decoder, put_varint},
    threads::Mutex,
};
use std::collections::BTreeMap;

/// No segment has more bytes.
const BYTES_MAX: u64 = 1 << 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seal {
    pub segment: u64,
    pub bytes: u64,
    /// XXH3-64 of the bytes.
    pub hash: u64,
}

impl Seal {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for number in [self.segment, self.bytes, self.hash] {
            put_varint(out, number);
        }
    }

    pub(crate) fn decode(d: &mut Decoder<'_>) -> Option<Seal> {
        Some(Seal {
            segment: d.number()?,
            bytes: d.varint().filter(|bytes| *bytes <= BYTES_MAX)?,
            hash: d.varint()?,
        })
    }
}

/// The closed segments that are still needed, sealed or not.
#[derive(Default)]
pub(crate) struct Closed {
    /// By number, each with the number of the last batch in it or before.
    segments: Mutex<BTreeMap<u64, (Seal, u64)>>,
}

impl Closed {
    /// A segment was left, with all batches up to `last` in it and those before it.
    pub(crate) fn add(&self, seal: Seal, last: u64) {
        self.segments.lock().insert(seal.segment, (seal, last));
    }

    /// Segments before `log_number` are no longer needed.
    pub(crate) fn purge(&self, log_number: u64) {
        let mut segments = self.segments.lock();
        *segments = segments.split_off(&log_number);
    }

    /// Segments were left for a new one that repeats what came after `durable`.
    pub(crate) fn restarted(&self, durable: u64) {
        self.segments.lock().retain(|_, (_, last)| *last <= durable);
    }

    /// The segments before `end`.
    pub(crate) fn before(&self, end: u64) -> Vec<Seal> {
        let segments = self.segments.lock();
        segments.range(..end).map(|(_, (seal, _))| *seal).collect()
    }

    /// The segments from `first` on whose batches are all durable.
    pub(crate) fn durable(&self, first: u64, durable: u64) -> Vec<Seal> {
        let segments = self.segments.lock();
        let durable = segments
            .range(first..)
            .filter(|(_, (_, last))| *last <= durable);
        durable.map(|(_, (seal, _))| *seal).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_durable_and_needed_is_sealed() {
        let closed = Closed::default();
        let seal = |segment| Seal {
            segment,
            bytes: 100,
            hash: 7,
        };
        for (segment, last) in [(1, 10), (2, 20), (3, 30)] {
            closed.add(seal(segment), last);
        }
        assert_eq!(closed.durable(0, 20), [seal(1), seal(2)]);
        assert_eq!(closed.durable(2, 29), [seal(2)]);
        assert_eq!(closed.before(3), [seal(1), seal(2)]);
        closed.purge(2);
        assert_eq!(closed.durable(0, 30), [seal(2), seal(3)]);
        closed.restarted(25);
        assert_eq!(closed.durable(0, 30), [seal(2)]);
    }
}
