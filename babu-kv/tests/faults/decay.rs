//! Bytes that flip, files that are cut short or go missing.

use crate::scenario::{DIR, OnError, batch, content, read_all, scenario, small};
use babu_kv::{
    Batch, Compression, Database, Durability, Error, IndexOptions, Options,
    fs::{Crash, Fs, MemoryFs},
};
use std::{path::Path, sync::Arc};

/// A database with tables in several levels, a manifest of several records, and batches in the log.
fn sample() -> MemoryFs {
    let memory = MemoryFs::new();
    let fs: Arc<dyn Fs> = Arc::new(memory.clone());
    let mut applied = Vec::new();
    scenario(&fs, OnError::Stop, &mut applied).unwrap();
    let database = Database::open(Path::new(DIR), small(fs)).unwrap();
    for round in 42..70 {
        database.commit(batch(&database, round).unwrap()).unwrap();
    }
    database.close().unwrap();
    memory
}

#[test]
fn a_flipped_byte_anywhere_gives_an_error_or_the_right_answer() {
    let memory = sample();
    let whole = content(0..70);
    let (mut flips, mut errors) = (0, 0);
    for name in memory.list(Path::new(DIR)).unwrap() {
        let path = Path::new(DIR).join(&name);
        for at in 0..memory.file_len(&path).unwrap() as usize {
            let image = memory.crash(Crash::Kept);
            image.corrupt(&path, at, 1 << (at % 8)).unwrap();
            let result = Database::open(Path::new(DIR), small(Arc::new(image)))
                .and_then(|database| read_all(&database));
            flips += 1;
            match result {
                Ok(found) => assert!(found == whole, "{name} at {at}: a wrong answer"),
                Err(Error::Corrupt { .. }) => errors += 1,
                Err(error) => panic!("{name} at {at}: {error}"),
            }
        }
    }
    assert!(errors * 10 > flips * 9, "{errors} errors in {flips} flips");
}

/// A database whose only table has all that a table can have: blocks packed with a dictionary, an
/// index of two levels, prefixes in its filter.
fn sample_of_one_table(fs: Arc<dyn Fs>) -> Database {
    let options = Options {
        block_bytes: 128,
        compression: Compression::Zstd(1),
        ..Options::simulated(fs)
    };
    Database::open(Path::new(DIR), options).unwrap()
}

#[test]
fn a_flipped_byte_of_a_table_with_dictionary_and_index_parts_does_no_harm() {
    let memory = MemoryFs::new();
    let database = sample_of_one_table(Arc::new(memory.clone()));
    let prefix_bytes = 4;
    let files = database
        .index_with("files", IndexOptions { prefix_bytes })
        .unwrap();
    let key = |n: u32| [(n / 10).to_be_bytes(), n.to_be_bytes()].concat();
    let value = |n: u32| format!("owner={} mode=0755 size={n}", n % 7).into_bytes();
    let mut batch = Batch::new();
    for n in 0..1200 {
        batch.put(&files, &key(n), &value(n));
    }
    database.commit(batch).unwrap();
    database.compact().unwrap();
    database.close().unwrap();
    let names = memory.list(Path::new(DIR)).unwrap();
    let mut tables = names.iter().filter(|name| name.ends_with(".table"));
    let path = Path::new(DIR).join(tables.next().unwrap());
    assert_eq!(tables.next(), None);
    let length = memory.file_len(&path).unwrap() as usize;
    let mut errors = 0;
    for at in (0..length).step_by(13) {
        let image = memory.crash(Crash::Kept);
        image.corrupt(&path, at, 1 << (at % 8)).unwrap();
        let database = sample_of_one_table(Arc::new(image));
        let read_all = || {
            let listed = database.prefix(&files, &[]);
            let listed = listed.collect::<Result<Vec<_>, _>>()?;
            assert!(
                listed
                    .iter()
                    .map(|(k, _)| k.to_vec())
                    .eq((0..1200).map(key))
            );
            for n in (0..1200).step_by(9) {
                let found = database.get(&files, &key(n))?;
                assert_eq!(found.as_deref(), Some(value(n).as_slice()));
                assert_eq!(database.prefix(&files, &key(n)[..4]).count(), 10);
            }
            Ok(())
        };
        match read_all() {
            Ok(()) => {}
            Err(Error::Corrupt { file, .. }) if file == path => errors += 1,
            Err(error) => panic!("{at}: {error}"),
        }
        assert!(matches!(database.verify(), Err(Error::Corrupt { file, .. }) if file == path));
    }
    assert_eq!(errors, length.div_ceil(13));
}

#[test]
fn verification_finds_every_flipped_byte_of_a_table() {
    let memory = sample();
    let names = memory.list(Path::new(DIR)).unwrap();
    let tables: Vec<_> = names
        .iter()
        .filter(|name| name.ends_with(".table"))
        .collect();
    assert!(tables.len() > 1, "{names:?}");
    for name in tables {
        let path = Path::new(DIR).join(name);
        for at in (0..memory.file_len(&path).unwrap() as usize).step_by(3) {
            let image = memory.crash(Crash::Kept);
            let database = Database::open(Path::new(DIR), small(Arc::new(image.clone()))).unwrap();
            assert!(database.verify().unwrap().tables > 1);
            image.corrupt(&path, at, 0x40).unwrap();
            let error = database.verify().unwrap_err();
            assert!(
                matches!(&error, Error::Corrupt { file, .. } if *file == path),
                "{error}"
            );
        }
    }
}

#[test]
fn a_file_cut_short_anywhere_gives_an_error_or_a_prefix() {
    let memory = sample();
    for name in memory.list(Path::new(DIR)).unwrap() {
        let path = Path::new(DIR).join(&name);
        for length in 0..memory.file_len(&path).unwrap() {
            let image = memory.crash(Crash::Kept);
            image
                .open(&path, babu_kv::fs::Open::Write)
                .unwrap()
                .set_len(length)
                .unwrap();
            let result = Database::open(Path::new(DIR), small(Arc::new(image)))
                .and_then(|database| read_all(&database));
            match result {
                Ok(found) => assert!(
                    (40..=70).any(|n| content(0..n) == found),
                    "{name} cut to {length}: a wrong answer"
                ),
                Err(Error::Corrupt { .. }) => {}
                Err(error) => panic!("{name} cut to {length}: {error}"),
            }
        }
    }
}

#[test]
fn a_missing_file_gives_an_error() {
    let memory = sample();
    for name in memory.list(Path::new(DIR)).unwrap() {
        let image = memory.crash(Crash::Kept);
        image.remove(&Path::new(DIR).join(&name)).unwrap();
        let result = Database::open(Path::new(DIR), small(Arc::new(image)))
            .and_then(|database| read_all(&database));
        match result {
            Ok(found) => assert!(name == "LOCK" && found == content(0..70), "{name}"),
            Err(Error::Corrupt { .. } | Error::Io { .. }) => {}
            Err(error) => panic!("{name}: {error}"),
        }
    }
}

#[test]
fn a_log_segment_that_is_missing_in_the_middle_gives_an_error() {
    let memory = MemoryFs::new();
    let fs: Arc<dyn Fs> = Arc::new(memory.clone());
    let database = Database::open(Path::new(DIR), Options::simulated(fs)).unwrap();
    let index = database.index("index").unwrap();
    for n in 0..4u8 {
        let mut batch = Batch::new();
        batch.put(&index, &[n], b"value");
        database.write(batch, Durability::Synced).unwrap();
        // Each checkpoint closes a segment.
        database
            .checkpoint(Path::new(&format!("/copy{n}")))
            .unwrap();
    }
    database.close().unwrap();
    for number in 1..=5 {
        let image = memory.crash(Crash::Kept);
        image
            .remove(&Path::new(DIR).join(format!("{number:06}.log")))
            .unwrap();
        let result = Database::open(Path::new(DIR), Options::simulated(Arc::new(image)));
        assert!(
            matches!(result, Err(Error::Corrupt { .. })),
            "segment {number}: {result:?}"
        );
    }
}

/// What is missing at the end of a segment that was closed is not taken for a torn write, wherever
/// it breaks off.
#[test]
fn a_closed_log_segment_that_was_cut_short_anywhere_gives_an_error() {
    let memory = MemoryFs::new();
    let fs: Arc<dyn Fs> = Arc::new(memory.clone());
    let options = Options::simulated(fs);
    let database = Database::open(Path::new(DIR), options.clone()).unwrap();
    let index = database.index("index").unwrap();
    let put = |n: u8| {
        let mut batch = Batch::new();
        batch.put(&index, &[n], b"value");
        database.commit(batch).unwrap();
    };
    (0..4).for_each(put);
    database.checkpoint(Path::new("/copy")).unwrap();
    (4..8).for_each(put);
    database.close().unwrap();
    for (dir, entries) in [(Path::new(DIR), 8), (Path::new("/copy"), 4)] {
        let opened = |image: MemoryFs| {
            let database = Database::open(dir, Options::simulated(Arc::new(image)))?;
            Ok::<_, Error>(database.prefix(&index, b"").count())
        };
        assert_eq!(opened(memory.crash(Crash::Kept)).unwrap(), entries);
        let mut cuts = 0;
        for name in memory.list(dir).unwrap() {
            let path = dir.join(&name);
            // The first segment of a new database takes no batches.
            if !name.ends_with(".log") || name == "000001.log" {
                continue;
            }
            for length in 0..memory.file_len(&path).unwrap() {
                let image = memory.crash(Crash::Kept);
                let file = image.open(&path, babu_kv::fs::Open::Write).unwrap();
                file.set_len(length).unwrap();
                match opened(image) {
                    Err(Error::Corrupt { file, .. }) if file == path => cuts += 1,
                    other => panic!("{name} cut to {length}: {other:?}"),
                }
            }
        }
        assert!(cuts > 100, "{cuts}");
    }
}

/// Not an index for each log, but one log for all: what is idle needs none of it.
#[test]
fn an_idle_index_keeps_no_log() {
    let memory = MemoryFs::new();
    let options = Options::simulated(Arc::new(memory.clone()));
    let database = Database::open(Path::new(DIR), options).unwrap();
    let (idle, busy) = (
        database.index("idle").unwrap(),
        database.index("busy").unwrap(),
    );
    let mut batch = Batch::new();
    batch.put(&idle, b"key", b"value");
    database.commit(batch).unwrap();
    let logs = || {
        let mut names = memory.list(Path::new(DIR)).unwrap();
        names.retain(|name| name.ends_with(".log"));
        names
    };
    let mut seen = logs();
    for round in 0..4u8 {
        let mut batch = Batch::new();
        batch.put(&busy, &[round], b"value");
        database.commit(batch).unwrap();
        database.flush().unwrap();
        let now = logs();
        assert_eq!(now.len(), 1, "{now:?}");
        assert!(!seen.contains(&now[0]), "{now:?} of {seen:?}");
        seen = now;
    }
    let value = database.get(&idle, b"key").unwrap();
    assert_eq!(value.as_deref(), Some(b"value".as_slice()));
}
