//! Flush: the oldest full memtable becomes a table of level 0.

use crate::{
    core::Core,
    error::Result,
    iter::Cursor,
    keys::{Kind, Range},
    manifest::{edit::Edit, version::Version},
    memtable::{Memtable, MemtableCursor},
    table::{TableMeta, builder::TableBuilder, filter},
};
use std::sync::{Arc, atomic::Ordering::Relaxed};

impl Core {
    /// Flushes the oldest full memtable, if there is one. Its log segments are removed afterwards.
    pub(crate) fn flush_oldest(&self) -> Result<bool> {
        let _one = self.flushing.lock();
        let state = self.state();
        let Some(oldest) = state.waiting.last() else {
            return Ok(false);
        };
        let flushed = oldest.memtable.sequence_max();
        let table = self.write_table(&oldest.memtable, &state.version)?;
        let mut edit = Edit {
            log_number: Some(oldest.next_log),
            flushed: Some(flushed),
            ..Edit::default()
        };
        edit.added
            .extend(table.iter().map(|meta| (0, meta.clone())));
        let installed = self.sync_dir().and_then(|()| {
            self.install(&edit, |state| {
                state.waiting.pop();
            })
        });
        if let Err(error) = installed {
            self.discard(table.as_slice());
            return Err(error);
        }
        self.counters.flushes.fetch_add(1, Relaxed);
        self.counters
            .flushed_bytes
            .fetch_add(table.map_or(0, |t| t.size), Relaxed);
        self.syncs.flushed(flushed, oldest.next_log);
        self.purge_log(oldest.next_log);
        Ok(true)
    }

    /// The newest entry of each key goes into the table. What deletes goes along only if something
    /// older may be there to be deleted. No table when nothing is left.
    fn write_table(
        &self,
        memtable: &Arc<Memtable>,
        version: &Version,
    ) -> Result<Option<TableMeta>> {
        let mut tombstones = memtable.tombstones(&Range::all(), u64::MAX);
        let mut cursor = MemtableCursor::new(memtable.clone(), u64::MAX);
        let mut builder = None;
        let number = || self.next_file.fetch_add(1, Relaxed);
        cursor.seek(&[])?;
        while let Some(entry) = cursor.entry() {
            let hidden = memtable.covering(entry.key, u64::MAX) > entry.sequence;
            // A range tombstone that hides a deletion deletes the same and more.
            let drop = hidden || (entry.kind == Kind::Delete && !is_known(version, entry.key));
            if !drop {
                if builder.is_none() {
                    builder = Some(TableBuilder::new(&self.tables, number(), 0, &self.options)?);
                }
                if let Some(builder) = &mut builder {
                    builder.add(&entry, &cursor.value())?;
                }
            }
            cursor.next()?;
        }
        tombstones.retain(|t| {
            let range = Range {
                from: t.from.clone(),
                to: Some(t.to.clone()),
            };
            version.tables().any(|table| table.overlaps(&range))
        });
        if builder.is_none() && !tombstones.is_empty() {
            builder = Some(TableBuilder::new(&self.tables, number(), 0, &self.options)?);
        }
        let Some(mut builder) = builder else {
            return Ok(None);
        };
        tombstones
            .into_iter()
            .for_each(|t| builder.add_tombstone(t));
        builder.finish().map(Some)
    }
}

/// Whether a table of the version may know the key. A table that cannot be read may.
fn is_known(version: &Version, key: &[u8]) -> bool {
    let hash = filter::hash(key);
    version
        .covering(key)
        .any(|table| table.may_know(key, hash).unwrap_or(true))
}
