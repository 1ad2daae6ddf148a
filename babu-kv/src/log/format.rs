//! Bytes of a log segment. All integers are little endian.
//!
//! ```text
//! segment  = header record* zero*
//! header   = magic "babulog\x01" · number u64 · XXH3-64 of the 16 bytes before
//! record   = check u32 · length u32 · durable u64 · hash u64 · payload (length bytes)
//!            hash    XXH3-64 of the payload
//!            check   low 32 bits of the XXH3-64 of the 20 bytes after it
//!            both with seed = number * 2^40 + offset of the record, so that bytes from elsewhere never check
//!            durable highest sequence number that was known to be on disk when the record was written
//! payload  = 1 · sequence u64 · count u32 · operation*      a batch; its operations take sequence, sequence+1, ...
//!          | 2 · after u64 · record*                        a restart: whatever earlier segments hold after sequence number
//!                                                           `after` is void and repeated here (headers unchecked)
//! operation = 1 · key · value          put
//!           | 2 · key                  delete
//!           | 3 · from · to            delete range, `to` excluded
//!             from the first key of an index to that of the next one: the index is dropped
//!             each string as varint length and bytes; keys are full keys (index u32 big endian, user's key)
//! ```
//!
//! A segment takes the batches of one memtable. Sequence numbers run on without a gap over records
//! and segments, which shows a missing piece. The header is written with the first record, so that a
//! segment that took no batch is empty, or all zeros. Zeros are written ahead (`spare.rs`); records
//! overwrite them, and those that are left when the log goes on in another segment mean nothing. The
//! last segment may end in bytes that do not check, because the machine stopped in the middle of a
//! write. They are cut, unless a later record says that they had been durable. A segment that was
//! closed and is durable has its length and hash in the manifest, and nothing of it may be missing.

use crate::coding::{Decoder, NUMBER_MAX, number_in, put_bytes, put_varint, u32_at, u64_at};
use crate::keys::{INDEX_BYTES, index_of};
use std::{collections::BTreeSet, ops::Range};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

pub(crate) const SEGMENT_HEADER_BYTES: usize = 24;
pub(crate) const RECORD_HEADER_BYTES: usize = 24;
/// Where the operations of a batch start in its record.
pub(crate) const OPERATIONS_AT: usize = RECORD_HEADER_BYTES + 13;

const MAGIC: [u8; 8] = *b"babulog\x01";
const BATCH: u8 = 1;
const RESTART: u8 = 2;

pub(crate) fn segment_name(number: u64) -> String {
    format!("{number:06}.log")
}

pub(crate) fn segment_number(name: &str) -> Option<u64> {
    number_in(name, "", ".log")
}

pub(crate) fn segment_header(number: u64) -> [u8; SEGMENT_HEADER_BYTES] {
    let mut header = [0; SEGMENT_HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..16].copy_from_slice(&number.to_le_bytes());
    let hash = xxh3_64(&header[..16]);
    header[16..].copy_from_slice(&hash.to_le_bytes());
    header
}

pub(crate) fn segment_header_checks(bytes: &[u8], number: u64) -> bool {
    bytes.get(..SEGMENT_HEADER_BYTES) == Some(&segment_header(number))
}

fn seed(number: u64, offset: u64) -> u64 {
    (number << 40).wrapping_add(offset)
}

/// Fills in the header of a record whose payload is complete.
pub(crate) fn seal(record: &mut [u8], number: u64, offset: u64, durable: u64) {
    let (header, payload) = record.split_at_mut(RECORD_HEADER_BYTES);
    let seed = seed(number, offset);
    header[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[8..16].copy_from_slice(&durable.to_le_bytes());
    header[16..24].copy_from_slice(&xxh3_64_with_seed(payload, seed).to_le_bytes());
    let check = xxh3_64_with_seed(&header[4..24], seed) as u32;
    header[..4].copy_from_slice(&check.to_le_bytes());
}

/// Numbers a batch: its operations take `sequence` and those after it.
pub(crate) fn number(record: &mut [u8], sequence: u64, count: u32) {
    record[RECORD_HEADER_BYTES] = BATCH;
    record[RECORD_HEADER_BYTES + 1..RECORD_HEADER_BYTES + 9]
        .copy_from_slice(&sequence.to_le_bytes());
    record[RECORD_HEADER_BYTES + 9..OPERATIONS_AT].copy_from_slice(&count.to_le_bytes());
}

/// A restart record that repeats `records`.
pub(crate) fn restart<'a>(after: u64, records: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = vec![0; RECORD_HEADER_BYTES];
    out.push(RESTART);
    out.extend_from_slice(&after.to_le_bytes());
    for record in records {
        out.extend_from_slice(record);
    }
    out
}

/// Whether the first byte of a payload is that of a restart record.
pub(crate) fn is_restart(kind: u8) -> bool {
    kind == RESTART
}

pub(crate) fn put_operation(
    out: &mut Vec<u8>,
    tag: u8,
    index: u32,
    key: &[u8],
    value: Option<&[u8]>,
) {
    out.push(tag);
    put_varint(out, (key.len() + INDEX_BYTES) as u64);
    out.extend_from_slice(&index.to_be_bytes());
    out.extend_from_slice(key);
    if let Some(value) = value {
        put_bytes(out, value);
    }
}

/// A record whose header and payload check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// Bytes of the record with its header.
    pub length: usize,
    pub durable: u64,
}

/// The record at `offset` of a segment, if it checks.
pub(crate) fn check_record(segment: &[u8], number: u64, offset: usize) -> Option<Record> {
    let header = segment.get(offset..offset.checked_add(RECORD_HEADER_BYTES)?)?;
    // No record is empty: zeros, of which there may be megabytes, are none without a hash.
    if u32_at(header, 4)? == 0 {
        return None;
    }
    let seed = seed(number, offset as u64);
    if u32_at(header, 0)? != xxh3_64_with_seed(&header[4..24], seed) as u32 {
        return None;
    }
    let start = offset + RECORD_HEADER_BYTES;
    let payload = segment.get(start..start.checked_add(u32_at(header, 4)? as usize)?)?;
    if u64_at(header, 16)? != xxh3_64_with_seed(payload, seed) {
        return None;
    }
    Some(Record {
        length: RECORD_HEADER_BYTES + payload.len(),
        durable: u64_at(header, 8)?,
    })
}

/// What a record says.
#[derive(Debug)]
pub(crate) enum Payload {
    Batch {
        sequence: u64,
        count: u32,
    },
    Restart {
        after: u64,
        /// Where in the record its records lie.
        records: Vec<Range<usize>>,
    },
}

/// Decodes a record with its header; `None` when it is not well formed. Operations are not looked
/// at.
pub(crate) fn decode(record: &[u8]) -> Option<Payload> {
    let mut d = Decoder::new(record, RECORD_HEADER_BYTES);
    match d.u8()? {
        BATCH => {
            let (sequence, count) = (d.u64()?, d.u32()?);
            (count > 0 && sequence <= NUMBER_MAX).then_some(Payload::Batch { sequence, count })
        }
        RESTART => {
            let after = d.u64()?;
            let mut records = Vec::new();
            while !d.is_at_end() {
                let from = d.position();
                let length = u32_at(record, from.checked_add(4)?)? as usize;
                d.take(RECORD_HEADER_BYTES.checked_add(length)?)?;
                records.push(from..d.position());
            }
            Some(Payload::Restart { after, records })
        }
        _ => None,
    }
}

/// One change in a batch; ranges are places in the record.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Put {
        key: Range<usize>,
        value: Range<usize>,
    },
    Delete {
        key: Range<usize>,
    },
    DeleteRange {
        from: Range<usize>,
        to: Range<usize>,
    },
}

impl Operation {
    pub(crate) const PUT: u8 = 1;
    pub(crate) const DELETE: u8 = 2;
    pub(crate) const DELETE_RANGE: u8 = 3;
}

/// The next operation; `None` when the bytes are not well formed.
#[inline]
pub(crate) fn next_operation(d: &mut Decoder<'_>) -> Option<Operation> {
    fn string(d: &mut Decoder<'_>) -> Option<Range<usize>> {
        let length = d.bytes()?.len();
        Some(d.position() - length..d.position())
    }
    fn key(d: &mut Decoder<'_>) -> Option<Range<usize>> {
        string(d).filter(|range| range.len() >= INDEX_BYTES)
    }
    match d.u8()? {
        Operation::PUT => Some(Operation::Put {
            key: key(d)?,
            value: string(d)?,
        }),
        Operation::DELETE => Some(Operation::Delete { key: key(d)? }),
        Operation::DELETE_RANGE => Some(Operation::DeleteRange {
            from: key(d)?,
            to: key(d)?,
        }),
        _ => None,
    }
}

/// A record that drops an index, its header not yet filled in.
pub(crate) fn drop_index(index: u32) -> Vec<u8> {
    let mut record = vec![0; OPERATIONS_AT];
    let next = (index + 1).to_be_bytes();
    put_operation(
        &mut record,
        Operation::DELETE_RANGE,
        index,
        &[],
        Some(&next),
    );
    record
}

/// The index that an operation drops. No other range ends with a key without bytes of the user's.
fn dropped(record: &[u8], operation: &Operation) -> Option<u32> {
    match operation {
        Operation::DeleteRange { from, to } if to.len() == INDEX_BYTES => {
            index_of(record.get(from.clone())?)
        }
        _ => None,
    }
}

/// The indices of all operations of a batch; `None` when it is not well formed.
pub(crate) fn indices(record: &[u8], count: u32) -> Option<BTreeSet<u32>> {
    let mut d = Decoder::new(record, OPERATIONS_AT);
    let index = |_| {
        let (Operation::Put { key, .. }
        | Operation::Delete { key }
        | Operation::DeleteRange { from: key, .. }) = next_operation(&mut d)?;
        index_of(record.get(key)?)
    };
    (0..count).map(index).collect()
}

/// The index that a batch drops; nothing else is in it then.
pub(crate) fn dropped_index(record: &[u8]) -> Option<u32> {
    let mut d = Decoder::new(record, OPERATIONS_AT);
    dropped(record, &next_operation(&mut d)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_checks_only_in_its_place_and_unharmed() {
        let mut record = vec![0; OPERATIONS_AT];
        put_operation(&mut record, Operation::PUT, 3, b"key", Some(b"value"));
        number(&mut record, 42, 1);
        seal(&mut record, 5, 0, 7);
        let checked = check_record(&record, 5, 0).unwrap();
        assert_eq!((checked.length, checked.durable), (record.len(), 7));
        assert!(check_record(&record, 6, 0).is_none());
        let shifted = [&[0], record.as_slice()].concat();
        assert!(check_record(&shifted, 5, 1).is_none());
        for at in 0..record.len() {
            let mut harmed = record.clone();
            harmed[at] ^= 0x10;
            assert!(check_record(&harmed, 5, 0).is_none(), "byte {at}");
        }
        assert!(matches!(
            decode(&record),
            Some(Payload::Batch {
                sequence: 42,
                count: 1
            })
        ));
        let mut d = Decoder::new(&record, OPERATIONS_AT);
        let Some(Operation::Put { key, value }) = next_operation(&mut d) else {
            panic!("no put")
        };
        assert_eq!(
            (&record[key], &record[value]),
            (b"\0\0\0\x03key".as_slice(), b"value".as_slice())
        );
        assert!(d.is_at_end());
    }

    proptest::proptest! {
        #[test]
        fn hostile_bytes_do_no_harm(mut bytes in proptest::collection::vec(0..9u8, 25..120), kind in 0..5u8) {
            bytes[RECORD_HEADER_BYTES] = kind;
            let payload = decode(&bytes);
            if let Some(Payload::Restart { records, .. }) = &payload {
                assert!(records.iter().all(|range| range.end <= bytes.len()));
            }
            let record: std::sync::Arc<[u8]> = bytes.into();
            let _ = check_record(&record, 1, 0);
            let _ = crate::memtable::Memtable::new().apply(&record, 1, u32::from(kind));
        }
    }
}
