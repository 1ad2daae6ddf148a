//! What a reader reads: the memtables and the version of one instant, behind one pointer.
//!
//! A state is never changed; rotation, flush and compaction make a new one and swap the pointer.
//! Whoever holds a state holds all that is needed to read as of then, so that flush and compaction
//! keep only the newest entry of a key and need not know who reads.

use crate::{
    error::Result,
    iter::{
        Source,
        level::LevelCursor,
        merge::{Direction, Merge},
    },
    keys::{Kind, Range},
    manifest::version::{self, Version},
    memtable::{Found, Memtable, MemtableCursor},
    slice::Value,
    table::{cursor::TableCursor, filter},
    tombstones::Tombstones,
};
use std::sync::Arc;

/// A full memtable that waits for its flush.
#[derive(Clone)]
pub(crate) struct Waiting {
    pub memtable: Arc<Memtable>,
    /// The first log segment that holds newer batches only.
    pub next_log: u64,
}

#[derive(Clone)]
pub(crate) struct State {
    pub active: Arc<Memtable>,
    /// From new to old.
    pub waiting: Vec<Waiting>,
    pub version: Arc<Version>,
}

impl State {
    pub(crate) fn memtables(&self) -> impl Iterator<Item = &Arc<Memtable>> {
        std::iter::once(&self.active).chain(self.waiting.iter().map(|w| &w.memtable))
    }

    /// The value of a full key as of `sequence`.
    pub(crate) fn get(&self, key: &[u8], sequence: u64) -> Result<Option<Value>> {
        for memtable in self.memtables() {
            let hidden = memtable.covering(key, sequence);
            let found = memtable.get(key, sequence);
            if found.is_some() || hidden > 0 {
                return Ok(live(found, hidden));
            }
        }
        let hash = filter::hash(key);
        for table in self.version.covering(key) {
            let (found, hidden) = table.get(key, hash)?;
            if found.is_some() || hidden > 0 {
                return Ok(live(found, hidden));
            }
        }
        Ok(None)
    }

    /// All that is in `range` as of `sequence`.
    pub(crate) fn merge(
        &self,
        range: &Range,
        sequence: u64,
        direction: Direction,
    ) -> Result<Merge> {
        let mut sources = Vec::new();
        let mut tombstones = Tombstones::default();
        for memtable in self.memtables() {
            let here = memtable.tombstones(range, sequence);
            here.into_iter().for_each(|t| tombstones.add(t));
            if memtable.overlaps(range) {
                let cursor = MemtableCursor::lazy(memtable.clone(), sequence);
                sources.push(Source::Memtable(cursor));
            }
        }
        for table in self.version.levels[0].iter().filter(|t| t.overlaps(range)) {
            table.tombstones_into(range, &mut tombstones)?;
            if table.may_share(range)? {
                sources.push(Source::Table(TableCursor::new(table.clone(), true)));
            }
        }
        for level in &self.version.levels[1..] {
            let tables = version::within(level, range);
            for table in tables {
                table.tombstones_into(range, &mut tombstones)?;
            }
            // More than one table is opened as the cursor comes to it.
            let may_share = match tables {
                [table] => table.may_share(range)?,
                tables => !tables.is_empty(),
            };
            if may_share {
                let cursor = LevelCursor::new(tables.to_vec(), true);
                sources.push(Source::Level(cursor));
            }
        }
        Merge::new(sources, tombstones, range, direction)
    }
}

/// The value of what a layer knows of a key, when a range tombstone of the same layer with number
/// `hidden` covers it.
pub(crate) fn live(found: Option<Found>, hidden: u64) -> Option<Value> {
    found
        .filter(|f| f.kind == Kind::Put && f.sequence > hidden)
        .map(|f| f.value)
}
