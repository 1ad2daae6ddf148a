//! A volume's database as the steps see it.

use std::ops::Bound;

use babu_kv::{Batch, Database, Index, IndexOptions, Snapshot};
use xtfs_protocol::Result;

use crate::error::database;
use crate::keys::Table;
use crate::view::{Change, View, Visit};

/// How many neighbours are passed over before a seek is cheaper.
const STEPS_BEFORE_SEEK: usize = 16;

/// The indices of an open database.
pub(crate) struct Tables(Vec<(Table, Index)>);

impl Tables {
    /// Opens or makes every index.
    pub fn open(database: &Database) -> Result<Self> {
        let open = |(table, name): &(Table, &str)| {
            let options = IndexOptions {
                prefix_bytes: table.listed_bytes(),
            };
            let index = database.index_with(name, options);
            let index = index.map_err(crate::error::database)?;
            Ok((*table, index))
        };
        Table::ALL.iter().map(open).collect::<Result<_>>().map(Self)
    }

    pub fn index(&self, table: Table) -> Result<&Index> {
        self.0
            .get(table as usize)
            .map(|(_, index)| index)
            .ok_or_else(|| xtfs_protocol::Error::new(xtfs_protocol::Code::Io, "index is missing"))
    }

    /// Adds changes to a batch.
    pub fn add(&self, batch: &mut Batch, changes: &[Change]) -> Result<()> {
        for change in changes {
            let index = self.index(change.table)?;
            match &change.value {
                Some(value) => batch.put(index, &change.key, value),
                None => batch.delete(index, &change.key),
            }
        }
        Ok(())
    }
}

/// One moment of a database.
pub(crate) struct DatabaseView<'a> {
    pub snapshot: Snapshot,
    pub tables: &'a Tables,
}

impl View for DatabaseView<'_> {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let index = self.tables.index(table)?;
        let value = self.snapshot.get(index, key).map_err(database)?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn scan(
        &self,
        table: Table,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        visit: Visit<'_>,
    ) -> Result<()> {
        let index = self.tables.index(table)?;
        for item in self.snapshot.range(index, from, to) {
            let (key, value) = item.map_err(database)?;
            if !visit(&key, &value)? {
                break;
            }
        }
        Ok(())
    }

    /// One iterator moves over all of them: neighbours cost a step, gaps a seek.
    fn get_ascending(&self, table: Table, keys: &[[u8; 8]]) -> Result<Vec<Option<Vec<u8>>>> {
        let (Some(first), Some(last)) = (keys.first(), keys.last()) else {
            return Ok(Vec::new());
        };
        let index = self.tables.index(table)?;
        let range = (Bound::Included(&first[..]), Bound::Included(&last[..]));
        let mut iter = self.snapshot.range(index, range.0, range.1);
        let mut at = iter.next().transpose().map_err(database)?;
        let mut values = Vec::with_capacity(keys.len());
        for key in keys {
            let mut steps = 0;
            while at.as_ref().is_some_and(|(found, _)| found[..] < key[..]) {
                if steps == STEPS_BEFORE_SEEK {
                    iter.seek(key);
                }
                at = iter.next().transpose().map_err(database)?;
                steps += 1;
            }
            let found = at.as_ref().filter(|(found, _)| found[..] == key[..]);
            values.push(found.map(|(_, value)| value.to_vec()));
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use babu_kv::fs::MemoryFs;
    use babu_kv::{Durability, Options};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn ascending_keys_are_found_over_neighbours_and_gaps(
            stored in prop::collection::btree_set(0u64..2000, 0..400),
            wanted in prop::collection::btree_set(0u64..2000, 0..200),
        ) {
            let options = Options::simulated(Arc::new(MemoryFs::new()));
            let database = Database::open(Path::new("/db"), options).unwrap();
            let tables = Tables::open(&database).unwrap();
            let index = tables.index(Table::Inodes).unwrap();
            let mut batch = Batch::new();
            for number in &stored {
                batch.put(index, &number.to_be_bytes(), &number.to_le_bytes());
            }
            database.write(batch, Durability::Buffered).unwrap();
            let view = DatabaseView { snapshot: database.snapshot(), tables: &tables };
            let keys: Vec<_> = wanted.iter().map(|number| number.to_be_bytes()).collect();
            let found = view.get_ascending(Table::Inodes, &keys).unwrap();
            let expected: Vec<_> = wanted
                .iter()
                .map(|number| stored.contains(number).then(|| number.to_le_bytes().to_vec()))
                .collect();
            prop_assert_eq!(found, expected);
        }
    }
}
