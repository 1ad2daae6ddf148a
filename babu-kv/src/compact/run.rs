//! Runs a compaction.

use super::{
    Outputs,
    job::{Job, hull},
    pick::{pick, pick_idle},
};
use crate::{
    core::Core,
    error::{Error, Result},
    events::Event,
    iter::{
        Entry, Source,
        level::LevelCursor,
        merge::{Direction, Merge},
    },
    keys::{Kind, Range, RangeTombstone},
    manifest::{
        edit::Edit,
        version::{self, LEVELS, Version},
    },
    table::{TableMeta, cursor::TableCursor, filter},
    tombstones::Tombstones,
};
use std::sync::atomic::Ordering::Relaxed;

/// Entries between two looks whether the compaction is still wanted.
const CHECK_INTERVAL: u64 = 1024;

/// Who wants a compaction, and so when it is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Urgency {
    /// It goes on until the database is closed.
    Due,
    /// It ends when something is due.
    Idle,
}

impl Core {
    /// Whether a compaction is due.
    pub(crate) fn is_compaction_due(&self) -> bool {
        pick(&self.state().version, &self.options).is_some()
    }

    /// Whether a compaction would make reads cheaper.
    pub(crate) fn is_compaction_useful(&self) -> bool {
        pick_idle(&self.state().version, &self.options).is_some()
    }

    /// Does the most urgent compaction; `false` when none is due.
    pub(crate) fn compact_once(&self) -> Result<bool> {
        let _one = self.compacting.lock();
        self.check_open()?;
        let version = self.state().version.clone();
        match pick(&version, &self.options) {
            Some(job) => self.compact(&job, &version, Urgency::Due).map(|()| true),
            None => Ok(false),
        }
    }

    /// Does a compaction that is not due but useful; `false` when there is none. It is given up when
    /// one is due.
    pub(crate) fn compact_idle(&self) -> Result<bool> {
        let _one = self.compacting.lock();
        self.check_open()?;
        let version = self.state().version.clone();
        match pick_idle(&version, &self.options) {
            Some(job) => self.compact(&job, &version, Urgency::Idle).map(|()| true),
            None => Ok(false),
        }
    }

    /// Flushes, and merges all tables into one level.
    pub(crate) fn compact_all(&self) -> Result<()> {
        self.flush()?;
        let _one = self.compacting.lock();
        self.check_open()?;
        let version = self.state().version.clone();
        match Job::everything(&version) {
            Some(job) => self.compact(&job, &version, Urgency::Due),
            None => Ok(()),
        }
    }

    fn compact(&self, job: &Job, version: &Version, urgency: Urgency) -> Result<()> {
        let (level, output_level) = (job.level, job.output_level);
        self.events.emit(|| Event::CompactionBegin {
            level,
            output_level,
            bytes: job.tables().map(|(_, t)| t.meta.size).sum(),
        });
        let written = self.compact_job(job, version, urgency);
        self.events.emit(|| Event::CompactionEnd {
            level,
            output_level,
            bytes: *written.as_ref().unwrap_or(&0),
            done: written.is_ok(),
        });
        written.map(drop)
    }

    /// Gives the bytes of the tables written.
    fn compact_job(&self, job: &Job, version: &Version, urgency: Urgency) -> Result<u64> {
        let outputs = if job.is_move {
            job.inputs.iter().map(|t| t.meta.clone()).collect()
        } else {
            match self.merge(job, version, urgency)? {
                Some(outputs) => outputs,
                None => return Ok(0),
            }
        };
        let edit = Edit {
            removed: job
                .tables()
                .map(|(level, t)| (level, t.meta.number))
                .collect(),
            added: outputs
                .iter()
                .map(|meta| (job.output_level, meta.clone()))
                .collect(),
            ..Edit::default()
        };
        if let Err(error) = self.install(&edit, |_| {}) {
            if !job.is_move {
                self.discard(&outputs);
            }
            return Err(error);
        }
        self.counters.compactions.fetch_add(1, Relaxed);
        if job.is_move {
            return Ok(0);
        }
        let bytes = outputs.iter().map(|t| t.size).sum();
        self.counters.compacted_bytes.fetch_add(bytes, Relaxed);
        job.tables().for_each(|(_, table)| table.make_obsolete());
        Ok(bytes)
    }

    /// Writes what is left of the tables of a job; `None` when it was given up.
    fn merge(
        &self,
        job: &Job,
        version: &Version,
        urgency: Urgency,
    ) -> Result<Option<Vec<TableMeta>>> {
        let below = Below {
            version,
            level: job.output_level,
        };
        let (mut merge, mut tombstones) = open(job)?;
        tombstones.retain(|t| below.needs(t));
        let tables: Vec<_> = job.tables().map(|(_, t)| t.clone()).collect();
        let range = hull(&tables);
        let mut outputs = Outputs::new(self, version, job.output_level, &range, tombstones);
        let mut count: u64 = 0;
        while let Some(newest) = merge.next_newest()? {
            count += 1;
            if count.is_multiple_of(CHECK_INTERVAL) {
                if self.work.is_stopping() {
                    return Err(Error::Closed);
                }
                if urgency == Urgency::Idle && self.work.take_asked() && self.is_compaction_due() {
                    return Ok(None);
                }
            }
            let key = merge.key();
            let deletes = newest.kind == Kind::Delete;
            if merge.is_covered(newest.sequence) || (deletes && !below.may_know(key)) {
                continue;
            }
            let entry = Entry {
                key,
                sequence: newest.sequence,
                kind: newest.kind,
            };
            outputs.add(&entry, &merge.value())?;
        }
        outputs.finish().map(Some)
    }
}

/// All entries of the tables of a job, and their range tombstones.
fn open(job: &Job) -> Result<(Merge, Vec<RangeTombstone>)> {
    let mut sources = Vec::new();
    if job.level == 0 {
        let inputs = job.inputs.iter();
        sources.extend(inputs.map(|t| Source::Table(TableCursor::new(t.clone(), false))));
    } else {
        sources.push(Source::Level(LevelCursor::new(job.inputs.clone(), false)));
    }
    for (_, tables) in &job.below {
        sources.push(Source::Level(LevelCursor::new(tables.clone(), false)));
    }
    let all = Range::all();
    let mut tombstones = Tombstones::default();
    for (_, table) in job.tables() {
        table.tombstones_into(&all, &mut tombstones)?;
    }
    let fragments = tombstones.within(&all, u64::MAX).collect();
    let merge = Merge::new(sources, tombstones, &all, Direction::Forward)?;
    Ok((merge, fragments))
}

/// The levels below the one that is written: what deletes is needed only for what is there.
struct Below<'a> {
    version: &'a Version,
    level: usize,
}

impl Below<'_> {
    fn levels(&self) -> impl Iterator<Item = &[std::sync::Arc<crate::table::Table>]> {
        (self.level + 1..LEVELS).map(|n| self.version.levels[n].as_slice())
    }

    fn needs(&self, tombstone: &RangeTombstone) -> bool {
        let range = Range {
            from: tombstone.from.clone(),
            to: Some(tombstone.to.clone()),
        };
        self.levels()
            .any(|level| !version::within(level, &range).is_empty())
    }

    /// Whether an entry for `key` may be there. A table that cannot be read may have it.
    fn may_know(&self, key: &[u8]) -> bool {
        let hash = filter::hash(key);
        self.levels().any(|level| {
            version::at_key(level, key).is_some_and(|t| t.may_know(key, hash).unwrap_or(true))
        })
    }
}
