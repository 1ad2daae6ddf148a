//! A log that is larger than the memtables of who opens it: full ones are flushed while it is read.

use crate::scenario::{DIR, INDICES, batch, content, read_all, small};
use babu_kv::{
    Batch, Compression, Database, Durability, Error, Options,
    fs::{Crash, Fault, FaultyFs, Fs, MemoryFs},
};
use std::{io::ErrorKind, path::Path, sync::Arc};

const ROUNDS: u32 = 160;

fn path() -> &'static Path {
    Path::new(DIR)
}

/// Nothing but a log of several segments, in which an index is dropped that the manifest
/// still names, and whose owner was killed.
fn large_log() -> MemoryFs {
    let memory = MemoryFs::new();
    let faulty = FaultyFs::new(Arc::new(memory.clone()));
    let options = Options {
        memtable_bytes: 1 << 20,
        ..small(Arc::new(faulty.clone()))
    };
    let database = Database::open(path(), options).unwrap();
    let dropped = database.index("dropped").unwrap();
    for round in 0..ROUNDS {
        let mut batch = batch(&database, round).unwrap();
        if round < 20 {
            batch.put(&dropped, &round.to_be_bytes(), b"value");
        }
        database.write(batch, Durability::Synced).unwrap();
        match round {
            30 => {
                // The record is written and synced; the edit of the manifest fails.
                faulty.arm(Some(Fault {
                    at: 2,
                    count: 1,
                    kind: ErrorKind::Other,
                    changes_only: true,
                }));
                database.drop_index("dropped").unwrap_err();
            }
            // The log goes on in another segment.
            50 | 100 => {
                let copy = format!("/copy{round}");
                database.checkpoint(Path::new(&copy)).unwrap();
            }
            _ => {}
        }
    }
    assert_eq!(database.stats().flushes, 0);
    memory.crash(Crash::Kept)
}

fn reader(fs: Arc<dyn Fs>) -> Options {
    Options {
        memtables_waiting: 1,
        ..small(fs)
    }
}

fn expect_all(database: &Database) {
    assert_eq!(read_all(database).unwrap(), content(0..ROUNDS));
    let names = database.indices();
    assert!(names.iter().all(|index| index.name() != "dropped"));
}

fn write(database: &Database) -> Result<(), Error> {
    let index = database.index(INDICES[0])?;
    let mut batch = Batch::new();
    batch.put(&index, b"after", b"the crash");
    database.write(batch, Durability::Synced).map(drop)
}

#[test]
fn a_log_larger_than_the_memtables_is_flushed_as_it_is_read() {
    let memory = large_log();
    let options = reader(Arc::new(memory.clone()));
    let database = Database::open(path(), options.clone()).unwrap();
    let stats = database.stats();
    assert!(stats.flushes > 5, "{} flushes", stats.flushes);
    assert_eq!(stats.memtables_waiting, 1);
    let bound = 3 * options.memtable_bytes;
    assert!(stats.memtable_bytes < bound, "{}", stats.memtable_bytes);
    assert_eq!(stats.sequence_durable, stats.sequence_visible);
    expect_all(&database);
    write(&database).unwrap();
    database.close().unwrap();
    // What is in tables is not read again.
    let database = Database::open(path(), options).unwrap();
    assert_eq!(database.stats().flushes, 0);
    let index = database.index(INDICES[0]).unwrap();
    assert!(database.get(&index, b"after").unwrap().is_some());
    database.verify().unwrap();
}

#[test]
fn a_log_larger_than_the_memtables_is_opened_on_a_full_disk() {
    let memory = large_log();
    memory.set_capacity(Some(memory.used_bytes()));
    let options = reader(Arc::new(memory.clone()));
    let database = Database::open(path(), options.clone()).unwrap();
    assert_eq!(database.stats().flushes, 0);
    expect_all(&database);
    drop(database);
    let database = Database::open(path(), options.clone()).unwrap();
    expect_all(&database);
    memory.set_capacity(None);
    write(&database).unwrap();
    database.flush().unwrap();
    assert_eq!(database.stats().memtables_waiting, 0);
    database.close().unwrap();
    let database = Database::open(path(), options).unwrap();
    let index = database.index(INDICES[0]).unwrap();
    assert!(database.get(&index, b"after").unwrap().is_some());
    let names = database.indices();
    assert!(names.iter().all(|index| index.name() != "dropped"));
    database.verify().unwrap();
}

#[test]
fn open_reads_no_table() {
    let faulty = FaultyFs::new(Arc::new(MemoryFs::new()));
    let options = Options {
        compression: Compression::None,
        ..reader(Arc::new(faulty.clone()))
    };
    let database = Database::open(path(), options.clone()).unwrap();
    let index = database.index(INDICES[0]).unwrap();
    for n in 0..1000u32 {
        let mut batch = Batch::new();
        batch.put(&index, &n.to_be_bytes(), &n.to_be_bytes().repeat(50));
        database.commit(batch).unwrap();
    }
    database.compact().unwrap();
    database.close().unwrap();
    faulty.arm(None);
    let database = Database::open(path(), options).unwrap();
    let calls = faulty.calls();
    let levels = database.stats().levels;
    let tables: usize = levels.iter().map(|level| level.tables).sum();
    assert!(calls < tables as u64, "{calls} calls for {tables} tables");
    assert_eq!(database.stats().open_tables, 0);
}

#[test]
fn who_only_reads_keeps_all_of_it_in_memory() {
    let memory = large_log();
    let options = reader(Arc::new(memory));
    let database = Database::open_read_only(path(), options).unwrap();
    assert_eq!(database.stats().flushes, 0);
    assert!(database.stats().memtables_waiting > 5);
    assert_eq!(read_all(&database).unwrap(), content(0..ROUNDS));
}

#[test]
fn after_a_crash_or_a_failed_call_in_the_middle_the_next_open_finds_all() {
    let start = large_log();
    for count in [1, u64::MAX] {
        for at in 0.. {
            let memory = start.crash(Crash::Kept);
            let faulty = FaultyFs::new(Arc::new(memory.clone()));
            faulty.arm(Some(Fault {
                at,
                count,
                kind: ErrorKind::Other,
                changes_only: true,
            }));
            let opened = Database::open(path(), reader(Arc::new(faulty.clone())));
            let all = faulty.changes() <= at;
            faulty.arm(None);
            if let Ok(database) = opened {
                expect_all(&database);
            }
            for crash in Crash::ALL {
                let image = memory.crash(crash);
                let options = reader(Arc::new(image.clone()));
                let database = Database::open(path(), options.clone())
                    .unwrap_or_else(|error| panic!("{count} times call {at}, {crash:?}: {error}"));
                expect_all(&database);
                write(&database).unwrap();
                database.close().unwrap();
                Database::open(path(), options).unwrap();
            }
            if all {
                assert!(at > 40, "{at} calls");
                break;
            }
        }
    }
}
