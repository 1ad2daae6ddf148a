//! Many threads at once, and handles that come and go.

use babu_kv::{
    Background, Batch, Database, Durability, Error, Options,
    fs::{Crash, FaultyFs, MemoryFs},
};
use std::{
    path::Path,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
};

fn small() -> Options {
    Options {
        memtable_bytes: 8 << 10,
        table_bytes: 8 << 10,
        block_bytes: 512,
        level0_tables: 2,
        level1_bytes: 16 << 10,
        memory_bytes: 256 << 10,
        ..Options::default()
    }
}

fn number(bytes: &[u8]) -> i64 {
    i64::from_be_bytes(bytes.try_into().unwrap())
}

/// Money moves between accounts of two indices; no reader may ever see it missing.
#[test]
fn every_snapshot_sees_whole_batches() {
    const ACCOUNTS: u64 = 40;
    let dir = tempfile::tempdir().unwrap();
    let database = Database::open(dir.path(), small()).unwrap();
    let indices = [database.index("a").unwrap(), database.index("b").unwrap()];
    let mut batch = Batch::new();
    for index in &indices {
        for n in 0..ACCOUNTS {
            batch.put(index, &n.to_be_bytes(), &100i64.to_be_bytes());
        }
    }
    database.commit(batch).unwrap();
    let stop = AtomicBool::new(false);
    let turn = Mutex::new(());
    thread::scope(|scope| {
        let mut writers = Vec::new();
        for writer in 0..4u64 {
            let (database, indices, turn) = (database.clone(), &indices, &turn);
            writers.push(scope.spawn(move || {
                for n in 0..1500u64 {
                    let (from, to) = (
                        (n * 7 + writer) % ACCOUNTS,
                        (n * 13 + writer * 3) % ACCOUNTS,
                    );
                    // Reading and writing back takes turns; commits beside it do not.
                    let guard = turn.lock().unwrap();
                    let a = number(
                        &database
                            .get(&indices[0], &from.to_be_bytes())
                            .unwrap()
                            .unwrap(),
                    );
                    let b = number(
                        &database
                            .get(&indices[1], &to.to_be_bytes())
                            .unwrap()
                            .unwrap(),
                    );
                    let mut batch = Batch::new();
                    batch.put(&indices[0], &from.to_be_bytes(), &(a - 1).to_be_bytes());
                    batch.put(&indices[1], &to.to_be_bytes(), &(b + 1).to_be_bytes());
                    let ticket = database.commit(batch).unwrap();
                    drop(guard);
                    if n % 100 == 0 {
                        ticket.wait_durable().unwrap();
                    }
                    let mut noise = Batch::new();
                    noise.put(
                        &indices[0],
                        format!("noise {writer} {n}").as_bytes(),
                        &[7; 50],
                    );
                    noise.delete(
                        &indices[0],
                        format!("noise {writer} {}", n.saturating_sub(9)).as_bytes(),
                    );
                    database.commit(noise).unwrap();
                }
            }));
        }
        for reader in 0..2 {
            let (database, indices, stop) = (database.clone(), &indices, &stop);
            scope.spawn(move || {
                while !stop.load(SeqCst) {
                    let snapshot = database.snapshot();
                    let mut sum = 0;
                    for index in indices {
                        let accounts = snapshot.range(
                            index,
                            std::ops::Bound::Unbounded,
                            std::ops::Bound::Excluded(b"n"),
                        );
                        let balances: Vec<i64> = if reader == 0 {
                            accounts.map(|e| number(&e.unwrap().1)).collect()
                        } else {
                            accounts.rev().map(|e| number(&e.unwrap().1)).collect()
                        };
                        assert_eq!(balances.len() as u64, ACCOUNTS);
                        sum += balances.iter().sum::<i64>();
                    }
                    assert_eq!(sum, 2 * ACCOUNTS as i64 * 100);
                }
            });
        }
        let results: Vec<_> = writers.into_iter().map(|w| w.join()).collect();
        stop.store(true, SeqCst);
        assert!(results.iter().all(|r| r.is_ok()));
    });
    let stats = database.stats();
    assert!(stats.flushes > 5 && stats.compactions > 0, "{stats:?}");
    database.close().unwrap();
}

/// Power may fail at any moment, also in the middle of a sync with a rotation beside it.
#[test]
fn what_was_acknowledged_as_durable_survives_power_loss_at_any_moment() {
    const WRITERS: usize = 3;
    let memory = MemoryFs::new();
    let slow = FaultyFs::new(Arc::new(memory.clone()));
    slow.after_sync(|| (0..20).for_each(|_| thread::yield_now()));
    let options = Options {
        fs: Arc::new(slow),
        memtable_bytes: 2 << 10,
        memtables_waiting: 8,
        ..small()
    };
    let database = Database::open(Path::new("/db"), options).unwrap();
    let index = database.index("index").unwrap();
    let acknowledged: [AtomicU64; WRITERS] = Default::default();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (database, index, acknowledged, stop) =
                (database.clone(), &index, &acknowledged, &stop);
            scope.spawn(move || {
                for n in 1.. {
                    let mut batch = Batch::new();
                    batch.put(index, &[writer as u8], &u64::to_be_bytes(n));
                    batch.put(index, format!("{writer} {n}").as_bytes(), &[1; 200]);
                    let ticket = database.commit(batch).unwrap();
                    if n % 2 == writer as u64 % 2 {
                        ticket.wait_durable().unwrap();
                        acknowledged[writer].store(n, SeqCst);
                    }
                    if stop.load(SeqCst) {
                        return;
                    }
                }
            });
        }
        let mut last = Vec::new();
        let mut images = 0;
        while images < 60 {
            let before: Vec<u64> = acknowledged.iter().map(|a| a.load(SeqCst)).collect();
            if before == last {
                thread::yield_now();
                continue;
            }
            let image = memory.crash(if images % 2 == 0 {
                Crash::Lost
            } else {
                Crash::Names
            });
            images += 1;
            let options = Options {
                background: Background::Inline,
                fs: Arc::new(image),
                ..small()
            };
            let found = Database::open(Path::new("/db"), options).map(|database| {
                let index = database.index("index").unwrap();
                let value = |writer: usize| database.get(&index, &[writer as u8]).unwrap();
                let count = |writer| {
                    value(writer).map_or(0, |v| u64::from_be_bytes((&*v).try_into().unwrap()))
                };
                (0..WRITERS).map(count).collect::<Vec<u64>>()
            });
            let lost = found
                .as_ref()
                .map_or(true, |found| found.iter().zip(&before).any(|(f, b)| f < b));
            if lost {
                stop.store(true, SeqCst);
                panic!("{before:?} were acknowledged, found {found:?}");
            }
            last = before;
        }
        stop.store(true, SeqCst);
    });
}

#[test]
fn a_folder_has_one_database_open_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let database = Database::open(dir.path(), Options::default()).unwrap();
    assert!(matches!(
        Database::open(dir.path(), Options::default()),
        Err(Error::Locked { .. })
    ));
    let clone = database.clone();
    drop(database);
    assert!(matches!(
        Database::open(dir.path(), Options::default()),
        Err(Error::Locked { .. })
    ));
    let index = clone.index("index").unwrap();
    let snapshot = clone.snapshot();
    let other = clone.clone();
    clone.close().unwrap();
    let reopened = Database::open(dir.path(), Options::default()).unwrap();
    let mut batch = Batch::new();
    batch.put(&index, b"key", b"value");
    assert!(matches!(other.commit(batch.clone()), Err(Error::Closed)));
    assert!(matches!(other.get(&index, b"key"), Err(Error::Closed)));
    reopened.write(batch, Durability::Synced).unwrap();
    assert!(snapshot.get(&index, b"key").unwrap().is_none());
}

#[test]
fn writers_are_gathered_into_one_write() {
    let dir = tempfile::tempdir().unwrap();
    let database = Database::open(dir.path(), Options::default()).unwrap();
    let index = database.index("index").unwrap();
    thread::scope(|scope| {
        for writer in 0..8u32 {
            let (database, index) = (database.clone(), &index);
            scope.spawn(move || {
                for n in 0..500u32 {
                    let mut batch = Batch::new();
                    batch.put(
                        index,
                        &[writer.to_be_bytes(), n.to_be_bytes()].concat(),
                        b"value",
                    );
                    database.write(batch, Durability::Synced).unwrap();
                    assert!(
                        database
                            .get(index, &[writer.to_be_bytes(), n.to_be_bytes()].concat())
                            .unwrap()
                            .is_some()
                    );
                }
            });
        }
    });
    assert_eq!(database.prefix(&index, b"").count(), 4000);
    let stats = database.stats();
    assert_eq!(
        (
            stats.commits,
            stats.sequence_visible,
            stats.sequence_durable
        ),
        (4000, 4000, 4000)
    );
}

#[test]
fn arguments_out_of_bounds_are_refused_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let database = Database::open(dir.path(), Options::default()).unwrap();
    let index = database.index("index").unwrap();
    assert_eq!(database.indices(), std::slice::from_ref(&index));
    for name in ["", &"x".repeat(256)] {
        assert!(matches!(
            database.index(name),
            Err(Error::InvalidArgument(_))
        ));
    }
    let mut batch = Batch::new();
    batch.put(&index, b"good", b"value");
    batch.put(&index, &vec![0; babu_kv::KEY_BYTES_MAX + 1], b"value");
    assert!(matches!(
        database.commit(batch),
        Err(Error::InvalidArgument(_))
    ));
    assert!(database.get(&index, b"good").unwrap().is_none());
    let other_dir = tempfile::tempdir().unwrap();
    let other = Database::open(other_dir.path(), Options::default()).unwrap();
    let mut batch = Batch::new();
    batch.put(&index, b"key", b"value");
    assert!(matches!(
        other.commit(batch),
        Err(Error::InvalidArgument(_))
    ));
    assert_eq!(database.commit(Batch::new()).unwrap().sequence(), 0);
}

#[test]
fn handles_may_go_to_other_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    fn sent<T: Send + 'static>() {}
    shared::<Database>();
    shared::<babu_kv::Index>();
    shared::<babu_kv::Ticket>();
    shared::<babu_kv::Snapshot>();
    shared::<babu_kv::Key>();
    shared::<babu_kv::Value>();
    shared::<Error>();
    sent::<babu_kv::Iter>();
    sent::<Batch>();
}

#[test]
fn writers_wait_for_a_slow_flush_at_the_memory_cap_and_readers_do_not() {
    const MEMTABLE: usize = 16 << 10;
    const BATCHES: u32 = 400;
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let slow = FaultyFs::new(Arc::new(MemoryFs::new()));
    let closed = gate.clone();
    slow.after_sync(move || {
        if thread::current().name() == Some("babu-flush") {
            let (open, opened) = &*closed;
            drop(
                opened
                    .wait_while(open.lock().unwrap(), |open| !*open)
                    .unwrap(),
            );
        }
    });
    let options = Options {
        fs: Arc::new(slow),
        memtable_bytes: MEMTABLE,
        memtables_waiting: 2,
        ..Options::default()
    };
    let database = Database::open(Path::new("/db"), options).unwrap();
    let index = database.index("index").unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for n in 0..BATCHES {
                let mut batch = Batch::new();
                batch.put(&index, &n.to_be_bytes(), &[n as u8; 1000]);
                database.commit(batch).unwrap();
            }
        });
        while database.stats().stalls == 0 {
            thread::yield_now();
        }
        let stats = database.stats();
        assert!(stats.commits < u64::from(BATCHES));
        assert!(stats.memtable_bytes < 3 * MEMTABLE + 4096, "{stats:?}");
        assert_eq!(database.prefix(&index, b"").count() as u64, stats.commits);
        assert!(!writer.is_finished());
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
    });
    assert_eq!(database.prefix(&index, b"").count(), BATCHES as usize);
}
