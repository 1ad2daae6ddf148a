//! babu-kv, as it is measured.

use crate::{
    counting::CountingFs,
    engine::{DIRECTORY_BYTES, Durability, Engine, Index, Operation, Setup, Store},
};
use anyhow::Result;
use babu_kv::{Batch, Database, IndexOptions, Options};
use std::{
    path::Path,
    sync::{Arc, atomic::Ordering::Relaxed},
};

/// The engine of this repository.
pub struct BabuKv;

struct Opened {
    database: Database,
    records: babu_kv::Index,
    names: babu_kv::Index,
    fs: CountingFs,
}

impl Engine for BabuKv {
    fn name(&self) -> &'static str {
        "babu-kv"
    }

    fn open(&self, dir: &Path, setup: &Setup) -> Result<Box<dyn Store>> {
        let fs = CountingFs::default();
        // Filters and indices of tables are within this too.
        let mut options = Options {
            memory_bytes: setup.cache_bytes + setup.memtable_bytes * (setup.memtables_waiting + 1),
            memtable_bytes: setup.memtable_bytes,
            memtables_waiting: setup.memtables_waiting,
            ..Options::default()
        };
        if setup.count_syncs {
            options.fs = Arc::new(fs.clone());
        }
        let database = Database::open(dir, options)?;
        let listed = IndexOptions {
            prefix_bytes: DIRECTORY_BYTES as u8,
        };
        Ok(Box::new(Opened {
            records: database.index_with("records", listed)?,
            names: database.index("names")?,
            database,
            fs,
        }))
    }
}

impl Opened {
    fn index(&self, index: Index) -> &babu_kv::Index {
        match index {
            Index::Records => &self.records,
            Index::Names => &self.names,
        }
    }
}

impl Store for Opened {
    fn commit(&self, operations: &[Operation<'_>], durability: Durability) -> Result<()> {
        let mut batch = Batch::new();
        for operation in operations {
            match *operation {
                Operation::Put(index, key, value) => batch.put(self.index(index), key, value),
                Operation::Delete(index, key) => batch.delete(self.index(index), key),
            }
        }
        self.database.write(batch, durability)?;
        Ok(())
    }

    fn get(&self, index: Index, key: &[u8]) -> Result<bool> {
        Ok(self.database.get(self.index(index), key)?.is_some())
    }

    fn scan(&self, index: Index, prefix: &[u8], visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        let mut entries = self.database.prefix(self.index(index), prefix);
        while let Some(entry) = entries.next_borrowed() {
            let (key, value) = entry?;
            visit(key, value);
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(self.database.flush()?)
    }

    fn settle(&self) -> Result<()> {
        Ok(self.database.settle()?)
    }

    fn checkpoint(&self, destination: &Path) -> Result<bool> {
        self.database.checkpoint(destination)?;
        Ok(true)
    }

    fn backup(&self, destination: &Path) -> Result<bool> {
        self.database.backup(destination)?;
        Ok(true)
    }

    fn syncs(&self) -> Option<u64> {
        Some(self.fs.syncs.load(Relaxed))
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.database.close()?)
    }
}
