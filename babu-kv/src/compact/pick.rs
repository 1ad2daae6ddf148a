//! What to compact next: pure functions of the version.
//!
//! [`pick`] gives what is due, [`pick_idle`] what can be done for readers while nobody writes.
//! Each job takes its inputs to a deeper level or ends tombstones, so that a version that does not
//! change otherwise comes to an end of both.

use super::{
    job::{Job, bytes, hull, shape},
    shape::LAST,
};
use crate::{manifest::version::Version, options::Options, table::Table};
use std::{cmp::Ordering, sync::Arc};

/// A compaction is worth it at once, for its tombstones alone, when it reads at most so many
/// entries for each of them.
const ENTRIES_PER_TOMBSTONE: u64 = 8;

/// The most urgent compaction, if any is due.
pub(crate) fn pick(version: &Version, options: &Options) -> Option<Job> {
    sinking(version, options)
        .or_else(|| fullest(version, options))
        .or_else(|| deleting(version, options))
}

/// What to do when nothing is due: reads are cheapest without level 0 and without tombstones.
pub(crate) fn pick_idle(version: &Version, options: &Options) -> Option<Job> {
    let base = shape(version, options).base;
    if let Some(oldest) = version.levels[0].last() {
        let inputs = overlapping(version, oldest);
        return Some(Job::down(version, base, 0, inputs));
    }
    (1..LAST).find_map(|level| {
        let tables = &version.levels[level];
        let table = tables.iter().find(|t| t.meta.tombstones > 0)?;
        Some(Job::down(version, base, level, vec![table.clone()]))
    })
}

/// How many tables of level 0 a read asks at most.
pub(crate) fn level0_runs(version: &Version) -> usize {
    let level0 = &version.levels[0];
    // The most are at the start of one of them.
    let at = |key: &[u8]| level0.iter().filter(|t| t.covers(key)).count();
    level0.iter().map(|t| at(&t.meta.from)).max().unwrap_or(0)
}

/// The tables of level 0 that overlap `table`, or others that do, from new to old.
fn overlapping(version: &Version, table: &Arc<Table>) -> Vec<Arc<Table>> {
    let mut found = vec![table.clone()];
    loop {
        let range = hull(&found);
        let all = version.levels[0].iter().filter(|t| t.overlaps(&range));
        let all: Vec<_> = all.cloned().collect();
        if all.len() <= found.len() {
            return all;
        }
        found = all;
    }
}

/// A move out of level 0, of a table that is worth a file of its own in a deeper level.
fn sinking(version: &Version, options: &Options) -> Option<Job> {
    let base = shape(version, options).base;
    let level0 = version.levels[0].iter();
    let large = level0.filter(|t| t.meta.size >= super::cut::part_bytes_min(options));
    large.rev().find_map(|t| Job::sink(version, base, t))
}

/// The level that is fullest for its size, when one is too full.
fn fullest(version: &Version, options: &Options) -> Option<Job> {
    let shape = shape(version, options);
    let fill = |level: usize| match shape.bytes_max[level] {
        _ if version.levels[level].is_empty() => 0.0,
        // A level that is no longer used is emptied, when nothing else is due.
        0 => 1.0,
        max => bytes(&version.levels[level]) as f64 / max as f64,
    };
    let level0 = level0_runs(version) as f64 / options.level0_tables as f64;
    let fills = std::iter::once((0, level0)).chain((1..LAST).map(|level| (level, fill(level))));
    let (level, fill) = fills.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))?;
    if fill < 1.0 {
        None
    } else if level == 0 {
        let runs = |t: &Arc<Table>| {
            let all = version.levels[0].iter();
            all.filter(|other| other.covers(&t.meta.from)).count()
        };
        let deepest = version.levels[0].iter().max_by_key(|t| runs(t))?;
        Some(Job::down(
            version,
            shape.base,
            0,
            overlapping(version, deepest),
        ))
    } else {
        let jobs = version.levels[level].iter();
        jobs.map(|t| Job::down(version, shape.base, level, vec![t.clone()]))
            .min_by(cheaper)
    }
}

/// Less to rewrite for each byte that goes down; of equals the oldest table.
fn cheaper(a: &Job, b: &Job) -> Ordering {
    let number = |job: &Job| job.inputs.first().map(|t| t.meta.number);
    a.overlap_ratio()
        .total_cmp(&b.overlap_ratio())
        .then_with(|| number(a).cmp(&number(b)))
}

/// The sooner tombstones meet what they delete, the better for scans: a job that has many of them
/// for what it reads. In level 0 too, so that a directory that was emptied is gone after the flush.
fn deleting(version: &Version, options: &Options) -> Option<Job> {
    let base = shape(version, options).base;
    let level0 = version.levels[0].iter().map(|t| (0, t));
    let others = (1..LAST).flat_map(|n| version.levels[n].iter().map(move |t| (n, t)));
    let with = |t: &Table| t.meta.tombstones > 0;
    level0
        .chain(others)
        .filter(|(_, t)| with(t))
        .find_map(|(level, table)| {
            let inputs = match level {
                0 => overlapping(version, table),
                _ => vec![table.clone()],
            };
            let job = Job::down(version, base, level, inputs);
            let tombstones: u64 = job.inputs.iter().map(|t| t.meta.tombstones).sum();
            let entries: u64 = job.tables().map(|(_, t)| t.meta.entries).sum();
            (entries <= tombstones.saturating_mul(ENTRIES_PER_TOMBSTONE)).then_some(job)
        })
}
