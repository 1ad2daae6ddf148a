//! A process that may open few files.

use crate::process;
use babu_kv::{
    Batch, Compression, Database, Durability, Error, Index, Options, backup, fs::RealFs,
};
use std::{
    collections::BTreeSet,
    fs::File,
    ops::Bound::{Included, Unbounded},
    path::Path,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
};

fn options() -> Options {
    Options {
        memtable_bytes: 64 << 10,
        table_bytes: 64 << 10,
        level0_tables: 2,
        level1_bytes: 256 << 10,
        compression: Compression::None,
        ..Options::default()
    }
}

fn value(n: u32) -> Vec<u8> {
    n.to_be_bytes().repeat(50)
}

fn open(folder: &Path) -> (Database, Index) {
    let database = Database::open(&folder.join("database"), options()).unwrap();
    let index = database.index("index").unwrap();
    (database, index)
}

fn expect(database: &Database, index: &Index, written: &BTreeSet<u32>) {
    for n in written {
        let found = database.get(index, &n.to_be_bytes()).unwrap();
        assert!(found.as_deref() == Some(&value(*n)), "{n} is lost");
    }
    let walked = database.prefix(index, b"").map(|e| e.unwrap().0.to_vec());
    assert!(walked.eq(written.iter().map(|n| n.to_be_bytes().to_vec())));
}

/// Runs a test with room for so many descriptors, in a process of its own.
fn with_descriptors(test: &str, count: u32) {
    let dir = tempfile::tempdir().unwrap();
    let limit = format!("ulimit -n {count}; exec \"$0\" \"$@\"");
    process::again(test, dir.path(), &["sh", "-c", &limit], &[]);
}

/// All descriptors that there are, until it is dropped.
fn take_all() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

/// Takes all descriptors that there are, and lets go of them; until stopped.
fn hog(stop: &AtomicBool) {
    while !stop.load(SeqCst) {
        let taken = take_all();
        thread::yield_now();
        drop(taken);
        thread::yield_now();
    }
}

/// Open tables give way to what needs a descriptor, half of them at a time; when none is left, calls
/// fail.
fn starve(database: &Database, folder: &Path) {
    let fails = |n: u32| {
        let _taken = take_all();
        let copied = database.checkpoint(&folder.join(format!("copy-{n}")));
        copied.is_err_and(|error| {
            assert!(matches!(error, Error::Io { .. }), "{error}");
            true
        })
    };
    assert!((0..50).any(fails), "there are descriptors still");
}

fn write_beside_a_hog(folder: &Path) {
    let (database, index) = open(folder);
    let mut written = BTreeSet::new();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| hog(&stop));
        for n in 0..2_000u32 {
            let mut batch = Batch::new();
            batch.put(&index, &n.to_be_bytes(), &value(n));
            let result = database.commit(batch).and_then(|ticket| {
                written.insert(n);
                if n.is_multiple_of(8) {
                    ticket.wait_durable()
                } else {
                    Ok(())
                }
            });
            let read = database.get(&index, &(n / 2).to_be_bytes());
            if let Ok(found) = &read {
                let expected = written.contains(&(n / 2)).then(|| value(n / 2));
                assert!(found.as_deref() == expected.as_deref(), "{n}");
            }
            let walked = database.prefix(&index, b"").take(5).find_map(Result::err);
            let errors = [result.err(), read.err(), walked];
            for error in errors.into_iter().flatten() {
                assert!(matches!(error, Error::Io { .. }), "{error}");
            }
        }
        stop.store(true, SeqCst);
    });
    starve(&database, folder);
    let mut batch = Batch::new();
    let last = u32::MAX;
    batch.put(&index, &last.to_be_bytes(), &value(last));
    database.write(batch, Durability::Synced).unwrap();
    written.insert(last);
    expect(&database, &index, &written);
    database.flush().unwrap();
    database.verify().unwrap();
    database.close().unwrap();
    let (database, index) = open(folder);
    expect(&database, &index, &written);
}

#[test]
fn without_descriptors_calls_fail_cleanly_and_work_again_afterwards() {
    match process::folder() {
        Some(folder) => write_beside_a_hog(&folder),
        None => with_descriptors(
            "descriptors::without_descriptors_calls_fail_cleanly_and_work_again_afterwards",
            128,
        ),
    }
}

/// Everything there is to do, with more tables than descriptors.
fn use_many_tables(folder: &Path) {
    const KEYS: u32 = 8_000;
    let options = || Options {
        memtable_bytes: 16 << 10,
        table_bytes: 4 << 10,
        level1_bytes: 64 << 10,
        ..options()
    };
    let database = Database::open(&folder.join("database"), options()).unwrap();
    let index = database.index("index").unwrap();
    for n in 0..KEYS {
        let mut batch = Batch::new();
        batch.put(&index, &n.to_be_bytes(), &value(n));
        database.commit(batch).unwrap();
    }
    database.flush().unwrap();
    let tables = |database: &Database| -> usize {
        database
            .stats()
            .levels
            .iter()
            .map(|level| level.tables)
            .sum()
    };
    assert!(tables(&database) > 200, "{}", tables(&database));
    let written: BTreeSet<u32> = (0..KEYS).collect();
    expect(&database, &index, &written);
    // Each of them is somewhere else, and holds on to what it reads from.
    let mut open_iterators: Vec<_> = (0..200)
        .map(|n: u32| {
            let from = (n * (KEYS / 200)).to_be_bytes();
            let mut iter = database.range(&index, Included(&from), Unbounded);
            assert_eq!(&*iter.next().unwrap().unwrap().0, from);
            iter
        })
        .collect();
    database.checkpoint(&folder.join("checkpoint")).unwrap();
    let made = database.backup(&folder.join("backup")).unwrap();
    database.compact().unwrap();
    for (n, iter) in (0u32..).zip(&mut open_iterators) {
        let next = (n * (KEYS / 200) + 1).to_be_bytes();
        assert_eq!(&*iter.next().unwrap().unwrap().0, next);
    }
    database.verify().unwrap();
    expect(&database, &index, &written);
    drop(open_iterators);
    database.close().unwrap();
    backup::restore(
        &RealFs,
        &folder.join("backup"),
        made.number,
        &folder.join("restored"),
    )
    .unwrap();
    for name in ["database", "checkpoint", "restored"] {
        let database = Database::open(&folder.join(name), options()).unwrap();
        expect(&database, &index, &written);
        database.close().unwrap();
    }
}

#[test]
fn hundreds_of_tables_need_few_descriptors() {
    match process::folder() {
        Some(folder) => use_many_tables(&folder),
        None => with_descriptors("descriptors::hundreds_of_tables_need_few_descriptors", 64),
    }
}
