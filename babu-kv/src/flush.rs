//! Flush: the oldest full memtable becomes tables of level 0, which do not overlap each other.

use crate::{
    compact::Outputs,
    core::Core,
    error::Result,
    events::Event,
    iter::Cursor,
    keys::{Kind, Range},
    manifest::{edit::Edit, version::Version},
    memtable::{Memtable, MemtableCursor},
    state::Waiting,
    table::{TableMeta, filter},
};
use std::sync::{Arc, atomic::Ordering::Relaxed};

impl Core {
    /// Flushes the oldest full memtable, if there is one. Its log segments are removed afterwards.
    pub(crate) fn flush_oldest(&self) -> Result<bool> {
        let _one = self.flushing.lock();
        self.check_open()?;
        let state = self.state();
        let Some(oldest) = state.waiting.last() else {
            return Ok(false);
        };
        let bytes = oldest.memtable.bytes() as u64;
        self.events.emit(|| Event::FlushBegin { bytes });
        let written = self.flush_one(oldest, &state.version);
        // While it was installed this state still held the memtable, which therefore counted.
        drop(state);
        self.divide_memory();
        self.events.emit(|| Event::FlushEnd {
            bytes: *written.as_ref().unwrap_or(&0),
            done: written.is_ok(),
        });
        written.map(|_| true)
    }

    /// Gives the bytes of the tables written.
    fn flush_one(&self, oldest: &Waiting, version: &Version) -> Result<u64> {
        let flushed = oldest.memtable.sequence_max();
        let tables = self.write_tables(&oldest.memtable, version)?;
        if tables.is_empty() {
            // The segment that the edit names must not be lost; with tables this is done.
            self.sync_dir()?;
        }
        let edit = Edit {
            log_number: Some(oldest.next_log),
            flushed: Some(flushed),
            added: tables.iter().map(|meta| (0, meta.clone())).collect(),
            sealed: self
                .closed_logs
                .durable(oldest.next_log, self.syncs.durable()),
            // The record that drops an index may go with the log.
            dropped: self.indices.still_named(flushed),
            ..Edit::default()
        };
        let installed = self.install(&edit, |state| {
            state.waiting.pop();
        });
        if let Err(error) = installed {
            self.discard(&tables);
            return Err(error);
        }
        self.counters.flushes.fetch_add(1, Relaxed);
        let bytes = tables.iter().map(|t| t.size).sum();
        self.counters.flushed_bytes.fetch_add(bytes, Relaxed);
        self.syncs.flushed(flushed, oldest.next_log);
        self.purge_log(oldest.next_log);
        Ok(bytes)
    }

    /// The newest entry of each key goes into the tables. What deletes goes along only if something
    /// older may be there to be deleted. No table when nothing is left.
    fn write_tables(&self, memtable: &Arc<Memtable>, version: &Version) -> Result<Vec<TableMeta>> {
        let all = Range::all();
        let mut tombstones = memtable.tombstones(&all, u64::MAX);
        tombstones.retain(|t| {
            let range = Range {
                from: t.from.clone(),
                to: Some(t.to.clone()),
            };
            version.tables().any(|table| table.overlaps(&range))
        });
        let mut outputs = Outputs::new(self, version, 0, &all, tombstones);
        let mut cursor = MemtableCursor::new(memtable.clone(), u64::MAX);
        cursor.seek(&[])?;
        while let Some(entry) = cursor.entry() {
            let hidden = memtable.covering(entry.key, u64::MAX) > entry.sequence;
            // A range tombstone that hides a deletion deletes the same and more.
            let drop = hidden || (entry.kind == Kind::Delete && !is_known(version, entry.key));
            if !drop {
                outputs.add(&entry, &cursor.value())?;
            }
            cursor.next()?;
        }
        outputs.finish()
    }
}

/// Whether a table of the version may know the key. A table that cannot be read may.
fn is_known(version: &Version, key: &[u8]) -> bool {
    let hash = filter::hash(key);
    version
        .covering(key)
        .any(|table| table.may_know(key, hash).unwrap_or(true))
}
