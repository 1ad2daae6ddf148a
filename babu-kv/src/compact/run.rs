//! Runs a compaction.

use super::{Job, pick::pick};
use crate::{
    core::Core,
    error::{Error, Result},
    iter::{
        Cursor, Entry,
        level::LevelCursor,
        merge::{Direction, Merge},
    },
    keys::{Kind, Range, RangeTombstone},
    manifest::{
        edit::Edit,
        version::{self, LEVELS, Version},
    },
    table::{TableMeta, builder::TableBuilder, cursor::TableCursor, filter},
    tombstones::Tombstones,
};
use std::sync::atomic::Ordering::Relaxed;

/// Entries between two looks whether the database is being closed.
const CHECK_INTERVAL: u64 = 1024;

impl Core {
    /// Does the most urgent compaction; `false` when none is due.
    pub(crate) fn compact_once(&self) -> Result<bool> {
        let mut places = self.compacting.lock();
        let version = self.state().version.clone();
        let Some(job) = pick(&version, &self.options, &places) else {
            return Ok(false);
        };
        let place = job
            .inputs
            .last()
            .map(|t| t.meta.from.clone())
            .unwrap_or_default();
        places[job.level] = place;
        self.compact(&job, &version)?;
        Ok(true)
    }

    /// Flushes, and merges all tables into one level.
    pub(crate) fn compact_all(&self) -> Result<()> {
        self.flush()?;
        let _one = self.compacting.lock();
        let version = self.state().version.clone();
        match Job::everything(&version) {
            Some(job) => self.compact(&job, &version),
            None => Ok(()),
        }
    }

    fn compact(&self, job: &Job, version: &Version) -> Result<()> {
        let mut edit = Edit {
            removed: job
                .tables()
                .map(|(level, t)| (level, t.meta.number))
                .collect(),
            ..Edit::default()
        };
        let is_move = job.is_move(version);
        if is_move {
            edit.added = job
                .inputs
                .iter()
                .map(|t| (job.output_level, t.meta.clone()))
                .collect();
        } else {
            let mut outputs = Outputs::new(self, job, version)?;
            let written = outputs.write().and_then(|()| {
                if outputs.done.is_empty() {
                    Ok(())
                } else {
                    self.sync_dir()
                }
            });
            let done = outputs.done;
            if let Err(error) = written {
                self.discard(&done);
                return Err(error);
            }
            self.counters
                .compacted_bytes
                .fetch_add(done.iter().map(|t| t.size).sum(), Relaxed);
            edit.added = done
                .into_iter()
                .map(|meta| (job.output_level, meta))
                .collect();
        }
        if let Err(error) = self.install(&edit, |_| {}) {
            if !is_move {
                let outputs: Vec<TableMeta> =
                    edit.added.into_iter().map(|(_, meta)| meta).collect();
                self.discard(&outputs);
            }
            return Err(error);
        }
        self.counters.compactions.fetch_add(1, Relaxed);
        if !is_move {
            job.tables().for_each(|(_, table)| table.make_obsolete());
        }
        Ok(())
    }
}

/// The tables that a compaction writes. Each takes the keys from its first up to the first of the
/// next, and the pieces of range tombstones in there.
struct Outputs<'a> {
    core: &'a Core,
    job: &'a Job,
    version: &'a Version,
    merge: Merge,
    /// Those that are still needed below, in order of their start.
    tombstones: Vec<RangeTombstone>,
    builder: Option<TableBuilder>,
    /// Where the current table begins; tombstones before it are written.
    from: Vec<u8>,
    done: Vec<TableMeta>,
}

impl<'a> Outputs<'a> {
    fn new(core: &'a Core, job: &'a Job, version: &'a Version) -> Result<Outputs<'a>> {
        let mut cursors: Vec<Box<dyn Cursor>> = Vec::new();
        if job.level == 0 {
            cursors.extend(
                job.inputs
                    .iter()
                    .map(|t| Box::new(TableCursor::new(t.clone(), false)) as Box<dyn Cursor>),
            );
        } else {
            cursors.push(Box::new(LevelCursor::new(job.inputs.clone(), false)));
        }
        for (_, tables) in &job.below {
            cursors.push(Box::new(LevelCursor::new(tables.clone(), false)));
        }
        let all = Range::all();
        let mut tombstones = Tombstones::default();
        for (_, table) in job.tables() {
            table.tombstones_into(&all, &mut tombstones)?;
        }
        let mut kept: Vec<RangeTombstone> = tombstones.within(&all, u64::MAX).collect();
        let merge = Merge::new(cursors, tombstones, &all, Direction::Forward)?;
        let mut outputs = Outputs {
            core,
            job,
            version,
            merge,
            tombstones: Vec::new(),
            builder: None,
            from: Vec::new(),
            done: Vec::new(),
        };
        kept.retain(|t| outputs.is_needed_below(t));
        outputs.tombstones = kept;
        Ok(outputs)
    }

    fn deeper(&self) -> impl Iterator<Item = &'a [std::sync::Arc<crate::table::Table>]> {
        let version = self.version;
        (self.job.output_level + 1..LEVELS).map(move |n| version.levels[n].as_slice())
    }

    fn is_needed_below(&self, tombstone: &RangeTombstone) -> bool {
        let range = Range {
            from: tombstone.from.clone(),
            to: Some(tombstone.to.clone()),
        };
        self.deeper()
            .any(|level| !version::within(level, &range).is_empty())
    }

    /// Whether a deeper level may know the key. A table that cannot be read may.
    fn is_known_below(&self, key: &[u8]) -> bool {
        let hash = filter::hash(key);
        self.deeper().any(|level| {
            version::at_key(level, key).is_some_and(|t| t.may_know(key, hash).unwrap_or(true))
        })
    }

    fn write(&mut self) -> Result<()> {
        let mut count: u64 = 0;
        while let Some(newest) = self.merge.next_newest()? {
            count += 1;
            if count.is_multiple_of(CHECK_INTERVAL) && self.core.work.is_stopping() {
                return Err(Error::Closed);
            }
            let covered = self.merge.is_covered(newest.sequence);
            let deletes = newest.kind == Kind::Delete;
            if covered || (deletes && !self.is_known_below(self.merge.key())) {
                continue;
            }
            if self
                .builder
                .as_ref()
                .is_some_and(|b| b.len() >= self.core.options.table_bytes as u64)
            {
                let next = self.merge.key().to_vec();
                self.end(Some(next))?;
            }
            let builder = self.start()?;
            let entry = Entry {
                key: self.merge.key(),
                sequence: newest.sequence,
                kind: newest.kind,
            };
            let mut builder = builder;
            let added = builder.add(&entry, &newest.value);
            self.builder = Some(builder);
            added?;
        }
        self.end(None)
    }

    /// Takes the current table, or a new one.
    fn start(&mut self) -> Result<TableBuilder> {
        match self.builder.take() {
            Some(builder) => Ok(builder),
            None => {
                let number = self.core.next_file.fetch_add(1, Relaxed);
                TableBuilder::new(
                    &self.core.tables,
                    number,
                    self.job.output_level,
                    &self.core.options,
                )
            }
        }
    }

    /// Ends the current table before `next`, with its pieces of range tombstones.
    fn end(&mut self, next: Option<Vec<u8>>) -> Result<()> {
        let mut pieces = Vec::new();
        for t in &self.tombstones {
            let from = t.from.clone().max(self.from.clone());
            let to = next
                .as_ref()
                .map_or(t.to.clone(), |next| t.to.clone().min(next.clone()));
            if from < to {
                pieces.push(RangeTombstone {
                    from,
                    to,
                    sequence: t.sequence,
                });
            }
        }
        if self.builder.is_some() || !pieces.is_empty() {
            let mut builder = self.start()?;
            pieces
                .into_iter()
                .for_each(|piece| builder.add_tombstone(piece));
            self.done.push(builder.finish()?);
        }
        self.from = next.unwrap_or_default();
        Ok(())
    }
}
