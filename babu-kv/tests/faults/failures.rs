//! Calls that fail, machines that stop, disks that fill up.

use crate::scenario::{Applied, DIR, INDICES, OnError, content, read_all, scenario, small};
use babu_kv::{
    Background, Batch, Database, Durability, Error, Options,
    fs::{Crash, Fault, FaultyFs, Fs, MemoryFs, Open},
};
use std::{
    io::ErrorKind,
    mem,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

fn changes_in_scenario() -> u64 {
    let faulty = FaultyFs::new(Arc::new(MemoryFs::new()));
    let fs: Arc<dyn Fs> = Arc::new(faulty.clone());
    let mut applied = Vec::new();
    scenario(&fs, OnError::Stop, &mut applied).unwrap();
    assert_eq!(applied.len(), 42);
    faulty.changes()
}

fn synced(applied: &[Applied]) -> usize {
    applied.iter().rposition(|a| a.synced).map_or(0, |n| n + 1)
}

/// The database must open, and hold a prefix of what was tried that includes `needed` rounds.
fn expect_prefix(image: &MemoryFs, needed: usize, tried: u32, what: &str) {
    let database = match Database::open(Path::new(DIR), small(Arc::new(image.clone()))) {
        Ok(database) => database,
        Err(error) => panic!("{what}: {error}"),
    };
    let found = read_all(&database).unwrap_or_else(|error| panic!("{what}: {error}"));
    let prefix = (needed as u32..=tried).find(|n| content(0..*n) == found);
    assert!(
        prefix.is_some(),
        "{what}: no prefix with {needed} to {tried} rounds matches"
    );
    let index = database.index(INDICES[0]).unwrap();
    let mut batch = Batch::new();
    batch.put(&index, b"after", b"the crash");
    database.write(batch, Durability::Synced).unwrap();
    database.close().unwrap();
    let database = Database::open(Path::new(DIR), small(Arc::new(image.clone()))).unwrap();
    assert_eq!(
        database.get(&index, b"after").unwrap().as_deref(),
        Some(b"the crash".as_slice())
    );
}

#[test]
fn after_a_crash_at_any_call_a_prefix_with_all_acknowledged_batches_is_there() {
    for at in 0..changes_in_scenario() {
        let memory = MemoryFs::new();
        let faulty = FaultyFs::new(Arc::new(memory.clone()));
        faulty.arm(Some(Fault {
            at,
            count: u64::MAX,
            kind: ErrorKind::Other,
            changes_only: true,
        }));
        let mut applied = Vec::new();
        let fs: Arc<dyn Fs> = Arc::new(faulty);
        // What fails last may be the removal of a file that is no longer needed.
        let result = scenario(&fs, OnError::Stop, &mut applied);
        assert!(result.is_err() || applied.len() == 42, "call {at}");
        for crash in Crash::ALL {
            let needed = if crash == Crash::Kept {
                applied.len()
            } else {
                synced(&applied)
            };
            expect_prefix(
                &memory.crash(crash),
                needed,
                applied.len() as u32 + 1,
                &format!("call {at}, {crash:?}"),
            );
        }
    }
}

#[test]
fn after_any_one_to_three_failed_calls_everything_works_when_tried_again() {
    let kinds = [ErrorKind::Other, ErrorKind::StorageFull];
    for (kind, count) in kinds
        .into_iter()
        .flat_map(|kind| (1..4).map(move |count| (kind, count)))
    {
        for at in 0..changes_in_scenario() {
            let what = format!("{count} times {kind:?} at call {at}");
            let memory = MemoryFs::new();
            let faulty = FaultyFs::new(Arc::new(memory.clone()));
            faulty.arm(Some(Fault {
                at,
                count,
                kind,
                changes_only: true,
            }));
            let mut applied = Vec::new();
            let fs: Arc<dyn Fs> = Arc::new(faulty);
            if let Err(error) = scenario(&fs, OnError::Retry, &mut applied) {
                panic!("{what}: {error}");
            }
            assert_eq!(applied.len(), 42);
            for crash in Crash::ALL {
                let needed = if crash == Crash::Kept {
                    42
                } else {
                    synced(&applied)
                };
                expect_prefix(
                    &memory.crash(crash),
                    needed,
                    42,
                    &format!("{what}, {crash:?}"),
                );
            }
        }
    }
}

#[test]
fn a_write_that_failed_does_not_come_back_after_a_restart() {
    let memory = MemoryFs::new();
    let faulty = FaultyFs::new(Arc::new(memory.clone()));
    let options = Options::simulated(Arc::new(faulty.clone()));
    let database = Database::open(Path::new(DIR), options.clone()).unwrap();
    let index = database.index("index").unwrap();
    let put = |key: &[u8]| {
        let mut batch = Batch::new();
        batch.put(&index, key, b"value");
        database.write(batch, Durability::Synced)
    };
    put(b"before").unwrap();
    // The write of the record, and the truncation that would take it back.
    faulty.arm(Some(Fault {
        at: 0,
        count: 2,
        kind: ErrorKind::Other,
        changes_only: true,
    }));
    faulty.leave_whole_writes();
    put(b"failed").unwrap_err();
    faulty.arm(None);
    put(b"after").unwrap();
    for image in [memory.crash(Crash::Kept), memory.crash(Crash::Lost)] {
        let database = Database::open(Path::new(DIR), Options::simulated(Arc::new(image))).unwrap();
        let keys: Vec<_> = database
            .prefix(&index, b"")
            .map(|e| e.unwrap().0.to_vec())
            .collect();
        assert_eq!(keys, [b"after".to_vec(), b"before".to_vec()]);
    }
}

#[test]
fn a_write_that_failed_does_not_come_back_after_a_kill() {
    let memory = MemoryFs::new();
    let faulty = FaultyFs::new(Arc::new(memory.clone()));
    let options = Options::simulated(Arc::new(faulty.clone()));
    let database = Database::open(Path::new(DIR), options).unwrap();
    let index = database.index("index").unwrap();
    let put = |key: &[u8]| {
        let mut batch = Batch::new();
        batch.put(&index, key, b"value");
        database.commit(batch)
    };
    put(b"before").unwrap();
    // All of its bytes reach the disk all the same.
    faulty.arm(Some(Fault {
        at: 0,
        count: 1,
        kind: ErrorKind::Other,
        changes_only: true,
    }));
    faulty.leave_whole_writes();
    put(b"failed").unwrap_err();
    let image = memory.crash(Crash::Kept);
    let copy = Database::open(Path::new(DIR), Options::simulated(Arc::new(image))).unwrap();
    assert!(copy.get(&index, b"before").unwrap().is_some());
    assert!(copy.get(&index, b"failed").unwrap().is_none());
}

#[test]
fn any_failed_read_gives_an_error_and_nothing_else() {
    let memory = MemoryFs::new();
    let fs: Arc<dyn Fs> = Arc::new(memory.clone());
    let mut applied = Vec::new();
    scenario(&fs, OnError::Stop, &mut applied).unwrap();
    let faulty = FaultyFs::new(Arc::new(memory));
    let fs: Arc<dyn Fs> = Arc::new(faulty.clone());
    let read = || {
        let database = Database::open(Path::new(DIR), small(fs.clone()))?;
        read_all(&database)
    };
    faulty.arm(None);
    let whole = read().unwrap();
    assert_eq!(whole, content(0..42));
    for at in 0..faulty.calls() {
        faulty.arm(Some(Fault {
            at,
            count: 1,
            kind: ErrorKind::Other,
            changes_only: false,
        }));
        if let Ok(found) = read() {
            assert_eq!(found, whole);
        }
    }
}

#[test]
fn a_failed_sync_is_never_repeated_on_the_same_bytes() {
    // The disk forgets what it could not sync; only what is written again to another segment
    // survives.
    let memory = MemoryFs::new();
    let faulty = FaultyFs::new(Arc::new(memory.clone()));
    let options = Options::simulated(Arc::new(faulty.clone()));
    let database = Database::open(Path::new(DIR), options).unwrap();
    let index = database.index("index").unwrap();
    let put = |n: u32| {
        let mut batch = Batch::new();
        batch.put(&index, &n.to_be_bytes(), b"value");
        database.commit(batch).unwrap()
    };
    put(0).wait_durable().unwrap();
    let ticket = put(1);
    // The sync of the segment, and then the creation of the new one.
    faulty.arm(Some(Fault {
        at: 0,
        count: 2,
        kind: ErrorKind::Other,
        changes_only: true,
    }));
    assert!(matches!(ticket.wait_durable(), Err(Error::Io { .. })));
    assert_eq!(
        database
            .get(&index, &1u32.to_be_bytes())
            .unwrap()
            .as_deref(),
        Some(b"value".as_slice())
    );
    put(2).wait_durable().unwrap();
    ticket.wait_durable().unwrap();
    // The old segment is as it was at its last successful sync, and the log is whole without its
    // rest.
    let image = memory.crash(Crash::Lost);
    let database = Database::open(Path::new(DIR), Options::simulated(Arc::new(image))).unwrap();
    for n in 0..3u32 {
        assert!(
            database.get(&index, &n.to_be_bytes()).unwrap().is_some(),
            "{n}"
        );
    }
}

#[test]
fn a_segment_that_is_left_during_its_sync_is_synced_again() {
    let memory = MemoryFs::new();
    let faulty = FaultyFs::new(Arc::new(memory.clone()));
    let options = Options {
        memtable_bytes: 1 << 10,
        ..Options::simulated(Arc::new(faulty.clone()))
    };
    let database = Database::open(Path::new(DIR), options).unwrap();
    let index = database.index("index").unwrap();
    let put = move |database: &Database, key: &[u8]| {
        let mut batch = Batch::new();
        batch.put(&index, key, &[1; 2000]);
        database.commit(batch).unwrap()
    };
    let late = Arc::new(Mutex::new(None));
    let hook = {
        let (database, faulty, late, put) =
            (database.clone(), faulty.clone(), late.clone(), put.clone());
        move || {
            if late.lock().unwrap().is_some() {
                return;
            }
            // The write of `late`; then a rotation (the name of the new segment, zeros, their sync)
            // and the write of `next`. The flush fails.
            faulty.arm(Some(Fault {
                at: 5,
                count: u64::MAX,
                kind: ErrorKind::Other,
                changes_only: true,
            }));
            *late.lock().unwrap() = Some(put(&database, b"late"));
            put(&database, b"next");
        }
    };
    let mut batch = Batch::new();
    batch.put(&database.index("index").unwrap(), b"early", b"");
    let early = database.commit(batch).unwrap();
    faulty.after_sync(hook);
    early.wait_durable().unwrap();
    assert_eq!(database.stats().memtables_waiting, 1);
    faulty.arm(None);
    let ticket = late.lock().unwrap().clone().unwrap();
    ticket.wait_durable().unwrap();
    let image = memory.crash(Crash::Lost);
    let reopened = Database::open(Path::new(DIR), Options::simulated(Arc::new(image))).unwrap();
    let index = reopened.index("index").unwrap();
    assert!(reopened.get(&index, b"late").unwrap().is_some());
}

#[test]
fn a_full_disk_gives_no_space_and_works_again_after_deleting() {
    for background in [Background::Inline, Background::Threads] {
        let memory = MemoryFs::new();
        let options = Options {
            background,
            ..small(Arc::new(memory.clone()))
        };
        let database = Database::open(Path::new(DIR), options.clone()).unwrap();
        let index = database.index("index").unwrap();
        let put = |n: u32| {
            let mut batch = Batch::new();
            batch.put(&index, &n.to_be_bytes(), &[n as u8; 100]);
            database.write(batch, Durability::Synced)
        };
        memory.set_capacity(Some(60_000));
        let mut written = 0;
        let error = loop {
            match put(written) {
                Ok(_) => written += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::NoSpace { .. }), "{error}");
        assert!(written > 100, "{written}");
        // Beside threads a compaction may have made room by now.
        assert!(put(written).is_err() || background == Background::Threads);
        let all_there = |database: &Database| {
            for n in 0..written {
                assert_eq!(
                    database.get(&index, &n.to_be_bytes()).unwrap().as_deref(),
                    Some([n as u8; 100].as_slice()),
                    "{n}"
                );
            }
        };
        all_there(&database);
        memory.set_capacity(Some(200_000));
        for n in written..written + 100 {
            put(n).unwrap();
        }
        all_there(&database);
        database.close().unwrap();
        memory.set_capacity(Some(memory.used_bytes()));
        let database = Database::open(Path::new(DIR), options).unwrap();
        all_there(&database);
    }
}

#[test]
fn what_a_killed_process_wrote_survives_power_loss_once_the_next_one_says_so() {
    let memory = MemoryFs::new();
    let faulty = FaultyFs::new(Arc::new(memory.clone()));
    let database = Database::open(Path::new(DIR), small(Arc::new(faulty.clone()))).unwrap();
    let index = database.index(INDICES[0]).unwrap();
    let mut batch = Batch::new();
    batch.put(&index, b"before", b"the kill");
    database.write(batch, Durability::Buffered).unwrap();
    // A killed process does nothing more.
    faulty.arm(Some(Fault {
        at: 0,
        count: u64::MAX,
        kind: ErrorKind::Other,
        changes_only: true,
    }));
    drop(database);
    let database = Database::open(Path::new(DIR), small(Arc::new(memory.clone()))).unwrap();
    database.sync().unwrap();
    let image = memory.crash(Crash::Lost);
    let database = Database::open(Path::new(DIR), small(Arc::new(image))).unwrap();
    let found = database.get(&index, b"before").unwrap();
    assert_eq!(found.as_deref(), Some(b"the kill".as_slice()));
}

#[test]
fn after_a_flush_that_left_nothing_the_database_survives_power_loss() {
    let memory = MemoryFs::new();
    let options = Options::simulated(Arc::new(memory.clone()));
    let database = Database::open(Path::new(DIR), options).unwrap();
    let index = database.index("index").unwrap();
    for round in 0..3 {
        let mut batch = Batch::new();
        batch.put(&index, b"key", b"value");
        batch.delete(&index, b"key");
        database.commit(batch).unwrap();
        database.flush().unwrap();
        let options = Options::simulated(Arc::new(memory.crash(Crash::Lost)));
        let reopened = Database::open(Path::new(DIR), options);
        let reopened = reopened.unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_eq!(reopened.get(&index, b"key").unwrap(), None);
    }
}

/// The disk forgot what it could not sync, and the machine stopped after the log had gone on in
/// another segment. What is left of the first one is in order, as often as it is looked at.
#[test]
fn a_segment_that_breaks_off_where_the_next_one_repeats_it_stays_good() {
    let memory = MemoryFs::new();
    let faulty = FaultyFs::new(Arc::new(memory.clone()));
    let options = Options::simulated(Arc::new(faulty.clone()));
    let database = Database::open(Path::new(DIR), options).unwrap();
    let index = database.index("index").unwrap();
    let put = |n: u32| {
        let mut batch = Batch::new();
        batch.put(&index, &n.to_be_bytes(), b"value");
        database.commit(batch).unwrap()
    };
    put(0).wait_durable().unwrap();
    let ticket = put(1);
    faulty.arm(Some(Fault {
        at: 0,
        count: 1,
        kind: ErrorKind::Other,
        changes_only: true,
    }));
    ticket.wait_durable().unwrap();
    // A page of the first segment that has never reached the disk.
    let image = memory.crash(Crash::Lost);
    let path = first_segment(&image);
    let file = image.open(&path, Open::Write).unwrap();
    file.write_at(&[0; 60], file.len().unwrap()).unwrap();
    file.sync_data().unwrap();
    let options = Options::simulated(Arc::new(image));
    for n in 0..3 {
        let database = Database::open(Path::new(DIR), options.clone()).unwrap();
        let index = database.index("index").unwrap();
        assert_eq!(database.prefix(&index, b"").count(), 2, "{n}");
        let copy = format!("/copy{n}");
        database.checkpoint(Path::new(&copy)).unwrap();
        let copied = Database::open(Path::new(&copy), options.clone()).unwrap();
        assert_eq!(copied.prefix(&index, b"").count(), 2, "{n}");
        database.close().unwrap();
    }
}

fn first_segment(fs: &MemoryFs) -> PathBuf {
    let names = fs.list(Path::new(DIR)).unwrap();
    let mut segments: Vec<_> = names.iter().filter(|n| n.ends_with(".log")).collect();
    segments.sort();
    // The first has what was durable in it; those after it repeat the rest.
    let held = segments.into_iter().map(|name| Path::new(DIR).join(name));
    held.into_iter()
        .find(|path| fs.file_len(path).unwrap() > 24)
        .unwrap()
}

/// Whoever closes a database waits for the flush of another thread. Otherwise that would end in a
/// folder that belongs to somebody else by then.
#[test]
fn a_flush_beside_the_close_is_over_when_the_folder_is_free() {
    let memory = MemoryFs::new();
    let faulty = FaultyFs::new(Arc::new(memory.clone()));
    let database =
        Database::open(Path::new(DIR), Options::simulated(Arc::new(faulty.clone()))).unwrap();
    let index = database.index("index").unwrap();
    let put = |database: &Database, n: u32| {
        let mut batch = Batch::new();
        batch.put(&index, &n.to_be_bytes(), b"value");
        database.write(batch, Durability::Synced).unwrap();
    };
    put(&database, 0);
    let (closed, has_closed) = mpsc::channel();
    let has_closed = Mutex::new(has_closed);
    let closing = Mutex::new(Some((database.clone(), closed)));
    let again = Options::simulated(Arc::new(memory.clone()));
    let syncs = AtomicU32::new(0);
    faulty.after_sync(move || {
        // The first is that of the next segment of the log, during which nobody can close.
        if syncs.fetch_add(1, Relaxed) == 0 {
            return;
        }
        let Some((database, closed)) = closing.lock().unwrap().take() else {
            return;
        };
        let again = again.clone();
        thread::spawn(move || {
            database.close().unwrap();
            let next = Database::open(Path::new(DIR), again).unwrap();
            let index = next.index("other").unwrap();
            let mut batch = Batch::new();
            batch.put(&index, b"key", b"value");
            next.write(batch, Durability::Synced).unwrap();
            next.flush().unwrap();
            closed.send(next).unwrap();
        });
        // Long enough for a close that does not wait. One that waits goes on when this returns.
        let waited = has_closed.lock().unwrap();
        if let Ok(next) = waited.recv_timeout(Duration::from_millis(300)) {
            mem::forget(next);
        }
    });
    database.flush().unwrap();
    drop(faulty);
    let image = memory.crash(Crash::Kept);
    let found = Database::open(Path::new(DIR), Options::simulated(Arc::new(image))).unwrap();
    let names: Vec<_> = found
        .indices()
        .iter()
        .map(|i| i.name().to_string())
        .collect();
    assert!(names.contains(&"index".into()));
    assert!(found.get(&index, &0u32.to_be_bytes()).unwrap().is_some());
    found.verify().unwrap();
}

/// The segment that the log went on in took no batch, and nobody synced it.
#[test]
fn nothing_says_that_a_segment_is_durable_that_was_never_synced() {
    let memory = MemoryFs::new();
    let faulty = FaultyFs::new(Arc::new(memory.clone()));
    let options = Options::simulated(Arc::new(faulty.clone()));
    let database = Database::open(Path::new(DIR), options).unwrap();
    let index = database.index("index").unwrap();
    let put = |key: &[u8]| {
        let mut batch = Batch::new();
        batch.put(&index, key, b"value");
        database.write(batch, Durability::Synced)
    };
    let fail = |at, count| {
        faulty.arm(Some(Fault {
            at,
            count,
            kind: ErrorKind::StorageFull,
            changes_only: true,
        }));
    };
    put(b"before").unwrap();
    // The write, and the truncation that would take it back; then the write to the next segment,
    // after its creation and its first record.
    fail(0, 2);
    put(b"failed").unwrap_err();
    fail(2, 1);
    put(b"failed too").unwrap_err();
    faulty.arm(None);
    database.close().unwrap();
    for crash in Crash::ALL {
        let options = Options::simulated(Arc::new(memory.crash(crash)));
        let database = Database::open(Path::new(DIR), options).unwrap();
        assert_eq!(database.prefix(&index, b"").count(), 1);
    }
}
