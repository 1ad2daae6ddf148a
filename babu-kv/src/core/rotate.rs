//! Where the log and the memtable end and others begin: rotation, restart, closing, and the end of
//! replay, from where both go on.
//!
//! Log and memtable are left together: a full memtable knows the segment with which newer batches
//! begin, and that is where the log begins once it is flushed. A segment may also be left earlier;
//! a segment that was left is never written to again.

use super::Core;
use crate::{
    error::{Error, Result},
    events::Event,
    log::{
        format,
        reader::Replayed,
        writer::{LogWriter, Segment},
    },
    manifest::edit::Edit,
    memtable::Memtable,
    options::Background,
    state::Waiting,
    threads::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use std::{io, mem, sync::Arc};

/// Where the log was closed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closed {
    /// The first segment that is not closed.
    pub segment: u64,
    /// The number of the last operation in the closed ones.
    pub sequence: u64,
}

/// How often closing the log is tried while syncs fail.
const CLOSE_ATTEMPTS: usize = 3;

impl Core {
    /// A segment that can be written to.
    pub(super) fn make_log_ready(&self, log: &mut LogWriter) -> Result<()> {
        if log.poisoned {
            self.restart(log)?;
        }
        if log.segment().is_none() {
            self.next_segment(log)?;
        }
        Ok(())
    }

    fn restart(&self, log: &mut LogWriter) -> Result<()> {
        let (durable, records) = self.syncs.undurable();
        let segment = log.restart(&self.spares, &*self.tables.fs, durable, &records)?;
        self.closed_logs.restarted(durable);
        self.log_restarts.fetch_add(1, AcqRel);
        self.syncs.restarted(segment);
        self.events.emit(|| Event::LogRestart);
        Ok(())
    }

    /// After a failed sync: goes on in a new segment that repeats what is not durable. Gives
    /// segment and the last number in it.
    pub(crate) fn restart_log(&self) -> Result<(Arc<Segment>, u64)> {
        if self.released.load(Acquire) {
            return Err(Error::Closed);
        }
        let _lead = self.writers.lead();
        let mut log = self.log.lock();
        log.poisoned = true;
        self.restart(&mut log)?;
        let segment = log.segment().cloned().ok_or(Error::Closed)?;
        Ok((segment, self.syncs.written()))
    }

    /// Rotates a full memtable, waiting for flushes when too many are full already.
    pub(super) fn make_room(&self, log: &mut LogWriter) -> Result<()> {
        let active_bytes = self.state().active.bytes();
        if active_bytes < self.options.memtable_bytes {
            if active_bytes > self.active_bytes.load(Relaxed) {
                self.divide_memory();
            }
            Ok(())
        } else {
            self.rotate(log)
        }
    }

    pub(super) fn rotate(&self, log: &mut LogWriter) -> Result<()> {
        self.wait_for_flush()?;
        if log.poisoned {
            self.restart(log)?;
        }
        let next_log = self.next_segment(log)?;
        self.change_state(|state| {
            let memtable = mem::replace(&mut state.active, Arc::new(Memtable::new()));
            state.waiting.insert(0, Waiting { memtable, next_log });
        });
        self.work.rotated(self);
        Ok(())
    }

    /// Rotates the memtable unless a full one waits already, so that nobody waits for its flush.
    pub(crate) fn rotate_if_none_waits(&self) -> Result<()> {
        let _lead = self.lead()?;
        let mut log = self.log.lock();
        let state = self.state();
        if state.waiting.is_empty() && !state.active.is_empty() {
            self.rotate(&mut log)?;
        }
        Ok(())
    }

    /// Goes on in another segment; gives its number.
    fn next_segment(&self, log: &mut LogWriter) -> Result<u64> {
        if self.options.background == Background::Inline {
            // Should it fail, one is made without zeros, or the rotation fails.
            let _ = self.spares.prepare();
        }
        let (segment, left) = log.rotate(&self.spares)?;
        if let Some(seal) = left {
            self.closed_logs.add(seal, log.last());
        }
        let number = segment.number;
        self.syncs.add_segment(segment);
        Ok(number)
    }

    fn has_room(&self) -> bool {
        self.state().waiting.len() < self.options.memtables_waiting
    }

    fn wait_for_flush(&self) -> Result<()> {
        match self.options.background {
            Background::Inline => {
                while !self.has_room() {
                    self.flush_oldest()?;
                }
                Ok(())
            }
            Background::Threads => {
                if self.has_room() {
                    return Ok(());
                }
                self.counters.stalls.fetch_add(1, Relaxed);
                self.events.emit(|| Event::StallBegin);
                let waited = self
                    .work
                    .wait_for_flush(|| self.has_room(), || self.is_closed());
                self.events.emit(|| Event::StallEnd);
                waited
            }
        }
    }

    /// Closes the log: the segments before the one that is given hold whatever was committed before
    /// this call and is not in tables. It is durable, and they do not change any more.
    pub(crate) fn close_log(&self) -> Result<Closed> {
        for _ in 0..CLOSE_ATTEMPTS {
            self.spares.prepare()?;
            let (closed, restarts, left) = self.rotate_log()?;
            // Also when it is durable already, so that no sync follows that would do it.
            if let Some(segment) = left {
                segment.trim();
            }
            self.syncs.wait(self, closed.sequence)?;
            // After a failed sync a newer segment repeats what closed ones may have lost.
            if self.log_restarts.load(Acquire) == restarts {
                return Ok(closed);
            }
        }
        let error = io::Error::other("each attempt to close the log met with a failed sync");
        Err(Error::io("close the log of", &self.tables.dir, error))
    }

    /// Also gives how often the log was restarted before, and the segment that was left.
    fn rotate_log(&self) -> Result<(Closed, u64, Option<Arc<Segment>>)> {
        let _lead = self.lead()?;
        let mut log = self.log.lock();
        self.make_log_ready(&mut log)?;
        let mut left = None;
        if !log.is_fresh() {
            left = log.segment().cloned();
            self.next_segment(&mut log)?;
        }
        let closed = Closed {
            segment: log.segment().ok_or(Error::Closed)?.number,
            sequence: self.visible(),
        };
        Ok((closed, self.log_restarts.load(Acquire), left))
    }

    /// Removes log segments before `log_number`, which the manifest no longer needs.
    pub(crate) fn purge_log(&self, log_number: u64) {
        self.closed_logs.purge(log_number);
        let from = self.oldest_log.fetch_max(log_number, Relaxed);
        for number in from..log_number {
            // What cannot be removed now is removed at the next open; failed rotations leave
            // numbers without a file.
            let _ = self
                .tables
                .fs
                .remove(&self.tables.dir.join(format::segment_name(number)));
        }
    }

    /// Says in the manifest that the log ends here.
    pub(super) fn end_log(&self) -> Result<()> {
        let log = self.log.lock();
        if log.poisoned {
            return Ok(());
        }
        log.leave();
        if let Some(segment) = log.segment() {
            segment.trim();
        }
        if let Some(seal) = log.seal() {
            self.closed_logs.add(seal, log.last());
        }
        let version = self.state().version.clone();
        let mut sealed = self
            .closed_logs
            .durable(version.log_number, self.syncs.durable());
        sealed.retain(|seal| !version.sealed.contains_key(&seal.segment));
        if sealed.is_empty() {
            return Ok(());
        }
        let edit = Edit {
            sealed,
            ..Edit::default()
        };
        self.install(&edit, |_| ())
    }

    /// Takes a full memtable from replay, and flushes the oldest when too many wait. On a full disk
    /// they go on waiting: no more than the log holds, which the process before held as well, and
    /// whoever wants to make room has to open the database first.
    pub(crate) fn take_full(&self, full: Waiting) -> Result<()> {
        self.visible.store(full.memtable.sequence_max(), Release);
        self.change_state(|state| state.waiting.insert(0, full));
        while self.state().waiting.len() > self.options.memtables_waiting {
            match self.flush_oldest() {
                Ok(_) => {}
                Err(Error::NoSpace { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Goes on from where the log that was replayed ends.
    pub(crate) fn take_replayed(&self, replayed: Replayed) -> Result<()> {
        let last = replayed.last;
        self.change_state(|state| state.active = replayed.active);
        self.visible.store(last, Release);
        self.syncs.replayed(last);
        *self.log.lock() = LogWriter::new(last + 1);
        // They take no more batches.
        let closed = replayed.segments.into_iter().filter(|seal| seal.bytes > 0);
        closed.for_each(|seal| self.closed_logs.add(seal, last));
        // Their names are left when a crash came before the edit that removes them.
        let dropped: Vec<u32> = replayed.dropped.into_keys().collect();
        if self.manifest.lock().names_any(&dropped) {
            let edit = Edit {
                dropped: dropped.clone(),
                ..Edit::default()
            };
            match self.install(&edit, |_| ()) {
                Ok(()) => {}
                // They go with the next flush, before the log that drops them.
                Err(Error::NoSpace { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        dropped.iter().for_each(|n| self.indices.forgotten(*n));
        Ok(())
    }
}
