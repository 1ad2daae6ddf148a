//! Changes bytes as an enemy would who knows that lengths, counts and varints are what hurts.

use rand::{Rng, rngs::StdRng};

/// Values at the edges of what fields hold.
const EDGES: [u64; 16] = [
    0,
    1,
    3,
    0x7f,
    0x80,
    0xffff,
    1 << 20,
    1 << 27,
    (1 << 27) + 1,
    (1 << 31) - 1,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 60,
    (1 << 60) + 1,
    u64::MAX,
];

/// A place for `length` bytes, shorter at the end.
fn place(random: &mut StdRng, bytes: &[u8], length: usize) -> std::ops::Range<usize> {
    let from = random.random_range(0..bytes.len().max(1));
    from.min(bytes.len())..(from + length).min(bytes.len())
}

/// Writes `new` over what is there.
fn overwrite(bytes: &mut [u8], place: std::ops::Range<usize>, new: &[u8]) {
    bytes[place].iter_mut().zip(new).for_each(|(b, n)| *b = *n);
}

pub fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

/// Changes a few bytes and keeps the length.
pub fn in_place(random: &mut StdRng, bytes: &mut [u8]) {
    for _ in 0..random.random_range(1..4) {
        let edge = EDGES[random.random_range(0..EDGES.len())];
        match random.random_range(0..9) {
            0 | 1 => {
                let at = place(random, bytes, 1);
                let bit = 1 << random.random_range(0..8);
                bytes[at].iter_mut().for_each(|byte| *byte ^= bit);
            }
            2 => {
                let at = place(random, bytes, 1);
                overwrite(bytes, at, &[random.random()]);
            }
            3 => {
                let at = place(random, bytes, 4);
                overwrite(bytes, at, &(edge as u32).to_le_bytes());
            }
            4 => {
                let at = place(random, bytes, 8);
                overwrite(bytes, at, &edge.to_le_bytes());
            }
            5 => {
                let new = varint(edge);
                let at = place(random, bytes, new.len());
                overwrite(bytes, at, &new);
            }
            6 => {
                let (to, from) = (place(random, bytes, 30), place(random, bytes, 30));
                let new = bytes[from].to_vec();
                overwrite(bytes, to, &new);
            }
            7 => {
                let at = place(random, bytes, 12);
                bytes[at].fill(0xff);
            }
            // The counts and lengths at the end.
            _ => {
                let from = bytes.len().saturating_sub(random.random_range(1..24));
                let to = (from + 4).min(bytes.len());
                overwrite(bytes, from..to, &(edge as u32).to_le_bytes());
            }
        }
    }
}

/// Changes bytes, and at times their number.
pub fn freely(random: &mut StdRng, bytes: &mut Vec<u8>) {
    match random.random_range(0..8) {
        0 => bytes.truncate(random.random_range(0..bytes.len() + 1)),
        1 => {
            let more = random.random_range(1..40);
            bytes.extend((0..more).map(|_| random.random::<u8>()));
        }
        2 => {
            let gone = place(random, bytes, 1 + random.clone().random_range(0..20));
            bytes.drain(gone);
        }
        3 => {
            let (to, from) = (place(random, bytes, 0), place(random, bytes, 30));
            let new = bytes[from].to_vec();
            bytes.splice(to, new);
        }
        _ => in_place(random, bytes),
    }
}
