//! Blocks: the units in which bytes are stored and checked.
//!
//! A write is cut at multiples of 64 KiB of the object, so that a small read never has to check
//! more than that. Whole pages of zeros are left out: they are holes. A block is compressed where a
//! sample says that it pays. Its crc32c covers the bytes as they are stored, its fingerprint
//! (SHA-256) the bytes that they stand for.

use std::cell::RefCell;

use sha2::{Digest, Sha256};
use zstd::bulk::Compressor;

/// Most bytes of one block when decoded.
pub(crate) const BLOCK_BYTES_MAX: u32 = 64 << 10;

/// Size and alignment of the pieces that are looked at for zeros.
pub(crate) const PAGE_BYTES: usize = 4 << 10;

/// Blocks smaller than this are never compressed.
const COMPRESS_BYTES_MIN: usize = 8 << 10;

/// Bytes from the middle of a block that are compressed to see whether it pays.
const SAMPLE_BYTES: usize = 4 << 10;

const ZSTD_LEVEL: i32 = 1;

static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// How a block's bytes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codec {
    /// As they are.
    Raw,
    /// As one zstd frame.
    Zstd,
}

impl Codec {
    /// Its number on disk.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Raw => 0,
            Self::Zstd => 1,
        }
    }

    /// The codec of a number on disk.
    pub(crate) const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Raw),
            1 => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// A block as the table of its record describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    /// First byte within the object.
    pub offset: u32,
    /// Bytes when decoded.
    pub raw: u32,
    /// Bytes as stored.
    pub stored: u32,
    /// crc32c of the stored bytes.
    pub crc: u32,
    /// How they are stored.
    pub codec: Codec,
    /// SHA-256 of the decoded bytes.
    pub fingerprint: [u8; 32],
}

/// SHA-256 of `bytes`.
pub(crate) fn fingerprint(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// What becomes of whole pages of zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Zeros {
    /// They are left out: the range is new, so what is left out is a hole.
    LeaveOut,
    /// They are stored, because they take the place of something.
    Store,
}

/// Cuts the bytes that lie at `offset` of an object into blocks, as `(from, to)` within `bytes`.
pub(crate) fn cut(offset: u32, bytes: &[u8], zeros: Zeros) -> Vec<(usize, usize)> {
    let base = offset as usize;
    let mut blocks: Vec<(usize, usize)> = Vec::with_capacity(bytes.len() / 65536 + 2);
    let mut run: Option<usize> = None;
    let mut at = 0;
    while at < bytes.len() {
        let page_end = (PAGE_BYTES - (base + at) % PAGE_BYTES + at).min(bytes.len());
        let page = &bytes[at..page_end];
        if zeros == Zeros::LeaveOut && page == ZEROS.as_slice() {
            blocks.extend(run.take().map(|from| (from, at)));
        } else {
            let from = *run.get_or_insert(at);
            if (base + page_end).is_multiple_of(BLOCK_BYTES_MAX as usize) {
                blocks.push((from, page_end));
                run = None;
            }
        }
        at = page_end;
    }
    blocks.extend(run.map(|from| (from, bytes.len())));
    blocks
}

/// Appends the stored form of `raw`, which lies at `offset` of its object, to `out`.
pub(crate) fn encode(offset: u32, raw: &[u8], compress: bool, out: &mut Vec<u8>) -> Block {
    let start = out.len();
    let packed = (compress && pays(raw))
        .then(|| pack(raw))
        .flatten()
        .filter(|packed| packed.len() <= raw.len() - raw.len() / 8);
    let codec = match packed {
        Some(packed) => {
            out.extend_from_slice(&packed);
            Codec::Zstd
        }
        None => {
            out.extend_from_slice(raw);
            Codec::Raw
        }
    };
    let stored = &out[start..];
    Block {
        offset,
        raw: raw.len() as u32,
        stored: stored.len() as u32,
        crc: crc32c::crc32c(stored),
        codec,
        fingerprint: fingerprint(raw),
    }
}

thread_local! {
    /// Making a compressor costs more than compressing a sample.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> =
        RefCell::new(Compressor::new(ZSTD_LEVEL).ok());
}

/// One zstd frame; `None` when it cannot be made, and the bytes are stored as they are.
fn pack(raw: &[u8]) -> Option<Vec<u8>> {
    COMPRESSOR.with_borrow_mut(|compressor| compressor.as_mut()?.compress(raw).ok())
}

/// Whether a sample from the middle shrinks by a tenth.
fn pays(raw: &[u8]) -> bool {
    if raw.len() < COMPRESS_BYTES_MIN {
        return false;
    }
    let middle = (raw.len() - SAMPLE_BYTES) / 2;
    raw.get(middle..middle + SAMPLE_BYTES)
        .and_then(pack)
        .is_some_and(|packed| packed.len() < SAMPLE_BYTES - SAMPLE_BYTES / 10)
}

/// The bytes that stored (and checked) bytes stand for; `None` when they do not decode to exactly
/// `raw` bytes.
pub(crate) fn decode(codec: Codec, stored: Vec<u8>, raw: u32) -> Option<Vec<u8>> {
    let bytes = match codec {
        Codec::Raw => stored,
        Codec::Zstd => zstd::bulk::decompress(&stored, raw as usize).ok()?,
    };
    (bytes.len() == raw as usize).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zero_pages_are_left_out_and_blocks_end_at_their_boundary() {
        let mut bytes = vec![1u8; 160 << 10];
        bytes[8192..16384].fill(0);
        let kib = |(from, to)| (from / 1024, to / 1024);
        let cuts: Vec<_> = cut(0, &bytes, Zeros::LeaveOut)
            .into_iter()
            .map(kib)
            .collect();
        assert_eq!(cuts, [(0, 8), (16, 64), (64, 128), (128, 160)]);
    }

    #[test]
    fn zeros_that_fill_no_whole_page_are_data() {
        assert_eq!(cut(100, &[0; 4000], Zeros::LeaveOut), [(0, 4000)]);
        assert_eq!(cut(0, &[0; 4096], Zeros::LeaveOut), []);
        assert_eq!(cut(0, &[0; 4096], Zeros::Store), [(0, 4096)]);
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes_and_what_repeats_gets_smaller(
            seed in any::<u8>(), length in 1usize..65536, compress in any::<bool>(),
        ) {
            let raw: Vec<u8> = (0..length).map(|i| seed.wrapping_add((i / 64) as u8)).collect();
            let mut out = vec![9];
            let block = encode(7, &raw, compress, &mut out);
            let stored = out.split_off(1);
            prop_assert_eq!(block.stored as usize, stored.len());
            prop_assert_eq!(block.crc, crc32c::crc32c(&stored));
            if compress && length >= COMPRESS_BYTES_MIN {
                prop_assert!(stored.len() < length / 2);
            }
            prop_assert_eq!(decode(block.codec, stored, block.raw), Some(raw));
        }
    }
}
