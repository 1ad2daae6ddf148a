//! Bytes of the manifest. All integers are little endian.
//!
//! ```text
//! CURRENT    = "MANIFEST-" number " " · XXH3-64 of the name in hex · "\n"       number in at least six digits
//! manifest   = record*                                                  the first record says everything, later ones what changed
//! record     = check u32 · length u32 · hash u64 · edit (length bytes)
//!              hash  XXH3-64 of the edit
//!              check low 32 bits of the XXH3-64 of the 12 bytes after it
//!              both with seed = number * 2^40 + offset of the record
//! edit       = field*
//! field      = 1 · version varint                          of this format, in the first record only
//!            | 2 · index varint · name                     a new index
//!            | 3 · log segment varint                      the first that is still needed
//!            | 4 · sequence varint                         all up to it is in tables
//!            | 5 · file number varint                      not used by any file yet
//!            | 6 · level varint · table                    a table is added
//!            | 7 · level varint · file number varint       a table is removed
//!            | 8 · segment varint · bytes varint · hash varint     a closed log segment and the XXH3-64 of its bytes
//!            | 9 · index varint                            an index was dropped
//!            | 10 · index varint                           the last number that was ever given to an index
//!            | 11 · index varint · bytes varint            length of the prefixes of its keys in filters, 0 for none
//! table      = number · size · hash · entries · tombstones · highest sequence (all varint) · from · to
//! ```
//!
//! Strings are varint length and bytes. A record is durable before the next is written, so that
//! only the last can be torn: it is cut, because nothing that depends on it was done.

use crate::coding::{number_in, u32_at, u64_at};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

pub(crate) const CURRENT: &str = "CURRENT";
pub(crate) const VERSION: u64 = 2;
const HEADER_BYTES: usize = 16;

pub(crate) fn manifest_name(number: u64) -> String {
    format!("MANIFEST-{number:06}")
}

pub(crate) fn manifest_number(name: &str) -> Option<u64> {
    number_in(name, "MANIFEST-", "")
}

pub(crate) fn encode_current(number: u64) -> String {
    let name = manifest_name(number);
    format!("{name} {:016x}\n", xxh3_64(name.as_bytes()))
}

pub(crate) fn decode_current(bytes: &[u8]) -> Option<u64> {
    let name = std::str::from_utf8(bytes).ok()?.split(' ').next()?;
    let number = manifest_number(name)?;
    (encode_current(number).as_bytes() == bytes).then_some(number)
}

fn seed(number: u64, offset: u64) -> u64 {
    (number << 40).wrapping_add(offset)
}

pub(crate) fn encode_record(edit: &[u8], number: u64, offset: u64) -> Vec<u8> {
    let seed = seed(number, offset);
    let mut body = Vec::with_capacity(HEADER_BYTES - 4);
    body.extend_from_slice(&(edit.len() as u32).to_le_bytes());
    body.extend_from_slice(&xxh3_64_with_seed(edit, seed).to_le_bytes());
    let check = xxh3_64_with_seed(&body, seed) as u32;
    [&check.to_le_bytes(), body.as_slice(), edit].concat()
}

/// The edit in the record at `offset` and where the record ends, if it checks.
pub(crate) fn check_record(manifest: &[u8], number: u64, offset: usize) -> Option<(&[u8], usize)> {
    let header = manifest.get(offset..offset.checked_add(HEADER_BYTES)?)?;
    let seed = seed(number, offset as u64);
    if u32_at(header, 0)? != xxh3_64_with_seed(&header[4..], seed) as u32 {
        return None;
    }
    let start = offset + HEADER_BYTES;
    let end = start.checked_add(u32_at(header, 4)? as usize)?;
    let edit = manifest.get(start..end)?;
    (u64_at(header, 8)? == xxh3_64_with_seed(edit, seed)).then_some((edit, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_and_records_check() {
        let current = encode_current(12);
        assert_eq!(decode_current(current.as_bytes()), Some(12));
        for at in 0..current.len() {
            let mut harmed = current.clone().into_bytes();
            harmed[at] ^= 1;
            assert_eq!(decode_current(&harmed), None);
        }
        let record = encode_record(b"edit", 12, 0);
        assert_eq!(
            check_record(&record, 12, 0),
            Some((b"edit".as_slice(), record.len()))
        );
        assert_eq!(check_record(&record, 13, 0), None);
        assert_eq!(check_record(&record[..record.len() - 1], 12, 0), None);
    }
}
