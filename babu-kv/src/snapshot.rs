//! A snapshot: all indices as they were at one instant.

use crate::{
    Index,
    error::Result,
    iter::Iter,
    keys::{self, Range},
    slice::Value,
    state::State,
};
use std::{ops::Bound, sync::Arc};

/// All indices as they were at one instant.
///
/// Taking, cloning and dropping one costs a few atomic operations. It reads from the memtables and
/// tables of its instant, which stay as long as it lives: a snapshot kept for long holds memory and
/// disk space.
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) state: Arc<State>,
    pub(crate) sequence: u64,
}

impl Snapshot {
    /// The value of `key`, if there is one.
    pub fn get(&self, index: &Index, key: &[u8]) -> Result<Option<Value>> {
        keys::with_full_key(index.id(), key, |full| self.state.get(full, self.sequence))
    }

    /// The values of several keys, in the order of the keys. Costs less than as many calls of
    /// [`get`](Snapshot::get) when keys lie close together: each block is read once.
    pub fn multi_get(&self, keys: &[(&Index, &[u8])]) -> Result<Vec<Option<Value>>> {
        let keys = keys.iter().map(|(index, key)| (index.id(), *key));
        self.state.multi_get(keys, self.sequence)
    }

    /// Entries whose key starts with `prefix`.
    pub fn prefix(&self, index: &Index, prefix: &[u8]) -> Iter {
        Iter::new(
            self.state.clone(),
            self.sequence,
            Range::prefix(index.id(), prefix),
        )
    }

    /// Entries between two bounds.
    pub fn range(&self, index: &Index, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Iter {
        Iter::new(
            self.state.clone(),
            self.sequence,
            Range::new(index.id(), from, to),
        )
    }

    /// The sequence number of the last operation that it sees.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}
