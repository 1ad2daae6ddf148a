//! What a database counts.

use crate::error::Error;
use crate::threads::Mutex;
use crate::threads::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters since the database was opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub commits: AtomicU64,
    pub log_writes: AtomicU64,
    pub stalls: AtomicU64,
    pub flushes: AtomicU64,
    pub flushed_bytes: AtomicU64,
    pub compactions: AtomicU64,
    pub compacted_bytes: AtomicU64,
    pub background_failures: AtomicU64,
    pub background_error: Mutex<Option<String>>,
}

impl Counters {
    /// Counts a flush or compaction that failed.
    pub(crate) fn count_failure(&self, error: &Error) {
        self.background_failures.fetch_add(1, Relaxed);
        *self.background_error.lock() = Some(error.to_string());
    }
}

/// A level of tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelStats {
    /// Tables in it.
    pub tables: usize,
    /// Bytes of their files.
    pub bytes: u64,
    /// Entries in them, those that delete included.
    pub entries: u64,
    /// Entries and range tombstones that delete.
    pub tombstones: u64,
}

/// The database in numbers; counters run since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The number of the last operation that readers see.
    pub sequence_visible: u64,
    /// The number of the last operation that survives power loss.
    pub sequence_durable: u64,
    /// Bytes of memtables, those that wait for their flush included.
    pub memtable_bytes: usize,
    /// Memtables that wait for their flush.
    pub memtables_waiting: usize,
    /// The budget of memtables, open tables and cache.
    pub memory_bytes_max: usize,
    /// Bytes of blocks in the cache.
    pub cache_bytes: usize,
    /// Blocks found in the cache.
    pub cache_hits: u64,
    /// Blocks read from files.
    pub cache_misses: u64,
    /// Bytes of indices and filters of open tables.
    pub index_bytes: usize,
    /// Tables that are open.
    pub open_tables: usize,
    /// Bytes of blocks that values or iterators hold and that have lost their place in the cache.
    pub pinned_block_bytes: usize,
    /// Bytes of memtables that were flushed and that snapshots or iterators hold.
    pub pinned_memtable_bytes: usize,
    /// Bytes on disk of tables that are obsolete and that snapshots, iterators or backups hold.
    pub pinned_table_bytes: u64,
    /// Levels of tables, level 0 first.
    pub levels: Vec<LevelStats>,
    /// Batches committed.
    pub commits: u64,
    /// Writes to the log; less than `commits` when writers were grouped.
    pub log_writes: u64,
    /// Times that writers waited for a flush.
    pub stalls: u64,
    /// Memtables flushed.
    pub flushes: u64,
    /// Bytes of tables that flushes wrote.
    pub flushed_bytes: u64,
    /// Compactions done.
    pub compactions: u64,
    /// Bytes of tables that compactions wrote.
    pub compacted_bytes: u64,
    /// Flushes and compactions that failed and were or will be tried again.
    pub background_failures: u64,
    /// What the last of them said.
    pub background_error: Option<String>,
    /// Files that could not be removed; the next open removes them.
    pub removals_failed: u64,
}
