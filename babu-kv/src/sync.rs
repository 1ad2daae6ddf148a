//! Which batches are durable, and who makes them so.
//!
//! *Written* and *durable* are two counters. Whoever wants a batch durable and finds nobody syncing
//! becomes the leader: it syncs all that is written by then, without a lock, and wakes those who
//! came meanwhile; one of them leads for all of them. After a failed sync the kernel may have
//! dropped the bytes and call the file clean, so that the segment is never synced again: what was
//! not durable is repeated in a new one.

use crate::{
    core::Core,
    error::{Error, Result},
    log::writer::{Segment, Written},
    threads::{
        Condvar, Mutex,
        atomic::{AtomicU64, Ordering::Acquire, Ordering::Release},
    },
};
use std::{collections::VecDeque, sync::Arc};

#[derive(Default)]
pub(crate) struct SyncPoint {
    inner: Mutex<Inner>,
    done: Condvar,
    durable: AtomicU64,
}

#[derive(Default)]
struct Inner {
    written: u64,
    /// Batches after the durable number, kept to be repeated after a failed sync. Memtables hold
    /// the same bytes until they are flushed.
    undurable: VecDeque<(u64, Arc<[u8]>)>,
    /// Segments that may hold bytes that are not durable; the last is the current one.
    segments: Vec<Arc<Segment>>,
    syncing: bool,
    poisoned: bool,
    failures: u64,
    error: Option<Error>,
}

impl SyncPoint {
    pub(crate) fn new(last: u64) -> SyncPoint {
        let point = SyncPoint::default();
        point.inner.lock().written = last;
        point.durable.store(last, Release);
        point
    }

    /// All batches up to this number survive power loss.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Acquire)
    }

    pub(crate) fn add_segment(&self, segment: Arc<Segment>) {
        self.inner.lock().segments.push(segment);
    }

    pub(crate) fn wrote<'a>(&self, batches: impl Iterator<Item = &'a Written>) {
        let mut inner = self.inner.lock();
        for batch in batches {
            inner
                .undurable
                .push_back((batch.last(), batch.record.clone()));
            inner.written = batch.last();
        }
    }

    /// A flush made all up to `sequence` durable in a table; segments before `log_number` are no
    /// longer needed.
    pub(crate) fn flushed(&self, sequence: u64, log_number: u64) {
        let mut inner = self.inner.lock();
        inner.segments.retain(|s| s.number >= log_number);
        self.advance(&mut inner, sequence);
        self.done.notify_all();
    }

    fn advance(&self, inner: &mut Inner, sequence: u64) {
        let durable = self.durable().max(sequence);
        self.durable.store(durable, Release);
        while inner
            .undurable
            .front()
            .is_some_and(|(last, _)| *last <= durable)
        {
            inner.undurable.pop_front();
        }
    }

    /// The durable number, and the records after it.
    pub(crate) fn undurable(&self) -> (u64, Vec<Arc<[u8]>>) {
        let inner = self.inner.lock();
        (
            self.durable(),
            inner
                .undurable
                .iter()
                .map(|(_, record)| record.clone())
                .collect(),
        )
    }

    /// The log goes on in `segment`, which repeats all that is not durable.
    pub(crate) fn restarted(&self, segment: Arc<Segment>) {
        let mut inner = self.inner.lock();
        inner.segments = vec![segment];
        inner.poisoned = false;
    }

    /// Returns when `sequence` is durable, or with the error of a sync that ended meanwhile.
    pub(crate) fn wait(&self, core: &Core, sequence: u64) -> Result<()> {
        if self.durable() >= sequence {
            return Ok(());
        }
        let mut inner = self.inner.lock();
        let failures = inner.failures;
        loop {
            if self.durable() >= sequence {
                return Ok(());
            }
            if inner.failures != failures {
                return Err(inner.error.clone().unwrap_or(Error::Closed));
            }
            if !inner.syncing {
                break;
            }
            self.done.wait(&mut inner);
        }
        inner.syncing = true;
        let (segments, written, poisoned) = (inner.segments.clone(), inner.written, inner.poisoned);
        drop(inner);
        let result = self.sync(core, &segments, written, poisoned);
        let mut inner = self.inner.lock();
        inner.syncing = false;
        match &result {
            Ok(written) => {
                // The last one was still written to while it was synced, also if it is closed by
                // now.
                let closed = segments.split_last().map_or(&[][..], |(_, closed)| closed);
                inner
                    .segments
                    .retain(|s| !closed.iter().any(|t| Arc::ptr_eq(s, t)));
                self.advance(&mut inner, *written);
            }
            Err(error) => {
                inner.failures += 1;
                inner.error = Some(error.clone());
            }
        }
        self.done.notify_all();
        result.map(drop)
    }

    /// Syncs segments from old to new; gives the number that is durable then.
    fn sync(
        &self,
        core: &Core,
        segments: &[Arc<Segment>],
        written: u64,
        poisoned: bool,
    ) -> Result<u64> {
        let fs = &*core.tables.fs;
        if !poisoned && segments.iter().try_for_each(|s| s.sync(fs)).is_ok() {
            return Ok(written);
        }
        self.inner.lock().poisoned = true;
        let (segment, written) = core.restart_log()?;
        segment
            .sync(fs)
            .inspect_err(|_| self.inner.lock().poisoned = true)?;
        Ok(written)
    }

    pub(crate) fn written(&self) -> u64 {
        self.inner.lock().written
    }
}
