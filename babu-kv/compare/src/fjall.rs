//! fjall, as it is measured.
//!
//! A keyspace for each index. A batch is given to the operating system before it is acknowledged,
//! as a batch of fjall is by default, or synced. fjall syncs each batch by itself, with the journal
//! locked.

use anyhow::Result;
use babu_kv_bench::engine::{Durability, Engine, Index, Operation, Setup, Store, wait_until_quiet};
use fjall::{
    CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode,
    config::{
        BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy,
        FilterPolicyEntry, HashRatioPolicy,
    },
};
use std::path::Path;

pub struct Fjall;

struct Opened {
    database: Database,
    records: Keyspace,
    names: Keyspace,
}

impl Engine for Fjall {
    fn name(&self) -> &'static str {
        "fjall"
    }

    fn open(&self, dir: &Path, setup: &Setup) -> Result<Box<dyn Store>> {
        let database = Database::builder(dir)
            .cache_size(setup.cache_bytes as u64)
            .open()?;
        // The number of memtables that may wait is fixed: four.
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(setup.memtable_bytes as u64)
                .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
                .data_block_size_policy(BlockSizePolicy::all(4 << 10))
                // As many buckets as the others have: three for four entries.
                .data_block_hash_ratio_policy(HashRatioPolicy::all(1.33))
                .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(
                    BloomConstructionPolicy::BitsPerKey(10.0),
                )))
        };
        Ok(Box::new(Opened {
            records: database.keyspace("records", options)?,
            names: database.keyspace("names", options)?,
            database,
        }))
    }
}

impl Opened {
    fn keyspace(&self, index: Index) -> &Keyspace {
        match index {
            Index::Records => &self.records,
            Index::Names => &self.names,
        }
    }
}

impl Store for Opened {
    fn commit(&self, operations: &[Operation<'_>], durability: Durability) -> Result<()> {
        let mode = match durability {
            Durability::Buffered => PersistMode::Buffer,
            Durability::Synced => PersistMode::SyncData,
        };
        let mut batch = self.database.batch().durability(Some(mode));
        for operation in operations {
            match *operation {
                Operation::Put(index, key, value) => {
                    batch.insert(self.keyspace(index), key, value);
                }
                Operation::Delete(index, key) => batch.remove(self.keyspace(index), key),
            }
        }
        Ok(batch.commit()?)
    }

    fn get(&self, index: Index, key: &[u8]) -> Result<bool> {
        Ok(self.keyspace(index).get(key)?.is_some())
    }

    fn scan(&self, index: Index, prefix: &[u8], visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        for entry in self.keyspace(index).prefix(prefix) {
            let (key, value) = entry.into_inner()?;
            visit(&key, &value);
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.records.rotate_memtable_and_wait()?;
        Ok(self.names.rotate_memtable_and_wait()?)
    }

    fn settle(&self) -> Result<()> {
        wait_until_quiet(|| {
            let keyspaces = [&self.records, &self.names];
            (
                self.database.outstanding_flushes(),
                self.database.active_compactions(),
                self.database.compactions_completed(),
                keyspaces.map(|k| (k.sealed_memtable_count(), k.table_count(), k.disk_space())),
            )
        });
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.database.persist(PersistMode::SyncAll)?;
        Ok(())
    }
}
