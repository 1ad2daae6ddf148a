//! A snapshot: all indices as they were at one instant.

use crate::{
    Index,
    error::Result,
    iter::Iter,
    keys::{self, Range},
    pins::Pin,
    slice::Value,
};
use std::{ops::Bound, sync::Arc};

/// All indices as they were at one instant.
///
/// Taking one and dropping the last clone costs an allocation and a place in the list of all
/// snapshots, in which threads seldom wait for each other; cloning costs an atomic operation. It
/// reads from the memtables and
/// tables of its instant, which stay as long as it lives: a snapshot kept for long holds memory and
/// disk space. Where that has a limit
/// ([`Options::snapshot_operations_max`](crate::Options::snapshot_operations_max)), one that is too
/// old gives [`Error::SnapshotTooOld`](crate::Error::SnapshotTooOld).
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) pin: Arc<Pin>,
}

impl Snapshot {
    /// The value of `key`, if there is one.
    pub fn get(&self, index: &Index, key: &[u8]) -> Result<Option<Value>> {
        let found = keys::with_full_key(index.id(), key, |full| {
            self.pin.state()?.get(full, self.pin.sequence)
        });
        self.pin.observe(found)
    }

    /// The values of several keys, in the order of the keys. Costs less than as many calls of
    /// [`get`](Snapshot::get) when keys lie close together: each block is read once.
    pub fn multi_get(&self, keys: &[(&Index, &[u8])]) -> Result<Vec<Option<Value>>> {
        let keys = keys.iter().map(|(index, key)| (index.id(), *key));
        let found = self.pin.state();
        let found = found.and_then(|state| state.multi_get(keys, self.pin.sequence));
        self.pin.observe(found)
    }

    /// Entries whose key starts with `prefix`.
    pub fn prefix(&self, index: &Index, prefix: &[u8]) -> Iter {
        Iter::new(self.pin.clone(), Range::prefix(index.id(), prefix))
    }

    /// Entries between two bounds.
    pub fn range(&self, index: &Index, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Iter {
        Iter::new(self.pin.clone(), Range::new(index.id(), from, to))
    }

    /// The sequence number of the last operation that it sees.
    pub fn sequence(&self) -> u64 {
        self.pin.sequence
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("sequence", &self.pin.sequence)
            .finish_non_exhaustive()
    }
}
