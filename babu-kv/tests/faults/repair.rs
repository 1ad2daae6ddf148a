//! Repair: what is left of a damaged database is all there, nothing else is, and the files that were
//! there before are kept.

use crate::scenario::{DIR, Maps, OnError, batch, content, scenario, small};
use babu_kv::{
    Batch, Database, Durability, Error, Options,
    fs::{Crash, Fault, FaultyFs, Fs, MemoryFs, Open},
    repair::{ManifestState, Outcome, Report, repair},
};
use std::{
    collections::BTreeMap,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};

const ROUNDS: u32 = 70;

fn dir() -> &'static Path {
    Path::new(DIR)
}

/// Tables in several levels, a manifest of several records, and batches in the log.
fn sample() -> MemoryFs {
    let memory = MemoryFs::new();
    let fs: Arc<dyn Fs> = Arc::new(memory.clone());
    scenario(&fs, OnError::Stop, &mut Vec::new()).unwrap();
    let database = Database::open(dir(), small(fs)).unwrap();
    for round in 42..ROUNDS {
        database.commit(batch(&database, round).unwrap()).unwrap();
    }
    database.close().unwrap();
    assert!(names(&memory, ".table").len() > 1);
    memory
}

fn names(fs: &MemoryFs, part: &str) -> Vec<String> {
    let mut names = fs.list(dir()).unwrap();
    names.retain(|name| name.contains(part));
    names
}

fn bytes(fs: &dyn Fs, path: &Path) -> Vec<u8> {
    let file = fs.open(path, Open::Read).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn files(fs: &MemoryFs, dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut names = fs.list(dir).unwrap();
    names.retain(|n| n != "LOCK" && !n.starts_with("lost-"));
    let content = |name: String| (name.clone(), bytes(fs, &dir.join(name)));
    names.into_iter().map(content).collect()
}

/// By number, because names may be lost.
fn read(fs: &MemoryFs) -> Maps {
    let database = Database::open(dir(), small(Arc::new(fs.clone()))).unwrap();
    database.verify().unwrap();
    let mut maps: Maps = Default::default();
    for index in database.indices() {
        let entries = database.prefix(&index, b"").map(Result::unwrap);
        let entries = entries.map(|(k, v)| (k.to_vec(), v.to_vec()));
        maps[index.id() as usize - 1].extend(entries);
    }
    maps
}

fn one(fs: &MemoryFs) -> Vec<(Vec<u8>, Vec<u8>)> {
    let [one, other] = read(fs);
    assert!(other.is_empty());
    one.into_iter().collect()
}

/// Repairs, and holds what holds for every repair.
fn repaired(image: &MemoryFs) -> Report {
    let before = files(image, dir());
    let options = || small(Arc::new(image.clone()));
    let planned = repair(dir(), options(), true, &mut |_| {}).unwrap();
    assert!(files(image, dir()) == before, "a plan changed something");
    let report = repair(dir(), options(), false, &mut |_| {}).unwrap();
    match report.outcome {
        Outcome::Healthy => assert_eq!(planned, report),
        _ => {
            let originals = report.originals.clone().unwrap();
            assert!(files(image, &originals) == before, "an original is gone");
            assert_eq!(planned.outcome, Outcome::Planned);
            assert_eq!(planned.losses, report.losses);
            assert_eq!(planned.operations_missing, report.operations_missing);
        }
    }
    let again = repair(dir(), options(), false, &mut |_| {}).unwrap();
    assert_eq!(again.outcome, Outcome::Healthy);
    assert!(!image.exists(&dir().join("repair.part")).unwrap());
    report
}

/// All values that each key ever had.
fn was_written(found: &Maps) -> bool {
    let states: Vec<Maps> = (0..=ROUNDS).map(|n| content(0..n)).collect();
    let known = |n: usize, k: &Vec<u8>, v: &Vec<u8>| states.iter().any(|s| s[n].get(k) == Some(v));
    (0..2).all(|n| found[n].iter().all(|(k, v)| known(n, k, v)))
}

/// Whether a loss names the place of a key.
fn is_named(report: &Report, index: usize, key: &[u8]) -> bool {
    let place = (index as u32 + 1, key.to_vec());
    report.losses.iter().any(|loss| {
        let after = loss.after.as_ref().is_none_or(|after| *after <= place);
        let before = loss.before.as_ref().is_none_or(|before| place <= *before);
        loss.entries && after && before
    })
}

/// Every key whose place is not named as lost is as it was.
fn check_tables(found: &Maps, report: &Report, what: &str) {
    assert!(
        was_written(found),
        "{what}: an entry that was never written"
    );
    let ranges_lost = report.losses.iter().any(|l| l.what.contains("ranges"));
    let whole = content(0..ROUNDS);
    for n in 0..2 {
        for key in whole[n].keys().chain(found[n].keys()) {
            let (is, should) = (found[n].get(key), whole[n].get(key));
            let back = ranges_lost && should.is_none();
            assert!(
                is == should || back || is_named(report, n, key),
                "{what}: key {} of index {n}: {:?}",
                key.escape_ascii(),
                report.losses
            );
        }
    }
}

/// All rounds but at most one in a row of `most`.
fn check_log(found: &Maps, most: u32, what: &str) {
    let but = |from: u32, n: u32| content((0..ROUNDS).filter(move |r| *r < from || *r >= from + n));
    let fits = (0..=most).any(|n| (0..=ROUNDS).any(|from| but(from, n) == *found));
    assert!(fits, "{what}: more is lost than a batch");
}

#[test]
fn a_healthy_database_is_left_alone() {
    let memory = sample();
    let before = files(&memory, dir());
    let report = repaired(&memory);
    assert_eq!(report, Report::default());
    assert!(files(&memory, dir()) == before);
}

#[test]
fn all_outside_of_a_flipped_byte_survives() {
    let memory = sample();
    for name in names(&memory, "") {
        let path = dir().join(&name);
        let length = memory.file_len(&path).unwrap() as usize;
        for at in (0..length).step_by(11) {
            let what = format!("{name} at {at}");
            let image = memory.crash(Crash::Kept);
            image.corrupt(&path, at, 1 << (at % 8)).unwrap();
            let report = repaired(&image);
            let found = read(&image);
            if name.ends_with(".table") {
                assert_eq!(report.tables_rewritten, 1, "{what}");
                assert!(!report.losses.is_empty(), "{what}");
                check_tables(&found, &report, &what);
            } else if name.ends_with(".log") {
                check_log(&found, 1, &what);
                assert!(was_written(&found), "{what}");
            } else {
                assert!(found == content(0..ROUNDS), "{what}: {report:?}");
            }
        }
    }
}

#[test]
fn without_current_or_the_manifest_everything_survives() {
    let memory = sample();
    let manifest = names(&memory, "MANIFEST-").remove(0);
    for (removed, state) in [
        (vec!["CURRENT"], ManifestState::Whole),
        (vec![manifest.as_str()], ManifestState::Missing),
        (vec!["CURRENT", manifest.as_str()], ManifestState::Missing),
    ] {
        let image = memory.crash(Crash::Kept);
        for name in &removed {
            image.remove(&dir().join(name)).unwrap();
        }
        let report = repaired(&image);
        assert_eq!(report.manifest, state, "{removed:?}");
        let renamed: &[&str] = match state {
            ManifestState::Missing => &["index-1", "index-2"],
            _ => &[],
        };
        assert_eq!(report.indices_renamed, renamed);
        assert!(read(&image) == content(0..ROUNDS), "{removed:?}");
        // It goes on from there, with numbers that were never used.
        let database = Database::open(dir(), small(Arc::new(image.clone()))).unwrap();
        let index = database.indices()[0].clone();
        let mut put = Batch::new();
        put.put(&index, b"key000", b"newer");
        database.write(put, Durability::Synced).unwrap();
        database.compact().unwrap();
        let value = database.get(&index, b"key000").unwrap();
        assert_eq!(value.as_deref(), Some(b"newer".as_slice()));
    }
}

#[test]
fn a_table_that_is_missing_or_cut_loses_nothing_else() {
    let memory = sample();
    for name in names(&memory, ".table") {
        let path = dir().join(&name);
        let length = memory.file_len(&path).unwrap();
        let image = memory.crash(Crash::Kept);
        image.remove(&path).unwrap();
        let report = repaired(&image);
        assert_eq!((report.tables_missing, report.losses.len()), (1, 1));
        check_tables(&read(&image), &report, &name);
        for eighth in 0..8 {
            let image = memory.crash(Crash::Kept);
            let file = image.open(&path, Open::Write).unwrap();
            file.set_len(length * eighth / 8).unwrap();
            let report = repaired(&image);
            assert_eq!(report.tables_rewritten, 1);
            check_tables(&read(&image), &report, &format!("{name} cut to {eighth}/8"));
        }
    }
}

#[test]
fn with_neither_manifest_nor_a_whole_table_the_rest_survives() {
    let memory = sample();
    let manifest = names(&memory, "MANIFEST-").remove(0);
    for name in names(&memory, ".table") {
        let path = dir().join(&name);
        let length = memory.file_len(&path).unwrap() as usize;
        for at in (0..length).step_by(37) {
            let image = memory.crash(Crash::Kept);
            image.remove(&dir().join(&manifest)).unwrap();
            image.corrupt(&path, at, 4).unwrap();
            let report = repaired(&image);
            check_tables(&read(&image), &report, &format!("{name} at {at}"));
        }
    }
}

/// Four batches, each in a segment of its own.
fn segments() -> MemoryFs {
    let memory = MemoryFs::new();
    let options = Options::simulated(Arc::new(memory.clone()));
    let database = Database::open(dir(), options).unwrap();
    let index = database.index("index").unwrap();
    for n in 0..4u8 {
        let mut batch = Batch::new();
        batch.put(&index, &[n], b"value");
        batch.put(&index, b"last", &[n]);
        database.write(batch, Durability::Synced).unwrap();
        let copy = format!("/copy{n}");
        database.checkpoint(Path::new(&copy)).unwrap();
    }
    database.close().unwrap();
    memory
}

#[test]
fn a_missing_segment_in_the_middle_of_the_log_loses_its_batches_only() {
    let memory = segments();
    for missing in 1..=4u8 {
        let image = memory.crash(Crash::Kept);
        // The first segment was there before the first batch.
        let name = format!("{:06}.log", missing + 1);
        image.remove(&dir().join(name)).unwrap();
        let report = repaired(&image);
        let first = u64::from(missing) * 2 - 1;
        if missing < 4 {
            assert_eq!(
                report.operations_missing,
                [(first, first + 1)],
                "{report:?}"
            );
        }
        assert_eq!(report.batches, 3, "{report:?}");
        let database = Database::open(dir(), Options::simulated(Arc::new(image))).unwrap();
        let index = database.index("index").unwrap();
        for n in 0..4u8 {
            let there = database.get(&index, &[n]).unwrap().is_some();
            assert_eq!(there, n + 1 != missing, "{n} without {missing}");
        }
        let newest = if missing == 4 { 2 } else { 3 };
        let last = database.get(&index, b"last").unwrap().unwrap();
        assert_eq!(&*last, [newest]);
    }
}

#[test]
fn a_table_that_was_compacted_away_brings_nothing_back_while_the_manifest_is_whole() {
    let memory = MemoryFs::new();
    let options = || small(Arc::new(memory.clone()));
    let database = Database::open(dir(), options()).unwrap();
    let index = database.index("index").unwrap();
    let mut put = Batch::new();
    put.put(&index, b"deleted", b"value");
    put.put(&index, b"kept", b"value");
    database.commit(put).unwrap();
    database.flush().unwrap();
    let old = names(&memory, ".table").remove(0);
    let old_bytes = bytes(&memory, &dir().join(&old));
    let mut delete = Batch::new();
    delete.delete(&index, b"deleted");
    database.commit(delete).unwrap();
    database.compact().unwrap();
    database.close().unwrap();
    // It could not be removed when it should have been.
    assert!(!memory.exists(&dir().join(&old)).unwrap());
    let file = memory.open(&dir().join(&old), Open::CreateNew).unwrap();
    file.write_at(&old_bytes, 0).unwrap();
    let table = names(&memory, ".table").pop().unwrap();
    memory.corrupt(&dir().join(table), 20, 1).unwrap();

    let with_manifest = memory.crash(Crash::Kept);
    let report = repaired(&with_manifest);
    assert_eq!((report.tables_obsolete, report.tables_rewritten), (1, 1));
    assert!(!read(&with_manifest)[0].contains_key(b"deleted".as_slice()));

    let without = memory.crash(Crash::Kept);
    let manifest = names(&without, "MANIFEST-").remove(0);
    without.remove(&dir().join(manifest)).unwrap();
    let report = repaired(&without);
    // Nobody can know; so it is said.
    assert_eq!(report.tables_unconfirmed, 2);
}

fn stop(at: u64) -> Option<Fault> {
    Some(Fault {
        at,
        count: u64::MAX,
        kind: ErrorKind::Other,
        changes_only: true,
    })
}

#[test]
fn a_repair_killed_at_any_call_is_as_if_it_had_not_begun_or_is_completed() {
    let memory = sample();
    let table = names(&memory, ".table").pop().unwrap();
    memory.corrupt(&dir().join(&table), 30, 1).unwrap();
    let manifest = dir().join(names(&memory, "MANIFEST-").remove(0));
    for remove_manifest in [false, true] {
        let damaged = || {
            let image = memory.crash(Crash::Kept);
            if remove_manifest {
                image.remove(&manifest).unwrap();
            }
            image.crash(Crash::Kept)
        };
        let before = files(&damaged(), dir());
        let faulty = FaultyFs::new(Arc::new(damaged()));
        let report = repair(dir(), small(Arc::new(faulty.clone())), false, &mut |_| {}).unwrap();
        let changes = faulty.changes();
        let done = damaged();
        let _ = repair(dir(), small(Arc::new(done.clone())), false, &mut |_| {}).unwrap();
        let expected = read(&done);
        assert_eq!(report.outcome, Outcome::Repaired);
        for at in 0..changes {
            let image = damaged();
            let faulty = FaultyFs::new(Arc::new(image.clone()));
            faulty.arm(stop(at));
            let result = repair(dir(), small(Arc::new(faulty.clone())), false, &mut |_| {});
            assert!(result.is_err(), "change {at}");
            for crash in Crash::ALL {
                let found = image.crash(crash);
                // Nobody takes a folder without CURRENT for an empty one.
                let current = found.exists(&dir().join("CURRENT")).unwrap();
                let opened = Database::open(dir(), small(Arc::new(found.crash(Crash::Kept))));
                if !current {
                    assert!(opened.is_err(), "change {at}, {crash:?}: made a new one");
                }
                let report = repair(dir(), small(Arc::new(found.clone())), false, &mut |_| {});
                let report = report.unwrap();
                assert!(read(&found) == expected, "change {at}, {crash:?}");
                let originals: Vec<PathBuf> = found
                    .list(dir())
                    .unwrap()
                    .iter()
                    .filter(|name| name.starts_with("lost-"))
                    .map(|name| dir().join(name))
                    .collect();
                let kept = originals.iter().any(|lost| files(&found, lost) == before);
                assert!(kept, "change {at}, {crash:?}: {report:?}");
            }
        }
    }
}

#[test]
fn a_database_in_use_and_a_folder_that_is_not_there_are_refused() {
    let memory = sample();
    let owner = Database::open(dir(), small(Arc::new(memory.clone()))).unwrap();
    let options = || small(Arc::new(memory.clone()));
    let refused = repair(dir(), options(), false, &mut |_| {});
    assert!(matches!(refused, Err(Error::Locked { .. })));
    owner.close().unwrap();
    let nowhere = Path::new("/nowhere");
    let refused = repair(nowhere, options(), false, &mut |_| {});
    assert!(matches!(refused, Err(Error::InvalidArgument(_))));
    assert!(!memory.exists(nowhere).unwrap());
}

/// One index; nothing is flushed or compacted unasked.
fn quiet(memory: &MemoryFs) -> Options {
    Options {
        block_bytes: 256,
        level0_tables: 64,
        ..Options::simulated(Arc::new(memory.clone()))
    }
}

fn put_all(database: &Database, value: &[u8]) {
    let index = database.index("index").unwrap();
    for n in 0..100u8 {
        let mut batch = Batch::new();
        batch.put(&index, &[n], value);
        database.commit(batch).unwrap();
    }
}

#[test]
fn a_damaged_table_keeps_its_place_before_older_ones() {
    let memory = MemoryFs::new();
    let database = Database::open(dir(), quiet(&memory)).unwrap();
    for value in [b"older", b"newer"] {
        put_all(&database, value);
        database.flush().unwrap();
    }
    database.close().unwrap();
    let newest = names(&memory, ".table").pop().unwrap();
    memory.corrupt(&dir().join(newest), 20, 1).unwrap();
    let report = repaired(&memory);
    assert_eq!((report.tables_kept, report.tables_rewritten), (1, 1));
    let found = one(&memory);
    assert_eq!(found.len(), 100);
    let mut newer = 0;
    for (key, value) in &found {
        newer += usize::from(value == b"newer");
        assert!(value == b"newer" || is_named(&report, 0, key), "{key:?}");
    }
    assert!(newer > 50, "{newer}");
}

#[test]
fn batches_after_a_damaged_one_are_taken() {
    let memory = MemoryFs::new();
    let database = Database::open(dir(), quiet(&memory)).unwrap();
    put_all(&database, b"value");
    database.close().unwrap();
    let logs = names(&memory, ".log");
    let longest = logs.iter().map(|name| dir().join(name));
    let longest = longest.max_by_key(|path| memory.file_len(path).unwrap());
    memory.corrupt(&longest.unwrap(), 2000, 1).unwrap();
    let report = repaired(&memory);
    assert_eq!(report.batches, 99);
    let (first, last) = report.operations_missing[0];
    assert_eq!(first, last);
    let lost = [first as u8 - 1];
    let found = one(&memory);
    assert_eq!(found.len(), 99);
    assert!(found.iter().all(|(key, _)| *key != lost));
}

#[test]
fn deleted_ranges_stay_deleted_without_the_manifest() {
    for flushed in [false, true] {
        let memory = MemoryFs::new();
        let database = Database::open(dir(), quiet(&memory)).unwrap();
        put_all(&database, b"value");
        database.flush().unwrap();
        let index = database.index("index").unwrap();
        let mut batch = Batch::new();
        batch.delete_range(&index, &[10], &[90]);
        batch.put(&index, &[50], b"again");
        database.commit(batch).unwrap();
        if flushed {
            database.flush().unwrap();
        }
        database.close().unwrap();
        for name in names(&memory, "MANIFEST-") {
            memory.remove(&dir().join(name)).unwrap();
        }
        let _ = repaired(&memory);
        let found = one(&memory);
        let keys: Vec<u8> = found.iter().map(|(key, _)| key[0]).collect();
        let expected: Vec<u8> = (0..10).chain([50]).chain(90..100).collect();
        assert_eq!(keys, expected, "flushed: {flushed}");
    }
}

/// The log says that an index was dropped, and the edit that takes its name away has not come yet.
#[test]
fn a_dropped_index_is_not_there_again() {
    for manifest_is_lost in [false, true] {
        let memory = MemoryFs::new();
        let faulty = FaultyFs::new(Arc::new(memory.clone()));
        let options = Options {
            fs: Arc::new(faulty.clone()),
            ..quiet(&memory)
        };
        let database = Database::open(dir(), options).unwrap();
        let kept = database.index("kept").unwrap();
        let mut batch = Batch::new();
        batch.put(&kept, b"key", b"value");
        database.commit(batch).unwrap();
        put_all(&database, b"value");
        database.flush().unwrap();
        put_all(&database, b"newer");
        database.sync().unwrap();
        // The record and its sync succeed, the edit does not.
        faulty.arm(Some(Fault {
            at: 2,
            count: u64::MAX,
            kind: ErrorKind::Other,
            changes_only: true,
        }));
        database.drop_index("index").unwrap_err();
        let image = memory.crash(Crash::Lost);
        for name in names(
            &image,
            if manifest_is_lost {
                "MANIFEST-"
            } else {
                ".table"
            },
        ) {
            image.corrupt(&dir().join(name), 20, 1).unwrap();
        }
        let report = repaired(&image);
        assert_eq!(report.outcome, Outcome::Repaired);
        let database = Database::open(dir(), quiet(&image)).unwrap();
        let indices = database.indices();
        assert_eq!(indices.len(), 1, "{indices:?}");
        assert_eq!(indices[0].id(), kept.id());
    }
}

/// Only the log knows of the second index, and no manifest says how it was called.
#[test]
fn a_new_index_after_repair_gets_no_number_that_only_the_log_knows() {
    for dropped in [false, true] {
        let memory = MemoryFs::new();
        let database = Database::open(dir(), quiet(&memory)).unwrap();
        put_all(&database, b"value");
        database.flush().unwrap();
        let last = database.index("last").unwrap();
        let mut batch = Batch::new();
        batch.put(&last, b"key", b"value");
        database.commit(batch).unwrap();
        if dropped {
            assert!(database.drop_index("last").unwrap());
        }
        database.close().unwrap();
        for name in names(&memory, "MANIFEST-") {
            memory.remove(&dir().join(name)).unwrap();
        }
        let report = repaired(&memory);
        assert_eq!(report.manifest, ManifestState::Missing);
        let database = Database::open(dir(), quiet(&memory)).unwrap();
        let left: &[u32] = if dropped { &[1] } else { &[1, last.id()] };
        let numbers = database
            .indices()
            .iter()
            .map(|i| i.id())
            .collect::<Vec<_>>();
        assert_eq!(numbers, left, "dropped: {dropped}");
        let new = database.index("new").unwrap();
        assert!(new.id() > last.id(), "dropped: {dropped}: {}", new.id());
        assert_eq!(database.prefix(&new, b"").count(), 0);
        assert_eq!(
            database.prefix(&last, b"").count(),
            usize::from(!dropped),
            "dropped: {dropped}"
        );
    }
}
