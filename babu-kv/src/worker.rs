//! Flush and compaction in the background, or on the caller's thread.
//!
//! The threads sleep on condition variables. A failed flush keeps its memtable and is tried again
//! after a pause, or at once when a writer needs the room. The thread that compacts also does idle
//! work, when nothing was written during a pause. Writers are slowed as long as there is more to do
//! than there should be.

use crate::{
    compact::{Debt, level0_runs, level0_stop},
    core::Core,
    error::{Error, Result},
    events::Event,
    options::Background,
    threads::{
        Condvar, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
        thread::{self, JoinHandle},
    },
};
use std::{mem, sync::Arc, time::Duration};

/// Pause after the first of several failures in a row, when nobody asks for another attempt.
const RETRY: Duration = Duration::from_secs(1);
/// It doubles with each of them, so often at most. What cannot be done for ever, such as the
/// compaction of a damaged table, is tried about once a minute then.
const RETRY_DOUBLINGS: u32 = 6;

fn pause_after(failures: u32) -> Duration {
    RETRY * 2_u32.pow(failures.saturating_sub(1).min(RETRY_DOUBLINGS))
}
/// Idle work begins when nothing was written for so long.
const QUIET: Duration = Duration::from_millis(500);
/// What a slowed writer owes is waited for when it is so many nanoseconds. Less is not worth a
/// sleep, and of a thousand small writes few should meet one.
const PAUSE_NS: u64 = 500_000;
/// Longest pause for one write, in nanoseconds.
const PAUSE_NS_MAX: u64 = 100_000_000;

#[derive(Default)]
pub(crate) struct Work {
    inner: Mutex<Inner>,
    flush: Condvar,
    compaction: Condvar,
    progress: Condvar,
    /// Nanoseconds that writers wait for each KiB; changed under `inner`.
    delay_ns: AtomicU64,
    /// Nanoseconds that writers still have to wait, all together.
    owed_ns: AtomicU64,
}

#[derive(Default)]
struct Inner {
    stop: bool,
    flush: bool,
    compact: bool,
    attempts: u64,
    flush_error: Option<Error>,
    compaction_error: Option<Error>,
    /// Compactions that failed since the last one that did not.
    compactions_failed: u32,
    /// Callers that wait until everything is done.
    settling: usize,
    /// The thread that compacts does idle work, for which it may have to wait for writers. Flushes
    /// do not wait for it then, because writers may wait for them.
    idle: bool,
}

impl Work {
    pub(crate) fn wake_flush(&self) {
        self.inner.lock().flush = true;
        self.flush.notify_one();
    }

    pub(crate) fn wake_compaction(&self) {
        self.inner.lock().compact = true;
        self.compaction.notify_one();
    }

    /// There is idle work now.
    pub(crate) fn wake_idle(&self) {
        // Under the lock, so that a thread that is about to sleep hears it.
        let _inner = self.inner.lock();
        self.compaction.notify_one();
    }

    /// Has all work done without a pause, and waits until it is, or an attempt fails.
    pub(crate) fn settle(&self, is_settled: impl Fn() -> bool) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.settling += 1;
        inner.flush = true;
        inner.flush_error = None;
        inner.compact = true;
        inner.compaction_error = None;
        self.flush.notify_one();
        self.compaction.notify_one();
        let result = loop {
            if inner.stop {
                break Err(Error::Closed);
            }
            let failed = inner
                .flush_error
                .as_ref()
                .or(inner.compaction_error.as_ref());
            if let Some(error) = failed {
                break Err(error.clone());
            }
            if is_settled() {
                break Ok(());
            }
            self.progress.wait(&mut inner);
        };
        inner.settling -= 1;
        result
    }

    /// Slows a writer of `bytes` that holds nothing others wait for, as the debt asks. It goes on at
    /// once when a flush or compaction ends. Gives whether it was made to wait.
    pub(crate) fn pace(&self, bytes: usize) -> bool {
        let delay = self.delay_ns.load(Relaxed);
        if delay == 0 {
            return false;
        }
        let here = (bytes as u64).saturating_mul(delay) / 1024;
        if self.owed_ns.fetch_add(here, Relaxed) + here < PAUSE_NS {
            return false;
        }
        let mut inner = self.inner.lock();
        let owed = self.owed_ns.swap(0, Relaxed).min(PAUSE_NS_MAX);
        let waits = self.delay_ns.load(Relaxed) > 0 && !inner.stop;
        if waits {
            let pause = Duration::from_nanos(owed);
            self.progress.wait_for(&mut inner, pause);
        }
        waits
    }

    /// Slows writers as the debt asks from now on. Not while compaction fails: waiting would not
    /// help.
    fn set_pace(&self, inner: &Inner, core: &Core) {
        let delay = match inner.compaction_error {
            Some(_) => 0,
            None if core.options.background == Background::Inline => 0,
            None => Debt::of(&core.state(), &core.options).delay_ns(&core.options),
        };
        let before = self.delay_ns.swap(delay, Relaxed);
        if (before == 0) != (delay == 0) {
            core.events.emit(|| match delay {
                0 => Event::SlowEnd,
                _ => Event::SlowBegin,
            });
        }
    }

    /// A full memtable waits for its flush.
    pub(crate) fn rotated(&self, core: &Core) {
        let mut inner = self.inner.lock();
        inner.flush = true;
        self.set_pace(&inner, core);
        self.flush.notify_one();
    }

    /// Waits until there is room, or an attempt to flush that ended meanwhile failed.
    pub(crate) fn wait_for_flush(
        &self,
        has_room: impl Fn() -> bool,
        is_closed: impl Fn() -> bool,
    ) -> Result<()> {
        let mut inner = self.inner.lock();
        let attempts = inner.attempts;
        inner.flush = true;
        self.flush.notify_one();
        loop {
            if has_room() {
                return Ok(());
            }
            if inner.stop || is_closed() {
                return Err(Error::Closed);
            }
            if inner.attempts != attempts
                && let Some(error) = &inner.flush_error
            {
                return Err(error.clone());
            }
            self.progress.wait(&mut inner);
        }
    }

    pub(crate) fn stop(&self) {
        self.inner.lock().stop = true;
        self.flush.notify_all();
        self.compaction.notify_all();
        self.progress.notify_all();
    }

    /// Whether somebody asked for a compaction since the last look.
    pub(crate) fn take_asked(&self) -> bool {
        mem::take(&mut self.inner.lock().compact)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.inner.lock().stop
    }
}

/// Starts the threads. After an error those that were started are among `threads` too.
pub(crate) fn start(core: &Arc<Core>, threads: &mut Vec<JoinHandle<()>>) -> Result<()> {
    threads.push(spawn(core, "babu-log", |core| core.spares.keep_ready())?);
    threads.push(spawn(core, "babu-flush", flush_loop)?);
    threads.push(spawn(core, "babu-compact", compact_loop)?);
    Ok(())
}

/// Starts the thread that delivers events, if anybody listens.
pub(crate) fn start_herald(core: &Arc<Core>) -> Result<Option<JoinHandle<()>>> {
    if !core.events.has_listener() {
        return Ok(None);
    }
    spawn(core, "babu-events", |core| core.events.deliver_all()).map(Some)
}

fn spawn(core: &Arc<Core>, name: &str, body: fn(&Core)) -> Result<JoinHandle<()>> {
    let (own, dir) = (core.clone(), &core.tables.dir);
    let started = thread::Builder::new()
        .name(name.into())
        .spawn(move || body(&own));
    started.map_err(|e| Error::io("start a thread for", dir, e))
}

fn flush_loop(core: &Core) {
    let work = &core.work;
    loop {
        let mut inner = work.inner.lock();
        while !inner.flush && !inner.stop {
            if inner.flush_error.is_some() {
                work.flush.wait_for(&mut inner, RETRY);
                break;
            }
            work.flush.wait(&mut inner);
        }
        // Too many tables in level 0 would make reads slow: first compaction, unless it fails.
        let limit = level0_stop(&core.options);
        while !inner.stop
            && inner.compaction_error.is_none()
            && !inner.idle
            && level0_runs(&core.state().version) >= limit
        {
            inner.compact = true;
            work.compaction.notify_one();
            work.progress.wait(&mut inner);
        }
        if inner.stop {
            return;
        }
        inner.flush = false;
        drop(inner);
        loop {
            let result = core.flush_oldest();
            let mut inner = work.inner.lock();
            inner.attempts += 1;
            let more = matches!(result, Ok(true)) && !inner.stop;
            inner.flush_error = result.inspect_err(|error| core.count_failure(error)).err();
            inner.compact = true;
            work.set_pace(&inner, core);
            work.compaction.notify_one();
            work.progress.notify_all();
            if !more {
                break;
            }
        }
    }
}

/// What the compaction thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Due,
    Idle,
}

/// Waits for work; `None` when the thread is to end. `quiet` is the last operation of the database
/// when it was last found that nobody writes.
fn next_turn(core: &Core, quiet: &mut Option<u64>) -> Option<Turn> {
    let work = &core.work;
    let mut inner = work.inner.lock();
    loop {
        if inner.stop {
            return None;
        }
        if mem::take(&mut inner.compact) {
            return Some(Turn::Due);
        }
        let last = core.visible();
        if inner.compaction_error.is_some() {
            let pause = pause_after(inner.compactions_failed);
            work.compaction.wait_for(&mut inner, pause);
            inner.compact = true;
        } else if !core.has_idle_work() {
            work.compaction.wait(&mut inner);
        } else if inner.settling > 0 || *quiet == Some(last) {
            inner.idle = true;
            work.progress.notify_all();
            return Some(Turn::Idle);
        } else {
            work.compaction.wait_for(&mut inner, QUIET);
            *quiet = Some(last).filter(|last| *last == core.visible());
        }
    }
}

fn compact_loop(core: &Core) {
    let work = &core.work;
    let mut quiet = None;
    while let Some(turn) = next_turn(core, &mut quiet) {
        let result = match turn {
            Turn::Due => core.compact_once(),
            Turn::Idle => core.work_idle(),
        };
        let mut inner = work.inner.lock();
        inner.idle = false;
        // What is due comes before the rest of the idle work.
        inner.compact |= matches!(result, Ok(true));
        inner.compactions_failed = match result {
            Ok(_) => 0,
            Err(_) => inner.compactions_failed.saturating_add(1),
        };
        inner.compaction_error = result.inspect_err(|error| core.count_failure(error)).err();
        work.set_pace(&inner, core);
        work.progress.notify_all();
    }
}

impl Core {
    /// Does all the background work there is, on this thread. What fails is tried again at the next
    /// commit.
    pub(crate) fn maintain(&self) {
        let flushed = self.flush_all();
        let result = flushed.and_then(|()| {
            while self.compact_once()? {}
            Ok(())
        });
        if let Err(error) = result {
            self.count_failure(&error);
        }
    }

    fn flush_all(&self) -> Result<()> {
        while self.flush_oldest()? {}
        Ok(())
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::{batch::Batch, fs::MemoryFs, options::Options};
    use std::{path::Path, sync::mpsc};

    #[test]
    fn what_fails_again_and_again_is_tried_more_and_more_seldom() {
        let pauses = [0, 1, 2, 3, 7, 8, u32::MAX].map(|n| pause_after(n).as_secs());
        assert_eq!(pauses, [1, 1, 2, 4, 64, 64, 64]);
    }

    /// Idle work may wait for whoever leads, who may wait for a flush: that must not wait for the
    /// thread that does idle work, however many tables there are.
    #[test]
    fn flushes_go_on_beside_idle_work() {
        let options = Options {
            memtable_bytes: 1 << 10,
            memtables_waiting: 1,
            level0_tables: 1,
            fs: Arc::new(MemoryFs::new()),
            ..Options::default()
        };
        let core = crate::open::open(Path::new("/db"), options).unwrap();
        let core = Arc::new(core);
        let id = core.index("index").unwrap();
        let write = move |core: &Core| {
            let mut batch = Batch::new();
            let index = crate::Index {
                name: "index".into(),
                id,
            };
            batch.put(&index, b"key", &[7; 300]);
            batch.delete(&index, b"other");
            core.commit(batch).map(drop)
        };
        write(&core).unwrap();
        core.work.inner.lock().settling = 1;
        assert_eq!(next_turn(&core, &mut None), Some(Turn::Idle));
        let flusher = spawn(&core, "flush", flush_loop).unwrap();
        let (done, is_done) = mpsc::channel();
        let own = core.clone();
        let writer = thread::spawn(move || {
            while level0_runs(&own.state().version) <= level0_stop(&own.options) {
                write(&own)?;
            }
            let _ = done.send(());
            Ok::<_, Error>(())
        });
        is_done.recv_timeout(Duration::from_secs(20)).unwrap();
        core.work_idle().unwrap();
        core.stop();
        writer.join().unwrap().unwrap();
        flusher.join().unwrap();
    }
}
