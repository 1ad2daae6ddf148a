//! What is here: room, objects, volumes.

use std::ops::Bound;

use xtfs_protocol::ids::{ObjectId, VolumeId};
use xtfs_protocol::object::{ObjectOp, ObjectSummary, OsdSpace};

use super::Store;
use super::extents::ObjectMap;
use super::values;
use crate::bytes::{Reader, object_key, object_of_key};
use crate::error::{At, Result, StoreError};

impl Store {
    /// Room and counts.
    pub(crate) fn space(&self) -> Result<OsdSpace> {
        let disk = self.fs.space(&self.dir).at("statvfs", &self.dir)?;
        let layers = self.layers.read();
        let sum = |of: fn(&values::SegmentInfo) -> u64| layers.segments.values().map(of).sum();
        Ok(OsdSpace {
            total_bytes: disk.total_bytes,
            free_bytes: disk.free_bytes.saturating_sub(self.limits.reserve_bytes),
            segment_bytes: sum(|info| info.bytes),
            live_bytes: sum(|info| info.live),
            objects: layers.objects,
            damaged_blocks: self.damage.count(),
        })
    }

    /// Objects behind `after`, in order, at most `limit`; and whether nothing follows.
    pub(crate) fn list(
        &self,
        after: Option<ObjectId>,
        limit: u32,
    ) -> Result<(Vec<ObjectSummary>, bool)> {
        let mut objects = Vec::new();
        let end = self.page(after, limit, |object, map| {
            objects.push(ObjectSummary {
                object,
                length: map.length,
                stored_bytes: u32::try_from(map.data_bytes()).unwrap_or(u32::MAX),
            });
            Ok(true)
        })?;
        Ok((objects, end))
    }

    /// Volumes that have objects here.
    pub(crate) fn volumes(&self) -> Result<Vec<VolumeId>> {
        self.checkpoint()?;
        let index = &self.index;
        let mut volumes: Vec<VolumeId> = Vec::new();
        let mut behind: Option<Vec<u8>> = None;
        loop {
            let from = match &behind {
                None => Bound::Unbounded,
                Some(key) => Bound::Excluded(key.as_slice()),
            };
            let mut entries = index.db.range(&index.objects, from, Bound::Unbounded);
            let Some(entry) = entries.next() else {
                return Ok(volumes);
            };
            let (key, _) = entry?;
            let volume = Reader(&key)
                .array()
                .ok_or(StoreError::IndexEntry { index: "objects" })?;
            volumes.push(VolumeId(volume));
            // Longer than any key of the volume, and with the largest bytes.
            let mut last = volume.to_vec();
            last.extend([0xff; 20]);
            behind = Some(last);
        }
    }

    /// Visits objects behind `after` until `limit`, the end, or a visit that says false. Says
    /// whether nothing follows.
    pub(super) fn page(
        &self,
        after: Option<ObjectId>,
        limit: u32,
        mut visit: impl FnMut(ObjectId, &ObjectMap) -> Result<bool>,
    ) -> Result<bool> {
        if !(1..=ObjectOp::PAGE_OBJECTS_MAX).contains(&limit) {
            return Err(StoreError::Invalid("a page has 1 to 4096 objects"));
        }
        self.checkpoint()?;
        let after = after.map(object_key);
        let from = match &after {
            None => Bound::Unbounded,
            Some(key) => Bound::Excluded(key.as_slice()),
        };
        let index = &self.index;
        let mut entries = index.db.range(&index.objects, from, Bound::Unbounded);
        let unreadable = StoreError::IndexEntry { index: "objects" };
        for _ in 0..limit {
            let Some(entry) = entries.next() else {
                return Ok(true);
            };
            let (key, value) = entry?;
            let object = object_of_key(&key).ok_or(unreadable.clone())?;
            let map = values::decode_map(&value).ok_or(unreadable.clone())?;
            if !visit(object, &map)? {
                return Ok(false);
            }
        }
        Ok(entries.next().is_none())
    }
}
