//! Records: what a segment file consists of.
//!
//! A segment is the store's write-ahead log and the home of its data at the same time. It starts
//! with a header, then come records back to back. A record describes one change completely and
//! carries the bytes that the change brings:
//!
//! ```text
//! segment header, 64 bytes       record header, 112 bytes + 52 for each block
//!    0   8  "xtfsseg1"              0   4  magic "xRec"
//!    8   8  segment number          4   4  crc32c of the header's bytes 8.., seeded with the store
//!   16  16  identity of the OSD     8   4  bytes of the header with its block table
//!   32  28  zeros                  12   4  bytes of data behind it
//!   60   4  crc32c of 0..60        16   8  segment number
//!                                  24   8  position in the segment
//! block table entry, 52 bytes      32   8  sequence number
//!    0   4  offset in the object   40   8  sequence number known durable when it was written
//!    4   4  bytes when decoded     48   1  kind: 1 write, 2 rewrite, 3 punch, 4 truncate, 5 delete
//!    8   4  bytes as stored        49   1  shard
//!   12   4  crc32c of the stored   50   2  zeros
//!   16   1  codec: 0 raw, 1 zstd   52   4  number of blocks
//!   17   3  zeros                  56  16  volume
//!   20  32  SHA-256 of the decoded 72   8  data (number of the file's content)
//!                                  80   8  object, or first object removed (truncate)
//! all numbers little-endian        88   8  truncate epoch, or time in seconds (delete)
//!                                  96   4  offset, or 1 if an object is shortened (truncate)
//!                                 100   4  length, or bytes that stay of it
//!                                 104   8  number of the object that is shortened
//! ```
//!
//! The seed of the header's checksum and the place written in it make sure that bytes which merely
//! look like a record (a copy of a segment stored as a file) are not taken for one.

use xtfs_protocol::ids::{FileId, ObjectId, ServiceId, VolumeId};

use super::block::{self, Block, Codec, Zeros};
use crate::bytes::Reader;

/// Bytes of a segment's header.
pub(crate) const SEGMENT_HEADER_BYTES: u64 = 64;

/// Bytes of a record's header without its block table.
pub(crate) const FIXED_BYTES: usize = 112;

/// Bytes of an entry of the block table.
const BLOCK_ENTRY_BYTES: usize = 52;

/// Most blocks of a record: an object of the largest size with every second page a hole.
pub(crate) const BLOCKS_MAX: usize = 4096;

/// Most bytes of data of a record.
pub(crate) const DATA_BYTES_MAX: usize = 17 << 20;

const SEGMENT_MAGIC: &[u8; 8] = b"xtfsseg1";

/// The first bytes of every record.
pub(crate) const RECORD_MAGIC: [u8; 4] = *b"xRec";

/// A change of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// The range gets the record's blocks; what they leave out of it is a hole.
    Write {
        object: ObjectId,
        epoch: u64,
        offset: u32,
        length: u32,
    },
    /// The same bytes at a new place: the blocks take the place of what they cover.
    Rewrite { object: ObjectId },
    /// The range becomes a hole.
    Punch {
        object: ObjectId,
        epoch: u64,
        offset: u32,
        length: u32,
    },
    /// What lies behind a new end goes.
    Truncate {
        file: FileId,
        epoch: u64,
        remove_from: u64,
        shorten: Option<(u64, u32)>,
    },
    /// The whole file goes.
    Delete { file: FileId, at_secs: i64 },
}

impl Change {
    /// The file that it changes.
    pub(crate) const fn file(&self) -> FileId {
        match self {
            Self::Write { object, .. } | Self::Rewrite { object } | Self::Punch { object, .. } => {
                object.file
            }
            Self::Truncate { file, .. } | Self::Delete { file, .. } => *file,
        }
    }
}

/// The header of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub segment: u64,
    pub position: u64,
    pub sequence: u64,
    pub durable: u64,
    pub change: Change,
    pub blocks: Vec<Block>,
}

impl Header {
    /// Bytes of the header with its block table.
    pub(crate) fn header_bytes(&self) -> usize {
        header_bytes(self.blocks.len())
    }

    /// Bytes of data behind the header.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.blocks.iter().map(|b| u64::from(b.stored)).sum()
    }

    /// Bytes of the whole record.
    pub(crate) fn record_bytes(&self) -> u64 {
        self.header_bytes() as u64 + self.data_bytes()
    }
}

/// A record whose place is not known yet: room for its header, then the stored blocks.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub change: Change,
    pub blocks: Vec<Block>,
    pub bytes: Vec<u8>,
}

impl Prepared {
    /// A record without data.
    pub(crate) fn bare(change: Change) -> Self {
        Self {
            change,
            blocks: Vec::new(),
            bytes: vec![0; FIXED_BYTES],
        }
    }

    /// A record with the pieces of an object, each `(offset in the object, bytes)`.
    pub(crate) fn with_pieces(change: Change, pieces: &[(u32, &[u8])], compress: bool) -> Self {
        let zeros = match change {
            Change::Write { .. } => Zeros::LeaveOut,
            _ => Zeros::Store,
        };
        let cuts: Vec<(u32, &[u8])> = pieces
            .iter()
            .flat_map(|(offset, bytes)| {
                let part = move |(from, to)| (offset + from as u32, &bytes[from..to]);
                block::cut(*offset, bytes, zeros).into_iter().map(part)
            })
            .collect();
        let header = header_bytes(cuts.len());
        let data: usize = cuts.iter().map(|(_, raw)| raw.len()).sum();
        let mut bytes = Vec::with_capacity(header + data);
        bytes.resize(header, 0);
        let blocks = cuts
            .into_iter()
            .map(|(offset, raw)| block::encode(offset, raw, compress, &mut bytes))
            .collect();
        Self {
            change,
            blocks,
            bytes,
        }
    }

    /// Fills in the header now that the place is known.
    pub(crate) fn seal(&mut self, header: &Header, seed: u32) {
        let encoded = encode_header(header, seed);
        if let Some(front) = self.bytes.get_mut(..encoded.len()) {
            front.copy_from_slice(&encoded);
        }
    }
}

const fn header_bytes(blocks: usize) -> usize {
    FIXED_BYTES + BLOCK_ENTRY_BYTES * blocks
}

/// The seed of a store's header checksums.
pub(crate) fn seed(id: ServiceId) -> u32 {
    crc32c::crc32c(&id.0)
}

/// The header of a segment file.
pub(crate) fn encode_segment_header(segment: u64, id: ServiceId) -> Vec<u8> {
    let mut out = Vec::with_capacity(SEGMENT_HEADER_BYTES as usize);
    out.extend(SEGMENT_MAGIC);
    out.extend(segment.to_le_bytes());
    out.extend(id.0);
    out.resize(60, 0);
    out.extend(crc32c::crc32c(&out).to_le_bytes());
    out
}

fn encode_header(header: &Header, seed: u32) -> Vec<u8> {
    let length = header.header_bytes();
    let mut out = Vec::with_capacity(length);
    out.extend(RECORD_MAGIC);
    out.extend([0; 4]);
    out.extend((length as u32).to_le_bytes());
    out.extend((header.data_bytes() as u32).to_le_bytes());
    out.extend(header.segment.to_le_bytes());
    out.extend(header.position.to_le_bytes());
    out.extend(header.sequence.to_le_bytes());
    out.extend(header.durable.to_le_bytes());
    let fields = Fields::of(&header.change);
    out.extend([fields.kind, fields.shard, 0, 0]);
    out.extend((header.blocks.len() as u32).to_le_bytes());
    out.extend(fields.file.volume.0);
    out.extend(fields.file.data.to_le_bytes());
    out.extend(fields.object.to_le_bytes());
    out.extend(fields.epoch.to_le_bytes());
    out.extend(fields.offset.to_le_bytes());
    out.extend(fields.length.to_le_bytes());
    out.extend(fields.shortened.to_le_bytes());
    for block in &header.blocks {
        out.extend(block.offset.to_le_bytes());
        out.extend(block.raw.to_le_bytes());
        out.extend(block.stored.to_le_bytes());
        out.extend(block.crc.to_le_bytes());
        out.extend([block.codec.number(), 0, 0, 0]);
        out.extend(block.fingerprint);
    }
    let crc = crc32c::crc32c_append(seed, &out[8..]);
    out[4..8].copy_from_slice(&crc.to_le_bytes());
    out
}

/// The lengths that the fixed part claims: of the header and of the data. Nothing is checked but
/// the magic and the bounds.
pub(crate) fn claimed_lengths(fixed: &[u8]) -> Option<(usize, usize)> {
    let mut reader = Reader(fixed);
    if reader.array::<4>()? != RECORD_MAGIC {
        return None;
    }
    let _crc = reader.u32()?;
    let header = reader.u32()? as usize;
    let data = reader.u32()? as usize;
    let bounds = FIXED_BYTES..=header_bytes(BLOCKS_MAX);
    (bounds.contains(&header) && data <= DATA_BYTES_MAX).then_some((header, data))
}

/// Reads a header that must lie at `position` of `segment`; `None` if anything does not check.
pub(crate) fn decode_header(
    bytes: &[u8],
    seed: u32,
    segment: u64,
    position: u64,
) -> Option<Header> {
    let (length, data) = claimed_lengths(bytes)?;
    let mut reader = Reader(bytes.get(4..length)?);
    let crc = reader.u32()?;
    if crc32c::crc32c_append(seed, reader.0) != crc {
        return None;
    }
    reader.take(8)?;
    let place = (reader.u64()?, reader.u64()?);
    let (sequence, durable) = (reader.u64()?, reader.u64()?);
    let [kind, shard, _, _] = reader.array()?;
    let blocks = reader.u32()? as usize;
    let fields = Fields {
        kind,
        shard,
        file: FileId {
            volume: VolumeId(reader.array()?),
            data: reader.u64()?,
        },
        object: reader.u64()?,
        epoch: reader.u64()?,
        offset: reader.u32()?,
        length: reader.u32()?,
        shortened: reader.u64()?,
    };
    if place != (segment, position) || blocks > BLOCKS_MAX || header_bytes(blocks) != length {
        return None;
    }
    let blocks: Vec<Block> = (0..blocks)
        .map(|_| decode_block(&mut reader))
        .collect::<Option<_>>()?;
    let header = Header {
        segment,
        position,
        sequence,
        durable,
        change: fields.change()?,
        blocks,
    };
    (header.data_bytes() == data as u64).then_some(header)
}

fn decode_block(reader: &mut Reader<'_>) -> Option<Block> {
    let block = Block {
        offset: reader.u32()?,
        raw: reader.u32()?,
        stored: reader.u32()?,
        crc: reader.u32()?,
        codec: Codec::from_number(reader.array::<4>()?[0])?,
        fingerprint: reader.array()?,
    };
    let bounded = block.raw > 0 && block.raw <= block::BLOCK_BYTES_MAX;
    (bounded && block.offset.checked_add(block.raw).is_some()).then_some(block)
}

/// The fields of a header that mean different things for different kinds.
struct Fields {
    kind: u8,
    shard: u8,
    file: FileId,
    object: u64,
    epoch: u64,
    offset: u32,
    length: u32,
    shortened: u64,
}

impl Fields {
    fn of(change: &Change) -> Self {
        let blank = Self {
            kind: 0,
            shard: 0,
            file: change.file(),
            object: 0,
            epoch: 0,
            offset: 0,
            length: 0,
            shortened: 0,
        };
        let of_object = |kind, id: ObjectId, epoch, offset, length| Self {
            kind,
            shard: id.shard,
            object: id.object,
            epoch,
            offset,
            length,
            ..blank
        };
        match *change {
            Change::Write {
                object,
                epoch,
                offset,
                length,
            } => of_object(1, object, epoch, offset, length),
            Change::Rewrite { object } => of_object(2, object, 0, 0, 0),
            Change::Punch {
                object,
                epoch,
                offset,
                length,
            } => of_object(3, object, epoch, offset, length),
            Change::Truncate {
                epoch,
                remove_from,
                shorten,
                ..
            } => {
                let (shortened, length) = shorten.unwrap_or_default();
                Self {
                    kind: 4,
                    object: remove_from,
                    epoch,
                    offset: u32::from(shorten.is_some()),
                    length,
                    shortened,
                    ..blank
                }
            }
            Change::Delete { at_secs, .. } => Self {
                kind: 5,
                epoch: at_secs.cast_unsigned(),
                ..blank
            },
        }
    }

    fn change(self) -> Option<Change> {
        let object = ObjectId {
            file: self.file,
            object: self.object,
            shard: self.shard,
        };
        let (epoch, offset, length) = (self.epoch, self.offset, self.length);
        if matches!(self.kind, 1 | 3) {
            offset.checked_add(length)?;
        }
        Some(match self.kind {
            1 => Change::Write {
                object,
                epoch,
                offset,
                length,
            },
            2 => Change::Rewrite { object },
            3 => Change::Punch {
                object,
                epoch,
                offset,
                length,
            },
            4 => Change::Truncate {
                file: self.file,
                epoch,
                remove_from: self.object,
                shorten: (offset == 1).then_some((self.shortened, length)),
            },
            5 => Change::Delete {
                file: self.file,
                at_secs: epoch.cast_signed(),
            },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: ServiceId = ServiceId([3; 16]);

    fn file() -> FileId {
        FileId {
            volume: VolumeId([1; 16]),
            data: 77,
        }
    }

    fn object() -> ObjectId {
        ObjectId {
            file: file(),
            object: 5,
            shard: 2,
        }
    }

    fn changes() -> Vec<Change> {
        vec![
            Change::Write {
                object: object(),
                epoch: 9,
                offset: 100,
                length: 70_000,
            },
            Change::Rewrite { object: object() },
            Change::Punch {
                object: object(),
                epoch: 9,
                offset: 4096,
                length: 8192,
            },
            Change::Truncate {
                file: file(),
                epoch: 10,
                remove_from: 4,
                shorten: Some((3, 0)),
            },
            Change::Truncate {
                file: file(),
                epoch: u64::MAX,
                remove_from: u64::MAX,
                shorten: Some((u64::MAX, u32::MAX)),
            },
            Change::Truncate {
                file: file(),
                epoch: 10,
                remove_from: 0,
                shorten: None,
            },
            Change::Delete {
                file: file(),
                at_secs: -5,
            },
        ]
    }

    fn sealed(change: Change) -> (Prepared, Header) {
        let bytes = vec![7; 70_000];
        let mut prepared = match change {
            Change::Write { .. } | Change::Rewrite { .. } => {
                Prepared::with_pieces(change, &[(100, &bytes)], false)
            }
            _ => Prepared::bare(change),
        };
        let header = Header {
            segment: 4,
            position: 640,
            sequence: 11,
            durable: 8,
            change,
            blocks: prepared.blocks.clone(),
        };
        prepared.seal(&header, seed(ID));
        (prepared, header)
    }

    #[test]
    fn every_kind_of_record_reads_back() {
        for change in changes() {
            let (prepared, header) = sealed(change);
            assert_eq!(prepared.bytes.len() as u64, header.record_bytes());
            let read = decode_header(&prepared.bytes, seed(ID), 4, 640);
            assert_eq!(read, Some(header));
        }
    }

    #[test]
    fn a_flipped_bit_or_a_foreign_place_is_no_record() {
        let (prepared, header) = sealed(changes()[0]);
        let bytes = &prepared.bytes[..header.header_bytes()];
        for at in 0..bytes.len() {
            let mut bad = bytes.to_vec();
            bad[at] ^= 0x10;
            assert_eq!(decode_header(&bad, seed(ID), 4, 640), None, "byte {at}");
            assert_eq!(decode_header(&bytes[..at], seed(ID), 4, 640), None);
        }
        assert_eq!(decode_header(bytes, seed(ID), 5, 640), None);
        assert_eq!(decode_header(bytes, seed(ID), 4, 641), None);
        assert_eq!(decode_header(bytes, seed(ServiceId([4; 16])), 4, 640), None);
    }
}
