//! Bytes of a table. All integers are little endian.
//!
//! ```text
//! table      = data block* · tombstones · filter · index · properties · footer
//! each of these but the footer is stored as
//!   bytes · tag u8 · hash u64
//!     tag   0: the bytes themselves; 1: length u32 of the content, then the content compressed with zstd
//!     hash  XXH3-64 of bytes and tag, seed = offset in the file
//! data block = entry* · restart u32* · restarts u32
//!   entry    = shared varint · unshared varint · value length varint · sequence*4 + kind varint · unshared bytes of the key · value
//!              kind 0 put, 1 delete; `shared` bytes are those of the key before
//!   restart  = offset of an entry with shared = 0, every 16 entries, the first one too
//! tombstones = (from · to · sequence varint)*                         strings as varint length and bytes; ordered by `from`
//! filter     = blocks of 64 bytes · probes u8                         see `filter.rs`; empty when the table has no entries
//! index      = (last key of the block · offset varint · length varint)*   length counts tag and hash
//! properties = entries varint · tombstones varint · highest sequence varint · from · to
//! footer     = handles of tombstones, filter, index, properties (offset u64, length u32 each) · version u32 · magic "babutabl"
//!              · XXH3-64 of the 60 bytes before
//! ```
//!
//! Keys are full keys (index u32 big endian, user's key). A key has one entry; range tombstones
//! hide entries of older tables only.

use crate::{
    coding::{Decoder, number_in, put_bytes, put_varint, u32_at, u64_at},
    keys::RangeTombstone,
};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

pub(crate) const FOOTER_BYTES: usize = 68;
/// Tag and hash after each stored block.
pub(crate) const TRAILER_BYTES: usize = 9;
/// No block is larger, whatever a damaged file says: a value has at most 64 MiB, a filter and an
/// index less.
pub(crate) const CONTENT_BYTES_MAX: usize = 128 << 20;
const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"babutabl";
const TAG_PLAIN: u8 = 0;
const TAG_ZSTD: u8 = 1;

pub(crate) fn table_name(number: u64) -> String {
    format!("{number:06}.table")
}

pub(crate) fn table_number(name: &str) -> Option<u64> {
    number_in(name, "", ".table")
}

/// Where a stored block lies; the length counts its trailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub offset: u64,
    pub length: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Footer {
    pub tombstones: Handle,
    pub filter: Handle,
    pub index: Handle,
    pub properties: Handle,
}

impl Footer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FOOTER_BYTES);
        for handle in [self.tombstones, self.filter, self.index, self.properties] {
            out.extend_from_slice(&handle.offset.to_le_bytes());
            out.extend_from_slice(&handle.length.to_le_bytes());
        }
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&MAGIC);
        let hash = xxh3_64(&out);
        out.extend_from_slice(&hash.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Footer, &'static str> {
        let short = "the footer is too short";
        let body = bytes.get(..FOOTER_BYTES - 8).ok_or(short)?;
        if u64_at(bytes, FOOTER_BYTES - 8) != Some(xxh3_64(body)) {
            return Err("the checksum of the footer does not match");
        }
        if body.get(52..) != Some(&MAGIC) || u32_at(body, 48) != Some(VERSION) {
            return Err("not a table of a known version");
        }
        let handle = |n: usize| {
            Some(Handle {
                offset: u64_at(body, n * 12)?,
                length: u32_at(body, n * 12 + 8)?,
            })
        };
        let all = || {
            Some(Footer {
                tombstones: handle(0)?,
                filter: handle(1)?,
                index: handle(2)?,
                properties: handle(3)?,
            })
        };
        all().ok_or(short)
    }
}

/// A block as it is stored at `offset`. Compressed when that saves an eighth and `compression` is
/// not 0.
pub(crate) fn store(content: &[u8], offset: u64, compression: i32) -> Vec<u8> {
    let mut out = Vec::with_capacity(content.len() + TRAILER_BYTES);
    if compression > 0
        && let Ok(compressed) = zstd::bulk::compress(content, compression)
        && compressed.len() + 4 < content.len() - content.len() / 8
    {
        out.extend_from_slice(&(content.len() as u32).to_le_bytes());
        out.extend_from_slice(&compressed);
        out.push(TAG_ZSTD);
    } else {
        out.extend_from_slice(content);
        out.push(TAG_PLAIN);
    }
    let hash = xxh3_64_with_seed(&out, offset);
    out.extend_from_slice(&hash.to_le_bytes());
    out
}

/// Content of a stored block, or where in `stored` it lies when it is not compressed.
pub(crate) enum Content {
    Plain(usize),
    Unpacked(Vec<u8>),
}

pub(crate) fn load(stored: &[u8], offset: u64) -> Result<Content, &'static str> {
    let hash_at = stored
        .len()
        .checked_sub(8)
        .ok_or("the block is too short")?;
    if u64_at(stored, hash_at) != Some(xxh3_64_with_seed(&stored[..hash_at], offset)) {
        return Err("the checksum of the block does not match");
    }
    let (tag, bytes) = stored[..hash_at]
        .split_last()
        .ok_or("the block is too short")?;
    match *tag {
        TAG_PLAIN => Ok(Content::Plain(bytes.len())),
        TAG_ZSTD => {
            let length = u32_at(bytes, 0)
                .map(|n| n as usize)
                .filter(|n| *n <= CONTENT_BYTES_MAX);
            let length = length.ok_or("the length of the block is out of range")?;
            let content = zstd::bulk::decompress(&bytes[4..], length)
                .map_err(|_| "the block does not decompress")?;
            if content.len() == length {
                Ok(Content::Unpacked(content))
            } else {
                Err("the block decompresses to another length")
            }
        }
        _ => Err("the tag of the block is unknown"),
    }
}

pub(crate) fn encode_tombstones(tombstones: &[RangeTombstone]) -> Vec<u8> {
    let mut out = Vec::new();
    for t in tombstones {
        put_bytes(&mut out, &t.from);
        put_bytes(&mut out, &t.to);
        put_varint(&mut out, t.sequence);
    }
    out
}

pub(crate) fn decode_tombstones(bytes: &[u8]) -> Option<Vec<RangeTombstone>> {
    let mut d = Decoder::new(bytes, 0);
    let mut out = Vec::new();
    while !d.is_at_end() {
        out.push(RangeTombstone {
            from: d.bytes()?.to_vec(),
            to: d.bytes()?.to_vec(),
            sequence: d.varint()?,
        });
    }
    Some(out)
}

/// The index of a table: for each data block its last key and its place.
#[derive(Debug, Default)]
pub(crate) struct Index {
    keys: Vec<u8>,
    blocks: Vec<(u32, Handle)>,
}

impl Index {
    pub(crate) fn put(out: &mut Vec<u8>, last_key: &[u8], handle: Handle) {
        put_bytes(out, last_key);
        put_varint(out, handle.offset);
        put_varint(out, u64::from(handle.length));
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Index> {
        let mut d = Decoder::new(bytes, 0);
        let mut index = Index::default();
        while !d.is_at_end() {
            let key = d.bytes()?;
            let handle = Handle {
                offset: d.varint()?,
                length: u32::try_from(d.varint()?).ok()?,
            };
            if !index.blocks.is_empty() && index.last_key(index.blocks.len() - 1) >= key {
                return None;
            }
            index.keys.extend_from_slice(key);
            index
                .blocks
                .push((u32::try_from(index.keys.len()).ok()?, handle));
        }
        index.keys.shrink_to_fit();
        index.blocks.shrink_to_fit();
        Some(index)
    }

    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    fn last_key(&self, n: usize) -> &[u8] {
        let from = if n == 0 {
            0
        } else {
            self.blocks[n - 1].0 as usize
        };
        &self.keys[from..self.blocks[n].0 as usize]
    }

    pub(crate) fn handle(&self, n: usize) -> Option<Handle> {
        self.blocks.get(n).map(|b| b.1)
    }

    /// The first block whose last key is not before `key`; `len()` when there is none.
    pub(crate) fn find(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.last_key(middle) < key {
                low = middle + 1
            } else {
                high = middle
            }
        }
        low
    }

    pub(crate) fn bytes(&self) -> usize {
        self.keys.len() + self.blocks.len() * size_of::<(u32, Handle)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_blocks_come_back_or_fail() {
        let content = b"the same words, the same words, the same words, the same words".repeat(4);
        for compression in [0, 1] {
            let stored = store(&content, 77, compression);
            match load(&stored, 77).unwrap() {
                Content::Plain(length) => {
                    assert_eq!((&stored[..length], compression), (content.as_slice(), 0))
                }
                Content::Unpacked(bytes) => {
                    assert_eq!((bytes.as_slice(), compression), (content.as_slice(), 1))
                }
            }
            assert!(load(&stored, 78).is_err());
            for at in 0..stored.len() {
                let mut harmed = stored.clone();
                harmed[at] ^= 1;
                assert!(load(&harmed, 77).is_err());
            }
            for cut in 0..stored.len() {
                assert!(load(&stored[..cut], 77).is_err());
            }
        }
    }

    #[test]
    fn a_footer_comes_back_or_fails() {
        let handle = |offset| Handle { offset, length: 9 };
        let footer = Footer {
            tombstones: handle(1),
            filter: handle(2),
            index: handle(3),
            properties: handle(4),
        };
        let bytes = footer.encode();
        assert_eq!(bytes.len(), FOOTER_BYTES);
        assert_eq!(Footer::decode(&bytes), Ok(footer));
        for at in 0..bytes.len() {
            let mut harmed = bytes.clone();
            harmed[at] ^= 0x80;
            assert!(Footer::decode(&harmed).is_err());
        }
    }

    proptest::proptest! {
        #[test]
        fn hostile_bytes_do_no_harm(bytes in proptest::collection::vec(0..9u8, 0..120)) {
            if let Some(index) = Index::decode(&bytes) {
                assert!(index.find(&bytes) <= index.len());
            }
            let _ = decode_tombstones(&bytes);
            let _ = load(&bytes, 0);
            let _ = Footer::decode(&bytes);
            if let Some(block) = crate::table::block::Block::new(bytes.as_slice().into(), bytes.len()) {
                let _ = block.get(&bytes);
                let _ = block.unfold();
            }
        }
    }
}
