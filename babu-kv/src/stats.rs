//! What a database counts.

use crate::error::Error;
use crate::metrics::{self, metrics};
use crate::threads::Mutex;
use crate::threads::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters since the database was opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub commits: AtomicU64,
    pub log_writes: AtomicU64,
    pub stalls: AtomicU64,
    pub pauses: AtomicU64,
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

metrics! {
/// A level of tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelStats {
    /// Tables in it.
    Gauge tables: usize,
    /// Bytes of their files.
    Gauge bytes: u64,
    /// Entries in them, those that delete included.
    Gauge entries: u64,
    /// Entries and range tombstones that delete.
    Gauge tombstones: u64,
}
}

metrics! {
/// The database in numbers; counters run since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The number of the last operation that readers see.
    Gauge sequence_visible: u64,
    /// The number of the last operation that survives power loss.
    Gauge sequence_durable: u64,
    /// Bytes of memtables, those that wait for their flush included.
    Gauge memtable_bytes: usize,
    /// Memtables that wait for their flush.
    Gauge memtables_waiting: usize,
    /// The budget of memtables, open tables and cache.
    Gauge memory_max_bytes: usize,
    /// Bytes of blocks in the cache.
    Gauge cache_bytes: usize,
    /// Blocks found in the cache.
    Counter cache_hits: u64,
    /// Blocks that were not found in the cache.
    Counter cache_misses: u64,
    /// Bytes of indices, filters and dictionaries of open tables.
    Gauge index_bytes: usize,
    /// Tables that are open.
    Gauge open_tables: usize,
    /// Bytes of blocks that values or iterators hold and that have lost their place in the cache.
    Gauge pinned_block_bytes: usize,
    /// Bytes of memtables that were flushed and that snapshots or iterators hold.
    Gauge pinned_memtable_bytes: usize,
    /// Bytes on disk of tables that are obsolete and that snapshots, iterators or backups hold.
    Gauge pinned_table_bytes: u64,
    /// Bytes on disk of the log segment that was made ahead.
    Gauge log_spare_bytes: u64,
    /// Instants that snapshots and iterators hold; clones and iterators of a snapshot share one.
    Gauge snapshots: usize,
    /// Operations that became visible after the oldest of them.
    Gauge snapshot_age_operations: u64,
    /// Snapshots and iterators that had to let go because they were too old.
    Counter snapshots_released: u64,
    /// Batches committed.
    Counter commits: u64,
    /// Writes to the log; less than the batches when writers were grouped.
    Counter log_writes: u64,
    /// Times that writers waited for a flush.
    Counter stalls: u64,
    /// Times that a writer was made to wait a little, because flush and compaction lag behind.
    Counter pauses: u64,
    /// Memtables flushed.
    Counter flushes: u64,
    /// Bytes of tables that flushes wrote.
    Counter flushed_bytes: u64,
    /// Compactions done.
    Counter compactions: u64,
    /// Bytes of tables that compactions wrote.
    Counter compacted_bytes: u64,
    /// Flushes and compactions that failed and were or will be tried again.
    Counter background_failures: u64,
    /// Files that could not be removed; the next open removes them.
    Counter removals_failed: u64,
    /// Events that were lost because the listener was too slow.
    Counter events_lost: u64,
    ;
    /// What the last failure in the background said.
    background_error: Option<String>,
    /// The number of the last operation that the oldest snapshot or iterator sees.
    snapshot_oldest_sequence: Option<u64>,
    /// Levels of tables, level 0 first.
    levels: Vec<LevelStats>,
}
}

impl Stats {
    /// All numbers in Prometheus' text format, with names that start with `babu_kv_`.
    pub fn to_prometheus(&self) -> String {
        metrics::prometheus(self)
    }
}
