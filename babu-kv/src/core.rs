//! The database behind its handles: who may touch what. How log and memtable go on in others is in
//! `core/rotate.rs`.
//!
//! | field | changed by | under |
//! |---|---|---|
//! | `state` | leading writer (rotation), flush, compaction | `changing`, only to swap the pointer; readers take no lock |
//! | `visible` | leading writer | leadership |
//! | `log` | leading writer | leadership (the mutex is never contended) |
//! | `manifest` | flush, compaction, `index` | its mutex, also over the sync of the manifest; writers and readers never take it |
//!
//! Nobody waits for a sync or for the creation of a file while leading: segments are made ahead
//! (`log/spare.rs`). Exceptions are those in which writers could not go on anyway: no spare is there
//! when the log must go on in another segment, or a sync has failed.
//!
//! Order of locks: leadership, `log`, `flushing`, `compacting`, `manifest`, `changing`, and inside
//! `SyncPoint` its own. Whoever closes the database takes `log` last, when nobody leads any more.

mod rotate;

pub(crate) use rotate::Closed;

use crate::{
    batch::Batch,
    commit::{Lead, Turn, Writers},
    error::{Context, Error, Result},
    events::{Event, Events},
    fs::Lock,
    indices::Indices,
    log::{
        seal,
        spare::Spares,
        writer::{LogWriter, Request, Written},
    },
    manifest::{Manifest, edit::Edit},
    memtable::Memtable,
    options::{Background, Options},
    pins::{Pin, Pins},
    read_only::PinnedLog,
    state::State,
    stats::Counters,
    sync::SyncPoint,
    table::{TableMeta, Tables},
    threads::{
        Current, Mutex, Swap,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire,
            Ordering::Relaxed, Ordering::Release,
        },
    },
    worker::Work,
};
use std::sync::{Arc, Weak};

/// A memtable that fills divides the budget of memory anew so many times.
const ACTIVE_STEPS: usize = 8;

pub(crate) struct Core {
    pub options: Options,
    pub tables: Arc<Tables>,
    pub manifest: Mutex<Manifest>,
    pub next_file: AtomicU64,
    pub syncs: SyncPoint,
    pub spares: Spares,
    /// Changed by the leading writer and by flushes, under its own lock.
    pub closed_logs: seal::Closed,
    pub indices: Indices,
    pub work: Work,
    pub flushing: Mutex<()>,
    pub compacting: Mutex<()>,
    pub counters: Counters,
    pub pins: Arc<Pins>,
    pub events: Arc<Events>,
    state: Swap<State>,
    changing: Mutex<()>,
    /// Flushed memtables, which readers may hold.
    retired: Mutex<Vec<Weak<Memtable>>>,
    /// What the active memtable counts for in the budget of memory.
    active_bytes: AtomicUsize,
    visible: AtomicU64,
    writers: Writers,
    log: Mutex<LogWriter>,
    /// How often the log went on in a new segment after a failed sync.
    log_restarts: AtomicU64,
    oldest_log: AtomicU64,
    closed: AtomicBool,
    /// The folder may belong to another handle: nothing is written any more.
    released: AtomicBool,
    lock: Mutex<Option<Box<dyn Lock>>>,
    /// Somebody else may be writing to the folder: nothing in it is changed from here.
    read_only: Option<PinnedLog>,
}

/// What `open` found.
pub(crate) struct Opened {
    pub options: Options,
    pub tables: Arc<Tables>,
    /// `None` when opened for reading only.
    pub lock: Option<Box<dyn Lock>>,
    pub read_only: Option<PinnedLog>,
    pub manifest: Manifest,
    pub next_file: u64,
    pub state: State,
    pub last: u64,
    pub next_segment: u64,
    pub closed_logs: seal::Closed,
}

impl Core {
    pub(crate) fn new(opened: Opened) -> Core {
        let Opened {
            options,
            tables,
            lock,
            read_only,
            manifest,
            next_file,
            state,
            last,
            next_segment,
            closed_logs,
        } = opened;
        let spares = Spares::new(
            tables.fs.clone(),
            tables.dir.clone(),
            next_segment,
            options.memtable_bytes as u64,
        );
        let events = Arc::new(Events::new(options.listener.clone()));
        let core = Core {
            pins: Arc::new(Pins::new(events.clone())),
            events,
            options,
            indices: Indices::new(manifest.indices.values().copied(), manifest.last_index),
            manifest: Mutex::new(manifest),
            next_file: AtomicU64::new(next_file),
            syncs: SyncPoint::new(last),
            spares,
            closed_logs,
            work: Work::default(),
            flushing: Mutex::default(),
            compacting: Mutex::default(),
            counters: Counters::default(),
            oldest_log: AtomicU64::new(state.version.log_number),
            state: Swap::new(state),
            changing: Mutex::default(),
            retired: Mutex::default(),
            active_bytes: AtomicUsize::new(0),
            visible: AtomicU64::new(last),
            writers: Writers::default(),
            log: Mutex::new(LogWriter::new(last + 1)),
            log_restarts: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            released: AtomicBool::new(false),
            lock: Mutex::new(lock),
            read_only,
            tables,
        };
        core.divide_memory();
        core
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Acquire)
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_closed() {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }

    /// Whether it may be changed.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        match self.read_only {
            Some(_) => Err(Error::ReadOnly {
                path: self.tables.dir.clone(),
            }),
            None => Ok(()),
        }
    }

    /// The log of the instant at which it was opened for reading only.
    pub(crate) fn pinned_log(&self) -> Option<&PinnedLog> {
        self.read_only.as_ref()
    }

    pub(crate) fn state(&self) -> Current<State> {
        self.state.load()
    }

    /// State and sequence number of one instant. The state is read last, so that it has all batches
    /// up to the number. It may be newer: then memtables are read as of the number, but tables are
    /// what they are, and hold all batches up to the last flushed one and no other.
    pub(crate) fn now(&self) -> (Current<State>, u64) {
        let sequence = self.visible.load(Acquire);
        let state = self.state.load();
        let sequence = sequence.max(state.version.flushed);
        (state, sequence)
    }

    fn change_state(&self, change: impl FnOnce(&mut State)) {
        let changing = self.changing.lock();
        let state = self.state();
        let mut next = State::clone(&state);
        change(&mut next);
        let oldest = state.waiting.last().map(|w| Arc::downgrade(&w.memtable));
        let flushed = oldest.filter(|_| next.waiting.len() < state.waiting.len());
        drop(state);
        let old = self.state.swap(Arc::new(next));
        drop(changing);
        // Perhaps the last holder of a memtable; nobody need wait for its end.
        drop(old);
        self.retired.lock().extend(flushed);
        self.divide_memory();
    }

    /// This instant, held.
    pub(crate) fn pin_now(&self) -> Arc<Pin> {
        let (state, sequence) = self.now();
        self.pins.pin(Arc::clone(&state), sequence)
    }

    /// Takes from snapshots older than `sequence` what they hold.
    pub(crate) fn release_snapshots(&self, sequence: u64) -> usize {
        let count = self.pins.release_before(sequence);
        if count > 0 {
            self.events.emit(|| Event::SnapshotsReleased { count });
            self.divide_memory();
        }
        count
    }

    /// Bytes of flushed memtables that readers hold.
    pub(crate) fn pinned_memtable_bytes(&self) -> usize {
        let mut retired = self.retired.lock();
        retired.retain(|memtable| memtable.strong_count() > 0);
        let held = retired.iter().filter_map(Weak::upgrade);
        held.map(|memtable| memtable.bytes()).sum()
    }

    /// Divides the budget of memory, given what memtables take now. The active one counts for more
    /// than it holds, so that not every batch divides anew.
    pub(crate) fn divide_memory(&self) {
        let state = self.state();
        let step = self.options.memtable_bytes / ACTIVE_STEPS + 1;
        let active = state.active.bytes().next_multiple_of(step);
        let waiting: usize = state.waiting.iter().map(|w| w.memtable.bytes()).sum();
        drop(state);
        self.active_bytes.store(active, Relaxed);
        self.tables
            .set_memtable_bytes(active + waiting + self.pinned_memtable_bytes());
    }

    /// Writes a batch to the log and makes it visible; gives the number of its last operation.
    pub(crate) fn commit(&self, batch: Batch) -> Result<u64> {
        self.check_writable()?;
        if batch.is_empty() && batch.is_sound() {
            return Ok(self.visible.load(Acquire));
        }
        let request = self.indices.request(batch)?;
        if self.options.background == Background::Threads {
            let paused = self.work.pace(request.record.len());
            self.counters.pauses.fetch_add(paused.into(), Relaxed);
        }
        let result = match self.writers.enter(Some(request)) {
            Turn::Done(result) => result,
            Turn::Leads(lead, Some(request)) => self.write_group(&lead, request),
            Turn::Leads(_, None) => Err(Error::Closed),
        };
        self.maintain_inline();
        result
    }

    pub(crate) fn maintain_inline(&self) {
        if self.options.background == Background::Inline {
            self.maintain();
        }
    }

    /// Waits until nobody else writes.
    pub(crate) fn lead(&self) -> Result<Lead<'_>> {
        let lead = self.writers.lead();
        self.check_open()?;
        Ok(lead)
    }

    fn write_group(&self, lead: &Lead<'_>, first: Request) -> Result<u64> {
        if !self.indices.is_fresh(&first) {
            self.indices.check(&first)?;
        }
        let (group, others) = lead.gather(|request| self.indices.is_fresh(request));
        let written = self.check_open().and_then(|()| self.write(first, others));
        match written {
            Ok((first, others)) => {
                group.answer(others.iter().map(|other| Ok(other.last())));
                Ok(first.last())
            }
            Err(error) => {
                group.answer(std::iter::repeat_with(|| Err(error.clone())));
                Err(error)
            }
        }
    }

    /// The leader's work: log, memtable, publication.
    pub(crate) fn write(
        &self,
        first: Request,
        others: Vec<Request>,
    ) -> Result<(Written, Vec<Written>)> {
        let mut log = self.log.lock();
        self.make_room(&mut log)?;
        self.make_log_ready(&mut log)?;
        let (first, others) = log.write(first, others, self.syncs.durable())?;
        let batches = || std::iter::once(&first).chain(&others);
        self.syncs.wrote(batches());
        let active = self.state().active.clone();
        let deletes = active.deletes();
        for batch in batches() {
            // The records were encoded by `Batch`.
            let taken = active.apply(&batch.record, batch.sequence, batch.count);
            debug_assert!(taken.is_some());
        }
        let last = others.last().unwrap_or(&first).last();
        self.visible.store(last, Release);
        if self.is_idle_flush_useful(active.deletes()) && !self.is_idle_flush_useful(deletes) {
            self.work.wake_idle();
        }
        self.counters
            .commits
            .fetch_add(1 + others.len() as u64, Relaxed);
        self.counters.log_writes.fetch_add(1, Relaxed);
        Ok((first, others))
    }

    /// Counts a flush or compaction that failed, and tells the listener. One that gave way to the
    /// end of the database did not fail.
    pub(crate) fn count_failure(&self, error: &Error) {
        if matches!(error, Error::Closed) {
            return;
        }
        self.counters.count_failure(error);
        self.events.failed(error);
    }

    /// Flushes all that was committed before.
    pub(crate) fn flush(&self) -> Result<()> {
        self.check_writable()?;
        {
            let _lead = self.lead()?;
            let mut log = self.log.lock();
            if !self.state().active.is_empty() {
                self.rotate(&mut log)?;
            }
        }
        let through = self.visible.load(Acquire);
        while self
            .state()
            .waiting
            .last()
            .is_some_and(|w| w.memtable.sequence_max() <= through)
        {
            self.flush_oldest()?;
        }
        self.work.wake_compaction();
        Ok(())
    }

    /// Makes an edit durable and swaps in the version after it, with further changes of the state.
    pub(crate) fn install(&self, edit: &Edit, change: impl FnOnce(&mut State)) -> Result<()> {
        let mut manifest = self.manifest.lock();
        if self.released.load(Acquire) {
            return Err(Error::Closed);
        }
        let now = self.state().version.clone();
        let version = Arc::new(manifest.commit(&self.tables, &now, edit, &self.next_file)?);
        self.change_state(|state| {
            state.version = version;
            change(state);
        });
        drop(manifest);
        let operations_max = self.options.snapshot_operations_max;
        self.release_snapshots(self.visible().saturating_sub(operations_max));
        Ok(())
    }

    /// Declares the length of the prefixes of an index that go into filters.
    pub(crate) fn declare(&self, index: u32, prefix_bytes: u8) -> Result<()> {
        let declared = |state: &State| state.version.prefixes.get(&index).copied().unwrap_or(0);
        if declared(&self.state()) != prefix_bytes {
            self.check_writable()?;
            let edit = Edit {
                prefixes: vec![(index, prefix_bytes)],
                ..Edit::default()
            };
            self.install(&edit, |state| {
                *self.tables.prefixes.write() = state.version.prefixes.clone();
            })?;
        }
        Ok(())
    }

    /// Removes tables that no manifest names, because writing them or naming them failed.
    pub(crate) fn discard(&self, tables: &[TableMeta]) {
        // After a failed sync of the manifest they may be named in it all the same. Then the next
        // open finds out.
        if !self.manifest.lock().is_broken() {
            for table in tables {
                let _ = self.tables.fs.remove(&self.tables.path(table.number));
            }
        }
    }

    pub(crate) fn visible(&self) -> u64 {
        self.visible.load(Acquire)
    }

    /// Tells the threads to end.
    pub(crate) fn stop(&self) {
        self.work.stop();
        self.spares.stop();
    }

    /// Ends the log and lets go of the folder. Background threads have ended. Only the first call
    /// does something.
    pub(crate) fn shut_down(&self) -> Result<()> {
        if self.closed.swap(true, AcqRel) {
            return Ok(());
        }
        // Whoever leads now may have looked before; those who lead later see that it is closed.
        drop(self.writers.lead());
        let synced = self.syncs.wait(self, self.visible());
        // What other threads flush or compact comes to an end before the folder is free; whoever
        // comes later sees that it is closed.
        let _flushing = self.flushing.lock();
        let _compacting = self.compacting.lock();
        let result = synced.and_then(|()| self.end_log());
        let manifest = self.manifest.lock();
        self.released.store(true, Release);
        drop(manifest);
        *self.lock.lock() = None;
        result
    }

    /// Syncs the folder, after files were created in it.
    pub(crate) fn sync_dir(&self) -> Result<()> {
        self.tables
            .fs
            .sync_dir(&self.tables.dir)
            .at("sync", &self.tables.dir)
    }
}
