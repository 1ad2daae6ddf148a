//! Dropped indices: whole or gone, and gone for good.

use crate::scenario::{DIR, small};
use babu_kv::{
    Batch, Database, Durability, Error, Index, Options,
    fs::{Crash, Fault, FaultyFs, Fs, MemoryFs},
};
use std::{
    io::ErrorKind,
    path::Path,
    sync::{Arc, Barrier},
};

fn open(fs: impl Fs + 'static) -> Result<Database, Error> {
    Database::open(Path::new(DIR), small(Arc::new(fs)))
}

fn put(database: &Database, index: &Index, from: u32) -> Result<(), Error> {
    for n in from..from + 30 {
        let mut batch = Batch::new();
        batch.put(index, &n.to_be_bytes(), &[n as u8; 100]);
        database.commit(batch)?;
    }
    Ok(())
}

fn count(database: &Database, index: &Index) -> usize {
    let entries = database.prefix(index, b"");
    entries.collect::<Result<Vec<_>, _>>().unwrap().len()
}

fn names(database: &Database) -> Vec<String> {
    let indices = database.indices();
    indices
        .iter()
        .map(|index| index.name().to_string())
        .collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reached {
    Nothing,
    Durable,
    Dropped,
}

/// Two indices with data, of which one is dropped; then more data, so that the log of the drop goes.
fn script(fs: impl Fs + 'static, reached: &mut Reached) -> Result<(), Error> {
    let database = open(fs)?;
    let (kept, old) = (database.index("kept")?, database.index("old")?);
    put(&database, &kept, 0)?;
    put(&database, &old, 0)?;
    database.sync()?;
    *reached = Reached::Durable;
    assert!(database.drop_index("old")?);
    *reached = Reached::Dropped;
    put(&database, &kept, 30)?;
    database.flush()?;
    database.close()
}

#[test]
fn a_crash_at_any_call_leaves_a_dropped_index_whole_or_gone() {
    let faulty = FaultyFs::new(Arc::new(MemoryFs::new()));
    script(faulty.clone(), &mut Reached::Nothing).unwrap();
    let (mut whole, mut gone) = (0, 0);
    for at in 0..faulty.changes() {
        let memory = MemoryFs::new();
        let faulty = FaultyFs::new(Arc::new(memory.clone()));
        faulty.arm(Some(Fault {
            at,
            count: u64::MAX,
            kind: ErrorKind::Other,
            changes_only: true,
        }));
        let mut reached = Reached::Nothing;
        let _ = script(faulty, &mut reached);
        for crash in Crash::ALL {
            let what = format!("call {at}, {crash:?}");
            let image = memory.crash(crash);
            let database = open(image.clone()).unwrap_or_else(|e| panic!("{what}: {e}"));
            let names = names(&database);
            if !names.contains(&"kept".to_string()) {
                continue;
            }
            let kept = count(&database, &database.index("kept").unwrap());
            let had_old = names.contains(&"old".to_string());
            assert!(
                reached < Reached::Dropped || !had_old,
                "{what}: it came back"
            );
            let old = database.index("old").unwrap();
            let left = count(&database, &old);
            if had_old {
                let needed = if reached == Reached::Durable { 30 } else { 0 };
                assert!(left >= needed && kept <= 30, "{what}: {kept}, {left}");
                whole += usize::from(left == 30);
            } else {
                assert_eq!(left, 0, "{what}");
                gone += usize::from(kept >= 30);
            }
            // It stays as it was found.
            database.close().unwrap();
            let database = open(image).unwrap();
            assert_eq!(count(&database, &old), left, "{what}");
        }
    }
    assert!(
        whole > 5 && gone > 100,
        "{whole} times whole, {gone} times gone"
    );
}

/// An index is copied into another and dropped, while neither the copy nor the drop is durable.
fn move_script(
    fs: impl Fs + 'static,
    reached: &mut Reached,
    ids: &mut Vec<Index>,
) -> Result<(), Error> {
    let database = Database::open(Path::new(DIR), roomy(fs))?;
    for name in ["kept", "old"] {
        ids.push(database.index(name)?);
    }
    put(&database, &ids[1], 0)?;
    database.flush()?;
    *reached = Reached::Durable;
    put(&database, &ids[0], 0)?;
    assert!(database.drop_index("old")?);
    *reached = Reached::Dropped;
    put(&database, &ids[0], 30)?;
    database.close()
}

/// Nothing is flushed unasked, so that the log alone holds the copy and the drop.
fn roomy(fs: impl Fs + 'static) -> Options {
    Options {
        memtable_bytes: 64 << 10,
        ..small(Arc::new(fs))
    }
}

#[test]
fn what_was_copied_before_a_drop_is_there_when_the_dropped_index_is_gone() {
    let faulty = FaultyFs::new(Arc::new(MemoryFs::new()));
    move_script(faulty.clone(), &mut Reached::Nothing, &mut Vec::new()).unwrap();
    let (mut whole, mut gone) = (0, 0);
    for at in 0..faulty.changes() {
        let memory = MemoryFs::new();
        let faulty = FaultyFs::new(Arc::new(memory.clone()));
        faulty.arm(Some(Fault {
            at,
            count: u64::MAX,
            kind: ErrorKind::Other,
            changes_only: true,
        }));
        let (mut reached, mut ids) = (Reached::Nothing, Vec::new());
        let _ = move_script(faulty, &mut reached, &mut ids);
        if reached == Reached::Nothing {
            continue;
        }
        let [kept, old] = ids.try_into().unwrap();
        for crash in Crash::ALL {
            let what = format!("call {at}, {crash:?}");
            let image = memory.crash(crash);
            let database = Database::open(Path::new(DIR), roomy(image)).unwrap();
            let is_named = names(&database).contains(&"old".to_string());
            let (copied, left) = (count(&database, &kept), count(&database, &old));
            if is_named {
                assert!(reached < Reached::Dropped, "{what}: it came back");
                assert_eq!(left, 30, "{what}");
                whole += 1;
            } else {
                assert!(copied >= 30, "{what}: {copied} of 30 were copied");
                assert_eq!(left, 0, "{what}: a part of it is left");
                gone += 1;
            }
            // Also on disk nothing is left of what is gone.
            database.flush().unwrap();
            database.compact().unwrap();
            let entries: u64 = database.stats().levels.iter().map(|l| l.entries).sum();
            assert_eq!(entries as usize, copied + left, "{what}");
        }
    }
    assert!(
        whole > 30 && gone > 30,
        "{whole} times whole, {gone} times gone"
    );
}

#[test]
fn a_failed_drop_can_be_tried_again_and_never_shows_a_part() {
    let faulty = FaultyFs::new(Arc::new(MemoryFs::new()));
    for at in 0..6 {
        let memory = MemoryFs::new();
        faulty.arm(None);
        let faulty = FaultyFs::new(Arc::new(memory.clone()));
        let database = open(faulty.clone()).unwrap();
        let old = database.index("old").unwrap();
        put(&database, &old, 0).unwrap();
        faulty.arm(Some(Fault {
            at,
            count: 3,
            kind: ErrorKind::StorageFull,
            changes_only: true,
        }));
        let result = database.drop_index("old");
        faulty.arm(None);
        let left = count(&database, &old);
        assert!(left == 30 || left == 0, "call {at}: {left}");
        assert!(left == 0 || result.is_err(), "call {at}");
        assert_eq!(names(&database).len(), usize::from(left == 30), "call {at}");
        if left == 0 {
            // The log that holds the drop goes, and the drop stays.
            database.flush().unwrap();
            let image = open(memory.crash(Crash::Lost)).unwrap();
            assert_eq!(names(&image), [""; 0], "call {at}");
        }
        database.drop_index("old").unwrap();
        assert_eq!(names(&database), [""; 0]);
        let new = database.index("old").unwrap();
        assert_ne!(new.id(), old.id());
        put(&database, &new, 0).unwrap();
        database.sync().unwrap();
        let database = open(memory.crash(Crash::Lost)).unwrap();
        assert_eq!(database.index("old").unwrap(), new);
        assert_eq!((count(&database, &old), count(&database, &new)), (0, 30));
    }
}

#[test]
fn a_dropped_index_is_gone_for_good_and_its_handle_useless() {
    let memory = MemoryFs::new();
    let database = open(memory.clone()).unwrap();
    let (kept, old) = (
        database.index("kept").unwrap(),
        database.index("old").unwrap(),
    );
    put(&database, &kept, 0).unwrap();
    put(&database, &old, 0).unwrap();
    database.flush().unwrap();
    let before = database.snapshot();
    assert!(database.drop_index("old").unwrap());
    assert!(!database.drop_index("old").unwrap());
    assert_eq!(before.prefix(&old, b"").count(), 30);
    let mut batch = Batch::new();
    batch.put(&kept, b"with it", b"");
    batch.put(&old, b"key", b"");
    let refused = database.write(batch, Durability::Buffered);
    assert!(
        matches!(refused, Err(Error::InvalidArgument { .. })),
        "{refused:?}"
    );
    assert_eq!(count(&database, &kept), 30);
    assert_eq!(names(&database), ["kept"]);
    drop(before);
    database.flush().unwrap();
    database.compact().unwrap();
    let entries: u64 = database.stats().levels.iter().map(|l| l.entries).sum();
    assert_eq!(entries, 30);
    // Its number was the last one, and is not given again, also not by a copy.
    database.checkpoint(Path::new("/copy")).unwrap();
    database.close().unwrap();
    for dir in [DIR, "/copy"] {
        let options = small(Arc::new(memory.crash(Crash::Kept)));
        let database = Database::open(Path::new(dir), options).unwrap();
        assert_eq!(names(&database), ["kept"]);
        assert!(database.index("old").unwrap().id() > old.id());
        assert_eq!(count(&database, &old), 0);
    }
}

/// Batches that queued up before the drop and are written after it are refused too.
#[test]
fn nothing_gets_into_an_index_after_its_drop() {
    for round in 0..20 {
        let options = Options::simulated(Arc::new(MemoryFs::new()));
        let database = Database::open(Path::new(DIR), options).unwrap();
        let old = database.index("old").unwrap();
        let start = Barrier::new(5);
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let (database, old, start) = (&database, &old, &start);
                scope.spawn(move || {
                    start.wait();
                    for n in 0u32.. {
                        let mut batch = Batch::new();
                        batch.put(old, &(n * 4 + thread).to_be_bytes(), b"value");
                        if let Err(error) = database.commit(batch) {
                            assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
                            break;
                        }
                    }
                });
            }
            start.wait();
            while count(&database, &old) < 100 {
                std::thread::yield_now();
            }
            assert!(database.drop_index("old").unwrap());
        });
        assert_eq!(count(&database, &old), 0, "round {round}");
    }
}

/// One batch over five indices, again and again.
#[test]
fn a_batch_over_five_indices_is_all_there_or_not_at_all_after_a_crash_at_any_call() {
    const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
    let script = |fs: Arc<dyn Fs>, durable: &mut u32| {
        let options = Options {
            memtable_bytes: 2 << 10,
            ..small(fs)
        };
        let database = Database::open(Path::new(DIR), options)?;
        let indices: Vec<Index> = NAMES
            .iter()
            .map(|name| database.index(name))
            .collect::<Result<_, _>>()?;
        for round in 1..12u32 {
            let mut batch = Batch::new();
            for index in &indices {
                batch.put(index, b"round", &round.to_be_bytes());
                batch.put(index, &round.to_be_bytes(), &[round as u8; 120]);
                batch.delete(index, &(round - 1).to_be_bytes());
            }
            let ticket = database.commit(batch)?;
            if round % 3 == 0 {
                ticket.wait_durable()?;
                *durable = round;
            }
        }
        database.close()
    };
    let faulty = FaultyFs::new(Arc::new(MemoryFs::new()));
    script(Arc::new(faulty.clone()), &mut 0).unwrap();
    for at in 0..faulty.changes() {
        let memory = MemoryFs::new();
        let faulty = FaultyFs::new(Arc::new(memory.clone()));
        faulty.arm(Some(Fault {
            at,
            count: u64::MAX,
            kind: ErrorKind::Other,
            changes_only: true,
        }));
        let mut durable = 0;
        let _ = script(Arc::new(faulty), &mut durable);
        for crash in Crash::ALL {
            let what = format!("call {at}, {crash:?}");
            let database = open(memory.crash(crash)).unwrap_or_else(|e| panic!("{what}: {e}"));
            let found: Vec<Vec<_>> = NAMES
                .iter()
                .map(|name| {
                    let index = database.index(name).unwrap();
                    let entries = database.prefix(&index, b"").map(|entry| entry.unwrap());
                    entries.map(|(k, v)| (k.to_vec(), v.to_vec())).collect()
                })
                .collect();
            assert!(
                found.iter().all(|one| *one == found[0]),
                "{what}: {found:?}"
            );
            let round = found[0].last().map_or(0, |(_, round)| {
                u32::from_be_bytes(round.as_slice().try_into().unwrap())
            });
            assert!(round >= durable, "{what}: {round} of {durable}");
            assert_eq!(found[0].len(), if round == 0 { 0 } else { 2 }, "{what}");
        }
    }
}
