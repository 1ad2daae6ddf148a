//! A blocked Bloom filter: each key sets a few bits in one line of 64 bytes, so that a question
//! costs one cache miss.
//!
//! In it are the hashes of whole keys, and of the prefixes of keys of those indices for which a
//! length of prefix was declared. Both share the lines: a prefix is one more key for each of many.
//! Tables of all levels have one, the deepest too, because asking for a name that does not exist is
//! what happens before each create.

/// Bytes of a line of the processor's cache, which a line of the filter is aligned to.
const LINE_BYTES: usize = 64;

/// Odd numbers that spread the low half of a hash; one for each probe.
const SPREAD: [u32; 12] = [
    0x47b6_137b,
    0x4497_4d91,
    0x8824_ad5b,
    0xa2b7_289d,
    0x7054_95c7,
    0x2df1_424b,
    0x9efc_4947,
    0x5c6b_fb31,
    0x3c6e_f373,
    0xbb67_ae85,
    0x9b05_688d,
    0x1f83_d9ab,
];

#[repr(align(64))]
#[derive(Clone)]
struct Line([u8; LINE_BYTES]);

#[derive(Default)]
pub(crate) struct Filter {
    lines: Vec<Line>,
    probes: u8,
}

pub(crate) fn hash(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}

/// The line of a hash: the high half chooses it.
fn line_of(hash: u64, lines: usize) -> usize {
    ((u128::from(hash) * lines as u128) >> 64) as usize
}

/// Byte and mask of each bit: nine bits of the low half times an odd number.
fn bits(hash: u64, probes: u8) -> impl Iterator<Item = (usize, u8)> {
    SPREAD.iter().take(usize::from(probes)).map(move |odd| {
        let bit = (hash as u32).wrapping_mul(*odd) >> 23;
        (bit as usize / 8, 1 << (bit % 8))
    })
}

impl Filter {
    /// The filter of the keys with these hashes.
    pub(crate) fn build(hashes: &[u64], bits_per_key: usize) -> Filter {
        let probes = (bits_per_key * 69 / 100).clamp(1, SPREAD.len()) as u8;
        let count = (hashes.len() * bits_per_key).div_ceil(LINE_BYTES * 8);
        let mut lines = vec![Line([0; LINE_BYTES]); count];
        for hash in hashes {
            let Line(line) = &mut lines[line_of(*hash, count)];
            for (byte, mask) in bits(*hash, probes) {
                line[byte] |= mask;
            }
        }
        Filter { lines, probes }
    }

    /// Empty for no keys.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes() + 1);
        self.lines
            .iter()
            .for_each(|Line(line)| out.extend_from_slice(line));
        if !out.is_empty() {
            out.push(self.probes);
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Filter> {
        let Some((probes, lines)) = bytes.split_last() else {
            return Some(Filter::default());
        };
        let (lines, []) = lines.as_chunks() else {
            return None;
        };
        Some(Filter {
            lines: lines.iter().map(|line| Line(*line)).collect(),
            probes: *probes,
        })
    }

    /// Whether the key with this hash may be among the keys of the filter.
    pub(crate) fn may_contain(&self, hash: u64) -> bool {
        let line = self.lines.get(line_of(hash, self.lines.len()));
        line.is_some_and(|Line(line)| {
            bits(hash, self.probes).all(|(byte, mask)| line[byte] & mask != 0)
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.lines.len() * LINE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_and_few_others() {
        let hashes: Vec<u64> = (0..10_000u32).map(|n| hash(&n.to_be_bytes())).collect();
        let bytes = Filter::build(&hashes, 10).encode();
        let filter = Filter::decode(&bytes).unwrap();
        assert!(hashes.iter().all(|h| filter.may_contain(*h)));
        let wrong = (10_000..110_000u32)
            .filter(|n| filter.may_contain(hash(&n.to_be_bytes())))
            .count();
        assert!(wrong < 2_500, "{wrong} of 100000 false positives");
        assert_eq!(filter.encode(), bytes);
        assert!(Filter::decode(&bytes[1..]).is_none());
        assert!(!Filter::decode(&[]).unwrap().may_contain(1));
        assert!(!Filter::build(&[], 10).may_contain(1));
    }
}
