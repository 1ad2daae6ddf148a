//! What a step sees of a volume: one moment of its database, or a map in tests.

use std::ops::Bound;

use xtfs_protocol::Result;

use crate::keys::Table;

/// Decides after each entry of a scan whether to go on.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<bool>;

/// One moment of a volume.
pub(crate) trait View {
    /// The value of a key.
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Visits the entries between two keys in order, until `visit` says no.
    fn scan(
        &self,
        table: Table,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        visit: Visit<'_>,
    ) -> Result<()>;

    /// The values of keys given in ascending order; cheap when they lie close together.
    fn get_ascending(&self, table: Table, keys: &[[u8; 8]]) -> Result<Vec<Option<Vec<u8>>>> {
        keys.iter().map(|key| self.get(table, key)).collect()
    }
}

/// A change of one key; no value removes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub table: Table,
    pub key: Vec<u8>,
    pub value: Option<Vec<u8>>,
}

#[cfg(test)]
pub(crate) mod memory {
    use std::collections::BTreeMap;

    use super::*;

    /// A volume in memory.
    #[derive(Debug, Clone, Default)]
    pub(crate) struct MemoryView(pub BTreeMap<(Table, Vec<u8>), Vec<u8>>);

    impl MemoryView {
        pub fn apply(&mut self, changes: &[Change]) {
            for change in changes {
                let key = (change.table, change.key.clone());
                match &change.value {
                    Some(value) => self.0.insert(key, value.clone()),
                    None => self.0.remove(&key),
                };
            }
        }

        pub fn count(&self, table: Table) -> usize {
            self.0.keys().filter(|(found, _)| *found == table).count()
        }
    }

    impl View for MemoryView {
        fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
            Ok(self.0.get(&(table, key.to_vec())).cloned())
        }

        fn scan(
            &self,
            table: Table,
            from: Bound<&[u8]>,
            to: Bound<&[u8]>,
            visit: Visit<'_>,
        ) -> Result<()> {
            use std::ops::RangeBounds;
            for ((found, key), value) in &self.0 {
                let inside = RangeBounds::<[u8]>::contains(&(from, to), key.as_slice());
                if *found == table && inside && !visit(key, value)? {
                    break;
                }
            }
            Ok(())
        }
    }
}
