//! What a record changes: the same answer when it is written and when it is replayed.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use xtfs_protocol::ids::{FileId, ObjectId};

use super::Store;
use super::extents::{Extent, Ledger, ObjectMap, Place};
use super::pending::{Cut, Plan};
use super::record::{Change, Header};
use super::values::{self, FileState};
use crate::bytes::{behind_file, object_key, object_of_key};
use crate::error::{Result, StoreError};

impl Store {
    /// Works out what a record changes. Nobody may change anything until it is published.
    pub(super) fn plan(&self, header: &Header) -> Result<Plan> {
        match header.change {
            Change::Write {
                object,
                offset,
                length,
                ..
            } => self.plan_object(object, true, |map, ledger| {
                let end = offset.saturating_add(length);
                map.punch(offset, end, ledger);
                put_blocks(map, header, ledger);
                map.length = map.length.max(end);
            }),
            // When the index is made anew, the record that created it may be gone already.
            Change::Rewrite { object } => self.plan_object(object, true, |map, ledger| {
                put_blocks(map, header, ledger);
            }),
            Change::Punch {
                object,
                offset,
                length,
                ..
            } => self.plan_object(object, false, |map, ledger| {
                map.punch(offset, offset.saturating_add(length), ledger);
            }),
            Change::Truncate {
                file,
                epoch,
                remove_from,
                shorten,
            } => self.plan_truncate(file, epoch, remove_from, shorten),
            Change::Delete { file, at_secs } => {
                let state = self.file_state(file)?;
                let mut plan = self.plan_cut(file, 0)?;
                plan.file = Some((
                    file,
                    FileState {
                        epoch: state.epoch,
                        deleted_secs: Some(at_secs),
                    },
                ));
                Ok(plan)
            }
        }
    }

    fn plan_object(
        &self,
        object: ObjectId,
        create: bool,
        change: impl FnOnce(&mut ObjectMap, &mut Ledger),
    ) -> Result<Plan> {
        let mut plan = Plan::default();
        let found = self.lookup(object)?;
        if found.is_none() && !create {
            return Ok(plan);
        }
        plan.objects_delta = i64::from(found.is_none());
        let mut map = found.unwrap_or_default();
        let before = map.extents().len();
        change(Arc::make_mut(&mut map), &mut plan.ledger);
        plan.extents = (before, map.extents().len());
        plan.objects.push((object, map));
        Ok(plan)
    }

    fn plan_truncate(
        &self,
        file: FileId,
        epoch: u64,
        remove_from: u64,
        shorten: Option<(u64, u32)>,
    ) -> Result<Plan> {
        let state = self.file_state(file)?;
        if epoch <= state.epoch {
            return Ok(Plan::default());
        }
        let mut plan = self.plan_cut(file, remove_from)?;
        plan.file = Some((file, FileState { epoch, ..state }));
        if let Some((number, length)) = shorten.filter(|(number, _)| *number < remove_from) {
            let object = ObjectId {
                file,
                object: number,
                shard: 0,
            };
            if let Some(mut map) = self.lookup(object)? {
                Arc::make_mut(&mut map).truncate(length, &mut plan.ledger);
                plan.objects.push((object, map));
            }
        }
        Ok(plan)
    }

    /// Removes the objects of a file from a number on.
    fn plan_cut(&self, file: FileId, from: u64) -> Result<Plan> {
        let mut plan = Plan::default();
        let mut cut = Cut::new(from);
        self.each_object(file, from, |object, map| {
            map.release(&mut plan.ledger);
            plan.objects_delta -= 1;
            cut.add(object);
        })?;
        plan.cut = Some((file, cut));
        Ok(plan)
    }

    /// Visits the objects of a file from a number on. Nobody may change anything meanwhile.
    fn each_object(
        &self,
        file: FileId,
        from: u64,
        mut visit: impl FnMut(ObjectId, &ObjectMap),
    ) -> Result<()> {
        let mut above: BTreeMap<ObjectId, Arc<ObjectMap>> = BTreeMap::new();
        let mut hidden_from = u64::MAX;
        {
            let layers = self.layers.read();
            let frozen = layers.frozen.as_ref().map(|frozen| &frozen.overlay);
            for overlay in [Some(&layers.pending), frozen].into_iter().flatten() {
                for (object, map) in overlay.of_file(file, from) {
                    if object.object < hidden_from {
                        above.entry(*object).or_insert_with(|| map.clone());
                    }
                }
                let cut = overlay.cuts.get(&file).map_or(u64::MAX, |cut| cut.from);
                hidden_from = hidden_from.min(cut);
            }
        }
        let first = object_key(ObjectId {
            file,
            object: from,
            shard: 0,
        });
        let last = behind_file(file);
        let range = (
            Bound::Included(first.as_slice()),
            Bound::Excluded(last.as_slice()),
        );
        let unreadable = StoreError::IndexEntry { index: "objects" };
        for entry in self.index.db.range(&self.index.objects, range.0, range.1) {
            let (key, value) = entry?;
            let object = object_of_key(&key).ok_or(unreadable.clone())?;
            if object.object >= hidden_from {
                break;
            }
            if !above.contains_key(&object) {
                let map = values::decode_map(&value).ok_or(unreadable.clone())?;
                visit(object, &map);
            }
        }
        above.iter().for_each(|(object, map)| visit(*object, map));
        Ok(())
    }
}

/// Puts a record's blocks into a map.
fn put_blocks(map: &mut ObjectMap, header: &Header, ledger: &mut Ledger) {
    let mut back = header.header_bytes() as u32;
    for block in &header.blocks {
        let place = Place {
            segment: header.segment,
            position: header.position + u64::from(back),
            record_back: back,
            stored: block.stored,
            raw: block.raw,
            crc: block.crc,
            codec: block.codec,
        };
        let extent = Extent {
            offset: block.offset,
            length: block.raw,
            skip: 0,
            place,
        };
        map.put(extent, ledger);
        back = back.saturating_add(block.stored);
    }
}
