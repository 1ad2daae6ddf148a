//! Sorted tables: immutable files of entries in order of their full key, one entry for each key.

pub(crate) mod block;
pub(crate) mod builder;
pub(crate) mod cursor;
pub(crate) mod filter;
pub(crate) mod format;
pub(crate) mod reader;
pub(crate) mod salvage;

use crate::{
    cache::Cache,
    error::Result,
    fs::Fs,
    keys,
    memtable::Found,
    threads::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    tombstones::Tombstones,
};
use reader::Reader;
use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, OnceLock},
};

/// What all tables of a database share.
pub(crate) struct Tables {
    pub fs: Arc<dyn Fs>,
    pub dir: PathBuf,
    pub cache: Cache,
    pub removals_failed: AtomicU64,
}

impl Tables {
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

/// A table in a version. The file is opened at the first read, and removed when the last version or
/// reader that holds an obsolete one is gone.
pub(crate) struct Table {
    pub meta: TableMeta,
    tables: Arc<Tables>,
    reader: OnceLock<Arc<Reader>>,
    opening: Mutex<()>,
    obsolete: AtomicBool,
}

impl Table {
    pub(crate) fn new(tables: Arc<Tables>, meta: TableMeta) -> Arc<Table> {
        Arc::new(Table {
            meta,
            tables,
            reader: OnceLock::new(),
            opening: Mutex::new(()),
            obsolete: AtomicBool::new(false),
        })
    }

    pub(crate) fn reader(&self) -> Result<&Arc<Reader>> {
        if let Some(reader) = self.reader.get() {
            return Ok(reader);
        }
        let _one = self.opening.lock();
        if let Some(reader) = self.reader.get() {
            return Ok(reader);
        }
        let reader = Arc::new(Reader::open(
            self.tables.clone(),
            self.meta.number,
            self.meta.size,
        )?);
        Ok(self.reader.get_or_init(|| reader))
    }

    /// Bytes that the open table keeps in memory.
    pub(crate) fn resident_bytes(&self) -> usize {
        self.reader.get().map_or(0, |reader| reader.bytes())
    }

    /// Reads the whole file and compares it with what the manifest says of it.
    pub(crate) fn verify(&self) -> Result<()> {
        self.reader()?.verify(&self.meta)
    }

    /// No version that will be opened again names this table.
    pub(crate) fn make_obsolete(&self) {
        self.obsolete.store(true, Relaxed);
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

    /// Adds the range tombstones that share keys with `range`.
    pub(crate) fn tombstones_into(&self, range: &keys::Range, out: &mut Tombstones) -> Result<()> {
        if self.meta.tombstones > 0 {
            let here = self.reader()?.tombstones().within(range, u64::MAX);
            here.for_each(|t| out.add(t));
        }
        Ok(())
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
        if self.obsolete.load(Relaxed) {
            self.reader.take();
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
