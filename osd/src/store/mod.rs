//! The store: objects in append-only segments, found through an index.
//!
//! ```text
//!  DIR/identity                 whose folder this is
//!  DIR/lock                     held while open
//!  DIR/index/                   babu-kv: object maps, file states, segment numbers, replay position
//!  DIR/segments/00000001.seg    records: a change and the bytes it brings
//!
//!  write ---> [hash, compress]  --lock--> append record (one write call) --> pending layer --> answer
//!  flush ---> one fdatasync for all who wait
//!  checkpoint: fdatasync, then one index batch = pending layer + replay position
//! ```
//!
//! The segment is the write-ahead log. A change is *written* when its record is, *durable* when the
//! segment was synced; the index follows later and never refers to bytes that are not on disk. At
//! start the records behind the index's replay position are applied again.
//!
//! Locks, in this order: `reclaiming`, `checkpointing`, `appender`, `layers`. Readers take only `layers`, for a
//! lookup; nobody holds `layers` during a file operation.

mod append;
mod apply;
mod block;
mod checkpoint;
mod damage;
mod extents;
mod listing;
mod open;
mod order;
mod pending;
mod read;
mod reclaim;
mod record;
mod recovery;
mod segment;
mod sync;
mod values;
mod verify;
mod write;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use babu_kv::fs::{Fs, Lock};
use babu_kv::{Database, Index};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use xtfs_protocol::ids::{FileId, ObjectId, ServiceId};

use self::append::Appender;
use self::damage::DamageLog;
use self::extents::ObjectMap;
pub(crate) use self::order::Turn;
use self::order::WriteOrder;
use self::pending::{Found, Layers};
use self::segment::SegmentFiles;
use self::sync::GroupSync;
use self::values::FileState;
use crate::bytes::{file_key, object_key};
use crate::error::{Result, StoreError};

/// Objects, durable and checked. Every method may wait for the disk.
pub(crate) struct Store {
    dir: PathBuf,
    id: ServiceId,
    seed: u32,
    limits: Limits,
    fs: Arc<dyn Fs>,
    files: SegmentFiles,
    index: Indices,
    appender: Mutex<Appender>,
    layers: RwLock<Layers>,
    sync: GroupSync,
    order: Mutex<WriteOrder>,
    reclaiming: Mutex<()>,
    checkpointing: Mutex<()>,
    damage: DamageLog,
    /// Segments with bytes that cannot be read, which cannot be emptied.
    kept: Mutex<BTreeSet<u64>>,
    work: Notify,
    _lock: Box<dyn Lock>,
}

/// Bounds from the options.
#[derive(Debug, Clone, Copy)]
struct Limits {
    segment_bytes: u64,
    checkpoint_bytes: u64,
    /// Bytes of the disk that writes leave free.
    reserve_bytes: u64,
    compress: bool,
}

/// The database and its indices.
struct Indices {
    db: Database,
    objects: Index,
    files: Index,
    tombstones: Index,
    segments: Index,
    state: Index,
}

impl Store {
    /// Wakes when the worker has something to do.
    pub(crate) async fn work(&self) {
        self.work.notified().await;
    }

    /// The map of an object; `None` when it does not exist.
    fn lookup(&self, object: ObjectId) -> Result<Option<Arc<ObjectMap>>> {
        {
            let layers = self.layers.read();
            let overlays = [
                Some(&layers.pending),
                layers.frozen.as_ref().map(|frozen| &frozen.overlay),
            ];
            for overlay in overlays.into_iter().flatten() {
                match overlay.find(object) {
                    Found::Here(map) => return Ok(Some(map)),
                    Found::Removed => return Ok(None),
                    Found::AskBelow => {}
                }
            }
        }
        let index = &self.index;
        let Some(value) = index.db.get(&index.objects, &object_key(object))? else {
            return Ok(None);
        };
        let map = values::decode_map(&value).ok_or(StoreError::IndexEntry { index: "objects" })?;
        Ok(Some(Arc::new(map)))
    }

    /// What is remembered of a file.
    fn file_state(&self, file: FileId) -> Result<FileState> {
        {
            let layers = self.layers.read();
            let frozen = layers.frozen.as_ref();
            let state = layers
                .pending
                .files
                .get(&file)
                .or_else(|| frozen.and_then(|frozen| frozen.overlay.files.get(&file)));
            if let Some(state) = state {
                return Ok(*state);
            }
        }
        let index = &self.index;
        match index.db.get(&index.files, &file_key(file))? {
            None => Ok(FileState::default()),
            Some(value) => {
                values::decode_file(&value).ok_or(StoreError::IndexEntry { index: "files" })
            }
        }
    }
}
