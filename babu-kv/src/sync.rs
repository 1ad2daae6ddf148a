//! Which batches are durable, and who makes them so.
//!
//! *Written* and *durable* are two counters. Whoever wants a batch durable and finds nobody syncing
//! leads: it syncs all that is written by then, without a lock. Those who come meanwhile sleep, each
//! on its own; when the sync ends, exactly those that it served are woken, and the first of the
//! others leads for them.
//!
//! One sync is in flight at a time. With two, a failed write-back would be reported to one of them
//! only, and the other would acknowledge what is lost. After a failed sync the kernel may have
//! dropped the bytes and call the file clean, so that the segment is never synced again: what was
//! not durable is repeated in a new one.
//!
//! Writers that were just served mostly come back at once. A leader that starts too early leaves
//! them to the next sync, and each sync serves half of the writers. So it gives those that it
//! expects a fraction of the time of a sync to come.

use crate::{
    core::Core,
    error::Result,
    log::writer::{Segment, Written},
    threads::{
        Condvar, HAVE_TIME, Mutex,
        atomic::{AtomicU64, Ordering::Acquire, Ordering::Release},
    },
};
use std::{
    collections::VecDeque,
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

/// A leader waits for writers up to this part of the time that the last sync took.
const GATHER_PART: u32 = 4;
/// And no longer than this.
const GATHER_MAX: Duration = Duration::from_millis(1);
/// Less is not worth a wait.
const GATHER_MIN: Duration = Duration::from_micros(20);

#[derive(Default)]
pub(crate) struct SyncPoint {
    inner: Mutex<Inner>,
    /// The leader that gathers waits here.
    gathered: Condvar,
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
    /// The last batch before the current segment.
    closed: u64,
    syncing: bool,
    poisoned: bool,
    /// In the order in which they came; as many as there are threads that wait.
    waiting: VecDeque<Arc<Sleeper>>,
    /// Writers that the next sync may serve, if all come back.
    expected: usize,
    /// Time that the last sync took.
    last: Duration,
}

/// A writer that waits for a sync.
struct Sleeper {
    sequence: u64,
    turn: Mutex<Option<Turn>>,
    wake: Condvar,
}

/// What a sleeper is woken for.
enum Turn {
    Leads,
    Done(Result<()>),
}

impl Sleeper {
    fn wake(&self, turn: Turn) {
        *self.turn.lock() = Some(turn);
        self.wake.notify_one();
    }

    fn sleep(&self) -> Turn {
        let mut turn = self.turn.lock();
        loop {
            if let Some(turn) = turn.take() {
                return turn;
            }
            self.wake.wait(&mut turn);
        }
    }
}

impl Inner {
    /// Takes out the batches up to `durable`, to be dropped without the lock.
    fn forget(&mut self, durable: u64) -> VecDeque<(u64, Arc<[u8]>)> {
        let count = self.undurable.partition_point(|(last, _)| *last <= durable);
        let rest = self.undurable.split_off(count);
        mem::replace(&mut self.undurable, rest)
    }

    fn take_served(&mut self, durable: u64) -> VecDeque<Arc<Sleeper>> {
        let (served, waiting): (VecDeque<_>, _) = mem::take(&mut self.waiting)
            .into_iter()
            .partition(|sleeper| sleeper.sequence <= durable);
        self.waiting = waiting;
        served
    }
}

impl SyncPoint {
    pub(crate) fn new(last: u64) -> SyncPoint {
        let point = SyncPoint::default();
        point.replayed(last);
        point
    }

    /// The log was read, and all up to `last` is durable.
    pub(crate) fn replayed(&self, last: u64) {
        self.inner.lock().written = last;
        self.durable.store(last, Release);
    }

    /// All batches up to this number survive power loss.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Acquire)
    }

    pub(crate) fn add_segment(&self, segment: Arc<Segment>) {
        let mut inner = self.inner.lock();
        inner.segments.push(segment);
        inner.closed = inner.written;
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
        let durable = self.advance(sequence);
        let forgotten = inner.forget(durable);
        let served = inner.take_served(durable);
        drop(inner);
        served.iter().for_each(|s| s.wake(Turn::Done(Ok(()))));
        drop(forgotten);
    }

    /// Only under the lock.
    fn advance(&self, sequence: u64) -> u64 {
        let durable = self.durable().max(sequence);
        self.durable.store(durable, Release);
        durable
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
        if self.durable() >= sequence {
            return Ok(());
        }
        if inner.syncing {
            let sleeper = Arc::new(Sleeper {
                sequence,
                turn: Mutex::default(),
                wake: Condvar::new(),
            });
            inner.waiting.push_back(sleeper.clone());
            if inner.waiting.len() + 1 == inner.expected {
                self.gathered.notify_one();
            }
            drop(inner);
            if let Turn::Done(result) = sleeper.sleep() {
                return result;
            }
        } else {
            inner.syncing = true;
            drop(inner);
        }
        self.lead(core, sequence)
    }

    /// Syncs all that is written, and wakes those that it served. When nobody wants more than what is
    /// in closed segments, it syncs those only.
    fn lead(&self, core: &Core, sequence: u64) -> Result<()> {
        let mut inner = self.inner.lock();
        let patience = (inner.last / GATHER_PART).min(GATHER_MAX);
        if HAVE_TIME && patience >= GATHER_MIN && inner.waiting.len() + 1 < inner.expected {
            self.gathered.wait_for(&mut inner, patience);
        }
        let (mut segments, mut written) = (inner.segments.clone(), inner.written);
        let poisoned = inner.poisoned;
        let current = segments.pop();
        // The current one is still written to while it is synced, also if it is closed by then.
        let closed = segments.clone();
        let wanted = inner.waiting.iter().map(|sleeper| sleeper.sequence);
        if closed.is_empty() || wanted.fold(sequence, u64::max) > inner.closed {
            segments.extend(current);
        } else {
            written = inner.closed;
        }
        drop(inner);
        let start = Instant::now();
        let result = self.sync(core, &segments, written, poisoned);
        let took = start.elapsed();
        let mut inner = self.inner.lock();
        inner.last = took;
        let mut forgotten = VecDeque::new();
        let (served, next) = match &result {
            Ok(written) => {
                inner
                    .segments
                    .retain(|s| !closed.iter().any(|t| Arc::ptr_eq(s, t)));
                let durable = self.advance(*written);
                forgotten = inner.forget(durable);
                let served = inner.take_served(durable);
                (served, inner.waiting.pop_front())
            }
            Err(_) => (mem::take(&mut inner.waiting), None),
        };
        inner.syncing = next.is_some();
        inner.expected = 1 + served.len() + inner.waiting.len() + usize::from(next.is_some());
        drop(inner);
        if let Some(next) = next {
            next.wake(Turn::Leads);
        }
        let result = result.map(drop);
        for sleeper in served {
            sleeper.wake(Turn::Done(result.clone()));
        }
        drop(forgotten);
        result
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
