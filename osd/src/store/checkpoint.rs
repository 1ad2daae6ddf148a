//! Bringing the index up to the segments.
//!
//! A checkpoint freezes the pending layer, makes the segments durable up to that moment, and
//! commits the layer to the index in one synced batch together with the position at which a replay
//! would begin. The batch is built from absolute values, so it may be repeated when it failed (a
//! full disk): until it succeeds the frozen layer keeps answering. Files of segments that nothing
//! refers to are removed after the batch that says so.
//!
//! When the segments cannot be made durable, what is alive in them is written anew first: the
//! reclaimer may have moved bytes there whose only other copy goes with this checkpoint.

use std::sync::Arc;

use babu_kv::{Batch, Durability};
use xtfs_protocol::ids::ObjectId;

use super::Store;
use super::pending::{Frozen, Overlay};
use super::values::{self, StateRecord};
use crate::bytes::{behind_file, file_key, object_key};
use crate::error::Result;

/// How often records that an fsync failed for are written anew before checkpoints go on without:
/// a disk that fails all the time must not fill up with copies.
const RESCUES_MAX: u32 = 4;

impl Store {
    /// Brings the index up to everything written so far.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let _one = self.checkpointing.lock();
        let earlier = self.layers.read().frozen.clone();
        if let Some(frozen) = earlier {
            self.settle(&frozen)?;
        }
        match self.freeze() {
            Some(frozen) => self.settle(&frozen),
            None => Ok(()),
        }
    }

    /// Commits a frozen layer once its bytes are durable.
    fn settle(&self, frozen: &Frozen) -> Result<()> {
        let last = frozen.state.sequence.saturating_sub(1);
        if let Err(error) = self.sync_to(last) {
            tracing::error!(%error, "records could not be made durable; writing them anew");
        }
        if let Err(error) = self.rescue() {
            let mut appender = self.appender.lock();
            appender.rescues += 1;
            if appender.rescues < RESCUES_MAX {
                return Err(error);
            }
            tracing::error!(segments = ?appender.lost, %error, "a loss of power may damage these");
            appender.lost.clear();
        }
        self.appender.lock().rescues = 0;
        self.commit_frozen(frozen)
    }

    /// Writes anew what is alive in segments that an fsync failed for, as long as the system still
    /// has it in memory. What the reclaimer moved there has no other copy once the checkpoint is
    /// done.
    fn rescue(&self) -> Result<()> {
        let (lost, before) = {
            let appender = self.appender.lock();
            (appender.lost.clone(), appender.next_sequence)
        };
        if lost.is_empty() {
            return Ok(());
        }
        for segment in &lost {
            self.move_objects(*segment)?;
        }
        let next = self.appender.lock().next_sequence;
        if next > before {
            self.sync_to(next - 1)?;
        }
        self.appender
            .lock()
            .lost
            .retain(|segment| !lost.contains(segment));
        Ok(())
    }

    /// Moves the pending layer down; `None` when nothing is pending.
    fn freeze(&self) -> Option<Arc<Frozen>> {
        let appender = self.appender.lock();
        let mut layers = self.layers.write();
        if layers.pending.cost == 0 && layers.pending.touched.is_empty() {
            return None;
        }
        let overlay = std::mem::take(&mut layers.pending);
        let open = appender.segment;
        let dead: Vec<u64> = layers
            .segments
            .iter()
            .filter(|(number, info)| info.sealed && info.live == 0 && **number != open)
            .map(|(number, _)| *number)
            .collect();
        for segment in &dead {
            layers.segments.remove(segment);
        }
        let changed = |segment: &u64| Some((*segment, *layers.segments.get(segment)?));
        let frozen = Arc::new(Frozen {
            segments: overlay.touched.iter().filter_map(changed).collect(),
            dead,
            state: StateRecord {
                segment: open,
                position: appender.position,
                sequence: appender.next_sequence,
                objects: layers.objects,
            },
            overlay,
        });
        layers.frozen = Some(frozen.clone());
        Some(frozen)
    }

    fn commit_frozen(&self, frozen: &Frozen) -> Result<()> {
        let batch = self.batch_of(frozen);
        self.index.db.write(batch, Durability::Synced)?;
        self.layers.write().frozen = None;
        for segment in &frozen.dead {
            if let Err(error) = self.files.remove(*segment) {
                let path = self.files.path(*segment);
                tracing::warn!(path = %path.display(), %error, "a dead segment cannot be removed");
            }
        }
        Ok(())
    }

    fn batch_of(&self, frozen: &Frozen) -> Batch {
        let index = &self.index;
        let Overlay {
            objects,
            files,
            cuts,
            ..
        } = &frozen.overlay;
        let mut batch = Batch::new();
        for (file, cut) in cuts {
            if let Some(removed) = &cut.objects {
                for object in removed {
                    batch.delete(&index.objects, &object_key(*object));
                }
                continue;
            }
            let first = ObjectId {
                file: *file,
                object: cut.from,
                shard: 0,
            };
            batch.delete_range(&index.objects, &object_key(first), &behind_file(*file));
        }
        for (object, map) in objects {
            batch.put(
                &index.objects,
                &object_key(*object),
                &values::encode_map(map),
            );
        }
        for (file, state) in files {
            batch.put(&index.files, &file_key(*file), &values::encode_file(*state));
            if let Some(secs) = state.deleted_secs {
                batch.put(&index.tombstones, &values::tombstone_key(secs, *file), &[]);
            }
        }
        for (segment, info) in &frozen.segments {
            let key = segment.to_be_bytes();
            batch.put(&index.segments, &key, &values::encode_segment(*info));
        }
        for segment in &frozen.dead {
            batch.delete(&index.segments, &segment.to_be_bytes());
        }
        let state = values::encode_state(frozen.state);
        batch.put(&index.state, values::STATE_KEY, &state);
        batch
    }
}
