//! What an engine must offer to be measured, and the conditions that are equal for all.
//!
//! An engine opens a folder as a store with two indices. What it has no notion of it leaves out,
//! and its cell in the table stays empty.

use anyhow::Result;
pub use babu_kv::Durability;
use std::{path::Path, thread, time::Duration};

/// Bytes at the beginning of the keys of [`Index::Records`] that say which directory a file is in.
/// Keys with the same are scanned together.
pub const DIRECTORY_BYTES: usize = 8;

/// The indices of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// Key of a file to its record.
    Records,
    /// Number of a file to its key.
    Names,
}

/// One change of a batch.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// Sets a key to a value.
    Put(Index, &'a [u8], &'a [u8]),
    /// Removes a key.
    Delete(Index, &'a [u8]),
}

/// What each engine gets. All of them compress with LZ4, use blocks of 4 KiB and filters with 10
/// bits for each key.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Bytes of the block cache.
    pub cache_bytes: usize,
    /// Bytes of a memtable when it is sealed.
    pub memtable_bytes: usize,
    /// Sealed memtables that may wait before writers do.
    pub memtables_waiting: usize,
    /// Whether [`Store::syncs`] is wanted, where counting costs something.
    pub count_syncs: bool,
}

impl Setup {
    /// For stores that are hardly written to: memtables take next to nothing, so that the cache has
    /// the same size also where both share one budget.
    pub fn reading(cache_bytes: usize) -> Setup {
        Setup {
            cache_bytes,
            memtable_bytes: 1 << 20,
            memtables_waiting: 1,
            count_syncs: false,
        }
    }
}

impl Default for Setup {
    /// What babu-kv does when it is not told.
    fn default() -> Setup {
        let options = babu_kv::Options::default();
        Setup {
            cache_bytes: options.memory_bytes
                - options.memtable_bytes * (options.memtables_waiting + 1),
            memtable_bytes: options.memtable_bytes,
            memtables_waiting: options.memtables_waiting,
            count_syncs: false,
        }
    }
}

/// An engine that can be measured.
pub trait Engine: Sync {
    /// Its name in tables, in JSON and on the command line.
    fn name(&self) -> &'static str;
    /// Opens the store in `dir`, a folder that exists; an empty one becomes a store.
    fn open(&self, dir: &Path, setup: &Setup) -> Result<Box<dyn Store>>;
}

/// An open store.
pub trait Store: Send + Sync {
    /// Makes all changes or none. When it returns they are visible and survive the end of the
    /// process; synced, they survive power loss.
    fn commit(&self, batch: &[Operation<'_>], durability: Durability) -> Result<()>;
    /// Whether the key is there; its value is then in memory.
    fn get(&self, index: Index, key: &[u8]) -> Result<bool>;
    /// Calls `visit` with each key that starts with `prefix` and its value, in order.
    fn scan(&self, index: Index, prefix: &[u8], visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<()>;
    /// Writes memtables to tables, and returns when that is done.
    fn flush(&self) -> Result<()>;
    /// Returns when the engine has no background work left.
    fn settle(&self) -> Result<()>;
    /// Makes a copy by hard links in `destination`, which does not exist; whether it can.
    fn checkpoint(&self, _destination: &Path) -> Result<bool> {
        Ok(false)
    }
    /// Makes a full backup in `destination`, which does not exist; whether it can.
    fn backup(&self, _destination: &Path) -> Result<bool> {
        Ok(false)
    }
    /// How often log files were synced so far, when that is known.
    fn syncs(&self) -> Option<u64> {
        None
    }
    /// Closes it in order.
    fn close(self: Box<Self>) -> Result<()>;
}

/// Returns when `work` has given the same for a tenth of a second: for engines that count what they
/// do in the background, but offer no call that waits for the end of it.
pub fn wait_until_quiet<T: PartialEq>(mut work: impl FnMut() -> T) {
    let mut before = work();
    let mut same = 0;
    while same < 20 {
        thread::sleep(Duration::from_millis(5));
        let now = work();
        same = if now == before { same + 1 } else { 0 };
        before = now;
    }
}
