//! What the index does not know yet: recent changes, held in memory.
//!
//! A lookup asks three layers, newest first: *pending* (changes since the last checkpoint began),
//! *frozen* (a checkpoint that is being committed), and then the index. A file that was truncated
//! or deleted has a *cut* in its layer: objects from the cut on do not exist in the layers below,
//! so removing a million objects takes one entry.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use xtfs_protocol::ids::{FileId, ObjectId};

use super::extents::{Ledger, ObjectMap};
use super::values::{FileState, SegmentInfo, StateRecord};

/// Changes of one layer.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    pub objects: BTreeMap<ObjectId, Arc<ObjectMap>>,
    pub files: BTreeMap<FileId, FileState>,
    /// Files that lost their last objects, or all.
    pub cuts: BTreeMap<FileId, Cut>,
    /// Segments whose numbers changed.
    pub touched: BTreeSet<u64>,
    /// Roughly the entries held: records, and extents of objects by the dozen.
    pub cost: u64,
    /// Bytes of the records.
    pub bytes: u64,
}

/// Most objects that a cut names one by one.
const CUT_OBJECTS_MAX: usize = 32;

/// What a truncation or deletion removed from a file.
#[derive(Debug, Clone)]
pub(crate) struct Cut {
    /// Objects from this number on do not exist in the layers below.
    pub from: u64,
    /// Which these are, if they are few: small files are deleted object by object, because many
    /// deleted ranges would slow the index down.
    pub objects: Option<Vec<ObjectId>>,
}

impl Cut {
    /// A cut that removes nothing yet.
    pub(crate) const fn new(from: u64) -> Self {
        Self {
            from,
            objects: Some(Vec::new()),
        }
    }

    /// Adds an object that the cut removes.
    pub(crate) fn add(&mut self, object: ObjectId) {
        match &mut self.objects {
            Some(objects) if objects.len() < CUT_OBJECTS_MAX => objects.push(object),
            _ => self.objects = None,
        }
    }

    /// Both cuts together.
    fn merge(&mut self, later: Self) {
        self.from = self.from.min(later.from);
        match later.objects {
            None => self.objects = None,
            Some(objects) => objects.into_iter().for_each(|object| self.add(object)),
        }
    }
}

/// What a layer says of an object.
pub(crate) enum Found {
    Here(Arc<ObjectMap>),
    Removed,
    AskBelow,
}

impl Overlay {
    pub(crate) fn find(&self, object: ObjectId) -> Found {
        if let Some(map) = self.objects.get(&object) {
            return Found::Here(map.clone());
        }
        if self.hides(object) {
            return Found::Removed;
        }
        Found::AskBelow
    }

    /// Whether an object of a layer below does not exist any more.
    pub(crate) fn hides(&self, object: ObjectId) -> bool {
        self.cuts
            .get(&object.file)
            .is_some_and(|cut| cut.from <= object.object)
    }

    /// The objects of a file from a number on that this layer holds.
    pub(crate) fn of_file(
        &self,
        file: FileId,
        from: u64,
    ) -> impl Iterator<Item = (&ObjectId, &Arc<ObjectMap>)> {
        let first = ObjectId {
            file,
            object: from,
            shard: 0,
        };
        let last = ObjectId {
            file,
            object: u64::MAX,
            shard: u8::MAX,
        };
        self.objects.range(first..=last)
    }
}

/// A checkpoint that is being committed.
#[derive(Debug)]
pub(crate) struct Frozen {
    pub overlay: Overlay,
    /// The numbers of the segments that changed, as they were when it was frozen.
    pub segments: Vec<(u64, SegmentInfo)>,
    /// Sealed segments that nothing refers to.
    pub dead: Vec<u64>,
    pub state: StateRecord,
}

/// What one record changes, worked out before it is written.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub objects: Vec<(ObjectId, Arc<ObjectMap>)>,
    pub cut: Option<(FileId, Cut)>,
    pub file: Option<(FileId, FileState)>,
    pub ledger: Ledger,
    pub objects_delta: i64,
    /// Extents of the one object that changes, before and after.
    pub extents: (usize, usize),
}

/// The layers above the index, and the numbers of the segments.
#[derive(Debug, Default)]
pub(crate) struct Layers {
    pub pending: Overlay,
    pub frozen: Option<Arc<Frozen>>,
    pub segments: BTreeMap<u64, SegmentInfo>,
    /// Objects that exist.
    pub objects: u64,
}

impl Layers {
    /// Makes a record's changes visible, all at once.
    pub(crate) fn publish(&mut self, plan: Plan, segment: u64, record_bytes: u64, raw_bytes: u64) {
        let pending = &mut self.pending;
        pending.cost += 1;
        pending.bytes += record_bytes;
        if let Some((file, cut)) = plan.cut {
            let removed: Vec<ObjectId> =
                pending.of_file(file, cut.from).map(|(id, _)| *id).collect();
            for object in removed {
                pending.objects.remove(&object);
            }
            match pending.cuts.get_mut(&file) {
                Some(earlier) => earlier.merge(cut),
                None => drop(pending.cuts.insert(file, cut)),
            }
        }
        if let Some((file, state)) = plan.file {
            pending.files.insert(file, state);
        }
        for (object, map) in plan.objects {
            let extents = map.extents().len() as u64;
            if pending.objects.insert(object, map).is_none() {
                pending.cost += extents / 16;
            }
        }
        for (segment, delta) in plan.ledger.by_segment {
            let info = self.segments.entry(segment).or_default();
            info.live = info.live.saturating_add_signed(delta);
            pending.touched.insert(segment);
        }
        let info = self.segments.entry(segment).or_default();
        info.raw += raw_bytes;
        info.bytes += record_bytes;
        pending.touched.insert(segment);
        self.objects = self.objects.saturating_add_signed(plan.objects_delta);
    }

    /// Marks a segment as one that nothing is appended to any more.
    pub(crate) fn seal(&mut self, segment: u64) {
        self.segments.entry(segment).or_default().sealed = true;
        self.pending.touched.insert(segment);
    }
}
