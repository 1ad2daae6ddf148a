//! Keys at the edges of tables.

use babu_kv::{Batch, Database, Options, fs::MemoryFs};
use std::{ops::Bound, path::Path, sync::Arc};

#[test]
fn the_key_right_after_the_last_of_a_table_is_found_in_the_next() {
    let options = Options {
        table_bytes: 1 << 10,
        ..Options::simulated(Arc::new(MemoryFs::new()))
    };
    let database = Database::open(Path::new("/db"), options).unwrap();
    let index = database.index("index").unwrap();
    let keys: Vec<Vec<u8>> = (0..20).map(|zeros| vec![0; zeros]).collect();
    for (n, key) in (0u32..).zip(&keys) {
        let mut batch = Batch::new();
        // Too large for another one in the same table, and not to be compressed.
        let value: Vec<u8> = (0..2_000u32)
            .map(|at| (at.wrapping_add(n << 12).wrapping_mul(0x9e37_79b1) >> 24) as u8)
            .collect();
        batch.put(&index, key, &value);
        database.commit(batch).unwrap();
    }
    database.compact().unwrap();
    let tables: usize = database.stats().levels.iter().map(|l| l.tables).sum();
    assert!(tables > 15, "{tables}");
    for (n, key) in keys.iter().enumerate() {
        assert!(database.get(&index, key).unwrap().is_some(), "{n}");
        let after = Bound::Excluded(key.as_slice());
        let rest = database.range(&index, after, Bound::Unbounded);
        assert_eq!(rest.count(), keys.len() - n - 1);
        let before = database.range(&index, Bound::Unbounded, after);
        assert_eq!(before.rev().count(), n);
    }
}
