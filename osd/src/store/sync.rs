//! Durability: one fdatasync for everybody who waits.
//!
//! Whoever needs a sequence number durable asks. The first to ask syncs for all records written so
//! far, without any lock held, the others wait for the end and look again. An fsync that fails is
//! never repeated: the kernel may have dropped the bytes and would report success. The segment is
//! closed, those who waited get the error, files with lost writes are remembered until told.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use xtfs_protocol::ids::FileId;

use super::Store;
use crate::error::{Result, StoreError};

/// Longest wait for one fsync of somebody else.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// Failures that are remembered.
const FAILURES_MAX: usize = 16;

/// Who syncs, and what is durable.
#[derive(Default)]
pub(crate) struct GroupSync {
    state: Mutex<State>,
    ended: Condvar,
    durable: AtomicU64,
}

#[derive(Default)]
struct State {
    running: bool,
    /// Ranges of sequence numbers whose fsync failed: behind the first, up to the second.
    failed: Vec<(u64, u64)>,
}

impl GroupSync {
    /// Everything up to this sequence number is durable, as far as anybody knows.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    pub(crate) fn start_at(&self, sequence: u64) {
        self.durable.store(sequence, Ordering::Release);
    }

    /// Waits until a sequence number is durable; `sync` syncs all and says up to which number.
    fn wait(&self, sequence: u64, sync: impl Fn() -> std::result::Result<u64, u64>) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            let lost = |(from, to): &(u64, u64)| *from < sequence && sequence <= *to;
            if state.failed.iter().any(lost) {
                return Err(StoreError::Sync { what: "failed" });
            }
            if self.durable() >= sequence {
                return Ok(());
            }
            if state.running {
                if self.ended.wait_for(&mut state, WAIT_MAX).timed_out() {
                    return Err(StoreError::Sync {
                        what: "does not end",
                    });
                }
                continue;
            }
            state.running = true;
            drop(state);
            let outcome = sync();
            state = self.state.lock();
            state.running = false;
            let before = self.durable();
            let (Ok(reached) | Err(reached)) = outcome;
            if outcome.is_err() {
                state.failed.push((before, reached));
                let surplus = state.failed.len().saturating_sub(FAILURES_MAX);
                state.failed.drain(..surplus);
            }
            self.durable.store(before.max(reached), Ordering::Release);
            self.ended.notify_all();
        }
    }
}

impl Store {
    /// Returns when everything up to a sequence number is durable.
    pub(super) fn sync_to(&self, sequence: u64) -> Result<()> {
        self.sync.wait(sequence, || self.sync_all())
    }

    /// Whether a flush of a file would have to wait, or to report a failure.
    pub(crate) fn is_dirty(&self, file: FileId) -> bool {
        let appender = self.appender.lock();
        appender.dirty_files.contains_key(&file) || appender.suspects.contains(&file)
    }

    /// Returns when everything written to a file is durable.
    ///
    /// # Errors
    /// [`StoreError::NotDurable`], once for each failure, when earlier writes may be lost.
    pub(crate) fn flush(&self, file: FileId) -> Result<()> {
        let sequence = {
            let mut appender = self.appender.lock();
            if appender.suspects.remove(&file) {
                return Err(StoreError::NotDurable { file });
            }
            appender.dirty_files.get(&file).copied()
        };
        sequence.map_or(Ok(()), |sequence| self.sync_file(file, sequence))
    }

    /// Returns when a record of a file is durable.
    pub(super) fn sync_file(&self, file: FileId, sequence: u64) -> Result<()> {
        self.sync_to(sequence).map_err(|error| {
            self.appender.lock().suspects.remove(&file);
            tracing::error!(%file, %error, "writes could not be made durable");
            StoreError::NotDurable { file }
        })
    }

    /// Syncs every segment with unsynced records; says up to which number, also when it failed.
    fn sync_all(&self) -> std::result::Result<u64, u64> {
        let (target, (sealed, open)) = {
            let appender = self.appender.lock();
            let target = appender.next_sequence.saturating_sub(1);
            (target, appender.files_to_sync())
        };
        let failed = |path: &Path, error: io::Error| {
            tracing::error!(path = %path.display(), %error, "fsync failed; going on in a new segment");
            self.appender.lock().poison()
        };
        self.files
            .sync_names()
            .map_err(|error| failed(self.files.dir(), error))?;
        for (segment, file) in sealed.iter().chain(&open) {
            file.sync_data()
                .map_err(|error| failed(&self.files.path(*segment), error))?;
        }
        self.appender.lock().synced(target, &sealed);
        Ok(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn many_who_wait_share_few_syncs_and_all_are_served() {
        let group = GroupSync::default();
        let written = AtomicU64::new(0);
        let syncs = AtomicU64::new(0);
        let start = Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..50 {
                        let sequence = written.fetch_add(1, Ordering::SeqCst) + 1;
                        let sync = || {
                            syncs.fetch_add(1, Ordering::SeqCst);
                            Ok(written.load(Ordering::SeqCst))
                        };
                        group.wait(sequence, sync).unwrap();
                        assert!(group.durable() >= sequence);
                    }
                });
            }
        });
        assert!(syncs.load(Ordering::SeqCst) <= 400);
        assert_eq!(group.durable(), 400);
    }

    #[test]
    fn a_failed_sync_fails_those_it_was_for_and_nobody_else() {
        let group = GroupSync::default();
        assert!(group.wait(3, || Err(5)).is_err());
        assert!(group.wait(5, || Ok(9)).is_err());
        assert!(group.wait(6, || Ok(9)).is_ok());
    }
}
