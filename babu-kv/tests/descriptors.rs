//! Few file descriptors: hundreds of tables under `ulimit -n 64`, and none left at all.
//!
//! The limit belongs to the process, so each test runs itself again in a process of its own.

use babu_kv::{Background, Batch, Database, Durability, Error, Index, Iter, Options};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{env, fs::File, path::Path, process::Command};

const CHILD: &str = "BABU_KV_FEW_DESCRIPTORS";
const DESCRIPTORS: u64 = 64;
const KEYS: u32 = 4000;

/// Runs `body` in a process that may have 64 descriptors.
fn with_few_descriptors(test: &str, body: impl Fn(&Path)) {
    if env::var_os(CHILD).is_some() {
        let maximum = getrlimit(Resource::Nofile).maximum;
        let current = Some(DESCRIPTORS);
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
        // Hundreds of tables are hundreds of syncs.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        body(dir.unwrap().path());
        return;
    }
    let status = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "1")
        .status();
    assert!(status.unwrap().success());
}

/// Makes hundreds of tables out of little.
fn options(background: Background) -> Options {
    Options {
        memtable_bytes: 128 << 10,
        table_bytes: 2 << 10,
        block_bytes: 1 << 10,
        level1_bytes: 64 << 10,
        compression: babu_kv::Compression::None,
        background,
        ..Options::default()
    }
}

fn key(n: u32) -> Vec<u8> {
    // Neighbours come far apart, so that each memtable overlaps all tables.
    format!("key{:010}", n.wrapping_mul(2_654_435_761)).into_bytes()
}

fn put(database: &Database, index: &Index, keys: std::ops::Range<u32>) -> Result<(), Error> {
    for n in keys {
        let mut batch = Batch::new();
        batch.put(index, &key(n), &[n as u8; 150]);
        database.write(batch, Durability::Buffered)?;
    }
    Ok(())
}

fn check(database: &Database, index: &Index, keys: u32) {
    for n in 0..keys {
        let value = database.get(index, &key(n)).unwrap();
        assert_eq!(value.as_deref(), Some([n as u8; 150].as_slice()));
    }
    let count = database.prefix(index, b"").map(Result::unwrap).count();
    assert_eq!(count, keys as usize);
    let back = database.prefix(index, b"").rev().map(Result::unwrap);
    assert_eq!(back.count(), keys as usize);
}

fn tables(database: &Database) -> usize {
    database.stats().levels.iter().map(|l| l.tables).sum()
}

/// All the descriptors that are left.
fn take_all() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

fn is_exhausted(error: &Error) -> bool {
    let expected = rustix::io::Errno::MFILE.raw_os_error();
    matches!(error, Error::Io { source, .. } if source.raw_os_error() == Some(expected))
}

#[test]
fn hundreds_of_tables_need_few_descriptors() {
    with_few_descriptors("hundreds_of_tables_need_few_descriptors", |dir| {
        for background in [Background::Inline, Background::Threads] {
            let dir = dir.join(format!("{background:?}"));
            let database = Database::open(&dir, options(background)).unwrap();
            let index = database.index("names").unwrap();
            put(&database, &index, 0..KEYS).unwrap();
            database.compact().unwrap();
            assert!(tables(&database) > 200, "{}", tables(&database));
            check(&database, &index, KEYS);
            assert!(database.stats().open_tables <= DESCRIPTORS as usize / 4);

            // More iterators than descriptors, each in the middle of its walk.
            let started = (0..100).map(|n| {
                let mut iter = database.prefix(&index, b"");
                iter.seek(&key(n));
                (iter.next().unwrap().unwrap(), iter)
            });
            let started: Vec<(_, Iter)> = started.collect();
            for (first, iter) in started {
                for entry in iter.take(200) {
                    assert!(entry.unwrap().0 > first.0);
                }
            }

            put(&database, &index, 0..KEYS / 8).unwrap();
            database.flush().unwrap();
            database.checkpoint(&dir.join("copy")).unwrap();
            database.compact().unwrap();
            check(&database, &index, KEYS);
            database.verify().unwrap();
            database.close().unwrap();
            for dir in [dir.join("copy"), dir] {
                let database = Database::open(&dir, options(background)).unwrap();
                check(&database, &database.index("names").unwrap(), KEYS);
            }
        }
    });
}

#[test]
fn without_a_descriptor_calls_fail_and_work_again_afterwards() {
    with_few_descriptors(
        "without_a_descriptor_calls_fail_and_work_again_afterwards",
        |dir| {
            let dir = dir.join("db");
            let database = Database::open(&dir, options(Background::Inline)).unwrap();
            let index = database.index("names").unwrap();
            put(&database, &index, 0..KEYS).unwrap();
            database.compact().unwrap();
            check(&database, &index, KEYS);
            // Open tables are given up for other files; with fewer of them reads go on.
            let open_tables = database.stats().open_tables;
            let mut taken = take_all();
            database.checkpoint(&dir.join("copy")).unwrap();
            assert!(database.stats().open_tables < open_tables);
            taken.extend(take_all());
            check(&database, &index, KEYS);
            drop(taken);
            database.close().unwrap();

            let database = Database::open(&dir, options(Background::Inline)).unwrap();
            let taken = take_all();
            let error = database.get(&index, &key(0)).unwrap_err();
            assert!(is_exhausted(&error), "{error}");
            let error = database.prefix(&index, b"").find_map(Result::err).unwrap();
            assert!(is_exhausted(&error), "{error}");
            assert!(database.checkpoint(&dir.join("copy2")).is_err());
            let error = put(&database, &index, KEYS..KEYS + 1).unwrap_err();
            assert!(is_exhausted(&error), "{error}");

            // With a log open, writes go on until a memtable is full.
            drop(taken);
            let mut written = KEYS;
            put(&database, &index, written..written + 1).unwrap();
            let taken = take_all();
            let error = loop {
                written += 1;
                if let Err(error) = put(&database, &index, written..written + 1) {
                    break error;
                }
            };
            assert!(written > KEYS + 10 && is_exhausted(&error), "{error}");
            let error = database.flush().unwrap_err();
            assert!(is_exhausted(&error), "{error}");

            drop(taken);
            put(&database, &index, written..written + 500).unwrap();
            database.flush().unwrap();
            database.compact().unwrap();
            check(&database, &index, written + 500);
            database.close().unwrap();
            let database = Database::open(&dir, options(Background::Inline)).unwrap();
            check(&database, &index, written + 500);
        },
    );
}
