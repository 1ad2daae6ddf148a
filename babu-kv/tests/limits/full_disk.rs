//! A small disk that gets really full, by writers with different durabilities and by whatever else
//! takes the last bytes.

use crate::process;
use babu_kv::{Batch, Database, Durability, Error, Index, Options, backup, fs::RealFs};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeSet,
    env, fs,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};

const DISK_BYTES: u64 = 12 << 20;
const BALLAST_BYTES: usize = 3 << 20;
const WRITERS: u8 = 3;
/// Failed writes after which a writer takes the disk for full.
const FAILURES: u32 = 4;
const OTHER: &str = "BABU_KV_LIMITS_OTHER";

fn options() -> Options {
    Options {
        memtable_bytes: 128 << 10,
        memtables_waiting: 2,
        table_bytes: 128 << 10,
        level0_tables: 2,
        level1_bytes: 512 << 10,
        ..Options::default()
    }
}

type Key = (u8, u32);

fn key(key: Key) -> [u8; 5] {
    let n = key.1.to_be_bytes();
    [key.0, n[0], n[1], n[2], n[3]]
}

/// Bytes that do not get shorter by compression.
fn value(key: Key) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(u64::from(key.0) << 32 | u64::from(key.1));
    let mut value = vec![0; random.random_range(100..4_000)];
    random.fill(value.as_mut_slice());
    value
}

/// What writers were told.
#[derive(Default)]
struct Told {
    written: BTreeSet<Key>,
    /// Not written, at whatever cost.
    refused: BTreeSet<Key>,
}

/// Writes keys of its own from `from` on until the disk is full; gives the next key.
fn fill(database: &Database, index: &Index, writer: u8, from: u32, told: &Mutex<Told>) -> u32 {
    let mut failures = 0;
    for n in from.. {
        let key_now = (writer, n);
        let mut batch = Batch::new();
        batch.put(index, &key(key_now), &value(key_now));
        let ticket = database.commit(batch);
        match ticket {
            Ok(ticket) => {
                told.lock().unwrap().written.insert(key_now);
                // One is never synced, one always, one at times.
                let sync = writer == 1 || (writer == 2 && n % 16 == 0);
                let synced = if sync { ticket.wait_durable() } else { Ok(()) };
                if let Err(error) = synced {
                    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
                    failures += 1;
                }
            }
            Err(error) => {
                assert!(matches!(error, Error::NoSpace { .. }), "{error}");
                told.lock().unwrap().refused.insert(key_now);
                failures += 1;
            }
        }
        if failures == FAILURES {
            return n + 1;
        }
    }
    unreachable!("a disk that never gets full")
}

fn expect(database: &Database, index: &Index, told: &Told) {
    for k in &told.written {
        let found = database.get(index, &key(*k)).unwrap();
        assert!(found.as_deref() == Some(&value(*k)), "{k:?} is lost");
    }
    let walked = database.prefix(index, b"").map(|e| e.unwrap().0.to_vec());
    let expected = told.written.iter().map(|k| key(*k).to_vec());
    assert!(walked.eq(expected), "other keys than those written");
    for k in &told.refused {
        assert!(database.get(index, &key(*k)).unwrap().is_none(), "{k:?}");
    }
}

/// Something else that takes space: done or refused, and then without a trace.
fn other(what: &str, database: &Database, disk: &Path) {
    let done = match what {
        "checkpoint" => {
            let to = disk.join("checkpoint");
            let done = database.checkpoint(&to);
            let copied = done.is_ok();
            assert!(
                copied || !to.join("CURRENT").exists(),
                "half a checkpoint looks like a whole one"
            );
            // Hard links hold on to tables that are compacted away.
            let _ = fs::remove_dir_all(to);
            done
        }
        "backup" => {
            let to = disk.join("backup");
            let done = database.backup(&to).map(drop);
            for listed in backup::list(&RealFs, &to).into_iter().flatten() {
                let report = backup::verify(&RealFs, &to, listed.unwrap().number).unwrap();
                assert!(report.damage.is_empty(), "{:?}", report.damage);
            }
            done
        }
        "compaction" => database.compact(),
        "flush" => database.flush(),
        _ => Ok(()),
    };
    assert!(
        matches!(done, Ok(()) | Err(Error::NoSpace { .. })),
        "{what}: {done:?}"
    );
}

fn ballast(disk: &Path) {
    fs::write(disk.join("ballast"), vec![7; BALLAST_BYTES]).unwrap();
}

fn fill_and_free(disk: &Path, what: &str) {
    ballast(disk);
    let folder = disk.join("database");
    let database = Database::open(&folder, options()).unwrap();
    let index = database.index("index").unwrap();
    let told = Mutex::new(Told::default());
    let full = AtomicBool::new(false);
    let next: Vec<u32> = thread::scope(|scope| {
        scope.spawn(|| {
            while !full.load(SeqCst) {
                other(what, &database, disk);
                thread::yield_now();
            }
        });
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (database, index, told) = (&database, &index, &told);
                scope.spawn(move || fill(database, index, writer, 0, told))
            })
            .collect();
        let next = writers.into_iter().map(|w| w.join());
        let next: Vec<_> = next.collect();
        full.store(true, SeqCst);
        next.into_iter().map(|n| n.unwrap()).collect()
    });
    expect(&database, &index, &told.lock().unwrap());
    for what in ["checkpoint", "compaction", "flush"] {
        other(what, &database, disk);
    }
    expect(&database, &index, &told.lock().unwrap());

    fs::remove_file(disk.join("ballast")).unwrap();
    for (writer, next) in (0..).zip(&next) {
        for n in *next..next + 20 {
            let mut batch = Batch::new();
            batch.put(&index, &key((writer, n)), &value((writer, n)));
            if let Err(error) = database.write(batch, Durability::Synced) {
                panic!("there is room again: {error}");
            }
            told.lock().unwrap().written.insert((writer, n));
        }
    }
    expect(&database, &index, &told.lock().unwrap());

    // The last bytes again, and then a restart on the full disk.
    for (writer, next) in (0..).zip(next) {
        fill(&database, &index, writer, next + 20, &told);
    }
    // Its last sync may find no room.
    let _ = database.close();
    match Database::open(&folder, options()) {
        Ok(database) => expect(&database, &index, &told.lock().unwrap()),
        Err(Error::NoSpace { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    let _ = fs::remove_dir_all(disk.join("backup"));
    let _ = fs::remove_dir_all(disk.join("lost+found"));
    let database = Database::open(&folder, options()).unwrap();
    expect(&database, &index, &told.lock().unwrap());
    database.verify().unwrap();
    database.close().unwrap();
}

#[test]
fn a_full_disk_loses_nothing_and_works_again_when_there_is_room() {
    if let Some(folder) = process::folder() {
        let (image, disk) = (folder.join("image"), folder.join("disk"));
        let file = fs::File::create(&image).unwrap();
        file.set_len(DISK_BYTES).unwrap();
        fs::create_dir(&disk).unwrap();
        let make = ["-q", "-F", "-m", "0", "-O", "^has_journal"].map(str::as_ref);
        process::run("mkfs.ext4", &[&make[..], &[image.as_os_str()]].concat());
        let mount = ["-o", "loop"].map(str::as_ref);
        let places = [image.as_os_str(), disk.as_os_str()];
        process::run("mount", &[&mount[..], &places].concat());
        fill_and_free(&disk, &env::var(OTHER).unwrap());
        return;
    }
    for other in ["nothing", "checkpoint", "backup", "compaction"] {
        let dir = tempfile::tempdir().unwrap();
        process::again(
            "full_disk::a_full_disk_loses_nothing_and_works_again_when_there_is_room",
            dir.path(),
            &["unshare", "--mount", "--propagation", "private"],
            &[(OTHER, other.to_string())],
        );
    }
}
