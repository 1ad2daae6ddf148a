//! What changes objects: write, punch, truncate, delete.

use xtfs_layout::Layout;
use xtfs_protocol::ids::{FileId, ObjectId};

use super::Store;
use super::order::Turn;
use super::record::{BLOCKS_MAX, Change, Prepared};
use crate::error::{At, Result, StoreError};

/// An object with more extents than this is written anew as a whole.
const EXTENTS_MAX: usize = 384;

/// An object that could not be written anew is tried again after so many more extents.
const EXTENTS_STEP: usize = 64;

/// Entries of the pending layer that start a checkpoint in the background; four times as many, or
/// as many bytes, make writers do it themselves.
const CHECKPOINT_COST: u64 = 8192;

/// How often a write looks for room that others take before it is there.
const ROOM_ATTEMPTS_MAX: usize = 3;

/// Room that is enough for any change which is made where it arrives.
const CALM_BYTES: u64 = 1 << 20;

/// How full the pending layer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    Low,
    /// A checkpoint is due.
    Medium,
    /// Nothing may be added before one is made.
    High,
}

impl Store {
    /// Writes bytes into an object, all or nothing. Returns the bytes of data it gained.
    pub(crate) fn write(
        &self,
        turn: Turn,
        object: ObjectId,
        epoch: u64,
        offset: u32,
        bytes: &[u8],
        durable: bool,
    ) -> Result<i64> {
        let length = check_range(offset, bytes.len())?;
        if length == 0 {
            return Ok(0);
        }
        let change = Change::Write {
            object,
            epoch,
            offset,
            length,
        };
        let mut room = bytes.len() as u64;
        let mut done = None;
        for _ in 0..ROOM_ATTEMPTS_MAX {
            self.room_for(room)?;
            self.relieve()?;
            let prepared = Prepared::with_pieces(change, &[(offset, bytes)], self.limits.compress);
            room = prepared.bytes.len() as u64;
            // Brings the index's blocks into memory before the lock is taken.
            self.lookup(object)?;
            let allowed = || {
                self.check_epoch(object.file, epoch)?;
                // Many may have found the same room; here they come one by one.
                if !self.has_room(room)? {
                    return Ok(false);
                }
                self.check_turn(turn, object, offset, length)?;
                Ok(true)
            };
            done = self.commit(prepared, allowed)?;
            if done.is_some() {
                break;
            }
        }
        let Some(done) = done else {
            return Err(StoreError::NoSpace {
                path: self.dir.clone(),
            });
        };
        let (before, after) = done.extents;
        if after > EXTENTS_MAX && before / EXTENTS_STEP != after / EXTENTS_STEP {
            // What was asked for is done, whatever becomes of this.
            if let Err(error) = self.rewrite_object(object, |_| true) {
                tracing::warn!(%object, %error, "an object in many pieces cannot be written anew");
            }
        }
        if durable {
            self.sync_file(object.file, done.sequence)?;
        }
        Ok(done.delta)
    }

    /// Makes a range of an object a hole. Returns the (negative) bytes of data it gained.
    pub(crate) fn punch(
        &self,
        turn: Turn,
        object: ObjectId,
        epoch: u64,
        offset: u32,
        length: u32,
    ) -> Result<i64> {
        let length = check_range(offset, length as usize)?;
        self.relieve()?;
        let change = Change::Punch {
            object,
            epoch,
            offset,
            length,
        };
        let allowed = || {
            self.check_epoch(object.file, epoch)?;
            self.check_turn(turn, object, offset, length)?;
            let map = self.lookup(object)?;
            Ok(map.is_some_and(|map| map.pieces(offset, offset + length).next().is_some()))
        };
        let done = self.commit(Prepared::bare(change), allowed)?;
        Ok(done.map_or(0, |done| done.delta))
    }

    /// Removes what lies behind a new end of a file, unless that was done before. Returns the
    /// (negative) bytes of data it gained.
    pub(crate) fn truncate(
        &self,
        file: FileId,
        epoch: u64,
        remove_from: u64,
        shorten: Option<(u64, u32)>,
    ) -> Result<i64> {
        if let Some((_, length)) = shorten {
            check_range(0, length as usize)?;
        }
        self.relieve()?;
        let change = Change::Truncate {
            file,
            epoch,
            remove_from,
            shorten,
        };
        let allowed = || {
            let state = self.file_state(file)?;
            check_present(file, state.deleted_secs)?;
            Ok(epoch > state.epoch)
        };
        let done = self.commit(Prepared::bare(change), allowed)?;
        self.work.notify_one();
        Ok(done.map_or(0, |done| done.delta))
    }

    /// Removes every object of a file and remembers that it is gone.
    pub(crate) fn delete(&self, file: FileId, at_secs: i64) -> Result<()> {
        if let Err(error) = self.relieve() {
            // A deletion makes room, so it may go where writes may not; but not without end.
            if self.layers.read().pending.cost > 16 * CHECKPOINT_COST {
                return Err(error);
            }
            tracing::warn!(%error, "deleting without a checkpoint");
        }
        let allowed = || Ok(self.file_state(file)?.deleted_secs.is_none());
        self.commit(Prepared::bare(Change::Delete { file, at_secs }), allowed)?;
        self.work.notify_one();
        Ok(())
    }

    /// Refuses what was allowed before the file was truncated or deleted.
    fn check_epoch(&self, file: FileId, epoch: u64) -> Result<()> {
        let state = self.file_state(file)?;
        check_present(file, state.deleted_secs)?;
        if epoch < state.epoch {
            let what = format!("truncated under epoch {}, not {epoch}", state.epoch);
            return Err(StoreError::Outdated { file, what });
        }
        Ok(())
    }

    /// Refuses what the client's later writes overtook.
    fn check_turn(&self, turn: Turn, object: ObjectId, offset: u32, length: u32) -> Result<()> {
        let to = offset.saturating_add(length);
        if self.order.lock().admit(turn, object, offset, to) {
            Ok(())
        } else {
            Err(StoreError::Overtaken { object })
        }
    }

    /// Refuses to go below what is kept for the index and for deletions.
    fn room_for(&self, bytes: u64) -> Result<()> {
        if self.has_room(bytes)? {
            return Ok(());
        }
        // Space that is dead but not given back yet comes first.
        self.reclaim_until(|| self.has_room(bytes))?;
        if self.has_room(bytes)? {
            return Ok(());
        }
        Err(StoreError::NoSpace {
            path: self.dir.clone(),
        })
    }

    fn has_room(&self, bytes: u64) -> Result<bool> {
        let space = self.fs.space(&self.dir).at("statvfs", &self.dir)?;
        Ok(space.free_bytes.saturating_sub(self.limits.reserve_bytes) >= bytes)
    }

    /// Keeps the pending layer bounded.
    fn relieve(&self) -> Result<()> {
        match self.load() {
            Load::High => self.checkpoint()?,
            Load::Medium => self.work.notify_one(),
            Load::Low => {}
        }
        Ok(())
    }

    /// Whether a checkpoint is due.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        self.load() != Load::Low
    }

    /// Whether a small change will not have to wait for a checkpoint or for space.
    pub(crate) fn is_calm(&self) -> bool {
        self.load() != Load::High && self.has_room(CALM_BYTES).unwrap_or(false)
    }

    fn load(&self) -> Load {
        let layers = self.layers.read();
        let (cost, bytes) = (layers.pending.cost, layers.pending.bytes);
        let limit = self.limits.checkpoint_bytes;
        if cost > 4 * CHECKPOINT_COST || bytes > limit.saturating_mul(4) {
            Load::High
        } else if cost > CHECKPOINT_COST || bytes > limit {
            Load::Medium
        } else {
            Load::Low
        }
    }

    /// Writes the extents of an object that `pick` names anew, in one record. Leaves the object as
    /// it is when some of its bytes cannot be read or it changes meanwhile; says whether it was
    /// done.
    pub(super) fn rewrite_object(
        &self,
        object: ObjectId,
        pick: impl Fn(u64) -> bool,
    ) -> Result<bool> {
        let Some(map) = self.lookup(object)? else {
            return Ok(true);
        };
        let mut pieces: Vec<(u32, Vec<u8>)> = Vec::new();
        for extent in map.extents().iter().filter(|e| pick(e.place.segment)) {
            let mut bytes = Vec::new();
            match self.read_extent(object, extent, &mut bytes) {
                Ok(()) => {}
                Err(
                    StoreError::Damaged { .. }
                    | StoreError::SegmentGone { .. }
                    | StoreError::Io { .. },
                ) => return Ok(false),
                Err(error) => return Err(error),
            }
            match pieces.last_mut() {
                Some((offset, last)) if *offset as usize + last.len() == extent.offset as usize => {
                    last.extend_from_slice(&bytes);
                }
                _ => pieces.push((extent.offset, bytes)),
            }
        }
        let pieces: Vec<(u32, &[u8])> = pieces.iter().map(|(o, b)| (*o, b.as_slice())).collect();
        let change = Change::Rewrite { object };
        let prepared = Prepared::with_pieces(change, &pieces, self.limits.compress);
        if prepared.blocks.len() > BLOCKS_MAX || prepared.blocks.is_empty() {
            return Ok(prepared.blocks.is_empty());
        }
        let unchanged = || Ok(self.lookup(object)?.as_deref() == Some(&*map));
        Ok(self.commit(prepared, unchanged)?.is_some())
    }
}

fn check_range(offset: u32, length: usize) -> Result<u32> {
    let end = u64::from(offset).saturating_add(length as u64);
    if end > u64::from(Layout::OBJECT_SIZE_MAX) {
        return Err(StoreError::Invalid(
            "a range behind the end of the largest object",
        ));
    }
    Ok(length as u32)
}

fn check_present(file: FileId, deleted_secs: Option<i64>) -> Result<()> {
    match deleted_secs {
        None => Ok(()),
        Some(_) => Err(StoreError::Outdated {
            file,
            what: "deleted".to_owned(),
        }),
    }
}
