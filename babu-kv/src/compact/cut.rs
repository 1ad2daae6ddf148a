//! Where one table ends and the next begins, when a flush or compaction writes several.
//!
//! A table ends when it is large enough, and earlier where that makes later compactions overlap
//! less: at the end of a table of the next level, and where another index begins, because keys of
//! one index may come in order while those of another are scattered.

use crate::{keys, options::Options, table::Table};
use std::sync::Arc;

/// A table ends when it overlaps so many times its largest size in the next level.
const OVERLAP_MAX: u64 = 8;

/// Fewer bytes are not worth a file of their own.
pub(crate) fn part_bytes_min(options: &Options) -> u64 {
    options.table_bytes as u64 / 16
}

pub(crate) struct Cutter {
    table_bytes: u64,
    part_bytes_min: u64,
    /// Tables of the level after the one that is written, in order of their keys.
    next_level: Vec<Arc<Table>>,
    /// The first of them that does not end before the last key.
    at: usize,
    /// Bytes of those before it that the current table overlaps.
    overlap_bytes: u64,
    index: Option<u32>,
}

impl Cutter {
    pub(crate) fn new(options: &Options, next_level: Vec<Arc<Table>>) -> Cutter {
        Cutter {
            table_bytes: options.table_bytes as u64,
            part_bytes_min: part_bytes_min(options),
            next_level,
            at: 0,
            overlap_bytes: 0,
            index: None,
        }
    }

    /// Whether a table of `bytes` ends before `key`. Keys ascend.
    pub(crate) fn ends_before(&mut self, key: &[u8], bytes: u64) -> bool {
        let mut crossed = false;
        while let Some(table) = self.next_level.get(self.at)
            && table.meta.to.as_slice() <= key
        {
            crossed = true;
            self.overlap_bytes += table.meta.size;
            self.at += 1;
        }
        let index = keys::index_of(key);
        let other_index = self.index != index;
        self.index = index;
        let ends = bytes >= self.table_bytes
            || (crossed && bytes >= self.table_bytes / 2)
            || (bytes >= self.part_bytes_min
                && (other_index
                    || (crossed && self.overlap_bytes >= self.table_bytes * OVERLAP_MAX)));
        if ends || bytes == 0 {
            self.overlap_bytes = 0;
        }
        ends && bytes > 0
    }
}
