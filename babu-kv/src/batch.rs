//! A batch: changes to several indices that happen together or not at all.
//!
//! The batch is encoded as a log record from the first call, so that a commit only fills in its
//! header and writes it.

use crate::{
    Index,
    error::{Error, Result},
    log::format::{self, OPERATIONS_AT, Operation},
};

/// Longest key in bytes.
pub const KEY_BYTES_MAX: usize = 64 << 10;
/// Longest value in bytes.
pub const VALUE_BYTES_MAX: usize = 64 << 20;
/// Largest batch in bytes, counting keys, values and a few bytes for each operation.
pub const BATCH_BYTES_MAX: usize = 256 << 20;

/// Changes that happen together or not at all. The last operation on a key wins.
#[derive(Clone, Debug)]
pub struct Batch {
    record: Vec<u8>,
    count: u32,
    index_max: u32,
    fault: Option<&'static str>,
}

impl Default for Batch {
    fn default() -> Batch {
        Batch::new()
    }
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch {
            record: Vec::new(),
            count: 0,
            index_max: 0,
            fault: None,
        }
    }

    /// Sets `key` to `value`. A key or value that is too long makes the commit fail.
    pub fn put(&mut self, index: &Index, key: &[u8], value: &[u8]) {
        if value.len() > VALUE_BYTES_MAX {
            self.fault = Some("a value is longer than 64 MiB");
            return;
        }
        self.add(index, Operation::PUT, key, Some(value));
    }

    /// Removes `key`, if it is there.
    pub fn delete(&mut self, index: &Index, key: &[u8]) {
        self.add(index, Operation::DELETE, key, None);
    }

    /// Removes all keys from `from` (included) to `to` (excluded); nothing when `from >= to`.
    pub fn delete_range(&mut self, index: &Index, from: &[u8], to: &[u8]) {
        if from >= to {
            return;
        }
        if to.len() > KEY_BYTES_MAX {
            self.fault = Some("a key is longer than 64 KiB");
            return;
        }
        let to = crate::keys::full_key(index.id(), to);
        self.add(index, Operation::DELETE_RANGE, from, Some(&to));
    }

    fn add(&mut self, index: &Index, tag: u8, key: &[u8], value: Option<&[u8]>) {
        if key.len() > KEY_BYTES_MAX {
            self.fault = Some("a key is longer than 64 KiB");
            return;
        }
        if self.record.len() + key.len() + value.map_or(0, <[u8]>::len) > BATCH_BYTES_MAX
            || self.count == u32::MAX
        {
            self.fault = Some("the batch is larger than 256 MiB");
            return;
        }
        if self.record.is_empty() {
            self.record.reserve(512);
            self.record.resize(OPERATIONS_AT, 0);
        }
        format::put_operation(&mut self.record, tag, index.id(), key, value);
        self.count += 1;
        self.index_max = self.index_max.max(index.id());
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether every operation could be taken in.
    pub(crate) fn is_sound(&self) -> bool {
        self.fault.is_none()
    }

    /// The record, its header not yet filled in, and the number of operations in it. `indices` is
    /// the number of the last index.
    pub(crate) fn into_record(self, indices: u32) -> Result<(Vec<u8>, u32)> {
        if let Some(fault) = self.fault {
            return Err(Error::invalid(fault));
        }
        if self.index_max > indices {
            return Err(Error::invalid(
                "the batch names an index of another database",
            ));
        }
        Ok((self.record, self.count))
    }
}
