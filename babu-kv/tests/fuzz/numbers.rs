//! Sequence numbers of a database that has seen everything: beyond 32 bits, and at their end.

use crate::{corpus, manifest};
use babu_kv::{
    Batch, Compression, Database, Durability, Error, Index, backup,
    fs::{Crash, MemoryFs},
};
use std::path::Path;

/// The tag of the number up to which all is in tables.
const FLUSHED: u8 = 4;

fn open(fs: &MemoryFs) -> (Database, Index) {
    let options = corpus::options(fs, Compression::Lz4);
    let database = Database::open(Path::new(corpus::DIR), options).unwrap();
    let index = database.index("index").unwrap();
    (database, index)
}

fn put(database: &Database, index: &Index, key: u32, value: &[u8]) -> Result<u64, Error> {
    let mut batch = Batch::new();
    batch.put(index, &key.to_be_bytes(), value);
    database.write(batch, Durability::Synced)
}

/// A database that says that it has used all numbers up to `sequence`.
fn aged(sequence: u64) -> MemoryFs {
    let fs = MemoryFs::new();
    let (database, index) = open(&fs);
    for key in 0..50 {
        put(&database, &index, key, b"old").unwrap();
    }
    database.flush().unwrap();
    database.close().unwrap();
    let (path, number, mut edits) = manifest::parse(&fs);
    let mut edit = vec![FLUSHED];
    edit.extend(crate::mutate::varint(sequence));
    edits.push(edit);
    corpus::with(&fs, &path, &manifest::seal(number, &edits))
}

fn expect(database: &Database, index: &Index, new: u32) {
    let found: Vec<(u32, Vec<u8>)> = database
        .prefix(index, b"")
        .map(|entry| entry.unwrap())
        .map(|(k, v)| (u32::from_be_bytes((&*k).try_into().unwrap()), v.to_vec()))
        .collect();
    let value = |key: u32| if key < new { &b"new"[..] } else { b"old" };
    let expected = (0..50)
        .filter(|key| !(20..25).contains(key) || *key >= new)
        .map(|key| (key, value(key).to_vec()));
    assert_eq!(found, expected.collect::<Vec<_>>());
}

#[test]
fn sequence_numbers_beyond_32_bits_are_like_others() {
    let fs = aged((1 << 32) - 20);
    let (database, index) = open(&fs);
    expect(&database, &index, 0);
    let mut snapshots = Vec::new();
    for key in 0..40 {
        snapshots.push((database.snapshot(), key));
        let sequence = put(&database, &index, key, b"new").unwrap();
        assert_eq!(sequence, (1 << 32) - 19 + u64::from(key));
    }
    for (snapshot, key) in &snapshots {
        let value = |key: u32| snapshot.get(&index, &key.to_be_bytes()).unwrap();
        assert_eq!(value(*key).as_deref(), Some(b"old".as_slice()));
        let before = key.checked_sub(1).map(value);
        assert!(before.is_none_or(|v| v.as_deref() == Some(b"new")));
    }
    let mut batch = Batch::new();
    batch.delete_range(&index, &20u32.to_be_bytes(), &25u32.to_be_bytes());
    database.write(batch, Durability::Synced).unwrap();
    expect(&database, &index, 40);
    for crash in Crash::ALL {
        let (copy, index) = open(&fs.crash(crash));
        expect(&copy, &index, 40);
    }
    database.flush().unwrap();
    expect(&database, &index, 40);
    database.compact().unwrap();
    database.verify().unwrap();
    database.close().unwrap();
    let (database, index) = open(&fs);
    expect(&database, &index, 40);
    expect_copies(&fs, &database);
}

/// Checkpoint and restored backup go on where the database is.
fn expect_copies(fs: &MemoryFs, database: &Database) {
    let [copy, backups, restored] = ["/copy", "/backups", "/restored"].map(Path::new);
    database.checkpoint(copy).unwrap();
    let number = database.backup(backups).unwrap().number;
    backup::restore(fs, backups, number, restored).unwrap();
    for dir in [copy, restored] {
        let options = corpus::options(fs, Compression::Lz4);
        let copy = Database::open(dir, options).unwrap();
        let index = copy.index("index").unwrap();
        expect(&copy, &index, 40);
        let sequence = put(&copy, &index, 0, b"new").unwrap();
        assert_eq!(sequence, database.stats().sequence_visible + 1);
    }
}

#[test]
fn when_sequence_numbers_are_used_up_writes_say_so_and_reads_go_on() {
    let fs = aged((1 << 60) - 10);
    let (database, index) = open(&fs);
    let mut written = 0;
    let error = loop {
        match put(&database, &index, written, b"new") {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 20, "a number that is no longer one");
    };
    assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    assert!(written > 5);
    expect(&database, &index, written);
    database.flush().unwrap();
    database.close().unwrap();
    let (database, index) = open(&fs);
    expect(&database, &index, written);
}
