//! Giving space back.
//!
//! A sealed segment that nothing refers to goes at the next checkpoint. One that is mostly dead is
//! emptied first: the objects that still refer to it are read, checked and written anew. Damaged
//! bytes are never written anew: they would gain a good checksum. Their segment stays.

use std::collections::BTreeSet;
use std::ops::Bound;

use babu_kv::{Batch, Durability};
use xtfs_protocol::ids::ObjectId;

use super::Store;
use super::extents::ObjectMap;
use super::record::{Change, SEGMENT_HEADER_BYTES};
use super::values::{self, SegmentInfo};
use crate::bytes::file_key;
use crate::error::{At, Result, StoreError};

/// Most segments emptied in one pass.
const SEGMENTS_PER_PASS: usize = 8;

/// Most passes for one writer that found the disk full.
const PASSES_MAX: usize = 64;

/// An open segment that is mostly dead is sealed early from this size on.
const SEAL_BYTES_MIN: u64 = 1 << 20;

/// How often an object that changes meanwhile is tried again.
const MOVE_ATTEMPTS_MAX: usize = 4;

/// Tombstones removed in one pass.
const TOMBSTONES_PER_PASS: usize = 4096;

/// What is worth the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pressure {
    /// Segments of which less than half is alive.
    Low,
    /// The disk is full: segments of which an eighth is dead.
    High,
}

/// What became of a segment that was to be emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Emptied {
    /// Nothing refers to it any more.
    Yes,
    /// Some of it cannot be moved. It is not tried again before the next start.
    Kept,
    /// There is no room for what it holds.
    NoRoom,
}

impl Pressure {
    fn is_worth(self, info: &SegmentInfo) -> bool {
        match self {
            Self::Low => info.live < info.raw / 2,
            Self::High => info.live <= info.raw - info.raw / 8 && info.live < info.raw,
        }
    }
}

impl Store {
    /// Gives back dead segments, and the dead part of mostly dead ones.
    pub(crate) fn reclaim(&self) -> Result<()> {
        let _one = self.reclaiming.lock();
        self.seal_if_dead(Pressure::Low)?;
        self.checkpoint()?;
        let mut moved = false;
        for segment in self.worthwhile(Pressure::Low) {
            moved |= self.empty_segment(segment)? == Emptied::Yes;
        }
        if moved {
            self.checkpoint()?;
        }
        Ok(())
    }

    /// Gives back what it can, step by step, until `enough`.
    pub(super) fn reclaim_until(&self, enough: impl Fn() -> Result<bool>) -> Result<()> {
        let _one = self.reclaiming.lock();
        if enough()? {
            return Ok(());
        }
        self.seal_if_dead(Pressure::High)?;
        self.checkpoint()?;
        for _ in 0..PASSES_MAX {
            for segment in self.worthwhile(Pressure::High) {
                if enough()? {
                    return Ok(());
                }
                match self.empty_segment(segment)? {
                    // Each segment makes the room in which the next one is emptied.
                    Emptied::Yes => self.checkpoint()?,
                    Emptied::Kept => {}
                    Emptied::NoRoom => return Ok(()),
                }
            }
        }
        Ok(())
    }

    /// Whether [`Store::reclaim`] would do something.
    pub(crate) fn wants_reclaim(&self) -> bool {
        let open = self.appender.lock().segment;
        let dead = self.layers.read().segments.iter().any(|(number, info)| {
            (*number == open && seal_early(info, Pressure::Low)) || (info.sealed && info.live == 0)
        });
        dead || !self.worthwhile(Pressure::Low).is_empty()
    }

    /// Forgets files that were deleted before `secs`: no capability for them is valid any more.
    pub(crate) fn forget_deleted(&self, secs: i64) -> Result<()> {
        let index = &self.index;
        let to = secs.max(0).to_be_bytes();
        let mut batch = Batch::new();
        let entries = index.db.range(
            &index.tombstones,
            Bound::Unbounded,
            Bound::Excluded(to.as_slice()),
        );
        for entry in entries.take(TOMBSTONES_PER_PASS) {
            let (key, _) = entry?;
            batch.delete(&index.tombstones, &key);
            if let Some(file) = values::file_of_tombstone(&key) {
                batch.delete(&index.files, &file_key(file));
            }
        }
        if !batch.is_empty() {
            index.db.write(batch, Durability::Buffered)?;
        }
        Ok(())
    }

    /// Seals the open segment when most of it is dead, so that it can be given back.
    fn seal_if_dead(&self, pressure: Pressure) -> Result<()> {
        let mut appender = self.appender.lock();
        let info = self
            .layers
            .read()
            .segments
            .get(&appender.segment)
            .copied()
            .unwrap_or_default();
        if seal_early(&info, pressure) {
            self.roll(&mut appender)?;
        }
        Ok(())
    }

    /// Sealed segments that are worth emptying, the emptiest first.
    fn worthwhile(&self, pressure: Pressure) -> Vec<u64> {
        let kept = self.kept.lock();
        let layers = self.layers.read();
        let mut candidates: Vec<(u64, u64)> = layers
            .segments
            .iter()
            .filter(|(number, info)| {
                info.sealed && info.live > 0 && pressure.is_worth(info) && !kept.contains(number)
            })
            .map(|(number, info)| (info.live, *number))
            .collect();
        candidates.sort_unstable();
        candidates.truncate(SEGMENTS_PER_PASS);
        candidates.into_iter().map(|(_, number)| number).collect()
    }

    /// Writes anew what still refers to a segment.
    fn empty_segment(&self, segment: u64) -> Result<Emptied> {
        let live = |info: Option<&SegmentInfo>| info.map_or(0, |info| info.live);
        let before = live(self.layers.read().segments.get(&segment));
        let space = self.fs.space(&self.dir).at("statvfs", &self.dir)?;
        if space
            .free_bytes
            .saturating_sub(self.limits.reserve_bytes / 4)
            < before
        {
            return Ok(Emptied::NoRoom);
        }
        self.move_objects(segment)?;
        if live(self.layers.read().segments.get(&segment)) == 0 {
            return Ok(Emptied::Yes);
        }
        self.kept.lock().insert(segment);
        Ok(Emptied::Kept)
    }

    /// Writes anew whatever is alive in a segment, unless it cannot be read.
    pub(super) fn move_objects(&self, segment: u64) -> Result<()> {
        // One file that cannot be read must not keep the space of all others.
        let objects = match self.objects_written_in(segment) {
            Err(error @ (StoreError::SegmentGone { .. } | StoreError::Io { .. })) => {
                tracing::warn!(segment, %error, "a segment cannot be emptied");
                return Ok(());
            }
            outcome => outcome?,
        };
        objects
            .into_iter()
            .try_for_each(|object| self.move_object(object, segment))
    }

    /// Writes anew what an object has in a segment, unless it cannot be read.
    fn move_object(&self, object: ObjectId, segment: u64) -> Result<()> {
        for _ in 0..MOVE_ATTEMPTS_MAX {
            let refers = |map: &ObjectMap| map.extents().iter().any(|e| e.place.segment == segment);
            if !self.lookup(object)?.is_some_and(|map| refers(&map))
                || self.rewrite_object(object, |place| place == segment)?
            {
                break;
            }
        }
        Ok(())
    }

    /// The objects that records of a segment wrote.
    fn objects_written_in(&self, segment: u64) -> Result<BTreeSet<ObjectId>> {
        let end = self.open_segment(segment)?;
        let end = end.len().at("stat", &self.files.path(segment))?;
        let mut objects = BTreeSet::new();
        let mut position = SEGMENT_HEADER_BYTES;
        while position < end {
            let Some(header) = self.read_header(segment, position)? else {
                // Damaged: what lies behind is not found, and keeps the segment alive.
                break;
            };
            if let Change::Write { object, .. } | Change::Rewrite { object } = header.change {
                objects.insert(object);
            }
            position += header.record_bytes();
        }
        Ok(objects)
    }
}

/// Whether an open segment should be sealed before it is full.
fn seal_early(info: &SegmentInfo, pressure: Pressure) -> bool {
    let size_min = match pressure {
        Pressure::Low => SEAL_BYTES_MIN,
        Pressure::High => SEAL_BYTES_MIN / 8,
    };
    let empty = info.live == 0 && info.raw > 0;
    empty || (info.bytes >= size_min && pressure.is_worth(info))
}
