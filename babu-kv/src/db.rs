//! The handles that users hold.

use crate::{
    backup::Backup,
    batch::Batch,
    core::Core,
    error::Result,
    events::Event,
    iter::Iter,
    keys,
    options::{Background, Durability, IndexOptions, Options},
    progress::Progress,
    slice::Value,
    snapshot::Snapshot,
    stats::{LevelStats, Stats},
    threads::{
        Mutex,
        thread::{self, JoinHandle},
    },
    verify::Verified,
    worker,
};
use std::{
    collections::BTreeSet,
    fmt,
    io::Write,
    ops::Bound,
    path::Path,
    sync::{Arc, atomic::Ordering::Relaxed},
};

/// An open database; clones share it.
///
/// It is closed by [`Database::close`] or when the last clone is dropped. Both sync the log, end
/// the threads and release the folder.
#[derive(Clone)]
pub struct Database(Arc<Handle>);

struct Handle {
    core: Arc<Core>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Delivers events.
    herald: Mutex<Option<JoinHandle<()>>>,
}

/// An ordered map of bytes to bytes inside a database.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Index {
    pub(crate) name: Arc<str>,
    pub(crate) id: u32,
}

impl Index {
    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number, which stays the same for the life of the database.
    pub fn id(&self) -> u32 {
        self.id
    }
}

/// A committed batch.
#[derive(Clone)]
pub struct Ticket {
    core: Arc<Core>,
    sequence: u64,
}

impl Ticket {
    /// The number of the last operation of the batch.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Waits until the batch survives power loss, and does what is needed for it. After an error
    /// the batch is still visible, and may or may not survive.
    pub fn wait_durable(&self) -> Result<()> {
        self.core.syncs.wait(&self.core, self.sequence)
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

impl Database {
    /// Opens the database in `dir`, creating it when there is none. The folder is locked: a second
    /// open, from here or elsewhere, gives [`Error::Locked`](crate::Error::Locked).
    pub fn open(dir: &Path, options: Options) -> Result<Database> {
        let core = Arc::new(crate::open::open(dir, options)?);
        // Should a thread not start, the drop of the handle ends those that did.
        let handle = Handle {
            core,
            threads: Mutex::default(),
            herald: Mutex::default(),
        };
        let core = &handle.core;
        if core.options.background == Background::Threads {
            // Before the first writer comes. Whoever needs one gets the error.
            let _ = core.spares.prepare();
            worker::start(core, &mut handle.threads.lock())?;
            *handle.herald.lock() = worker::start_herald(core)?;
        }
        core.work.wake_flush();
        core.spares.wake();
        Ok(Database(Arc::new(handle)))
    }

    /// Opens the database in `dir` to read it as it is now, also while another process has it open
    /// and writes. Takes no lock and changes no file: a folder without permission to write will do.
    ///
    /// It shows one instant, which does not move on: a prefix of all batches with every one that
    /// was acknowledged before the call. Files of that instant that the owner removes meanwhile stay
    /// readable, because all of them are opened here: a file descriptor for each table. A torn end
    /// of the log, where the owner may just be writing, is left out. The log must fit into memory.
    ///
    /// Whatever would change the database gives [`Error::ReadOnly`](crate::Error::ReadOnly);
    /// [`Database::backup`] works and holds that instant. When the owner replaces files faster than
    /// they can be opened, the error of the last attempt is given; a damaged or missing file gives
    /// the same errors as [`Database::open`].
    pub fn open_read_only(dir: &Path, options: Options) -> Result<Database> {
        let core = Arc::new(crate::read_only::open(dir, options)?);
        Ok(Database(Arc::new(Handle {
            core,
            threads: Mutex::default(),
            herald: Mutex::default(),
        })))
    }

    fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    /// Ends a call: the listener hears of damage and of what else happened in it.
    fn observe<T>(&self, result: Result<T>) -> Result<T> {
        let core = self.core();
        let result = core.events.observe(result);
        if core.options.background == Background::Inline {
            core.events.deliver();
        }
        result
    }

    fn backed_up(&self, made: Result<Backup>) -> Result<Backup> {
        if let Ok(backup) = &made {
            self.core().events.emit(|| Event::Backup {
                number: backup.number,
                sequence: backup.sequence,
                bytes: backup.bytes_new,
            });
        }
        self.observe(made)
    }

    /// The index of this name, created durably when missing. Names have 1 to 255 bytes.
    pub fn index(&self, name: &str) -> Result<Index> {
        Ok(Index {
            id: self.core().index(name)?,
            name: name.into(),
        })
    }

    /// [`index`](Database::index) that declares what it is used for. The declaration is durable when
    /// this returns; a different one holds for the tables that are written after it.
    pub fn index_with(&self, name: &str, options: IndexOptions) -> Result<Index> {
        let index = self.index(name)?;
        self.core().declare(index.id, options.prefix_bytes)?;
        Ok(index)
    }

    /// Drops the index of this name with all that is in it; `false` when there is none. It is dropped
    /// as a whole or not at all after any crash, durably when this returns, and its number is never
    /// used again: an index that is created under the same name is another one, and empty.
    ///
    /// Handles of a dropped index find nothing, and a batch that uses one is refused with
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument); snapshots taken before still see it. Its place on
    /// disk comes back with compaction. Waits for a sync of the log and one of the manifest, as
    /// [`index`](Database::index) does; after an error it may be dropped already, and can be dropped
    /// again. Batches that are being written at the same moment come before or after.
    pub fn drop_index(&self, name: &str) -> Result<bool> {
        self.core().drop_index(name)
    }

    /// All indices that there are, by name. Waits for an index that is just being created, and for
    /// a flush or compaction that is just being recorded.
    pub fn indices(&self) -> Vec<Index> {
        let manifest = self.core().manifest.lock();
        let indices = manifest.indices.iter();
        indices
            .filter(|(_, id)| !self.core().indices.is_dropped(**id))
            .map(|(name, id)| Index {
                id: *id,
                name: name.as_str().into(),
            })
            .collect()
    }

    /// Writes a batch. When it returns, the batch is visible and survives the end of this process;
    /// [`Ticket::wait_durable`] makes it survive power loss. After an error nothing of it is
    /// visible.
    pub fn commit(&self, batch: Batch) -> Result<Ticket> {
        let sequence = self.observe(self.core().commit(batch))?;
        Ok(Ticket {
            core: self.core().clone(),
            sequence,
        })
    }

    /// Writes a batch with the durability asked for; gives the number of its last operation.
    pub fn write(&self, batch: Batch, durability: Durability) -> Result<u64> {
        let sequence = self.observe(self.core().commit(batch))?;
        if durability == Durability::Synced {
            self.observe(self.core().syncs.wait(self.core(), sequence))?;
        }
        Ok(sequence)
    }

    /// Makes everything that was committed before survive power loss.
    pub fn sync(&self) -> Result<()> {
        self.core().syncs.wait(self.core(), self.core().visible())
    }

    /// The value of `key` as of now.
    pub fn get(&self, index: &Index, key: &[u8]) -> Result<Option<Value>> {
        self.core().check_open()?;
        let (state, sequence) = self.core().now();
        let found = keys::with_full_key(index.id, key, |full| state.get(full, sequence));
        self.observe(found)
    }

    /// The values of several keys as of now, all of the same instant. See
    /// [`Snapshot::multi_get`].
    pub fn multi_get(&self, keys: &[(&Index, &[u8])]) -> Result<Vec<Option<Value>>> {
        self.core().check_open()?;
        let keys = keys.iter().map(|(index, key)| (index.id, *key));
        let (state, sequence) = self.core().now();
        self.observe(state.multi_get(keys, sequence))
    }

    /// All indices as they are now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            pin: self.core().pin_now(),
        }
    }

    /// Makes all snapshots and iterators that do not see operation `sequence` let go of what they
    /// hold, as [`Options::snapshot_operations_max`] does by itself; gives how many. For a limit by
    /// time, note the [`Snapshot::sequence`] of a new snapshot now and then.
    pub fn release_snapshots_before(&self, sequence: u64) -> usize {
        self.observe(Ok(self.core().release_snapshots(sequence)))
            .unwrap_or_default()
    }

    /// Entries between two bounds, on a new snapshot.
    pub fn range(&self, index: &Index, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Iter {
        self.snapshot().range(index, from, to)
    }

    /// Entries whose key starts with `prefix`, on a new snapshot.
    pub fn prefix(&self, index: &Index, prefix: &[u8]) -> Iter {
        self.snapshot().prefix(index, prefix)
    }

    /// Writes all that was committed before to tables, and waits for it.
    pub fn flush(&self) -> Result<()> {
        self.observe(self.core().flush())
    }

    /// Merges all tables into one level, and waits for it. Nothing deleted is left on disk then,
    /// unless a snapshot holds it.
    pub fn compact(&self) -> Result<()> {
        self.observe(self.core().compact_all())
    }

    /// Waits until no flush and no compaction is due or under way, and nothing is left of what
    /// background threads do for readers while nobody writes, which starts at once instead of after
    /// a pause: deleted entries leave memory (unless there are few) and tables, and level 0 is
    /// merged down. Gives the error of a flush or compaction that fails meanwhile. Beside writers
    /// that never rest it may wait for ever.
    pub fn settle(&self) -> Result<()> {
        self.core().settle()
    }

    /// Makes a copy in the folder `destination`, which must be empty or missing and on the same
    /// file system. It has at least all that was committed before, opens as a database of its own,
    /// and costs a few hard links.
    pub fn checkpoint(&self, destination: &Path) -> Result<()> {
        let made = self.core().checkpoint(destination).inspect(|()| {
            self.core().events.emit(|| Event::Checkpoint {
                destination: destination.to_path_buf(),
            });
        });
        self.observe(made)
    }

    /// Makes a backup in the folder `destination`, which is created when missing and may hold
    /// earlier ones, on any file system that [`Options::fs`] reaches. Only files that are not there
    /// yet are copied. See [`backup`](crate::backup) for the other half.
    ///
    /// It holds all that was committed before the call, and nothing that was committed after it
    /// returned, as of one instant, which [`Backup::sequence`] names. When it returns, the backup
    /// survives power loss; after an error the earlier ones are as they were. Waits for one sync of
    /// the log, for the copies, and for nobody else; writers, flushes and compactions go on, and
    /// files that they no longer need stay until the backup is done. Rarely, when many small backups
    /// have split the log into many segments, it flushes first. A damaged table gives
    /// [`Error::Corrupt`](crate::Error::Corrupt) and no backup; a folder that another call is
    /// writing to gives [`Error::Locked`](crate::Error::Locked).
    pub fn backup(&self, destination: &Path) -> Result<Backup> {
        self.backed_up(self.core().backup(destination, None, &mut |_| {}))
    }

    /// [`backup`](Database::backup) that notes the time, in seconds since 1970, for those who list
    /// backups. The engine has no clock.
    pub fn backup_at(&self, destination: &Path, time: u64) -> Result<Backup> {
        self.backed_up(self.core().backup(destination, Some(time), &mut |_| {}))
    }

    /// [`backup`](Database::backup) that tells `observe` how far it is after each piece of at most
    /// 1 MiB. No lock is held meanwhile that anybody waits for but other backups to this folder: to
    /// spare the disk for others, sleep there.
    pub fn backup_with(
        &self,
        destination: &Path,
        time: Option<u64>,
        observe: &mut dyn FnMut(Progress),
    ) -> Result<Backup> {
        self.backed_up(self.core().backup(destination, time, observe))
    }

    /// Writes a backup to `output` as one stream, which [`backup::receive`](crate::backup::receive)
    /// takes into a folder and [`backup::restore_stream`](crate::backup::restore_stream) makes a
    /// database of. What it holds is as for [`backup`](Database::backup); `observe` as for
    /// [`backup_with`](Database::backup_with).
    ///
    /// Files whose names are in `have` are left out: those that the receiver has, by
    /// [`backup::contents`](crate::backup::contents) or [`Backup::files`] of an earlier backup there.
    /// An empty set makes a full backup. The number of the backup is the receiver's matter, and 1
    /// here. After an error the stream has no end, and nobody takes it.
    pub fn backup_to(
        &self,
        output: &mut dyn Write,
        have: &BTreeSet<String>,
        time: Option<u64>,
        observe: &mut dyn FnMut(Progress),
    ) -> Result<Backup> {
        self.backed_up(self.core().backup_to(output, have, time, observe))
    }

    /// Reads every table from disk and checks all checksums, beside readers and writers. The error
    /// names the first damage found. (The log is checked when the database is opened.)
    pub fn verify(&self) -> Result<Verified> {
        self.observe(self.core().verify(&mut |_| {}))
    }

    /// [`verify`](Database::verify) that tells `observe` how far it is after each table.
    pub fn verify_with(&self, observe: &mut dyn FnMut(Progress)) -> Result<Verified> {
        self.observe(self.core().verify(observe))
    }

    /// The database in numbers.
    pub fn stats(&self) -> Stats {
        let core = self.core();
        let state = core.state();
        let cache = core.tables.cache.stats();
        let oldest = core.pins.oldest();
        let waiting: usize = state.waiting.iter().map(|w| w.memtable.bytes()).sum();
        let level = |tables: &Vec<Arc<crate::table::Table>>| LevelStats {
            tables: tables.len(),
            bytes: tables.iter().map(|t| t.meta.size).sum(),
            entries: tables.iter().map(|t| t.meta.entries).sum(),
            tombstones: tables.iter().map(|t| t.meta.tombstones).sum(),
        };
        Stats {
            sequence_visible: core.visible(),
            sequence_durable: core.syncs.durable(),
            memtable_bytes: state.active.bytes() + waiting,
            memtables_waiting: state.waiting.len(),
            memory_max_bytes: core.tables.memory.total_bytes(),
            cache_bytes: cache.bytes,
            cache_hits: cache.hits,
            cache_misses: cache.misses,
            index_bytes: core.tables.readers.bytes(),
            open_tables: core.tables.readers.count(),
            pinned_block_bytes: cache.pinned_bytes,
            pinned_memtable_bytes: core.pinned_memtable_bytes(),
            pinned_table_bytes: core.tables.obsolete_bytes.load(Relaxed),
            log_spare_bytes: core.spares.bytes(),
            snapshots: core.pins.count(),
            snapshot_oldest_sequence: oldest,
            snapshot_age_operations: oldest.map_or(0, |s| core.visible().saturating_sub(s)),
            snapshots_released: core.pins.released(),
            events_lost: core.events.lost(),
            levels: state.version.levels.iter().map(level).collect(),
            commits: core.counters.commits.load(Relaxed),
            log_writes: core.counters.log_writes.load(Relaxed),
            stalls: core.counters.stalls.load(Relaxed),
            pauses: core.counters.pauses.load(Relaxed),
            flushes: core.counters.flushes.load(Relaxed),
            flushed_bytes: core.counters.flushed_bytes.load(Relaxed),
            compactions: core.counters.compactions.load(Relaxed),
            compacted_bytes: core.counters.compacted_bytes.load(Relaxed),
            background_failures: core.counters.background_failures.load(Relaxed),
            background_error: core.counters.background_error.lock().clone(),
            removals_failed: core.tables.removals_failed.load(Relaxed),
        }
    }

    /// Closes the database for all clones. What was committed is durable when it returns without an
    /// error. Snapshots and iterators stay usable until the database is opened again; then they may
    /// fail, because files that they read from may be gone.
    pub fn close(self) -> Result<()> {
        self.0.shut_down()
    }
}

impl Handle {
    fn shut_down(&self) -> Result<()> {
        self.core.stop();
        for thread in self.threads.lock().drain(..) {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
        let result = self.core.shut_down();
        self.core.events.end();
        // A listener may hold the last clone of the database.
        if let Some(herald) = self.herald.lock().take()
            && herald.thread().id() != thread::current().id()
        {
            let _ = herald.join();
        }
        if self.core.options.background == Background::Inline {
            self.core.events.deliver();
        }
        result
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Who wants to know of errors calls `close`.
        let _ = self.shut_down();
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database")
            .field("dir", &self.core().tables.dir)
            .finish_non_exhaustive()
    }
}
