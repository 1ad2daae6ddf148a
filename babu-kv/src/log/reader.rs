//! Reads the log back after a crash or a clean end. The rules are in `format.rs`; what they come
//! to:
//!
//! Batches are taken in order of their numbers, across segments. A segment *breaks* where bytes do
//! not check, among them the zeros that were written ahead, or where a number is missing. If a later
//! segment goes on with the next number, nothing is missing: that was the end of a segment that the
//! log had left. Otherwise it is the end of the log, unless a record after it shows that what is
//! missing had been durable: then the log is damaged, which is an error. Each record says what was
//! durable when it was written, so that a hole is seen whatever bytes are in it, zeros like others.
//!
//! Full memtables are handed over as they come, and segments are read one at a time. So replay needs
//! memory for one memtable and one segment, and the latter is as long as the memtables of who wrote
//! it were.

use super::{
    format::{self, Payload, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES},
    seal::Seal,
};
use crate::{
    error::{Context, Error, Result},
    fs::{Fs, Open},
    manifest::read_file,
    memtable::Memtable,
    state::Waiting,
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};
use xxhash_rust::xxh3::xxh3_64;

pub(crate) struct Replayed {
    /// What was left when the last full memtable was handed over.
    pub active: Arc<Memtable>,
    /// The last sequence number.
    pub last: u64,
    /// Each segment that was taken in, without what is torn.
    pub segments: Vec<Seal>,
    pub dropped: Drops,
}

/// Indices that are dropped in the log, with the number of the record that does it.
pub(crate) type Drops = BTreeMap<u32, u64>;

/// Takes a full memtable, older than what comes later. What was dropped up to its end goes along.
pub(crate) type TakeFull<'a> = dyn FnMut(Waiting, &Drops) -> Result<()> + 'a;

pub(crate) struct Replay<'a> {
    pub fs: &'a dyn Fs,
    pub dir: &'a Path,
    /// All up to it is in tables.
    pub flushed: u64,
    /// The number of the last index.
    pub indices: u32,
    pub memtable_bytes: usize,
    pub sealed: &'a BTreeMap<u64, Seal>,
    /// Whether what is torn is cut. Otherwise it is left out, and stays where it is.
    pub cuts: bool,
}

/// Why reading stopped before the end of a segment.
enum Stop {
    /// What follows is void because of a restart record in a later segment.
    Void,
    /// The order breaks.
    Break(Break),
}

impl Stop {
    fn at(offset: usize, what: &'static str) -> Stop {
        Stop::Break(Break { offset, what })
    }
}

/// A place behind which batches may be missing.
struct Break {
    offset: usize,
    what: &'static str,
}

struct Progress<'a> {
    take_full: &'a mut TakeFull<'a>,
    active: Memtable,
    last: u64,
    dropped: Drops,
}

impl Replay<'_> {
    fn path(&self, segment: u64) -> PathBuf {
        self.dir.join(format::segment_name(segment))
    }

    /// Takes in all batches of `segments` (ascending), cuts what is torn, and makes the rest
    /// durable.
    pub(crate) fn run<'a>(
        &self,
        segments: &[u64],
        take_full: &'a mut TakeFull<'a>,
    ) -> Result<Replayed> {
        let limits = self.limits(segments)?;
        let mut progress = Progress {
            take_full,
            active: Memtable::new(),
            last: self.flushed,
            dropped: Drops::new(),
        };
        let (mut taken, mut lengths, mut broken) = (Vec::new(), Vec::new(), None);
        for (n, segment) in segments.iter().enumerate() {
            let path = self.path(*segment);
            let mut bytes = read_file(self.fs, &path)?;
            lengths.push(bytes.len() as u64);
            let seal = self.sealed.get(segment);
            if let Some(end) = seal.and_then(|seal| usize::try_from(seal.bytes).ok()) {
                // What follows was written ahead and never used.
                bytes.truncate(end);
            }
            let before = progress.last;
            let stop = self.read(*segment, &bytes, limits[n], &mut progress)?;
            self.check_seal(*segment, &bytes, stop.as_ref(), limits[n])?;
            if progress.last > before {
                // With the number after the last one: nothing was missing.
                broken = None;
            }
            if let Some(Stop::Break(found)) = stop {
                if seal.is_none() {
                    bytes.truncate(kept_bytes(found.offset));
                }
                if progress.last < limits[n] {
                    broken = broken.or(Some((n, found)));
                }
            }
            taken.push(Seal {
                segment: *segment,
                bytes: bytes.len() as u64,
                hash: xxh3_64(&bytes),
            });
        }
        if let Some((n, found)) = broken {
            self.check_end(&segments[n..], &found, progress.last)?;
            // Nothing was taken out of those after it.
            taken.truncate(n + 1);
        }
        if self.cuts {
            self.cut(&segments[taken.len()..], taken.iter().zip(lengths))?;
        }
        Ok(Replayed {
            active: Arc::new(progress.active),
            last: progress.last,
            segments: taken,
            dropped: progress.dropped,
        })
    }

    /// A sealed segment is as it was when it was closed. That may be with a break in it, in what a
    /// restart made void.
    fn check_seal(
        &self,
        segment: u64,
        bytes: &[u8],
        stop: Option<&Stop>,
        limit: u64,
    ) -> Result<()> {
        let Some(seal) = self.sealed.get(&segment) else {
            return Ok(());
        };
        let (offset, what) = match stop {
            Some(Stop::Break(found)) if limit == u64::MAX => (found.offset as u64, found.what),
            _ if bytes.len() as u64 != seal.bytes => {
                (bytes.len() as u64, "the segment is shorter than it was")
            }
            _ if xxh3_64(bytes) != seal.hash => (0, "the segment had other bytes"),
            _ => return Ok(()),
        };
        Err(Error::corrupt(&self.path(segment), offset, what))
    }

    /// Nothing that had been durable is missing where the first of `segments` breaks, after number
    /// `last`.
    fn check_end(&self, segments: &[u64], found: &Break, last: u64) -> Result<()> {
        let Some((first, later)) = segments.split_first() else {
            return Ok(());
        };
        let mut missing = later.iter().any(|s| self.sealed.contains_key(s));
        for segment in segments {
            let from = if segment == first { found.offset } else { 0 };
            let bytes = read_file(self.fs, &self.path(*segment))?;
            missing |= durable_after(&bytes, *segment, from) > last;
        }
        if missing {
            let what = found.what;
            let what = format!("{what}, and what follows shows that it had been durable");
            let path = self.path(*first);
            return Err(Error::corrupt(&path, found.offset as u64, what));
        }
        Ok(())
    }

    /// Removes the segments `later`, takes from the others what is no record, and makes them durable.
    /// In this order: what is cut must not come back behind a record that is written later.
    fn cut<'s>(&self, later: &[u64], taken: impl Iterator<Item = (&'s Seal, u64)>) -> Result<()> {
        for segment in later.iter().rev() {
            let path = self.path(*segment);
            self.fs.remove(&path).at("remove", &path)?;
        }
        if !later.is_empty() {
            self.fs.sync_dir(self.dir).at("sync", self.dir)?;
        }
        for (seal, length) in taken {
            if self.sealed.contains_key(&seal.segment) {
                continue;
            }
            let path = self.path(seal.segment);
            // A flush meanwhile removes segments.
            if !self.fs.exists(&path).at("look up", &path)? {
                continue;
            }
            let file = self.fs.open(&path, Open::Write).at("open", &path)?;
            if seal.bytes < length {
                file.set_len(seal.bytes).at("truncate", &path)?;
            }
            file.sync_data().at("sync", &path)?;
        }
        // Their names too: who wrote them may have been killed before it synced the folder.
        self.fs.sync_dir(self.dir).at("sync", self.dir)
    }

    /// For each segment the last sequence number that counts there, given the restart records of
    /// later ones.
    fn limits(&self, segments: &[u64]) -> Result<Vec<u64>> {
        let mut limits = vec![u64::MAX; segments.len()];
        let mut limit = u64::MAX;
        for (n, segment) in segments.iter().enumerate().rev() {
            limits[n] = limit;
            let path = self.path(*segment);
            if !self.may_restart(&path)? {
                continue;
            }
            let bytes = read_file(self.fs, &path)?;
            if format::segment_header_checks(&bytes, *segment)
                && let Some(record) = format::check_record(&bytes, *segment, SEGMENT_HEADER_BYTES)
                && let Some(Payload::Restart { after, .. }) = format::decode(
                    &bytes[SEGMENT_HEADER_BYTES..SEGMENT_HEADER_BYTES + record.length],
                )
            {
                limit = limit.min(after);
            }
        }
        Ok(limits)
    }

    /// A look at the kind of the first record saves reading most segments twice.
    fn may_restart(&self, path: &Path) -> Result<bool> {
        let mut start = [0; SEGMENT_HEADER_BYTES + RECORD_HEADER_BYTES + 1];
        let file = self.fs.open(path, Open::Read).at("open", path)?;
        let n = file.read_at(&mut start, 0).at("read", path)?;
        Ok(n == start.len() && format::is_restart(start[start.len() - 1]))
    }

    fn read(
        &self,
        segment: u64,
        bytes: &[u8],
        limit: u64,
        progress: &mut Progress<'_>,
    ) -> Result<Option<Stop>> {
        // A segment without a whole header never took a batch: its creation failed or was cut short. Were batches missing, the
        // numbers in the next segment would show it.
        if bytes.len() < SEGMENT_HEADER_BYTES {
            return Ok(None);
        }
        if !format::segment_header_checks(bytes, segment) {
            return Ok(Some(Stop::at(
                0,
                "the header of the segment does not check",
            )));
        }
        let mut at = SEGMENT_HEADER_BYTES;
        while at < bytes.len() {
            let Some(checked) = format::check_record(bytes, segment, at) else {
                return Ok(Some(Stop::at(at, "a record does not check")));
            };
            if checked.durable > progress.last {
                return Ok(Some(Stop::at(at, "batches before this one are missing")));
            }
            let record = &bytes[at..at + checked.length];
            let ill = || {
                Error::corrupt(
                    &self.path(segment),
                    at as u64,
                    "a record is not well formed",
                )
            };
            match format::decode(record).ok_or_else(ill)? {
                Payload::Batch { sequence, count } => {
                    if let Some(stop) =
                        self.take(segment, at, record, (sequence, count), limit, progress)?
                    {
                        return Ok(Some(stop));
                    }
                }
                Payload::Restart { records, .. } => {
                    for range in records {
                        let Some(Payload::Batch { sequence, count }) =
                            format::decode(&record[range.clone()])
                        else {
                            return Err(ill());
                        };
                        if let Some(stop) = self.take(
                            segment,
                            at,
                            &record[range],
                            (sequence, count),
                            limit,
                            progress,
                        )? {
                            return Ok(Some(stop));
                        }
                    }
                }
            }
            at += checked.length;
        }
        Ok(None)
    }

    /// Takes in one batch, or says why not.
    fn take(
        &self,
        segment: u64,
        at: usize,
        record: &[u8],
        (sequence, count): (u64, u32),
        limit: u64,
        progress: &mut Progress<'_>,
    ) -> Result<Option<Stop>> {
        let last = sequence + u64::from(count) - 1;
        if sequence > limit {
            return Ok(Some(Stop::Void));
        }
        if last <= progress.last {
            return Ok(None);
        }
        if sequence != progress.last + 1 {
            return Ok(Some(Stop::at(at, "batches before this one are missing")));
        }
        let record: Arc<[u8]> = record.into();
        let taken = self
            .indices_are_known(&record, count)
            .and_then(|()| progress.active.apply(&record, sequence, count));
        taken.ok_or_else(|| {
            Error::corrupt(
                &self.path(segment),
                at as u64,
                "a batch is not well formed or names an unknown index",
            )
        })?;
        progress.last = last;
        let dropped = format::dropped_index(&record).map(|index| (index, last));
        progress.dropped.extend(dropped);
        if progress.active.bytes() >= self.memtable_bytes {
            let memtable = Arc::new(std::mem::replace(&mut progress.active, Memtable::new()));
            let full = Waiting {
                memtable,
                next_log: segment,
            };
            (progress.take_full)(full, &progress.dropped)?;
        }
        Ok(None)
    }

    fn indices_are_known(&self, record: &[u8], count: u32) -> Option<()> {
        let indices = format::indices(record, count)?;
        let last = indices.last().copied().unwrap_or(0);
        (last <= self.indices).then_some(())
    }
}

/// Bytes that stay of a segment that breaks at `offset`.
fn kept_bytes(offset: usize) -> usize {
    if offset < SEGMENT_HEADER_BYTES {
        0
    } else {
        offset
    }
}

/// The highest number that the records from `offset` on say had been durable.
fn durable_after(bytes: &[u8], segment: u64, offset: usize) -> u64 {
    let mut at = offset.max(SEGMENT_HEADER_BYTES);
    let mut durable = 0;
    while at < bytes.len() {
        match format::check_record(bytes, segment, at) {
            Some(record) => {
                durable = durable.max(record.durable);
                at += record.length;
            }
            None => at += 1,
        }
    }
    durable
}
