//! What can be chosen when a database is opened.

use crate::{
    events::Listener,
    fs::{Fs, RealFs},
    memory,
    table::readers,
};
use std::sync::Arc;

/// Who does flushes and compactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// Three threads of the database, ended by `close` or the drop of the last clone.
    Threads,
    /// The thread that commits, before its call returns. No threads at all and the same file-system
    /// calls at every run: for simulation and tests.
    Inline,
}

/// What must be true when a write returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The operating system has the bytes: they survive the end of this process, also by `kill -9`,
    /// but not power loss.
    Buffered,
    /// The disk has the bytes: they survive power loss.
    Synced,
}

/// How blocks of tables are compressed. A block that does not become an eighth smaller stays as it
/// is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// LZ4 in all levels.
    Lz4,
    /// LZ4 in levels 0 and 1, which are rewritten soon, and from level 2 down zstd of this level (1
    /// to 19), with a dictionary that is trained for each table and stored in it. Records of files
    /// take a fifth less than with LZ4, and a get that misses the cache takes twice as long.
    Zstd(i32),
}

/// Options of [`Database::open`](crate::Database::open). None of them is stored; they may differ at
/// every open.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes that gather in memory before they are flushed to a table. Default 32 MiB. Doubling:
    /// half as many flushes and less write amplification, twice the memory and the time to replay
    /// the log after a crash.
    pub memtable_bytes: usize,
    /// Full memtables that may wait for their flush before writers wait. Default 3. Doubling:
    /// longer bursts without a stall, and up to twice the memory.
    pub memtables_waiting: usize,
    /// Bytes of memory for memtables, for filters and indices of open tables, and for blocks of
    /// tables, in this order: the block cache has what the others leave. Default 192 MiB, which is
    /// 64 MiB of blocks when all memtables are full. Memtables take three quarters at most, so that
    /// `memtable_bytes` is less when `memtables_waiting` + 1 of them would take more. Doubling: more
    /// reads answered without the disk, and more tables that need not be opened again.
    pub memory_bytes: usize,
    /// Tables that are open at once, each with a file descriptor; those used least recently are
    /// closed. At least 8. Default a quarter of the descriptors that the process may have
    /// (`RLIMIT_NOFILE`). Doubling: fewer tables of a large database are opened again.
    pub open_tables: usize,
    /// Bytes of a table block before compression. Default 4 KiB. Doubling: smaller indices of
    /// tables, more bytes read for each lookup.
    pub block_bytes: usize,
    /// Bytes after which a compaction starts its next table. Default 16 MiB. Doubling: half as many
    /// files, compactions in larger steps.
    pub table_bytes: usize,
    /// Tables of level 0 that may know the same key before a compaction starts. Default 8. Doubling:
    /// less write amplification, more tables to ask at each read.
    pub level0_tables: usize,
    /// Bytes that the first level below level 0 may hold; each further one holds eight times as
    /// many, and the last whatever there is. Default 256 MiB. Doubling: fewer levels, longer
    /// compactions out of level 0.
    pub level1_bytes: u64,
    /// Bits of a Bloom filter for each key. Default 10 (one false positive in a hundred). Doubling:
    /// one in ten thousand, for twice the memory.
    pub filter_bits_per_key: usize,
    /// How blocks of tables are compressed. Default [`Compression::Lz4`].
    pub compression: Compression,
    /// Operations after which a snapshot or iterator is too old: at the next flush or compaction it
    /// lets go of the memtables and tables that it holds, and reading from it gives
    /// [`Error::SnapshotTooOld`](crate::Error::SnapshotTooOld). An iterator lets go at its next
    /// step. Default `u64::MAX`, no limit. Doubling: twice the time for slow readers, and up to
    /// twice the memory and disk space that they hold.
    pub snapshot_operations_max: u64,
    /// Who hears of flushes, compactions, stalls, damage and the like. Default nobody.
    pub listener: Option<Arc<dyn Listener>>,
    /// Who does flushes and compactions. Default [`Background::Threads`].
    pub background: Background,
    /// The file system. Default [`RealFs`].
    pub fs: Arc<dyn Fs>,
}

/// Options of [`Database::index_with`](crate::Database::index_with).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexOptions {
    /// Bytes of the prefixes that are listed, such as the number of a directory in front of names;
    /// default 0. The filters of tables then hold the prefixes of this length too, so that a range
    /// of keys that share one is not looked for in tables without it. Costs
    /// [`Options::filter_bits_per_key`] for each prefix in a table.
    pub prefix_bytes: u8,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            memtable_bytes: 32 << 20,
            memtables_waiting: 3,
            memory_bytes: 192 << 20,
            open_tables: readers::open_max_of_process(),
            block_bytes: 4 << 10,
            table_bytes: 16 << 20,
            level0_tables: 8,
            level1_bytes: 256 << 20,
            filter_bits_per_key: 10,
            compression: Compression::Lz4,
            snapshot_operations_max: u64::MAX,
            listener: None,
            background: Background::Threads,
            fs: Arc::new(RealFs),
        }
    }
}

impl Options {
    /// Defaults on another file system, without threads: for simulation and tests.
    pub fn simulated(fs: Arc<dyn Fs>) -> Options {
        Options {
            fs,
            background: Background::Inline,
            ..Options::default()
        }
    }

    /// The same with every value inside its bounds.
    pub(crate) fn bounded(mut self) -> Options {
        self.memtables_waiting = self.memtables_waiting.clamp(1, 64);
        let memtable_bytes_max =
            memory::memtable_bytes_max(self.memory_bytes, self.memtables_waiting);
        self.memtable_bytes = self
            .memtable_bytes
            .min(memtable_bytes_max)
            .clamp(1 << 10, 1 << 30);
        self.block_bytes = self.block_bytes.clamp(64, 1 << 20);
        self.table_bytes = self.table_bytes.clamp(1 << 10, 1 << 28);
        self.level0_tables = self.level0_tables.clamp(1, 64);
        self.level1_bytes = self.level1_bytes.clamp(1 << 10, 1 << 50);
        self.filter_bits_per_key = self.filter_bits_per_key.clamp(1, 64);
        if let Compression::Zstd(level) = &mut self.compression {
            *level = (*level).clamp(1, 19);
        }
        self
    }
}
