//! What the store keeps in its index, as bytes.
//!
//! ```text
//! index        key                                  value
//! objects      volume 16, data 8, object 8, shard 1  1, varints: length, count, then each extent:
//!                                                   gap, length, skip, segment, position,
//!                                                   record back, stored, raw; crc 4, codec 1
//! files        volume 16, data 8                    1, truncate epoch 8, deleted 1, seconds 8
//! tombstones   seconds 8, volume 16, data 8         nothing
//! segments     number 8                             1, live 8, raw 8, bytes 8, sealed 1
//! state        "state"                              1, segment 8, position 8, sequence 8, objects 8
//! numbers in keys big-endian, in values little-endian; the 1 is the version
//! ```

use xtfs_protocol::ids::FileId;

use super::block::Codec;
use super::extents::{Extent, ObjectMap, Place};
use crate::bytes::{Reader, file_key, put_varint};

const VERSION: u8 = 1;

/// Most extents of an object that are believed when read.
const EXTENTS_MAX: u64 = 16 << 20;

/// What is remembered of a file besides its objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FileState {
    /// Newest truncate epoch that was carried out.
    pub epoch: u64,
    /// When it was deleted, in seconds since 1970.
    pub deleted_secs: Option<i64>,
}

/// What a segment holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SegmentInfo {
    /// Bytes of objects that refer to it.
    pub live: u64,
    /// Bytes of objects that were ever written into it.
    pub raw: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Nothing is appended any more.
    pub sealed: bool,
}

/// How far the index has caught up with the segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct StateRecord {
    /// Replay begins in this segment...
    pub segment: u64,
    /// ...at this position.
    pub position: u64,
    /// Sequence number of the record there.
    pub sequence: u64,
    /// Objects in the index.
    pub objects: u64,
}

/// The key of the state.
pub(crate) const STATE_KEY: &[u8] = b"state";

fn versioned(bytes: &[u8]) -> Option<Reader<'_>> {
    let mut reader = Reader(bytes);
    (reader.u8()? == VERSION).then_some(reader)
}

pub(crate) fn encode_map(map: &ObjectMap) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 + map.extents().len() * 28);
    out.push(VERSION);
    put_varint(&mut out, map.length.into());
    put_varint(&mut out, map.extents().len() as u64);
    let mut at = 0;
    for extent in map.extents() {
        let place = extent.place;
        for value in [
            u64::from(extent.offset - at),
            extent.length.into(),
            extent.skip.into(),
            place.segment,
            place.position,
            place.record_back.into(),
            place.stored.into(),
            place.raw.into(),
        ] {
            put_varint(&mut out, value);
        }
        out.extend(place.crc.to_le_bytes());
        out.push(place.codec.number());
        at = extent.end();
    }
    out
}

pub(crate) fn decode_map(bytes: &[u8]) -> Option<ObjectMap> {
    let mut reader = versioned(bytes)?;
    let length = reader.varint_u32()?;
    let count = reader.varint()?;
    if count > EXTENTS_MAX.min(bytes.len() as u64) {
        return None;
    }
    let mut extents = Vec::with_capacity(count as usize);
    let mut at = 0u32;
    for _ in 0..count {
        let extent = Extent {
            offset: at.checked_add(reader.varint_u32()?)?,
            length: reader.varint_u32()?,
            skip: reader.varint_u32()?,
            place: Place {
                segment: reader.varint()?,
                position: reader.varint()?,
                record_back: reader.varint_u32()?,
                stored: reader.varint_u32()?,
                raw: reader.varint_u32()?,
                crc: reader.u32()?,
                codec: Codec::from_number(reader.u8()?)?,
            },
        };
        at = extent.offset.checked_add(extent.length)?;
        extents.push(extent);
    }
    let map = ObjectMap::from_parts(length, extents)?;
    reader.is_empty().then_some(map)
}

pub(crate) fn encode_file(state: FileState) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.extend(state.epoch.to_le_bytes());
    out.push(u8::from(state.deleted_secs.is_some()));
    out.extend(state.deleted_secs.unwrap_or_default().to_le_bytes());
    out
}

pub(crate) fn decode_file(bytes: &[u8]) -> Option<FileState> {
    let mut reader = versioned(bytes)?;
    let epoch = reader.u64()?;
    let deleted = reader.u8()? != 0;
    let secs = reader.i64()?;
    Some(FileState {
        epoch,
        deleted_secs: deleted.then_some(secs),
    })
}

/// The key of a deleted file among the tombstones; they sort by time.
pub(crate) fn tombstone_key(secs: i64, file: FileId) -> Vec<u8> {
    let mut key = secs.max(0).to_be_bytes().to_vec();
    key.extend(file_key(file));
    key
}

/// The file behind a key of [`tombstone_key`].
pub(crate) fn file_of_tombstone(key: &[u8]) -> Option<FileId> {
    let mut reader = Reader(key);
    reader.take(8)?;
    reader.file()
}

pub(crate) fn encode_segment(info: SegmentInfo) -> Vec<u8> {
    let mut out = vec![VERSION];
    for value in [info.live, info.raw, info.bytes] {
        out.extend(value.to_le_bytes());
    }
    out.push(u8::from(info.sealed));
    out
}

pub(crate) fn decode_segment(bytes: &[u8]) -> Option<SegmentInfo> {
    let mut reader = versioned(bytes)?;
    Some(SegmentInfo {
        live: reader.u64()?,
        raw: reader.u64()?,
        bytes: reader.u64()?,
        sealed: reader.u8()? != 0,
    })
}

pub(crate) fn encode_state(state: StateRecord) -> Vec<u8> {
    let mut out = vec![VERSION];
    for value in [state.segment, state.position, state.sequence, state.objects] {
        out.extend(value.to_le_bytes());
    }
    out
}

pub(crate) fn decode_state(bytes: &[u8]) -> Option<StateRecord> {
    let mut reader = versioned(bytes)?;
    Some(StateRecord {
        segment: reader.u64()?,
        position: reader.u64()?,
        sequence: reader.u64()?,
        objects: reader.u64()?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::extents::{Ledger, test_place};
    use super::*;

    fn map() -> ObjectMap {
        let mut map = ObjectMap::default();
        let mut ledger = Ledger::default();
        for (segment, offset, length, skip) in [(1, 0, 4096, 0), (7, 9000, 500, 12)] {
            let extent = Extent {
                offset,
                length,
                skip,
                place: test_place(segment, 65536),
            };
            map.put(extent, &mut ledger);
        }
        map.length = 20_000;
        map
    }

    #[test]
    fn every_value_reads_back() {
        let file = FileState {
            epoch: 4,
            deleted_secs: Some(99),
        };
        let segment = SegmentInfo {
            live: 1,
            raw: 2,
            bytes: 3,
            sealed: true,
        };
        let state = StateRecord {
            segment: 9,
            position: 8,
            sequence: 7,
            objects: 6,
        };
        assert_eq!(decode_map(&encode_map(&map())), Some(map()));
        assert_eq!(decode_file(&encode_file(file)), Some(file));
        assert_eq!(decode_segment(&encode_segment(segment)), Some(segment));
        assert_eq!(decode_state(&encode_state(state)), Some(state));
    }

    #[test]
    fn a_map_that_is_cut_short_or_from_another_version_is_refused() {
        let bytes = encode_map(&map());
        for end in 0..bytes.len() {
            assert_eq!(decode_map(&bytes[..end]), None);
        }
        let mut newer = bytes;
        newer[0] = 2;
        assert_eq!(decode_map(&newer), None);
    }
}
