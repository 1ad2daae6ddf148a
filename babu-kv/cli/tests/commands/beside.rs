//! Backups by another process beside a writer at full speed, some of them killed.

use babu_kv::{Batch, Database, Durability, Index, Options, backup, fs::RealFs};
use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

/// Ends the writer, also when the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

type Written = (u64, Vec<u8>, Option<Vec<u8>>);

/// Writes and deletes as fast as it can, and notes what it did.
fn write(database: &Database, index: &Index, written: &Mutex<Vec<Written>>, stop: &AtomicBool) {
    let mut n = 0u32;
    while !stop.load(Relaxed) {
        let key = (n.wrapping_mul(0x9e37_79b9) % 4001).to_be_bytes().to_vec();
        let value = (!n.is_multiple_of(7)).then(|| n.to_be_bytes().repeat(30));
        let mut batch = Batch::new();
        match &value {
            Some(value) => batch.put(index, &key, value),
            None => batch.delete(index, &key),
        }
        let sequence = database.write(batch, Durability::Buffered).unwrap();
        written.lock().unwrap().push((sequence, key, value));
        n += 1;
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

#[test]
fn backups_are_exact_also_after_kills() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        memtable_bytes: 64 << 10,
        table_bytes: 32 << 10,
        level1_bytes: 128 << 10,
        level0_tables: 2,
        ..Options::default()
    };
    let database = Database::open(&dir.path().join("db"), options).unwrap();
    let index = database.index("index").unwrap();
    let written: Mutex<Vec<Written>> = Mutex::default();
    let stop = AtomicBool::new(false);
    let backup = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_babu-kv"));
        command.current_dir(dir.path()).stdout(Stdio::null());
        command.args(["backup", "create", "db", "safe"]);
        command
    };
    let safe = dir.path().join("safe");
    let count = || written.lock().unwrap().len();
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        let (database, index, written, stop) = (&database, &index, &written, &stop);
        scope.spawn(move || write(database, index, written, stop));
        for round in 0..5 {
            let from = count();
            while count() < from + 4000 {
                thread::yield_now();
            }
            // So slow that it is still under way when a file of its own has come.
            let before = names(&safe);
            let mut child = Killed(backup().args(["--rate-max", "100K"]).spawn().unwrap());
            let is_new = |name: &String| !before.contains(name) && !name.ends_with("LOCK");
            while !names(&safe).iter().any(is_new) {
                assert_eq!(child.0.try_wait().unwrap(), None, "it ended by itself");
                thread::yield_now();
            }
            child.0.kill().unwrap();
            child.0.wait().unwrap();
            let listed = backup::list(&RealFs, &safe).unwrap();
            assert_eq!(listed.len(), round, "one is listed that is not whole");
            let status = backup().status().unwrap();
            assert_eq!(status.code(), Some(0), "round {round}");
        }
    });
    assert!(database.stats().compactions > 0);
    database.close().unwrap();
    assert!(names(&safe).iter().all(|name| !name.ends_with(".part")));
    let mut written = written.into_inner().unwrap();
    written.sort();
    for made in backup::list(&RealFs, &safe).unwrap() {
        let made = made.unwrap();
        let report = backup::verify(&RealFs, &safe, made.number).unwrap();
        assert!(report.damage.is_empty(), "{:?}", report.damage);
        let mut model: BTreeMap<&[u8], &[u8]> = BTreeMap::new();
        for (_, key, value) in written.iter().filter(|w| w.0 <= made.sequence) {
            match value {
                Some(value) => model.insert(key, value),
                None => model.remove(key.as_slice()),
            };
        }
        let to = dir.path().join(format!("again{}", made.number));
        backup::restore(&RealFs, &safe, made.number, &to).unwrap();
        let again = Database::open(&to, Options::default()).unwrap();
        let index = again.index("index").unwrap();
        assert_eq!(again.snapshot().sequence(), made.sequence);
        let found: Vec<_> = again.prefix(&index, b"").map(Result::unwrap).collect();
        let found = found.iter().map(|(k, v)| (&**k, &**v));
        assert!(found.eq(model), "backup {}", made.number);
        again.verify().unwrap();
    }
}
