//! Bytes of a table. All integers are little endian.
//!
//! ```text
//! table      = data block* · tombstones · dictionary · filter · index part* · index · properties · footer
//! each of these but the footer is stored as
//!   bytes · tag u8 · hash u64
//!     tag   0: the content itself
//!           1, 2, 3: length u32 of the content, then the content as LZ4 block, as zstd frame, as zstd frame with the dictionary
//!     hash  XXH3-64 of bytes and tag, seed = offset in the file
//!           the content has at most 64 bytes more than 255 times those that it was packed into
//!   only data blocks have another tag than 0
//! data block = value* · entry* · restart u32* · restarts u32
//!   entry    = place varint · unshared varint · value length varint · order*2 + kind varint · unshared bytes of the key
//!              kind 0 put, 1 delete; the key begins with as many bytes of the key before as are not unshared
//!              place of a restart: where its value begins, nothing of its key is shared
//!                    of others: how many bytes are shared; the value begins where that of the entry before ends
//!              order of a restart: the sequence; of others: what it is more than that of the entry before, in zigzag
//!   restart  = offset of an entry, every 16 entries; that of the first one is where all values end
//! tombstones = (from · to · sequence varint)*              strings as varint length and bytes; ordered by `from`
//! dictionary = of zstd, in its format; empty when there is none
//! filter     = line of 64 bytes* · probes u8               see `filter.rs`; empty when the table has no entries
//! index      = a block as above with an entry for each data block (one level), or for each index part (two levels)
//! index part = a block as above with an entry for each of some data blocks
//!   key      = after all keys of the block or part, and not after any of the next; sequence 0, kind 0
//!   value    = offset varint · length varint · entries varint · tombstones varint
//!              where it lies, trailer counted; how many entries it has, and how many of them delete
//! properties = entries varint · tombstones varint · highest sequence varint · from · to · (index varint · prefix bytes varint)*
//!              for each index number the prefixes of which length, after the number, are in the filter
//! footer     = handles of tombstones, dictionary, filter, index, properties (offset u64, length u32 each)
//!              · levels of the index u32 · version u32 · magic "babutabl" · XXH3-64 of the 76 bytes before
//! ```
//!
//! Keys are full keys (index u32 big endian, user's key). A key has one entry; range tombstones
//! hide entries of older tables only.
//!
//! The index has two levels when one would be larger than 64 data blocks: one level stays in memory
//! while the table is open, the parts come and go with the block cache.

use super::codec::{self, Dictionary};
use crate::{
    coding::{Decoder, number_in, put_bytes, put_varint, u32_at, u64_at},
    keys::RangeTombstone,
};
use std::sync::Arc;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

pub(crate) const FOOTER_BYTES: usize = 84;
/// Tag and hash after each stored block.
pub(crate) const TRAILER_BYTES: usize = 9;
/// No block is larger, whatever a damaged file says: a value has at most 64 MiB, a filter and an
/// index less.
pub(crate) const CONTENT_BYTES_MAX: usize = 128 << 20;
const VERSION: u32 = 3;
const MAGIC: [u8; 8] = *b"babutabl";

pub(crate) fn table_name(number: u64) -> String {
    format!("{number:06}.table")
}

pub(crate) fn table_number(name: &str) -> Option<u64> {
    number_in(name, "", ".table")
}

/// Where a stored block lies; the length counts its trailer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Handle {
    pub offset: u64,
    pub length: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Footer {
    pub dictionary: Handle,
    pub tombstones: Handle,
    pub filter: Handle,
    pub index: Handle,
    pub properties: Handle,
    /// 1 or 2.
    pub index_levels: u32,
}

impl Footer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FOOTER_BYTES);
        for handle in [
            self.tombstones,
            self.dictionary,
            self.filter,
            self.index,
            self.properties,
        ] {
            out.extend_from_slice(&handle.offset.to_le_bytes());
            out.extend_from_slice(&handle.length.to_le_bytes());
        }
        out.extend_from_slice(&self.index_levels.to_le_bytes());
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
        if body.get(68..) != Some(&MAGIC) || u32_at(body, 64) != Some(VERSION) {
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
                dictionary: handle(1)?,
                filter: handle(2)?,
                index: handle(3)?,
                properties: handle(4)?,
                index_levels: u32_at(body, 60)?,
            })
        };
        let footer = all().ok_or(short)?;
        match footer.index_levels {
            1 | 2 => Ok(footer),
            _ => Err("the index has an unknown number of levels"),
        }
    }
}

/// Ends the stored block that begins at `from` in `out` and will lie at `offset` in the file.
pub(crate) fn seal(out: &mut Vec<u8>, from: usize, tag: u8, offset: u64) {
    out.push(tag);
    let hash = xxh3_64_with_seed(&out[from..], offset);
    out.extend_from_slice(&hash.to_le_bytes());
}

/// The content of a stored block, checked.
pub(crate) fn load(
    stored: &[u8],
    offset: u64,
    dictionary: Option<&Dictionary>,
) -> Result<Arc<[u8]>, &'static str> {
    let short = "the block is too short";
    let (sealed, hash) = stored.split_last_chunk().ok_or(short)?;
    if u64::from_le_bytes(*hash) != xxh3_64_with_seed(sealed, offset) {
        return Err("the checksum of the block does not match");
    }
    let (tag, bytes) = sealed.split_last().ok_or(short)?;
    codec::unpack(bytes, *tag, CONTENT_BYTES_MAX, dictionary)
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
            sequence: d.number()?,
        });
    }
    Some(out)
}

/// What a table says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Properties {
    pub entries: u64,
    pub tombstones: u64,
    pub sequence_max: u64,
    pub from: Vec<u8>,
    pub to: Vec<u8>,
    /// For index numbers the length of the prefixes in the filter.
    pub prefixes: Vec<(u32, u8)>,
}

impl Properties {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for number in [self.entries, self.tombstones, self.sequence_max] {
            put_varint(&mut out, number);
        }
        put_bytes(&mut out, &self.from);
        put_bytes(&mut out, &self.to);
        for (index, bytes) in &self.prefixes {
            put_varint(&mut out, u64::from(*index));
            put_varint(&mut out, u64::from(*bytes));
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Properties> {
        let mut d = Decoder::new(bytes, 0);
        let mut properties = Properties {
            entries: d.number()?,
            tombstones: d.number()?,
            sequence_max: d.number()?,
            from: d.bytes()?.to_vec(),
            to: d.bytes()?.to_vec(),
            prefixes: Vec::new(),
        };
        while !d.is_at_end() {
            let index = u32::try_from(d.varint()?).ok()?;
            properties
                .prefixes
                .push((index, u8::try_from(d.varint()?).ok()?));
        }
        Some(properties)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{block::Block, block_cursor::BlockCursor, index::Index};

    #[test]
    fn stored_blocks_come_back_or_fail() {
        let content = b"some content";
        let mut stored = b"other bytes ".to_vec();
        let from = stored.len();
        stored.extend_from_slice(content);
        seal(&mut stored, from, codec::TAG_PLAIN, 77);
        let stored = &stored[from..];
        assert_eq!(stored.len(), content.len() + TRAILER_BYTES);
        assert_eq!(&*load(stored, 77, None).unwrap(), content);
        assert!(load(stored, 78, None).is_err());
        for at in 0..stored.len() {
            let mut harmed = stored.to_vec();
            harmed[at] ^= 1;
            assert!(load(&harmed, 77, None).is_err());
            assert!(load(&stored[..at], 77, None).is_err());
        }
    }

    #[test]
    fn a_footer_comes_back_or_fails() {
        let handle = |offset| Handle { offset, length: 9 };
        let footer = Footer {
            dictionary: handle(0),
            tombstones: handle(1),
            filter: handle(2),
            index: handle(3),
            properties: handle(4),
            index_levels: 2,
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

    #[test]
    fn properties_come_back() {
        let properties = Properties {
            entries: 1 << 40,
            tombstones: 3,
            sequence_max: 1 << 59,
            from: b"a".to_vec(),
            to: b"b\0".to_vec(),
            prefixes: vec![(1, 8), (70_000, 255)],
        };
        let bytes = properties.encode();
        assert_eq!(Properties::decode(&bytes), Some(properties));
    }

    proptest::proptest! {
        #[test]
        fn hostile_bytes_do_no_harm(bytes in proptest::collection::vec(0..9u8, 0..120)) {
            let _ = decode_tombstones(&bytes);
            let _ = Properties::decode(&bytes);
            let _ = load(&bytes, 0, None);
            let _ = Footer::decode(&bytes);
            if let Some(block) = Block::new(bytes.as_slice().into()) {
                if let Ok(index) = Index::decode(block.clone()) {
                    assert!(index.find(&bytes) <= index.len());
                }
                let mut cursor = BlockCursor::default();
                cursor.enter(block.clone());
                let mut steps = cursor.first();
                while steps.is_ok_and(|is_there| is_there) {
                    steps = cursor.next();
                }
                let mut steps = cursor.seek_back(None);
                while steps.is_ok_and(|is_there| is_there) {
                    steps = cursor.prev();
                }
                let _ = cursor.seek(&bytes);
                let _ = cursor.seek_back(Some(&bytes));
                let _ = block.get(&bytes);
            }
        }
    }
}
