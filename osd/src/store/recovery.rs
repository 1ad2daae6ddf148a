//! Replaying the log: what was written after the index's last checkpoint.
//!
//! Every record carries its sequence number and the number up to which everything was known to be
//! durable when it was written. That decides what to do where the log does not check:
//!
//! - an intact record with the expected number follows: the bytes between are what a failed write
//!   left, nothing is missing;
//! - a later record says that the missing ones were durable: they are damaged. This is reported
//!   and recovery goes on behind them; if a header is readable its change is applied, so that reads
//!   of its range fail instead of giving older bytes;
//! - otherwise the machine stopped while the bytes were on their way to the disk: the log ends
//!   here. What follows was never promised to be durable and is cut off, so that the state is a
//!   prefix of what was done.

use std::ops::ControlFlow;

use super::Store;
use super::append::Appender;
use super::record::{
    FIXED_BYTES, Header, RECORD_MAGIC, SEGMENT_HEADER_BYTES, claimed_lengths, decode_header,
    encode_segment_header,
};
use super::segment::place;
use super::values::StateRecord;
use crate::error::{At, Result, StoreError};

/// Bytes read at a time; what cannot be read counts as zeros.
const READ_BYTES: usize = 1 << 20;

/// Where in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Spot {
    /// Index among the segments that are replayed.
    nth: usize,
    position: usize,
}

/// The bytes of the segments that are replayed; one is held at a time.
struct Log<'a> {
    store: &'a Store,
    segments: &'a [u64],
    held: Option<(usize, Vec<u8>)>,
}

/// A record as found.
enum Found {
    /// Header and data check.
    Intact(Header),
    /// The header checks, the data does not.
    Damaged(Header),
    /// Nothing that looks like a record.
    Nothing,
    /// The segment ends here.
    End,
}

/// What lies behind a place that does not check.
struct Beyond {
    /// The next intact record.
    next: Option<(Spot, u64)>,
    /// The largest number that intact records call durable.
    durable: u64,
}

impl Store {
    /// Replays the log behind `state` and makes the appender ready.
    pub(super) fn recover(&self, known: &[u64], state: StateRecord) -> Result<()> {
        let first = known.partition_point(|segment| *segment < state.segment);
        let segments = known.get(first..).unwrap_or_default();
        let mut log = Log {
            store: self,
            segments,
            held: None,
        };
        self.sync.start_at(state.sequence.saturating_sub(1));
        let start = state.sequence.max(1);
        let mut expected = start;
        let mut spot = Spot {
            nth: 0,
            position: match segments.first() {
                Some(segment) if *segment == state.segment => state.position as usize,
                _ => SEGMENT_HEADER_BYTES as usize,
            },
        };
        let mut cut = false;
        while spot.nth < segments.len() {
            match self.replay_one(&mut log, &mut spot, &mut expected)? {
                ControlFlow::Continue(()) => {}
                ControlFlow::Break(()) => {
                    cut = true;
                    break;
                }
            }
        }
        if !segments.is_empty() {
            self.end_log(segments, spot, cut, expected, state)?;
        }
        let replayed = expected.saturating_sub(start);
        if replayed > 0 || cut {
            tracing::info!(records = replayed, "replayed the log");
            if let Err(error) = self.checkpoint() {
                tracing::warn!(%error, "no checkpoint after the replay");
            }
        }
        Ok(())
    }

    /// Replays the record at `spot`, or decides what to do where none is. Breaks where the log
    /// ends before its files do.
    fn replay_one(
        &self,
        log: &mut Log<'_>,
        spot: &mut Spot,
        expected: &mut u64,
    ) -> Result<ControlFlow<()>> {
        let found = log.at(*spot)?;
        match found {
            Found::End => {
                spot.nth += 1;
                spot.position = SEGMENT_HEADER_BYTES as usize;
                return Ok(ControlFlow::Continue(()));
            }
            Found::Intact(header) if header.sequence == *expected => {
                self.replay(&header)?;
                spot.position += header.record_bytes() as usize;
                *expected += 1;
                return Ok(ControlFlow::Continue(()));
            }
            _ => {}
        }
        let beyond = log.beyond(*spot, *expected)?;
        let segment = log.segments.get(spot.nth).copied().unwrap_or_default();
        let here = place(segment, spot.position as u64);
        match (beyond.next, found) {
            (Some((next, sequence)), _) if sequence == *expected => *spot = next,
            (_, Found::Damaged(header))
                if header.sequence == *expected && beyond.durable >= *expected =>
            {
                tracing::error!(place = %here, change = ?header.change, "a durable record is damaged; what it wrote cannot be read");
                self.replay(&header)?;
                spot.position += header.record_bytes() as usize;
                *expected += 1;
            }
            (Some((next, sequence)), _) if beyond.durable >= *expected => {
                let lost = sequence - *expected;
                tracing::error!(place = %here, lost, "durable records are damaged and cannot be replayed");
                *spot = next;
                *expected = sequence;
            }
            _ => {
                tracing::info!(place = %here, "the log ends here; what follows was not durable");
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Applies one record. An unreadable entry of the index does not stop the others.
    fn replay(&self, header: &Header) -> Result<()> {
        let plan = match self.plan(header) {
            Err(
                error @ (StoreError::IndexEntry { .. }
                | StoreError::Index(babu_kv::Error::Corrupt { .. })),
            ) => {
                tracing::error!(change = ?header.change, %error, "a record cannot be applied");
                return Ok(());
            }
            outcome => outcome?,
        };
        let raw = header.blocks.iter().map(|b| u64::from(b.raw)).sum();
        // It was written, but perhaps not synced: a flush means it too.
        let file = header.change.file();
        let mut appender = self.appender.lock();
        appender.dirty_files.insert(file, header.sequence);
        drop(appender);
        self.layers
            .write()
            .publish(plan, header.segment, header.record_bytes(), raw);
        Ok(())
    }

    /// Cuts the log where it ends and makes the appender go on there.
    fn end_log(
        &self,
        segments: &[u64],
        spot: Spot,
        cut: bool,
        expected: u64,
        state: StateRecord,
    ) -> Result<()> {
        let nth = spot.nth.min(segments.len().saturating_sub(1));
        let (kept, dropped) = segments.split_at(nth + 1);
        let Some(last) = kept.last().copied() else {
            return Ok(());
        };
        // From the end, and durably: a segment that comes back after another loss of power would
        // be replayed behind what is written from now on.
        for segment in dropped.iter().rev() {
            self.files
                .remove(*segment)
                .at("remove", &self.files.path(*segment))?;
        }
        if !dropped.is_empty() {
            self.fs
                .sync_dir(self.files.dir())
                .at("fsync", self.files.dir())?;
        }
        let path = self.files.path(last);
        let file = self.files.reopen(last).at("open", &path)?;
        let length = file.len().at("stat", &path)?;
        let end = if cut { spot.position as u64 } else { length };
        let end = end.max(SEGMENT_HEADER_BYTES);
        if length < SEGMENT_HEADER_BYTES {
            file.write_at(&encode_segment_header(last, self.id), 0)
                .at("write", &path)?;
        }
        if length > end {
            file.set_len(end)
                .and_then(|()| file.sync_data())
                .at("cut", &path)?;
        }
        let mut unsynced = Vec::new();
        let mut layers = self.layers.write();
        for segment in kept {
            let info = layers.segments.entry(*segment).or_default();
            info.sealed = *segment != last;
            if *segment != last {
                let file = self.files.reopen(*segment);
                let file = file.at("open", &self.files.path(*segment))?;
                info.bytes = file.len().at("stat", &self.files.path(*segment))?;
                unsynced.push((*segment, file));
            } else {
                info.bytes = end;
            }
        }
        drop(layers);
        let mut appender = self.appender.lock();
        *appender = Appender {
            segment: last,
            file,
            position: end,
            next_sequence: expected,
            unsynced,
            dirty_files: std::mem::take(&mut appender.dirty_files),
            suspects: std::mem::take(&mut appender.suspects),
            lost: std::mem::take(&mut appender.lost),
            rescues: 0,
            // Bytes that the index refers to are missing: nothing may take their place.
            closed: last == state.segment && length < state.position,
            poisoned: false,
        };
        Ok(())
    }
}

impl Log<'_> {
    /// The bytes of the nth segment.
    fn bytes(&mut self, nth: usize) -> Result<&[u8]> {
        if self.held.as_ref().is_none_or(|(held, _)| *held != nth) {
            let segment = self.segments.get(nth).copied().unwrap_or_default();
            let bytes = self.load(segment)?;
            self.held = Some((nth, bytes));
        }
        Ok(self.held.as_ref().map_or(&[], |(_, bytes)| bytes))
    }

    fn load(&self, segment: u64) -> Result<Vec<u8>> {
        let path = self.store.files.path(segment);
        let file = self.store.open_segment(segment)?;
        let length = file.len().at("stat", &path)?;
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        let mut position = 0;
        for chunk in bytes.chunks_mut(READ_BYTES) {
            if let Err(error) = file.read_exact_at(chunk, position) {
                tracing::error!(path = %path.display(), position, %error, "a part of the log cannot be read");
                chunk.fill(0);
            }
            position += chunk.len() as u64;
        }
        Ok(bytes)
    }

    /// What lies at a place.
    fn at(&mut self, spot: Spot) -> Result<Found> {
        let segment = self.segments.get(spot.nth).copied().unwrap_or_default();
        let seed = self.store.seed;
        let bytes = self.bytes(spot.nth)?;
        Ok(match bytes.get(spot.position..) {
            None | Some([]) => Found::End,
            Some(rest) => examine(rest, seed, segment, spot.position as u64),
        })
    }

    /// Looks at everything from a place on for intact records of `expected` and later.
    fn beyond(&mut self, from: Spot, expected: u64) -> Result<Beyond> {
        let mut beyond = Beyond {
            next: None,
            durable: 0,
        };
        let mut start = from.position;
        for nth in from.nth..self.segments.len() {
            let segment = self.segments.get(nth).copied().unwrap_or_default();
            let seed = self.store.seed;
            let bytes = self.bytes(nth)?;
            let mut at = start;
            while let Some(position) = find_magic(bytes, at) {
                at = position + 1;
                let rest = bytes.get(position..).unwrap_or_default();
                let header = match examine(rest, seed, segment, position as u64) {
                    Found::Intact(header) if header.sequence >= expected => header,
                    _ => continue,
                };
                at = position + header.record_bytes() as usize;
                beyond.durable = beyond.durable.max(header.durable);
                let spot = Spot { nth, position };
                beyond.next.get_or_insert((spot, header.sequence));
            }
            start = SEGMENT_HEADER_BYTES as usize;
        }
        Ok(beyond)
    }
}

/// The next place from `at` on that begins like a record.
fn find_magic(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = bytes.get(at..)?;
    rest.windows(RECORD_MAGIC.len())
        .position(|window| window == RECORD_MAGIC)
        .map(|distance| at + distance)
}

/// What bytes at a place of a segment are.
fn examine(bytes: &[u8], seed: u32, segment: u64, position: u64) -> Found {
    if bytes.len() < FIXED_BYTES || claimed_lengths(bytes).is_none() {
        return Found::Nothing;
    }
    let Some(header) = decode_header(bytes, seed, segment, position) else {
        return Found::Nothing;
    };
    let mut at = header.header_bytes();
    for block in &header.blocks {
        let end = at + block.stored as usize;
        let good = bytes
            .get(at..end)
            .is_some_and(|stored| crc32c::crc32c(stored) == block.crc);
        if !good {
            return Found::Damaged(header);
        }
        at = end;
    }
    Found::Intact(header)
}
