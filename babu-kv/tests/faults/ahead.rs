//! Zeros that are written ahead into segments of the log, and what they must not hide.

use crate::scenario::DIR;
use babu_kv::{
    Batch, Database, Durability, Error, Index, Options, backup,
    fs::{Crash, Fault, FaultyFs, Fs, MemoryFs, Open},
    repair,
};
use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};

const SAFE: &str = "/safe";
const VALUE: &[u8] = &[7; 100];

fn open(memory: &MemoryFs) -> Result<Database, Error> {
    Database::open(Path::new(DIR), Options::simulated(Arc::new(memory.clone())))
}

fn put(database: &Database, index: &Index, n: u32) {
    let mut batch = Batch::new();
    batch.put(index, &n.to_be_bytes(), VALUE);
    database.write(batch, Durability::Synced).unwrap();
}

fn segments(memory: &MemoryFs, dir: &str) -> Vec<PathBuf> {
    let names = memory.list(Path::new(dir)).unwrap().into_iter();
    let names = names.filter(|name| name.ends_with(".log"));
    names.map(|name| Path::new(dir).join(name)).collect()
}

fn content(memory: &MemoryFs, path: &Path) -> Vec<u8> {
    let mut bytes = vec![0; memory.file_len(path).unwrap() as usize];
    let file = memory.open(path, Open::Read).unwrap();
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Keys that are there after a crash, or why it does not start.
fn count(memory: &MemoryFs, crash: Crash) -> Result<usize, Error> {
    let image = memory.crash(crash);
    let count = |database: &Database| {
        let index = &database.indices()[0];
        database.prefix(index, b"").count()
    };
    let options = Options::simulated(Arc::new(image.clone()));
    let looked = Database::open_read_only(Path::new(DIR), options);
    let looked = looked.map(|database| count(&database));
    let first = count(&open(&image)?);
    assert_eq!(looked.unwrap(), first);
    // What the first start made of the folder is as good.
    assert_eq!(count(&open(&image)?), first);
    Ok(first)
}

#[test]
fn a_synced_write_changes_no_length_and_what_is_not_used_is_given_back() {
    let memory = MemoryFs::new();
    let database = open(&memory).unwrap();
    let index = database.index("index").unwrap();
    put(&database, &index, 0);
    let segment = segments(&memory, DIR).pop().unwrap();
    let length = memory.file_len(&segment).unwrap();
    (1..50).for_each(|n| put(&database, &index, n));
    assert_eq!(memory.file_len(&segment).unwrap(), length);
    assert!(length > 1 << 19);
    database.close().unwrap();
    assert!(memory.file_len(&segment).unwrap() < 50 * 200);
}

/// A segment that was left with zeros behind its end, because one call failed, and the next one.
#[test]
fn the_log_goes_on_behind_zeros_that_were_not_given_back() {
    let mut seen = 0;
    for at in 0..8 {
        let memory = MemoryFs::new();
        let faulty = FaultyFs::new(Arc::new(memory.clone()));
        let options = Options::simulated(Arc::new(faulty.clone()));
        let database = Database::open(Path::new(DIR), options).unwrap();
        let index = database.index("index").unwrap();
        (0..3).for_each(|n| put(&database, &index, n));
        faulty.arm(Some(Fault {
            at,
            count: 1,
            kind: ErrorKind::Other,
            changes_only: true,
        }));
        let _ = database.checkpoint(Path::new("/copy"));
        faulty.arm(None);
        (3..6).for_each(|n| put(&database, &index, n));
        let lengths = segments(&memory, DIR).into_iter();
        let lengths = lengths.map(|path| memory.file_len(&path).unwrap());
        seen += usize::from(lengths.filter(|length| *length > 40 << 10).count() > 1);
        for crash in Crash::ALL {
            assert_eq!(count(&memory, crash).unwrap(), 6, "{at}, {crash:?}");
        }
    }
    assert_eq!(seen, 1);
}

/// The disk has lost a write that it had acknowledged: zeros are there again. As long as anything
/// later says that it was durable, it is damage and not the end of the log.
#[test]
fn a_durable_record_that_turned_to_zeros_is_damage() {
    let memory = MemoryFs::new();
    let database = open(&memory).unwrap();
    let index = database.index("index").unwrap();
    let records = [0..4, 4..8];
    records[0].clone().for_each(|n| put(&database, &index, n));
    database.checkpoint(Path::new("/copy")).unwrap();
    records[1].clone().for_each(|n| put(&database, &index, n));
    let paths = segments(&memory, DIR);
    let mut found = 0;
    for path in &paths {
        let bytes = content(&memory, path);
        let starts: Vec<usize> = (0..bytes.len())
            .filter(|at| bytes[*at..].starts_with(VALUE))
            .collect();
        for at in starts
            .iter()
            .filter(|at| **at > 0 && bytes[**at - 1] != VALUE[0])
        {
            let image = memory.crash(Crash::Kept);
            let file = image.open(path, Open::Write).unwrap();
            file.write_at(&vec![0; VALUE.len()], *at as u64).unwrap();
            found += 1;
            match count(&image, Crash::Kept) {
                Err(Error::Corrupt { file, .. }) => assert_eq!(file, *path),
                // Nothing later knows of the last one.
                Ok(left) => assert_eq!((left, found), (7, 8)),
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert_eq!(found, 8);
}

#[test]
fn copies_have_no_zeros_that_were_written_ahead() {
    let memory = MemoryFs::new();
    let database = open(&memory).unwrap();
    let index = database.index("index").unwrap();
    (0..3).for_each(|n| put(&database, &index, n));
    database.checkpoint(Path::new("/copy")).unwrap();
    (3..6).for_each(|n| put(&database, &index, n));
    let made = database.backup(Path::new(SAFE)).unwrap();
    assert!(made.bytes_new < 6 * 200, "{}", made.bytes_new);
    for path in segments(&memory, "/copy") {
        assert!(memory.file_len(&path).unwrap() < 6 * 200);
    }
    let fs: Arc<dyn Fs> = Arc::new(memory.clone());
    backup::restore(&*fs, Path::new(SAFE), made.number, Path::new("/again")).unwrap();
    let again = Database::open(Path::new("/again"), Options::simulated(fs)).unwrap();
    assert_eq!(again.prefix(&index, b"").count(), 6);
}

#[test]
fn a_repair_does_not_take_zeros_for_a_loss() {
    let memory = MemoryFs::new();
    let database = open(&memory).unwrap();
    let index = database.index("index").unwrap();
    (0..3).for_each(|n| put(&database, &index, n));
    let image = memory.crash(Crash::Kept);
    image.remove(&Path::new(DIR).join("CURRENT")).unwrap();
    let options = Options::simulated(Arc::new(image));
    let report = repair::repair(Path::new(DIR), options, false, &mut |_| {}).unwrap();
    assert_eq!(report.batches, 3);
    let losses = report.losses.iter();
    let files: Vec<_> = losses.map(|loss| loss.file.file_name().unwrap()).collect();
    assert_eq!(files, ["CURRENT"]);
}
