//! One budget for what a database keeps in memory.
//!
//! Memtables come first: they hold what is in no table yet. Then come the filters and indices of
//! open tables, because opening one again costs many reads. The block cache has what is left, so
//! it shrinks as memtables fill and grows when they are flushed.
//!
//! What always holds: after [`Memory::divide`] memtables, open tables and cache are within the
//! budget together, as long as memtables alone and one open table are.

use crate::{
    cache::Cache,
    table::{reader::Reader, readers::Readers},
    threads::Mutex,
};
use std::sync::Arc;

/// Memtables may take three quarters of the budget.
const MEMTABLES_PART: (usize, usize) = (3, 4);
/// Open tables may take seven eighths of what memtables leave.
const READERS_PART: (usize, usize) = (7, 8);

/// Bytes of each memtable such that `waiting` full ones and the active one fit into the budget.
pub(crate) fn memtable_bytes_max(memory_bytes: usize, waiting: usize) -> usize {
    memory_bytes / MEMTABLES_PART.1 * MEMTABLES_PART.0 / (waiting + 1)
}

pub(crate) struct Memory {
    total_bytes: usize,
    /// What memtables take. Held over the division, so that an older one does not overwrite a
    /// newer; nobody waits, and files are read and closed without it: the last that holds an obsolete
    /// table gives back its blocks when it closes it.
    memtable_bytes: Mutex<usize>,
}

impl Memory {
    pub(crate) fn new(total_bytes: usize) -> Memory {
        Memory {
            total_bytes,
            memtable_bytes: Mutex::new(0),
        }
    }

    pub(crate) fn total_bytes(&self) -> usize {
        self.total_bytes
    }

    /// Divides the budget anew, given what memtables take now.
    pub(crate) fn set_memtables(&self, bytes: usize, readers: &Readers, cache: &Cache) {
        let mut memtable_bytes = self.memtable_bytes.lock();
        *memtable_bytes = bytes;
        let closed = self.divide_left(bytes, readers, cache);
        drop(memtable_bytes);
        drop(closed);
    }

    /// Divides the budget anew, after tables were opened or closed.
    pub(crate) fn divide(&self, readers: &Readers, cache: &Cache) {
        let memtable_bytes = self.memtable_bytes.lock();
        let closed = self.divide_left(*memtable_bytes, readers, cache);
        drop(memtable_bytes);
        drop(closed);
    }

    fn divide_left(
        &self,
        memtable_bytes: usize,
        readers: &Readers,
        cache: &Cache,
    ) -> Vec<Arc<Reader>> {
        let left = self.total_bytes.saturating_sub(memtable_bytes);
        let closed = readers.resize(left / READERS_PART.1 * READERS_PART.0);
        cache.resize(left.saturating_sub(readers.bytes()));
        closed
    }
}
