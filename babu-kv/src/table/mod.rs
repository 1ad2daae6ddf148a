//! Sorted tables: immutable files of entries in order of their full key, one entry for each key.

pub(crate) mod block;
pub(crate) mod block_cursor;
pub(crate) mod builder;
mod check;
mod codec;
pub(crate) mod cursor;
mod descriptors;
pub(crate) mod filter;
pub(crate) mod format;
mod index;
pub(crate) mod reader;
pub(crate) mod readers;
pub(crate) mod salvage;
#[cfg(test)]
mod tests;

use crate::{
    cache::Cache,
    error::Result,
    fs::Fs,
    keys,
    memory::Memory,
    memtable::Found,
    options::Options,
    threads::{
        RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    tombstones::Tombstones,
};
use block::Block;
use descriptors::Sparing;
use reader::Reader;
use readers::{Opened, Readers, Slot};
use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// For index numbers the length of the prefixes that go into filters.
pub(crate) type Prefixes = Arc<BTreeMap<u32, u8>>;

/// What all tables of a database share.
pub(crate) struct Tables {
    pub fs: Arc<dyn Fs>,
    pub dir: PathBuf,
    pub cache: Cache,
    pub readers: Arc<Readers>,
    pub memory: Memory,
    /// What new tables go by; those that are there say themselves what is in their filters.
    pub prefixes: RwLock<Prefixes>,
    pub removals_failed: AtomicU64,
    /// Bytes of tables that no version to come names and that a reader still holds.
    pub obsolete_bytes: AtomicU64,
}

impl Tables {
    pub(crate) fn new(fs: Arc<dyn Fs>, dir: &Path, options: &Options) -> Tables {
        let readers = Arc::new(Readers::new(options.open_tables));
        Tables {
            fs: Arc::new(Sparing::new(fs, &readers)),
            dir: dir.to_path_buf(),
            cache: Cache::new(options.memory_bytes),
            readers,
            memory: Memory::new(options.memory_bytes),
            prefixes: RwLock::default(),
            removals_failed: AtomicU64::new(0),
            obsolete_bytes: AtomicU64::new(0),
        }
    }

    /// Memtables take so many bytes now.
    pub(crate) fn set_memtable_bytes(&self, bytes: usize) {
        self.memory.set_memtables(bytes, &self.readers, &self.cache);
    }

    pub(crate) fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format::table_name(number))
    }
}

/// What the manifest says of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableMeta {
    pub number: u64,
    pub size: u64,
    /// XXH3-64 of the whole file.
    pub hash: u64,
    pub entries: u64,
    /// Entries that delete, and range tombstones.
    pub tombstones: u64,
    pub sequence_max: u64,
    /// First full key of an entry or range tombstone.
    pub from: Vec<u8>,
    /// The full key after the last.
    pub to: Vec<u8>,
}

/// A table in a version. The file is opened when it is read and may be closed between two reads. It
/// is removed when the last version or reader that holds an obsolete one is gone.
pub(crate) struct Table {
    pub meta: TableMeta,
    tables: Arc<Tables>,
    slot: Arc<Slot>,
    obsolete: AtomicBool,
}

impl Table {
    pub(crate) fn new(tables: Arc<Tables>, meta: TableMeta) -> Arc<Table> {
        Arc::new(Table {
            meta,
            tables,
            slot: Arc::default(),
            obsolete: AtomicBool::new(false),
        })
    }

    /// The open file, for one use: whoever keeps it keeps a descriptor.
    pub(crate) fn reader(&self) -> Result<Opened> {
        if let Some(reader) = self.slot.get() {
            return Ok(reader);
        }
        // Only one thread opens a table. The lock is held while the file is read, and only those
        // wait who need the same table.
        let _one = self.slot.opening.lock();
        if let Some(reader) = self.slot.get() {
            return Ok(reader);
        }
        let number = self.meta.number;
        let reader = self.tables.readers.open(number, &self.slot, || {
            Reader::open(self.tables.clone(), number, self.meta.size)
        })?;
        self.tables
            .memory
            .divide(&self.tables.readers, &self.tables.cache);
        Ok(reader)
    }

    /// Reads the whole file and compares it with what the manifest says of it.
    pub(crate) fn verify(&self) -> Result<()> {
        self.reader()?.verify(&self.meta)
    }

    /// No version that will be opened again names this table.
    pub(crate) fn make_obsolete(&self) {
        if !self.obsolete.swap(true, Relaxed) {
            self.tables
                .obsolete_bytes
                .fetch_add(self.meta.size, Relaxed);
        }
    }

    pub(crate) fn covers(&self, key: &[u8]) -> bool {
        self.meta.from.as_slice() <= key && key < self.meta.to.as_slice()
    }

    pub(crate) fn overlaps(&self, range: &keys::Range) -> bool {
        range.overlaps(&self.meta.from, &self.meta.to)
    }

    /// What the table knows of `key`, and the highest sequence number of a range tombstone in it
    /// that covers the key.
    pub(crate) fn get(&self, key: &[u8], hash: u64) -> Result<(Option<Found>, u64)> {
        let reader = self.reader()?;
        let hidden = reader.tombstones().covering(key, u64::MAX);
        Ok((reader.get(key, hash)?, hidden))
    }

    /// [`get`](Table::get) for keys in order; `last` is the block that the last one was looked for in.
    pub(crate) fn get_near(
        &self,
        key: &[u8],
        hash: u64,
        last: &mut Option<(format::Handle, Block)>,
    ) -> Result<(Option<Found>, u64)> {
        let reader = self.reader()?;
        let hidden = reader.tombstones().covering(key, u64::MAX);
        Ok((reader.get_near(key, hash, last)?, hidden))
    }

    /// Adds the range tombstones that share keys with `range`.
    pub(crate) fn tombstones_into(&self, range: &keys::Range, out: &mut Tombstones) -> Result<()> {
        if self.meta.tombstones > 0 {
            let reader = self.reader()?;
            let here = reader.tombstones().within(range, u64::MAX);
            here.for_each(|t| out.add(t));
        }
        Ok(())
    }

    /// Whether an entry with a key in `range` may be in it.
    pub(crate) fn may_share(&self, range: &keys::Range) -> Result<bool> {
        Ok(self.overlaps(range) && self.reader()?.may_share(range))
    }

    /// Whether an entry for `key` may be in it.
    pub(crate) fn may_know(&self, key: &[u8], hash: u64) -> Result<bool> {
        if !self.covers(key) {
            return Ok(false);
        }
        Ok(self.reader()?.may_contain(hash))
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.tables.readers.close(self.meta.number);
        if self.obsolete.load(Relaxed) {
            self.tables
                .obsolete_bytes
                .fetch_sub(self.meta.size, Relaxed);
            // What cannot be removed now is removed at the next open.
            if self
                .tables
                .fs
                .remove(&self.tables.path(self.meta.number))
                .is_err()
            {
                self.tables.removals_failed.fetch_add(1, Relaxed);
            }
        }
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.meta.fmt(f)
    }
}
