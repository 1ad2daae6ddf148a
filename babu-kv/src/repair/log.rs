//! The batches of the log that can still be read.
//!
//! Each whole record is taken, also after bytes that do not check: its checksum covers its place. What
//! a later segment repeats or replaces is void in the earlier one, because numbers only go up.

use super::{Report, evidence::Evidence};
use crate::{
    coding::Decoder,
    error::Result,
    fs::Fs,
    keys,
    log::format::{self, OPERATIONS_AT, Operation, Payload, SEGMENT_HEADER_BYTES},
    manifest::read_file,
    memtable::Memtable,
    table::salvage::Lost,
};
use std::{collections::BTreeSet, ops::Range, path::Path, sync::Arc};

/// What came out of the log.
#[derive(Default)]
pub(super) struct Batches {
    /// From old to new.
    pub memtables: Vec<Arc<Memtable>>,
    /// Highest sequence number that was seen, whether it was taken or not.
    pub last: u64,
    pub index_max: u32,
    /// Indices that the log drops.
    pub dropped: BTreeSet<u32>,
}

/// A batch that checks: its numbers, and where it lies.
struct Found {
    first: u64,
    count: u32,
    place: Range<usize>,
}

/// Takes in the batches after number `evidence.flushed`, in memtables of about `memtable_bytes`.
pub(super) fn read(
    fs: &dyn Fs,
    dir: &Path,
    evidence: &Evidence,
    memtable_bytes: usize,
    report: &mut Report,
) -> Result<Batches> {
    let segments: Vec<u64> = evidence
        .logs
        .range(evidence.log_number..)
        .copied()
        .collect();
    let limits = limits(fs, dir, &segments);
    let mut batches = Batches {
        last: evidence.flushed,
        ..Batches::default()
    };
    // Without a manifest nobody knows where the log began.
    let mut expected = evidence.whole.then_some(evidence.flushed + 1);
    let (mut active, mut known) = (Memtable::new(), 0);
    for (segment, limit) in segments.iter().zip(limits) {
        let path = dir.join(format::segment_name(*segment));
        let Ok(bytes) = read_file(fs, &path) else {
            report.lose(&path, lost(0, "all of it: it cannot be read"));
            continue;
        };
        let (found, gaps, durable) = scan(&bytes, *segment);
        gaps.into_iter()
            .for_each(|gap| report.lose(&path, lost(gap, "bytes that do not check")));
        known = known.max(durable);
        for batch in found {
            let last = batch.first + u64::from(batch.count) - 1;
            batches.last = batches.last.max(last);
            if batch.first > limit {
                continue;
            }
            // The edit that would have said so may be lost, also of what is in tables.
            let dropped = format::dropped_index(&bytes[batch.place.clone()]);
            batches.dropped.extend(dropped);
            if last <= evidence.flushed {
                continue;
            }
            if let Some(expected) = expected.filter(|n| *n < batch.first) {
                report.operations_missing.push((expected, batch.first - 1));
            }
            expected = Some(last + 1);
            let record: Arc<[u8]> = bytes[batch.place.clone()].into();
            let index_max = index_max(&record, batch.count);
            let Some(index_max) =
                index_max.filter(|_| active.apply(&record, batch.first, batch.count).is_some())
            else {
                report.lose(
                    &path,
                    lost(batch.place.start, "a batch that is not well formed"),
                );
                continue;
            };
            batches.index_max = batches.index_max.max(index_max);
            report.batches += 1;
            if active.bytes() >= memtable_bytes {
                let full = std::mem::replace(&mut active, Memtable::new());
                batches.memtables.push(Arc::new(full));
            }
        }
    }
    // A later record says what had been there.
    if let Some(expected) = expected.filter(|n| *n <= known) {
        report.operations_missing.push((expected, known));
    }
    batches.last = batches.last.max(known);
    if !active.is_empty() {
        batches.memtables.push(Arc::new(active));
    }
    Ok(batches)
}

fn lost(offset: usize, what: &str) -> Lost {
    Lost {
        offset: offset as u64,
        what: what.into(),
        entries: true,
        after: None,
        before: None,
    }
}

/// For each segment the last number that counts there.
fn limits(fs: &dyn Fs, dir: &Path, segments: &[u64]) -> Vec<u64> {
    let mut limits = vec![u64::MAX; segments.len()];
    let mut limit = u64::MAX;
    for (segment, out) in segments.iter().zip(&mut limits).rev() {
        *out = limit;
        let bytes = read_file(fs, &dir.join(format::segment_name(*segment)));
        let bytes = bytes.unwrap_or_default();
        if let Some(record) = format::check_record(&bytes, *segment, SEGMENT_HEADER_BYTES)
            && let Some(Payload::Restart { after, .. }) =
                format::decode(&bytes[SEGMENT_HEADER_BYTES..SEGMENT_HEADER_BYTES + record.length])
        {
            limit = limit.min(after);
        }
        if let Some(first) = scan(&bytes, *segment).0.first() {
            limit = limit.min(first.first.saturating_sub(1));
        }
    }
    limits
}

/// All batches of a segment that check, in their order, where bytes begin that do not, and the highest
/// number that had been durable when the segment was written.
fn scan(bytes: &[u8], segment: u64) -> (Vec<Found>, Vec<usize>, u64) {
    let (mut found, mut gaps, mut durable) = (Vec::new(), Vec::new(), 0);
    // Zeros behind the last record were written ahead.
    let end = bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |n| n + 1);
    if !format::segment_header_checks(bytes, segment) && end > 0 {
        gaps.push(0);
    }
    let (mut at, mut in_gap) = (SEGMENT_HEADER_BYTES, false);
    while at < end {
        let Some(checked) = format::check_record(bytes, segment, at) else {
            if !in_gap {
                gaps.push(at);
            }
            in_gap = true;
            at += 1;
            continue;
        };
        in_gap = false;
        durable = durable.max(checked.durable);
        let record = &bytes[at..at + checked.length];
        let mut batch = |place: Range<usize>| {
            if let Some(Payload::Batch { sequence, count }) = format::decode(&bytes[place.clone()])
            {
                found.push(Found {
                    first: sequence,
                    count,
                    place,
                });
            }
        };
        match format::decode(record) {
            Some(Payload::Restart { records, .. }) => records
                .into_iter()
                .for_each(|inner| batch(at + inner.start..at + inner.end)),
            _ => batch(at..at + checked.length),
        }
        at += checked.length;
    }
    (found, gaps, durable)
}

/// The highest index number in a batch; `None` when it is not well formed.
fn index_max(record: &[u8], count: u32) -> Option<u32> {
    let mut d = Decoder::new(record, OPERATIONS_AT);
    let mut max = 0;
    for _ in 0..count {
        let (Operation::Put { key, .. }
        | Operation::Delete { key }
        | Operation::DeleteRange { from: key, .. }) = format::next_operation(&mut d)?;
        max = max.max(keys::index_of(&record[key])?);
    }
    Some(max)
}
