//! A blocked Bloom filter: each key sets a few bits in one block of 64 bytes, so that a question
//! costs one cache miss.

const BLOCK_BYTES: usize = 64;

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

pub(crate) fn hash(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}

fn block_of(hash: u64, blocks: usize) -> usize {
    ((u128::from(hash) * blocks as u128) >> 64) as usize
}

fn bits(hash: u64, probes: u8) -> impl Iterator<Item = (usize, u8)> {
    SPREAD.iter().take(usize::from(probes)).map(move |odd| {
        let bit = (hash as u32).wrapping_mul(*odd) >> 23;
        (bit as usize / 8, 1 << (bit % 8))
    })
}

/// The filter of the keys with these hashes; empty for no keys.
pub(crate) fn build(hashes: &[u64], bits_per_key: usize) -> Vec<u8> {
    if hashes.is_empty() {
        return Vec::new();
    }
    let probes = (bits_per_key * 69 / 100).clamp(1, SPREAD.len()) as u8;
    let blocks = (hashes.len() * bits_per_key).div_ceil(BLOCK_BYTES * 8);
    let mut out = vec![0; blocks * BLOCK_BYTES];
    for hash in hashes {
        let from = block_of(*hash, blocks) * BLOCK_BYTES;
        let block = &mut out[from..from + BLOCK_BYTES];
        for (byte, mask) in bits(*hash, probes) {
            block[byte] |= mask;
        }
    }
    out.push(probes);
    out
}

/// Whether bytes can be a filter.
pub(crate) fn is_well_formed(filter: &[u8]) -> bool {
    filter.is_empty() || (filter.len() > BLOCK_BYTES && filter.len() % BLOCK_BYTES == 1)
}

/// Whether the key with this hash may be among the keys of the filter.
pub(crate) fn may_contain(filter: &[u8], hash: u64) -> bool {
    let Some((probes, blocks)) = filter.split_last() else {
        return false;
    };
    let from = block_of(hash, blocks.len() / BLOCK_BYTES) * BLOCK_BYTES;
    let Some(block) = blocks.get(from..from + BLOCK_BYTES) else {
        return true;
    };
    bits(hash, *probes).all(|(byte, mask)| block[byte] & mask != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_and_few_others() {
        let hashes: Vec<u64> = (0..10_000u32).map(|n| hash(&n.to_be_bytes())).collect();
        let filter = build(&hashes, 10);
        assert!(is_well_formed(&filter));
        assert!(hashes.iter().all(|h| may_contain(&filter, *h)));
        let wrong = (10_000..110_000u32)
            .filter(|n| may_contain(&filter, hash(&n.to_be_bytes())))
            .count();
        assert!(wrong < 2_500, "{wrong} of 100000 false positives");
        assert!(!may_contain(&[], 1));
    }
}
