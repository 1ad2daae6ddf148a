//! What flush and compaction do to space and reads, as a user of the database sees it.

use babu_kv::{
    Background, Batch, Database, Durability, Index, Options, Stats,
    fs::{FaultyFs, Fs, MemoryFs},
};
use std::{
    path::Path,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

const DIR: &str = "/db";

fn options(fs: Arc<dyn Fs>) -> Options {
    Options {
        memtable_bytes: 64 << 10,
        table_bytes: 16 << 10,
        block_bytes: 512,
        level0_tables: 4,
        level1_bytes: 128 << 10,
        ..Options::simulated(fs)
    }
}

fn simulated() -> (MemoryFs, Database, Index) {
    let fs = MemoryFs::new();
    let database = Database::open(Path::new(DIR), options(Arc::new(fs.clone()))).unwrap();
    let index = database.index("files").unwrap();
    (fs, database, index)
}

fn key(directory: u32, n: u32) -> Vec<u8> {
    // Scattered inside of the directory.
    let n = n.wrapping_mul(0x9e37_79b1);
    [directory.to_be_bytes(), n.to_be_bytes()].concat()
}

/// Does not compress.
fn value(key: &[u8]) -> Vec<u8> {
    let mut state = key.iter().fold(7u64, |state, byte| {
        (state ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..100).map(|_| next()).collect()
}

fn put(database: &Database, index: &Index, key: &[u8]) {
    let mut batch = Batch::new();
    batch.put(index, key, &value(key));
    database.commit(batch).unwrap();
}

fn delete(database: &Database, index: &Index, key: &[u8]) {
    let mut batch = Batch::new();
    batch.delete(index, key);
    database.commit(batch).unwrap();
}

fn bytes(stats: &Stats) -> u64 {
    stats.levels.iter().map(|l| l.bytes).sum()
}

fn entries(stats: &Stats) -> u64 {
    stats.levels.iter().map(|l| l.entries).sum()
}

fn tombstones(stats: &Stats) -> u64 {
    stats.levels.iter().map(|l| l.tombstones).sum()
}

fn table_files(fs: &dyn Fs) -> Vec<String> {
    let names = fs.list(Path::new(DIR)).unwrap();
    names
        .into_iter()
        .filter(|name| name.ends_with(".table"))
        .collect()
}

#[test]
fn what_is_put_and_deleted_in_memory_never_reaches_a_table() {
    let (fs, database, index) = simulated();
    for n in 0..50 {
        put(&database, &index, &key(1, n));
        delete(&database, &index, &key(1, n));
    }
    database.flush().unwrap();
    let stats = database.stats();
    assert_eq!((stats.flushes, stats.flushed_bytes), (1, 0));
    assert_eq!(table_files(&fs), Vec::<String>::new());
    assert_eq!(stats.memtable_bytes, 0);
}

/// Level 0 is far from full, and nobody asks for a compaction.
#[test]
fn a_directory_just_emptied_leaves_nothing_behind_once_its_deletions_are_flushed() {
    let (_, database, index) = simulated();
    for directory in [1, 2, 3] {
        for n in 0..1000 {
            put(&database, &index, &key(directory, n));
        }
    }
    database.settle().unwrap();
    let before = database.stats();
    for n in 0..1000 {
        delete(&database, &index, &key(2, n));
    }
    database.flush().unwrap();
    put(&database, &index, &key(4, 0));
    let stats = database.stats();
    assert_eq!(tombstones(&stats), 0);
    assert!(entries(&stats) + stats.memtable_bytes as u64 / 100 <= 2010);
    // There were three flushes. Of the neighbours only the tables at the edges were rewritten.
    let rewritten = stats.compacted_bytes - before.compacted_bytes;
    assert!(rewritten < bytes(&before), "{rewritten} bytes");
    assert_eq!(database.prefix(&index, &2u32.to_be_bytes()).count(), 0);
    assert_eq!(database.prefix(&index, &3u32.to_be_bytes()).count(), 1000);
}

#[test]
fn settling_ends_level_0_and_all_deletions_and_then_does_nothing_more() {
    for background in [Background::Inline, Background::Threads] {
        let fs = MemoryFs::new();
        let options = Options {
            background,
            ..options(Arc::new(fs))
        };
        let database = Database::open(Path::new(DIR), options).unwrap();
        let index = database.index("files").unwrap();
        for n in 0..20_000u32 {
            put(&database, &index, &key(n % 7, n % 3000));
            if n % 3 == 0 {
                delete(&database, &index, &key(n % 5, (n / 2) % 3000));
            }
        }
        let live = database.prefix(&index, b"").count() as u64;
        database.settle().unwrap();
        let stats = database.stats();
        assert_eq!(stats.levels[0].tables, 0);
        assert_eq!(tombstones(&stats), 0);
        assert_eq!(stats.memtables_waiting, 0);
        assert!(entries(&stats) <= live + live / 4);
        assert_eq!(database.prefix(&index, b"").count() as u64, live);
        database.settle().unwrap();
        let again = database.stats();
        assert_eq!(again.compactions, stats.compactions);
        assert_eq!(again.compacted_bytes, stats.compacted_bytes);
        assert_eq!(again.flushes, stats.flushes);
    }
}

#[test]
fn many_deletions_in_memory_are_flushed_by_settling_and_few_are_not() {
    let (_, database, index) = simulated();
    for n in 0..200 {
        put(&database, &index, &key(1, n));
    }
    database.flush().unwrap();
    delete(&database, &index, &key(1, 0));
    database.settle().unwrap();
    assert_eq!(database.stats().flushes, 1);
    for n in 1..200 {
        delete(&database, &index, &key(1, n));
    }
    database.settle().unwrap();
    let stats = database.stats();
    assert_eq!((entries(&stats), stats.memtable_bytes), (0, 0));
}

/// A hundred files live at any time; what was there before takes no room.
#[test]
fn a_spool_directory_stays_flat() {
    const LIVE: u32 = 100;
    let (fs, database, index) = simulated();
    let mut most = 0;
    for n in 0..30_000 {
        put(&database, &index, &key(1, n));
        if n >= LIVE {
            delete(&database, &index, &key(1, n - LIVE));
        }
        most = most.max(bytes(&database.stats()));
    }
    assert_eq!(database.prefix(&index, b"").count() as u32, LIVE);
    // A hundred entries are 12 KiB; each flush brings that many that are dead at the next.
    assert!(most < 64 << 10, "{most} bytes in tables");
    assert!(fs.used_bytes() < 512 << 10, "{} bytes", fs.used_bytes());
    database.settle().unwrap();
    let stats = database.stats();
    assert_eq!(tombstones(&stats), 0);
    assert!(entries(&stats) <= u64::from(LIVE));
}

#[test]
fn keys_that_come_in_order_are_written_once() {
    let (_, database, index) = simulated();
    for n in 0..20_000u32 {
        put(&database, &index, &n.to_be_bytes());
    }
    let stats = database.stats();
    assert!(stats.flushes > 20);
    assert_eq!(stats.compacted_bytes, 0);
    assert_eq!(stats.levels[0].tables, 0);
}

/// Keys of one index come in order, those of another are scattered: the former are not rewritten
/// with the latter.
#[test]
fn scattered_keys_do_not_drag_others_along() {
    let (_, database, index) = simulated();
    let ordered = database.index("numbers").unwrap();
    for n in 0..20_000u32 {
        let mut batch = Batch::new();
        batch.put(&index, &n.wrapping_mul(0x9e37_79b1).to_be_bytes(), b"");
        batch.put(&ordered, &n.to_be_bytes(), &value(&n.to_be_bytes()));
        database.commit(batch).unwrap();
    }
    let stats = database.stats();
    assert!(stats.compactions > 10);
    // The ordered ones are nine tenths of all that was flushed.
    assert!(
        stats.compacted_bytes < stats.flushed_bytes,
        "{} bytes rewritten of {} flushed",
        stats.compacted_bytes,
        stats.flushed_bytes
    );
}

#[test]
fn scattered_keys_are_rewritten_a_few_times_and_little_is_stored_twice() {
    let (_, database, index) = simulated();
    let count = 15_000u32;
    for n in 0..count {
        put(
            &database,
            &index,
            &key(n.wrapping_mul(0x85eb_ca6b) >> 24, n),
        );
    }
    let stats = database.stats();
    let times = stats.compacted_bytes as f64 / stats.flushed_bytes as f64;
    assert!(times < 10.0, "each byte was rewritten {times:.1} times");
    let deepest = stats.levels[6].bytes;
    assert!(bytes(&stats) < deepest + deepest / 3, "{:?}", stats.levels);
    // Overwriting all of it leaves as much.
    for n in 0..count {
        put(
            &database,
            &index,
            &key(n.wrapping_mul(0x85eb_ca6b) >> 24, n),
        );
    }
    let again = database.stats();
    assert!(bytes(&again) < bytes(&stats) * 5 / 4, "{:?}", again.levels);
}

/// Each flush and compaction adds to the manifest; it is written anew before it is long, and what was
/// removed from it stays removed.
#[test]
fn the_manifest_stays_short_and_removed_tables_do_not_come_back() {
    let (fs, database, index) = simulated();
    for n in 0..10_000 {
        put(&database, &index, &key(1, n % 200));
        if n % 50 == 0 {
            database.flush().unwrap();
        }
    }
    let before = database.stats();
    assert!(before.flushes >= 200);
    database.close().unwrap();
    let names = fs.list(Path::new(DIR)).unwrap();
    let manifests: Vec<_> = names.iter().filter(|n| n.starts_with("MANIFEST")).collect();
    assert_eq!(manifests.len(), 1);
    let length = fs.file_len(&Path::new(DIR).join(manifests[0])).unwrap();
    assert!(length < 8 << 10, "{length} bytes");
    let database = Database::open(Path::new(DIR), options(Arc::new(fs.clone()))).unwrap();
    let after = database.stats();
    assert_eq!(after.levels, before.levels);
    let tables: usize = after.levels.iter().map(|l| l.tables).sum();
    assert_eq!(table_files(&fs).len(), tables);
    assert_eq!(database.prefix(&index, b"").count(), 200);
}

fn threaded(fs: &FaultyFs) -> (Database, Index) {
    let options = Options {
        background: Background::Threads,
        level0_tables: 2,
        level1_bytes: 1 << 20,
        ..options(Arc::new(fs.clone()))
    };
    let database = Database::open(Path::new(DIR), options).unwrap();
    let index = database.index("files").unwrap();
    (database, index)
}

/// A table in level 0 that overlaps all others of directory 1: a new key, and that of file 0.
fn put_ends(database: &Database, index: &Index) {
    for end in [0, u32::MAX] {
        put(database, index, &[1, end].map(u32::to_be_bytes).concat());
    }
    database.flush().unwrap();
}

/// Nobody calls anything: the thread that compacts flushes the deletions.
#[test]
fn idle_work_begins_by_itself() {
    let fs = FaultyFs::new(Arc::new(MemoryFs::new()));
    let (database, index) = threaded(&fs);
    for n in 0..500 {
        put(&database, &index, &key(1, n));
    }
    database.flush().unwrap();
    database.settle().unwrap();
    let (synced, syncs) = mpsc::channel();
    let synced = Mutex::new(synced);
    fs.after_sync(move || {
        if thread::current().name() == Some("babu-compact") {
            let _ = synced.lock().unwrap().send(());
        }
    });
    for n in 0..60 {
        delete(&database, &index, &key(1, n));
    }
    syncs.recv_timeout(Duration::from_secs(60)).unwrap();
    database.settle().unwrap();
    let stats = database.stats();
    assert_eq!((tombstones(&stats), entries(&stats)), (0, 440));
}

/// While an idle compaction writes, another becomes due: what the former wrote is thrown away at
/// once.
#[test]
fn idle_work_gives_way() {
    let memory = MemoryFs::new();
    let fs = FaultyFs::new(Arc::new(memory.clone()));
    let (database, index) = threaded(&fs);
    for n in 0..4000 {
        put(&database, &index, &key(1, n));
    }
    database.settle().unwrap();
    // One table in level 0 is not due; merging it down rewrites everything.
    put_ends(&database, &index);
    let before = table_files(&memory);
    let (calls, first) = (AtomicUsize::new(0), OnceLock::new());
    let seen = Arc::new(OnceLock::new());
    let (writer, writer_index, outcome) = (database.clone(), index.clone(), seen.clone());
    fs.after_sync(move || {
        if thread::current().name() != Some("babu-compact") {
            return;
        }
        match calls.fetch_add(1, SeqCst) {
            0 => {
                let mut files = table_files(&memory);
                files.retain(|name| !before.contains(name));
                first.set(files).unwrap();
                put_ends(&writer, &writer_index);
                put_ends(&writer, &writer_index);
            }
            // Twice as many tables would be written, were it not given up.
            15 => {
                let files = table_files(&memory);
                let gone = first
                    .get()
                    .unwrap()
                    .iter()
                    .all(|name| !files.contains(name));
                outcome.set(gone).unwrap();
            }
            _ => {}
        }
    });
    database.settle().unwrap();
    fs.after_sync(|| {});
    assert_eq!(seen.get(), Some(&true));
    assert_eq!(database.prefix(&index, b"").count(), 4001);
    database.close().unwrap();
}

/// A compaction of all is cut short; nothing is lost and the folder holds no more than it should.
#[test]
fn closing_does_not_wait_for_idle_work() {
    let memory = MemoryFs::new();
    let fs = FaultyFs::new(Arc::new(memory.clone()));
    let (database, index) = threaded(&fs);
    for n in 0..4000 {
        put(&database, &index, &key(1, n));
    }
    database.settle().unwrap();
    put_ends(&database, &index);
    let before = database.stats();
    let (reached, began) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let ends = Mutex::new((reached, may_go_on));
    fs.after_sync(move || {
        if thread::current().name() == Some("babu-compact") {
            let ends = ends.lock().unwrap();
            let _ = ends.0.send(());
            let _ = ends.1.recv();
        }
    });
    let settling = {
        let database = database.clone();
        thread::spawn(move || database.settle())
    };
    began.recv().unwrap();
    // `close` has asked the threads to stop when the one that settles says so.
    let closing = thread::spawn(move || database.close());
    assert!(settling.join().unwrap().is_err());
    drop(go_on);
    closing.join().unwrap().unwrap();
    fs.after_sync(|| {});
    let (database, index) = threaded(&fs);
    let after = database.stats();
    assert_eq!(after.levels[0].tables, before.levels[0].tables);
    assert_eq!(
        table_files(&memory).len(),
        after.levels.iter().map(|l| l.tables).sum::<usize>()
    );
    assert_eq!(database.prefix(&index, b"").count(), 4001);
    database.write(Batch::new(), Durability::Synced).unwrap();
}

/// What was in tables, and what came after it.
#[test]
fn a_scan_over_what_a_range_deleted_reads_few_blocks() {
    let fs: Arc<dyn Fs> = Arc::new(MemoryFs::new());
    let options = Options {
        table_bytes: 1 << 20,
        ..options(fs)
    };
    let database = Database::open(Path::new(DIR), options).unwrap();
    let index = database.index("files").unwrap();
    for n in 0..20_000 {
        put(&database, &index, &key(1, n));
        if n % 1000 == 0 {
            put(&database, &index, &key(0, n));
            put(&database, &index, &key(2, n));
        }
    }
    database.flush().unwrap();
    database.compact().unwrap();
    let before = database.snapshot();
    let mut batch = Batch::new();
    batch.delete_range(&index, &1u32.to_be_bytes(), &2u32.to_be_bytes());
    database.commit(batch).unwrap();
    for n in 0..10 {
        put(&database, &index, &key(1, n * 100));
    }
    let looks = || {
        let stats = database.stats();
        stats.cache_hits + stats.cache_misses
    };
    let expected: Vec<_> = (before.prefix(&index, b""))
        .map(|entry| entry.unwrap().0.to_vec())
        .filter(|k| k[3] != 1 || (0..10).any(|n| *k == key(1, n * 100)))
        .collect();
    assert_eq!(expected.len(), 50);
    let start = looks();
    let forward = database.prefix(&index, b"").map(|e| e.unwrap().0.to_vec());
    assert!(forward.eq(expected.iter().cloned()));
    let back = database.prefix(&index, b"").rev();
    let back = back.map(|entry| entry.unwrap().0.to_vec());
    assert!(back.eq(expected.iter().rev().cloned()));
    let read = looks() - start;
    assert!(read < 400, "{read} blocks");
}
