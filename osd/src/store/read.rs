//! Reading: nothing leaves the store that was not checked against its crc32c.

use std::io;
use std::sync::Arc;

use babu_kv::fs::File;
use bytes::Bytes;
use xtfs_protocol::ids::ObjectId;
use xtfs_protocol::object::DataRange;

use super::Store;
use super::block::{self, Codec};
use super::extents::{Extent, ObjectMap};
use crate::error::{At, Result, StoreError};

/// How often a read looks up again when segments are removed under it.
const ATTEMPTS_MAX: usize = 16;

impl Store {
    /// Reads a range of an object: the pieces that hold data, and their bytes one after the other.
    /// An object that does not exist reads as a hole.
    pub(crate) fn read(
        &self,
        object: ObjectId,
        offset: u32,
        length: u32,
    ) -> Result<(Vec<DataRange>, Bytes)> {
        let end = offset.saturating_add(length);
        let mut before = None;
        let mut gone = 0;
        for _ in 0..ATTEMPTS_MAX {
            let Some(map) = self.lookup(object)? else {
                self.refuse_deleted(object)?;
                return Ok((Vec::new(), Bytes::new()));
            };
            match self.read_map(object, &map, offset, end) {
                Err(StoreError::SegmentGone { segment }) => {
                    if before.as_ref() == Some(&map) {
                        return Err(self.report_missing(object, &map, offset, end, segment));
                    }
                    before = Some(map);
                    gone = segment;
                }
                outcome => return outcome,
            }
        }
        Err(StoreError::SegmentGone { segment: gone })
    }

    /// Reads of a deleted file get an error instead of holes.
    fn refuse_deleted(&self, object: ObjectId) -> Result<()> {
        match self.file_state(object.file)?.deleted_secs {
            None => Ok(()),
            Some(_) => Err(StoreError::Outdated {
                file: object.file,
                what: "deleted".to_owned(),
            }),
        }
    }

    fn report_missing(
        &self,
        object: ObjectId,
        map: &ObjectMap,
        from: u32,
        to: u32,
        segment: u64,
    ) -> StoreError {
        let missing = map.pieces(from, to).find(|e| e.place.segment == segment);
        match missing {
            Some(extent) => self.damage.report(object, &extent, "the file is missing"),
            None => StoreError::SegmentGone { segment },
        }
    }

    fn read_map(
        &self,
        object: ObjectId,
        map: &ObjectMap,
        from: u32,
        to: u32,
    ) -> Result<(Vec<DataRange>, Bytes)> {
        let pieces: Vec<Extent> = map.pieces(from, to).collect();
        let total: usize = pieces.iter().map(|e| e.length as usize).sum();
        let mut out = Vec::with_capacity(total);
        let mut rest = pieces.as_slice();
        while let Some(first) = rest.first() {
            let (run, behind) = rest.split_at(run_length(rest));
            if run.len() == 1 || !self.read_run(run, &mut out)? {
                // One by one, so that an error names the block.
                for extent in run {
                    self.read_extent(object, extent, &mut out)?;
                }
            }
            debug_assert!(first.length > 0);
            rest = behind;
        }
        Ok((ranges(&pieces), Bytes::from(out)))
    }

    /// Reads extents that lie back to back with one call; false, and nothing, if any does not
    /// check.
    fn read_run(&self, run: &[Extent], out: &mut Vec<u8>) -> Result<bool> {
        let Some(first) = run.first().map(|extent| extent.place) else {
            return Ok(true);
        };
        let file = self.open_segment(first.segment)?;
        let start = out.len();
        let total: usize = run.iter().map(|e| e.length as usize).sum();
        out.resize(start + total, 0);
        let mut good = file
            .read_exact_at(&mut out[start..], first.position)
            .is_ok();
        let mut at = start;
        for extent in run {
            let end = at + extent.length as usize;
            good = good && crc32c::crc32c(&out[at..end]) == extent.place.crc;
            at = end;
        }
        if !good {
            out.truncate(start);
        }
        Ok(good)
    }

    /// Appends the bytes of one extent.
    pub(super) fn read_extent(
        &self,
        object: ObjectId,
        extent: &Extent,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let raw = self.read_block(object, extent)?;
        let from = extent.skip as usize;
        let part = raw.get(from..from + extent.length as usize);
        out.extend_from_slice(part.ok_or_else(|| {
            self.damage
                .report(object, extent, "the block is shorter than its entry says")
        })?);
        Ok(())
    }

    /// Reads, checks and decodes the whole block of an extent.
    pub(super) fn read_block(&self, object: ObjectId, extent: &Extent) -> Result<Vec<u8>> {
        let place = extent.place;
        let file = self.open_segment(place.segment)?;
        let mut stored = vec![0; place.stored as usize];
        match file.read_exact_at(&mut stored, place.position) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(self
                    .damage
                    .report(object, extent, "the file ends before it"));
            }
            Err(error) => {
                let _ = self
                    .damage
                    .report(object, extent, "the disk cannot read it");
                return Err(error).at("read", &self.files.path(place.segment));
            }
        }
        if crc32c::crc32c(&stored) != place.crc {
            return Err(self.damage.report(object, extent, "crc32c does not match"));
        }
        block::decode(place.codec, stored, place.raw)
            .ok_or_else(|| self.damage.report(object, extent, "it does not decode"))
    }

    pub(super) fn open_segment(&self, segment: u64) -> Result<Arc<dyn File>> {
        match self.files.get(segment) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(StoreError::SegmentGone { segment })
            }
            outcome => outcome.at("open", &self.files.path(segment)),
        }
    }
}

/// How many extents from the first on are whole, uncompressed blocks that lie back to back.
fn run_length(extents: &[Extent]) -> usize {
    let whole = |e: &Extent| e.place.codec == Codec::Raw && e.skip == 0 && e.length == e.place.raw;
    let adjacent = extents.windows(2).take_while(|pair| match pair {
        [a, b] => {
            whole(a)
                && whole(b)
                && a.place.segment == b.place.segment
                && a.place.position + u64::from(a.place.stored) == b.place.position
        }
        _ => false,
    });
    adjacent.count() + 1
}

/// The ranges that pieces cover, neighbours joined.
fn ranges(pieces: &[Extent]) -> Vec<DataRange> {
    let mut ranges: Vec<DataRange> = Vec::new();
    for piece in pieces {
        match ranges.last_mut() {
            Some(last) if last.offset + last.length == piece.offset => last.length += piece.length,
            _ => ranges.push(DataRange {
                offset: piece.offset,
                length: piece.length,
            }),
        }
    }
    ranges
}
