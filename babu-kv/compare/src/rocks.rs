//! RocksDB, as it is measured.
//!
//! A column family for each index, one write-ahead log. Its default is to give a batch to the
//! operating system before it is acknowledged; writers that ask for more share syncs. What is set
//! otherwise than by default is what its tuning guides recommend for such data, and was kept when
//! it did not make a row worse.

use anyhow::{Context, Result};
use babu_kv_bench::engine::{DIRECTORY_BYTES, Durability, Engine, Index, Operation, Setup, Store};
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType,
    DataBlockIndexType, Options, PrefixRange, ReadOptions, SliceTransform, WaitForCompactOptions,
    WriteBatch, WriteOptions, checkpoint::Checkpoint, statistics::Ticker,
};
use std::path::Path;

/// Of so many entries in a row ...
const WINDOW: usize = 1_000;
/// ... so many deletions have a table compacted.
const DELETIONS: usize = 500;

pub struct RocksDb;

struct Opened {
    database: DB,
    options: Options,
    buffered: WriteOptions,
    synced: WriteOptions,
    count_syncs: bool,
}

impl Engine for RocksDb {
    fn name(&self) -> &'static str {
        "RocksDB"
    }

    fn open(&self, dir: &Path, setup: &Setup) -> Result<Box<dyn Store>> {
        let options = options(setup);
        let mut listed = options.clone();
        listed.set_prefix_extractor(SliceTransform::create_fixed_prefix(DIRECTORY_BYTES));
        let families = [
            ColumnFamilyDescriptor::new("records", listed),
            ColumnFamilyDescriptor::new("names", options.clone()),
        ];
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        Ok(Box::new(Opened {
            database: DB::open_cf_descriptors(&options, dir, families)?,
            options,
            buffered: WriteOptions::default(),
            synced,
            count_syncs: setup.count_syncs,
        }))
    }
}

fn options(setup: &Setup) -> Options {
    let mut tables = BlockBasedOptions::default();
    // Index and filter of open tables stay in memory beside the cache, which is the default.
    // The clock cache scales better, but these readers are alone, and slower with it.
    tables.set_block_cache(&Cache::new_lru_cache(setup.cache_bytes));
    tables.set_block_size(4 << 10);
    tables.set_bloom_filter(10.0, false);
    tables.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
    tables.set_data_block_hash_ratio(0.75);

    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_block_based_table_factory(&tables);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_bottommost_compression_type(DBCompressionType::Lz4);
    options.set_level_compaction_dynamic_level_bytes(true);
    options.set_write_buffer_size(setup.memtable_bytes);
    options.set_max_write_buffer_number(setup.memtables_waiting as i32 + 1);
    options.set_db_write_buffer_size(setup.memtable_bytes * (setup.memtables_waiting + 1));
    options.set_max_background_jobs(2);
    // Without it a directory that was emptied stays slow until a compaction happens upon it.
    options.add_compact_on_deletion_collector_factory(WINDOW, DELETIONS, 0.0);
    if setup.count_syncs {
        options.enable_statistics();
    }
    options
}

impl Opened {
    fn family(&self, index: Index) -> Result<&ColumnFamily> {
        let name = match index {
            Index::Records => "records",
            Index::Names => "names",
        };
        let family = self.database.cf_handle(name);
        family.with_context(|| format!("no column family {name}"))
    }
}

impl Store for Opened {
    fn commit(&self, operations: &[Operation<'_>], durability: Durability) -> Result<()> {
        let mut batch = WriteBatch::default();
        for operation in operations {
            match *operation {
                Operation::Put(index, key, value) => batch.put_cf(self.family(index)?, key, value),
                Operation::Delete(index, key) => batch.delete_cf(self.family(index)?, key),
            }
        }
        let options = match durability {
            Durability::Buffered => &self.buffered,
            Durability::Synced => &self.synced,
        };
        Ok(self.database.write_opt(batch, options)?)
    }

    fn get(&self, index: Index, key: &[u8]) -> Result<bool> {
        let value = self.database.get_pinned_cf(self.family(index)?, key)?;
        Ok(value.is_some())
    }

    fn scan(&self, index: Index, prefix: &[u8], visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        let mut options = ReadOptions::default();
        options.set_iterate_range(PrefixRange(prefix));
        options.set_prefix_same_as_start(index == Index::Records);
        let family = self.family(index)?;
        let mut entries = self.database.raw_iterator_cf_opt(family, options);
        entries.seek_to_first();
        while let Some((key, value)) = entries.item() {
            visit(key, value);
            entries.next();
        }
        Ok(entries.status()?)
    }

    fn flush(&self) -> Result<()> {
        for index in [Index::Records, Index::Names] {
            self.database.flush_cf(self.family(index)?)?;
        }
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        let options = WaitForCompactOptions::default();
        Ok(self.database.wait_for_compact(&options)?)
    }

    fn checkpoint(&self, destination: &Path) -> Result<bool> {
        Checkpoint::new(&self.database)?.create_checkpoint(destination)?;
        Ok(true)
    }

    fn syncs(&self) -> Option<u64> {
        let count = || self.options.get_ticker_count(Ticker::WalFileSynced);
        self.count_syncs.then(count)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.database.cancel_all_background_work(true);
        Ok(())
    }
}
