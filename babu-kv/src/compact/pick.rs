//! What to compact next: a pure function of the version.

use crate::{
    keys::Range,
    manifest::version::{self, LEVELS, Version},
    options::Options,
    table::Table,
};
use std::sync::Arc;

/// Each level holds so many times the bytes of the one above.
const FANOUT: u64 = 8;

/// For each level the key up to which the last compaction came, so that all of a level gets its
/// turn.
pub(crate) type Places = [Vec<u8>; LEVELS];

/// Tables of one level that go to the next, with those there that they overlap.
#[derive(Debug)]
pub(crate) struct Job {
    pub level: usize,
    /// From new to old if of level 0, else in order of their keys.
    pub inputs: Vec<Arc<Table>>,
    pub output_level: usize,
    /// Tables of the levels between, and of the output level, in which the inputs may be newer; in
    /// order of level, then key.
    pub below: Vec<(usize, Vec<Arc<Table>>)>,
}

fn bytes(tables: &[Arc<Table>]) -> u64 {
    tables.iter().map(|t| t.meta.size).sum()
}

fn level_bytes_max(level: usize, options: &Options) -> u64 {
    (1..level).fold(options.level1_bytes, |bytes, _| {
        bytes.saturating_mul(FANOUT)
    })
}

/// The range that tables cover together.
fn hull(tables: &[Arc<Table>]) -> Range {
    let from = tables
        .iter()
        .map(|t| &t.meta.from)
        .min()
        .cloned()
        .unwrap_or_default();
    let to = tables.iter().map(|t| &t.meta.to).max().cloned();
    Range { from, to }
}

impl Job {
    fn new(version: &Version, level: usize, inputs: Vec<Arc<Table>>) -> Job {
        let output_level = level + 1;
        let below = version::within(&version.levels[output_level], &hull(&inputs)).to_vec();
        Job {
            level,
            inputs,
            output_level,
            below: vec![(output_level, below)],
        }
    }

    /// All tables, into the deepest level that has any.
    pub(crate) fn everything(version: &Version) -> Option<Job> {
        let deepest = version.levels.iter().rposition(|level| !level.is_empty())?;
        let top = version.levels.iter().position(|level| !level.is_empty())?;
        let output_level = deepest.max(1);
        let inputs = version.levels[top].clone();
        let below = (top + 1..=output_level)
            .map(|n| (n, version.levels[n].clone()))
            .collect();
        let job = Job {
            level: top,
            inputs,
            output_level,
            below,
        };
        let tidy = top == deepest && top > 0 && job.inputs.iter().all(|t| t.meta.tombstones == 0);
        (!tidy).then_some(job)
    }

    pub(crate) fn tables(&self) -> impl Iterator<Item = (usize, &Arc<Table>)> {
        let below = self
            .below
            .iter()
            .flat_map(|(level, tables)| tables.iter().map(|t| (*level, t)));
        self.inputs.iter().map(|t| (self.level, t)).chain(below)
    }

    /// Whether the single input can move down as it is. Tombstones that nothing below needs must
    /// not move on for ever.
    pub(crate) fn is_move(&self, version: &Version) -> bool {
        let [table] = self.inputs.as_slice() else {
            return false;
        };
        let range = hull(&self.inputs);
        let deeper = || {
            (self.output_level + 1..LEVELS)
                .any(|n| !version::within(&version.levels[n], &range).is_empty())
        };
        self.level > 0
            && self.below.iter().all(|(_, tables)| tables.is_empty())
            && (table.meta.tombstones == 0 || deeper())
    }
}

/// The most urgent compaction, if any is due.
pub(crate) fn pick(version: &Version, options: &Options, places: &Places) -> Option<Job> {
    let level0 = &version.levels[0];
    let mut best = (level0.len() as f64 / options.level0_tables as f64, 0);
    for level in 1..LEVELS - 1 {
        let score = bytes(&version.levels[level]) as f64 / level_bytes_max(level, options) as f64;
        if score > best.0 {
            best = (score, level);
        }
    }
    let (score, level) = best;
    if score < 1.0 {
        return mostly_tombstones(version);
    }
    if level == 0 {
        return Some(Job::new(version, 0, level0.clone()));
    }
    let tables = &version.levels[level];
    let next = tables
        .iter()
        .find(|t| t.meta.from > places[level])
        .or(tables.first())?;
    Some(Job::new(version, level, vec![next.clone()]))
}

/// A table that is half tombstones or more: the sooner they meet what they delete, the better for
/// scans.
fn mostly_tombstones(version: &Version) -> Option<Job> {
    let dense = |t: &&Arc<Table>| t.meta.tombstones * 2 > t.meta.entries;
    (1..LEVELS - 1).find_map(|level| {
        let table = version.levels[level].iter().find(dense)?;
        Some(Job::new(version, level, vec![table.clone()]))
    })
}
