//! Checking what is stored, before somebody needs it.

use xtfs_protocol::ids::ObjectId;
use xtfs_protocol::object::{Damage, DamagedObject};

use super::Store;
use super::block;
use super::extents::Extent;
use super::record::{FIXED_BYTES, Header, claimed_lengths, decode_header};
use super::segment::place;
use crate::error::{Result, StoreError};

/// Bytes after which a page of checks ends early, so that each call ends in time.
const PAGE_BYTES_MAX: u64 = 128 << 20;

/// How often an object is looked at again when its segments move.
const ATTEMPTS_MAX: usize = 8;

/// The outcome of checking some objects.
#[derive(Debug, Default)]
pub(crate) struct Verified {
    pub last: Option<ObjectId>,
    pub objects: u64,
    pub bytes: u64,
    pub damaged: Vec<DamagedObject>,
    pub end: bool,
}

impl Store {
    /// Checks every stored block of the objects behind `after`: crc32c and fingerprint.
    pub(crate) fn verify(&self, after: Option<ObjectId>, limit: u32) -> Result<Verified> {
        let mut verified = Verified::default();
        verified.end = self.page(after, limit, |object, _| {
            let (bytes, damage) = self.verify_object(object)?;
            verified.last = Some(object);
            verified.objects += 1;
            verified.bytes += bytes;
            if !damage.is_empty() {
                verified.damaged.push(DamagedObject { object, damage });
            }
            Ok(verified.bytes < PAGE_BYTES_MAX)
        })?;
        Ok(verified)
    }

    fn verify_object(&self, object: ObjectId) -> Result<(u64, Vec<Damage>)> {
        let mut before = None;
        for _ in 0..ATTEMPTS_MAX {
            let Some(map) = self.lookup(object)? else {
                break;
            };
            let missing_is_damage = before.as_ref() == Some(&map);
            match self.verify_extents(object, map.extents(), missing_is_damage) {
                Err(StoreError::SegmentGone { .. }) => before = Some(map),
                outcome => return outcome,
            }
        }
        Ok((0, Vec::new()))
    }

    fn verify_extents(
        &self,
        object: ObjectId,
        extents: &[Extent],
        missing_is_damage: bool,
    ) -> Result<(u64, Vec<Damage>)> {
        let mut bytes = 0;
        let mut damage = Vec::new();
        let mut record: Option<(u64, u64, Option<Header>)> = None;
        let mut checked = None;
        for extent in extents {
            let found = extent.place;
            if checked == Some((found.segment, found.position)) {
                continue;
            }
            checked = Some((found.segment, found.position));
            bytes += u64::from(found.stored);
            let start = found.position.saturating_sub(found.record_back.into());
            let outcome = self.read_block(object, extent).and_then(|raw| {
                let known = record
                    .take()
                    .filter(|r| (r.0, r.1) == (found.segment, start));
                let (_, _, header) = record.insert(match known {
                    Some(known) => known,
                    None => (
                        found.segment,
                        start,
                        self.read_header(found.segment, start)?,
                    ),
                });
                let what = match header {
                    None => Some("the record's header does not match its checksum"),
                    Some(header) => fingerprint_fault(header, extent, &raw),
                };
                what.map_or(Ok(()), |what| Err(self.damage.report(object, extent, what)))
            });
            match outcome {
                Ok(()) => {}
                Err(StoreError::Damaged {
                    offset,
                    length,
                    place,
                    what,
                    ..
                }) => damage.push(Damage {
                    offset,
                    length,
                    place,
                    what: what.to_owned(),
                }),
                Err(StoreError::SegmentGone { segment }) if missing_is_damage => {
                    damage.push(Damage {
                        offset: extent.offset,
                        length: extent.length,
                        place: place(segment, found.position),
                        what: "the file is missing".to_owned(),
                    });
                }
                Err(StoreError::Io { source, .. }) => damage.push(Damage {
                    offset: extent.offset,
                    length: extent.length,
                    place: place(found.segment, found.position),
                    what: source.to_string(),
                }),
                Err(error) => return Err(error),
            }
        }
        Ok((bytes, damage))
    }

    /// Reads the header of a record; `None` when it does not check.
    pub(super) fn read_header(&self, segment: u64, position: u64) -> Result<Option<Header>> {
        let file = self.open_segment(segment)?;
        let mut bytes = vec![0; FIXED_BYTES];
        if file.read_exact_at(&mut bytes, position).is_err() {
            return Ok(None);
        }
        let Some((length, _)) = claimed_lengths(&bytes) else {
            return Ok(None);
        };
        bytes.resize(length, 0);
        if file.read_exact_at(&mut bytes, position).is_err() {
            return Ok(None);
        }
        Ok(decode_header(&bytes, self.seed, segment, position))
    }
}

/// What is wrong with decoded bytes according to the block table, if anything.
fn fingerprint_fault(header: &Header, extent: &Extent, raw: &[u8]) -> Option<&'static str> {
    let mut back = header.header_bytes() as u64;
    for entry in &header.blocks {
        if back == u64::from(extent.place.record_back) {
            let matches = entry.fingerprint == block::fingerprint(raw);
            return (!matches).then_some("the fingerprint does not match");
        }
        back += u64::from(entry.stored);
    }
    Some("the record has no such block")
}
