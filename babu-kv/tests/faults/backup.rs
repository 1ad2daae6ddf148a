//! Backups: each gives back its instant, only what is new travels, and neither a failure nor a
//! flipped byte goes unnoticed or harms another backup.

use crate::scenario::{DIR, INDICES, Maps, batch, content, read_all, small};
use babu_kv::{
    Batch, Compression, Database, Error, Options,
    backup::{self, Backup},
    fs::{Crash, Fault, FaultyFs, Fs, MemoryFs, RealFs},
};
use std::{
    collections::BTreeMap,
    io::ErrorKind,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

const SAFE: &str = "/safe";

fn safe() -> &'static Path {
    Path::new(SAFE)
}

fn open(fs: &Arc<dyn Fs>) -> Database {
    Database::open(Path::new(DIR), small(fs.clone())).unwrap()
}

fn write(database: &Database, rounds: Range<u32>) {
    for round in rounds {
        database.commit(batch(database, round).unwrap()).unwrap();
    }
}

/// What a backup gives back, in a folder of its own.
fn restored(image: &MemoryFs, number: u64) -> Maps {
    let fs: Arc<dyn Fs> = Arc::new(image.crash(Crash::Kept));
    let to = Path::new("/restored");
    backup::restore(&*fs, safe(), number, to).unwrap();
    let database = Database::open(to, small(fs)).unwrap();
    database.verify().unwrap();
    read_all(&database).unwrap()
}

/// All backups that are listed; each of them must be whole.
fn whole(fs: &dyn Fs) -> Vec<Backup> {
    let listed = backup::list(fs, safe()).unwrap();
    let listed: Vec<Backup> = listed.into_iter().map(Result::unwrap).collect();
    for backup in &listed {
        let report = backup::verify(fs, safe(), backup.number).unwrap();
        assert_eq!(&report.backup, backup);
        assert!(report.damage.is_empty(), "{:?}", report.damage);
    }
    listed
}

/// Fails `count` calls from call `at` on.
fn fault(at: u64, count: u64) -> Option<Fault> {
    Some(Fault {
        at,
        count,
        kind: ErrorKind::Other,
        changes_only: false,
    })
}

#[test]
fn each_of_several_backups_gives_back_its_instant() {
    let memory = MemoryFs::new();
    let fs: Arc<dyn Fs> = Arc::new(memory.clone());
    let database = open(&fs);
    let mut instants = Vec::new();
    for (n, rounds) in [0..20, 20..33, 33..34, 34..60].into_iter().enumerate() {
        write(&database, rounds.clone());
        let sequence = database.snapshot().sequence();
        let made = database.backup_at(safe(), 1000 + n as u64).unwrap();
        assert_eq!(
            (made.sequence, made.time),
            (sequence, Some(1000 + n as u64))
        );
        instants.push((made.number, rounds.end));
        match n {
            0 => database.flush().unwrap(),
            1 => database.compact().unwrap(),
            _ => {}
        }
    }
    assert_eq!(database.backup(safe()).unwrap().time, None);
    assert_eq!(whole(&memory).len(), 5);
    write(&database, 60..80);
    database.compact().unwrap();
    database.close().unwrap();
    for (number, rounds) in instants {
        assert!(restored(&memory, number) == content(0..rounds), "{rounds}");
    }
}

#[test]
fn only_files_that_are_not_there_yet_travel() {
    let memory = MemoryFs::new();
    let options = Options {
        compression: Compression::None,
        ..small(Arc::new(memory.clone()))
    };
    let database = Database::open(Path::new(DIR), options).unwrap();
    let index = database.index(INDICES[0]).unwrap();
    let put = |n: u32| {
        let mut batch = Batch::new();
        batch.put(&index, &n.to_be_bytes(), &[n as u8; 90]);
        database.commit(batch).unwrap();
    };
    (0..200).for_each(put);
    database.compact().unwrap();
    let first = database.backup(safe()).unwrap();
    assert!(first.files.len() > 5 && first.bytes_new == first.bytes());
    let again = database.backup(safe()).unwrap();
    assert_eq!((again.bytes_new, &again.files), (0, &first.files));

    put(200);
    let before = used(&memory);
    let third = database.backup(safe()).unwrap();
    let new = third.files.iter().filter(|f| !first.files.contains(f));
    let new: u64 = new.map(|file| file.bytes).sum();
    let manifest = memory.file_len(&safe().join("000003.backup")).unwrap();
    assert_eq!(used(&memory), before + new + manifest);
    assert!(third.bytes_new == new && new * 50 < first.bytes(), "{new}");
    database.compact().unwrap();
    database.backup(safe()).unwrap();
    assert_eq!(restored(&memory, first.number)[0].len(), 200);
    assert!(restored(&memory, third.number) == read_all(&database).unwrap());
}

/// Bytes in the backup folder.
fn used(fs: &MemoryFs) -> u64 {
    let names = fs.list(safe()).unwrap();
    let lengths = names
        .iter()
        .map(|name| fs.file_len(&safe().join(name)).unwrap());
    lengths.sum()
}

#[test]
fn backups_without_a_flush_between_do_not_gather_log_segments() {
    let memory = MemoryFs::new();
    let options = Options::simulated(Arc::new(memory.clone()));
    let database = Database::open(Path::new(DIR), options).unwrap();
    for round in 0..100 {
        write(&database, round..round + 1);
        let made = database.backup(safe()).unwrap();
        assert!(made.files.len() < 45, "{} files", made.files.len());
    }
    assert!(restored(&memory, 100) == content(0..100));
}

/// Ends the writers, also when the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

type Written = (u64, Vec<u8>, Option<Vec<u8>>);

#[test]
fn backups_beside_writers_flushes_and_compactions_are_exact() {
    let dir = tempfile::tempdir().unwrap();
    let (data, safe) = (dir.path().join("data"), dir.path().join("safe"));
    let options = Options {
        memtable_bytes: 16 << 10,
        table_bytes: 8 << 10,
        level1_bytes: 32 << 10,
        level0_tables: 2,
        ..Options::default()
    };
    let database = Database::open(&data, options).unwrap();
    let index = database.index("index").unwrap();
    let written: Mutex<Vec<Written>> = Mutex::default();
    let stop = AtomicBool::new(false);
    let made: Vec<Backup> = thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        for writer in 0..3u32 {
            let (database, index, written, stop) = (&database, &index, &written, &stop);
            scope.spawn(move || {
                let mut n = 0u32;
                while !stop.load(Relaxed) {
                    let key = [writer, n % 211].map(u32::to_be_bytes).concat();
                    let value = (!n.is_multiple_of(7)).then(|| n.to_be_bytes().repeat(12));
                    let mut batch = Batch::new();
                    match &value {
                        Some(value) => batch.put(index, &key, value),
                        None => batch.delete(index, &key),
                    }
                    let sequence = database.commit(batch).unwrap().sequence();
                    written.lock().unwrap().push((sequence, key, value));
                    n += 1;
                }
            });
        }
        let backups = (0..8).map(|n| {
            while written.lock().unwrap().len() < n * 1000 {
                thread::yield_now();
            }
            if n == 5 {
                database.compact().unwrap();
            }
            database.backup(&safe).unwrap()
        });
        backups.collect()
    });
    assert!(database.stats().compactions > 0);
    database.close().unwrap();
    let mut written = written.into_inner().unwrap();
    written.sort();
    for backup in made {
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for (_, key, value) in written.iter().filter(|w| w.0 <= backup.sequence) {
            match value {
                Some(value) => model.insert(key.clone(), value.clone()),
                None => model.remove(key),
            };
        }
        let to = dir.path().join(format!("restored{}", backup.number));
        backup::restore(&RealFs, &safe, backup.number, &to).unwrap();
        let database = Database::open(&to, Options::default()).unwrap();
        let index = database.index("index").unwrap();
        assert_eq!(database.snapshot().sequence(), backup.sequence);
        let found: Vec<_> = database
            .prefix(&index, b"")
            .map(|entry| entry.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap())
            .collect();
        assert!(found == model.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn all_names_are_durable_before_the_manifest_gets_its_own() {
    let (memory, faulty, database) = prepared();
    let names = Arc::new(Mutex::new(Vec::new()));
    let (image, last) = (memory.clone(), names.clone());
    // The last sync of a file is that of the manifest, before it is renamed.
    faulty.after_sync(move || {
        let lost = image.crash(Crash::Lost);
        *last.lock().unwrap() = lost.list(safe()).unwrap();
    });
    let made = database.backup(safe()).unwrap();
    let names = names.lock().unwrap().clone();
    assert!(!names.contains(&"000002.backup".into()) && made.bytes_new > 0);
    for file in made.files {
        assert!(names.contains(&file.name), "{}", file.name);
    }
}

/// A database of 40 rounds, whose first 30 are in a backup.
fn prepared() -> (MemoryFs, FaultyFs, Database) {
    let memory = MemoryFs::new();
    let faulty = FaultyFs::new(Arc::new(memory.clone()));
    let fs: Arc<dyn Fs> = Arc::new(faulty.clone());
    let database = open(&fs);
    write(&database, 0..30);
    database.backup(safe()).unwrap();
    write(&database, 30..40);
    faulty.arm(None);
    (memory, faulty, database)
}

#[test]
fn a_backup_killed_at_any_call_leaves_the_others_whole() {
    let (_, faulty, database) = prepared();
    database.backup(safe()).unwrap();
    for at in 0..faulty.calls() {
        let (memory, faulty, database) = prepared();
        faulty.arm(fault(at, u64::MAX));
        database.backup(safe()).unwrap_err();
        drop(database);
        for crash in Crash::ALL {
            let image = memory.crash(crash);
            let listed = whole(&image);
            assert!(matches!(listed.len(), 1 | 2), "call {at}, {crash:?}");
            for (backup, rounds) in listed.iter().zip([30, 40]) {
                assert!(restored(&image, backup.number) == content(0..rounds));
            }
            let fs: Arc<dyn Fs> = Arc::new(image.clone());
            let database = open(&fs);
            write(&database, 40..41);
            let next = database.backup(safe()).unwrap();
            assert_eq!(whole(&image).len(), listed.len() + 1);
            assert!(restored(&image, next.number) == read_all(&database).unwrap());
            let names = image.list(safe()).unwrap();
            assert!(names.iter().all(|n| !n.ends_with(".part")), "{names:?}");
        }
    }
}

#[test]
fn a_backup_met_by_one_failed_call_is_whole_or_not_there() {
    let (_, faulty, database) = prepared();
    database.backup(safe()).unwrap();
    for at in 0..faulty.calls() {
        let (memory, faulty, database) = prepared();
        faulty.arm(fault(at, 1));
        let made = database.backup(safe());
        faulty.arm(None);
        let image = memory.crash(Crash::Lost);
        let listed = whole(&image);
        assert!(restored(&image, 1) == content(0..30), "call {at}");
        if let Ok(made) = made {
            assert_eq!(listed.last(), Some(&made));
            assert!(restored(&image, made.number) == content(0..40), "call {at}");
        }
        let next = database.backup(safe()).unwrap();
        let image = memory.crash(Crash::Lost);
        assert!(restored(&image, next.number) == content(0..40), "call {at}");
    }
}

#[test]
fn a_checkpoint_met_by_one_failed_call_holds_all_or_fails() {
    let copy = Path::new("/copy");
    let (_, faulty, database) = prepared();
    database.checkpoint(copy).unwrap();
    for at in 0..faulty.calls() {
        let (memory, faulty, database) = prepared();
        faulty.arm(fault(at, 1));
        if database.checkpoint(copy).is_ok() {
            let image = memory.crash(Crash::Lost);
            let copied = Database::open(copy, small(Arc::new(image))).unwrap();
            assert!(read_all(&copied).unwrap() == content(0..40), "call {at}");
        }
    }
}

/// Three backups of 20, 30 and 40 rounds.
fn three() -> MemoryFs {
    let memory = MemoryFs::new();
    let fs: Arc<dyn Fs> = Arc::new(memory.clone());
    let database = open(&fs);
    for rounds in [0..20, 20..30, 30..40] {
        write(&database, rounds);
        database.backup(safe()).unwrap();
        database.compact().unwrap();
    }
    database.close().unwrap();
    memory
}

#[test]
fn pruning_keeps_the_newest_and_removes_what_only_the_others_needed() {
    let memory = three();
    assert!(matches!(
        backup::prune(&memory, safe(), 0),
        Err(Error::InvalidArgument(_))
    ));
    assert_eq!(backup::prune(&memory, safe(), 3).unwrap().backups, 0);
    let before = used(&memory);
    let manifest = memory.file_len(&safe().join("000001.backup")).unwrap();
    let pruned = backup::prune(&memory, safe(), 2).unwrap();
    assert!(pruned.backups == 1 && pruned.files > 0);
    assert_eq!(used(&memory), before - manifest - pruned.bytes);
    let image = memory.crash(Crash::Lost);
    assert_eq!(whole(&image).iter().map(|b| b.number).max(), Some(3));
    assert!(restored(&image, 2) == content(0..30));
    assert!(restored(&image, 3) == content(0..40));
    assert!(backup::verify(&image, safe(), 1).is_err());
}

#[test]
fn a_prune_killed_at_any_call_leaves_nothing_half() {
    let memory = three();
    let faulty = FaultyFs::new(Arc::new(memory.crash(Crash::Kept)));
    backup::prune(&faulty, safe(), 1).unwrap();
    for at in 0..faulty.calls() {
        let memory = three();
        let faulty = FaultyFs::new(Arc::new(memory.clone()));
        faulty.arm(fault(at, u64::MAX));
        backup::prune(&faulty, safe(), 1).unwrap_err();
        for crash in Crash::ALL {
            let image = memory.crash(crash);
            assert!(!whole(&image).is_empty());
            assert!(restored(&image, 3) == content(0..40), "call {at}");
            backup::prune(&image, safe(), 1).unwrap();
            let last = &whole(&image)[0];
            // The manifest and the lock.
            let names = image.list(safe()).unwrap();
            assert_eq!(
                names.len() - 1,
                last.files.len() + usize::from(names.contains(&"LOCK".into()))
            );
        }
    }
}

#[test]
fn a_restore_that_failed_can_be_tried_again() {
    let (memory, out) = (three(), Path::new("/out"));
    let faulty = FaultyFs::new(Arc::new(memory.crash(Crash::Kept)));
    backup::restore(&faulty, safe(), 2, out).unwrap();
    for at in 0..faulty.calls() {
        let image = memory.crash(Crash::Kept);
        let faulty = FaultyFs::new(Arc::new(image.clone()));
        faulty.arm(fault(at, 1));
        if backup::restore(&faulty, safe(), 2, out).is_err() {
            backup::restore(&faulty, safe(), 2, out).unwrap();
        }
        let fs = Arc::new(image.crash(Crash::Lost));
        let database = Database::open(out, small(fs)).unwrap();
        assert!(read_all(&database).unwrap() == content(0..30), "call {at}");
    }
}

#[test]
fn every_flipped_byte_is_found_and_keeps_the_backup_from_being_restored() {
    let (memory, out) = (three(), Path::new("/out"));
    for backup in whole(&memory) {
        let names = backup.files.iter().map(|file| file.name.clone());
        let manifest = format!("{:06}.backup", backup.number);
        for name in names.chain([manifest.clone()]) {
            let path: PathBuf = safe().join(&name);
            let expect = |error: &Error, at: usize| {
                let named = matches!(error, Error::Corrupt { file, .. } if *file == path);
                assert!(named, "byte {at} of {name}: {error}");
            };
            for at in 0..memory.file_len(&path).unwrap() as usize {
                memory.corrupt(&path, at, 1 << (at % 8)).unwrap();
                match backup::verify(&memory, safe(), backup.number) {
                    Ok(report) => {
                        assert_eq!(report.damage.len(), 1);
                        expect(&report.damage[0], at);
                    }
                    Err(error) => {
                        assert_eq!(name, manifest);
                        expect(&error, at);
                    }
                }
                expect(
                    &backup::restore(&memory, safe(), backup.number, out).unwrap_err(),
                    at,
                );
                let left = memory.list(out).unwrap_or_default();
                assert!(left.is_empty(), "{left:?}");
                memory.corrupt(&path, at, 1 << (at % 8)).unwrap();
            }
        }
        backup::restore(&memory, safe(), backup.number, Path::new("/healed")).unwrap();
        for name in memory.list(Path::new("/healed")).unwrap() {
            memory.remove(&Path::new("/healed").join(name)).unwrap();
        }
    }
}

#[test]
fn damage_in_the_database_does_not_get_into_a_backup() {
    let memory = MemoryFs::new();
    let fs: Arc<dyn Fs> = Arc::new(memory.clone());
    let database = open(&fs);
    write(&database, 0..30);
    database.compact().unwrap();
    let names = memory.list(Path::new(DIR)).unwrap();
    let table = names.iter().find(|name| name.ends_with(".table")).unwrap();
    let path = Path::new(DIR).join(table);
    memory.corrupt(&path, 40, 1).unwrap();
    let error = database.backup(safe()).unwrap_err();
    assert!(matches!(error, Error::Corrupt { file, .. } if file == path));
    assert!(whole(&memory).is_empty());
    memory.corrupt(&path, 40, 1).unwrap();
    database.backup(safe()).unwrap();
    assert!(restored(&memory, 1) == content(0..30));
}

#[test]
fn what_makes_no_sense_is_refused_and_harms_nothing() {
    let memory = three();
    let held = memory.lock(&safe().join("LOCK")).unwrap();
    let fs: Arc<dyn Fs> = Arc::new(memory.clone());
    let database = open(&fs);
    for error in [
        database.backup(safe()).unwrap_err(),
        backup::prune(&memory, safe(), 1).unwrap_err(),
        database.backup(Path::new(DIR)).unwrap_err(),
    ] {
        assert!(matches!(error, Error::Locked { .. }), "{error}");
    }
    // Readers need no lock.
    assert_eq!(whole(&memory).len(), 3);
    drop(held);
    for error in [
        backup::verify(&memory, safe(), 9).unwrap_err(),
        backup::restore(&memory, safe(), 9, Path::new("/out")).unwrap_err(),
        backup::restore(&memory, safe(), 1, Path::new(DIR)).unwrap_err(),
    ] {
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    }
    assert!(read_all(&database).unwrap() == content(0..40));

    // A damaged manifest hides no other, and keeps files from being removed as if nobody needed
    // them.
    memory
        .corrupt(&safe().join("000002.backup"), 30, 1)
        .unwrap();
    let listed = backup::list(&memory, safe()).unwrap();
    assert!(listed[0].is_ok() && listed[1].is_err() && listed[2].is_ok());
    backup::prune(&memory, safe(), 2).unwrap_err();
    assert!(restored(&memory, 1) == content(0..20));
    backup::prune(&memory, safe(), 1).unwrap();
    assert!(restored(&memory, 3) == content(0..40));
}
