//! What snapshots hold can be seen, and old ones can be made to let go; how checkpoints wait.

use babu_kv::{
    Background, Batch, Database, Durability, Error, Index, Options,
    fs::{FaultyFs, MemoryFs},
};
use std::{
    path::Path,
    sync::{Arc, Condvar, Mutex},
    thread,
    time::Duration,
};

fn open(operations_max: u64) -> (Database, Index) {
    let options = Options {
        memtable_bytes: 16 << 10,
        table_bytes: 16 << 10,
        snapshot_operations_max: operations_max,
        fs: Arc::new(MemoryFs::new()),
        background: Background::Inline,
        ..Options::default()
    };
    let database = Database::open(Path::new("/db"), options).unwrap();
    let index = database.index("names").unwrap();
    (database, index)
}

/// Writes the same thousand keys, again and again.
fn put(database: &Database, index: &Index, count: u32) {
    for n in 0..count {
        let mut batch = Batch::new();
        batch.put(index, &(n % 1000).to_be_bytes(), &[n as u8; 100]);
        database.write(batch, Durability::Buffered).unwrap();
    }
}

fn is_too_old<T>(result: Result<T, Error>, expected: u64) -> bool {
    matches!(result, Err(Error::SnapshotTooOld { sequence }) if sequence == expected)
}

#[test]
fn what_snapshots_hold_is_reported() {
    let (database, index) = open(u64::MAX);
    put(&database, &index, 100);
    let stats = database.stats();
    assert_eq!((stats.snapshots, stats.snapshot_oldest_sequence), (0, None));

    let snapshot = database.snapshot();
    let clone = snapshot.clone();
    let iter = database.prefix(&index, b"");
    put(&database, &index, 3000);
    database.compact().unwrap();
    put(&database, &index, 1000);
    database.compact().unwrap();
    let stats = database.stats();
    assert_eq!(stats.snapshots, 2);
    assert_eq!(stats.snapshot_oldest_sequence, Some(snapshot.sequence()));
    assert_eq!(stats.snapshot_age_operations, 4000);
    assert!(stats.pinned_memtable_bytes > 100 * 100, "{stats:?}");

    let late = database.snapshot();
    put(&database, &index, 1000);
    database.compact().unwrap();
    assert!(database.stats().pinned_table_bytes > 0);
    drop((snapshot, iter));
    assert_eq!(database.stats().snapshots, 2);
    drop((clone, late));
    let stats = database.stats();
    let held = (
        stats.snapshots,
        stats.pinned_memtable_bytes,
        stats.pinned_table_bytes,
    );
    assert_eq!(held, (0, 0, 0));
}

#[test]
fn a_snapshot_older_than_the_limit_lets_go() {
    let (database, index) = open(2000);
    put(&database, &index, 1000);
    let snapshot = database.snapshot();
    let mut iter = snapshot.prefix(&index, b"");
    assert!(iter.next().unwrap().is_ok());
    put(&database, &index, 1900);
    database.flush().unwrap();
    let value = snapshot.get(&index, &5u32.to_be_bytes()).unwrap();
    assert_eq!(value.as_deref(), Some([5; 100].as_slice()));
    assert!(iter.next().unwrap().is_ok());

    put(&database, &index, 1000);
    database.compact().unwrap();
    let sequence = snapshot.sequence();
    assert!(is_too_old(snapshot.get(&index, b"x"), sequence));
    assert!(is_too_old(
        snapshot.prefix(&index, b"").next().unwrap(),
        sequence
    ));
    // It keeps what it holds until its next step.
    assert!(is_too_old(iter.next().unwrap(), sequence));
    assert!(iter.next().is_none());
    let stats = database.stats();
    assert_eq!((stats.snapshots, stats.snapshots_released), (0, 1));
    assert_eq!(
        (stats.pinned_memtable_bytes, stats.pinned_table_bytes),
        (0, 0)
    );
    // Those that came later are not touched.
    assert_eq!(
        database
            .snapshot()
            .prefix(&index, b"")
            .map(Result::unwrap)
            .count(),
        1000
    );
}

#[test]
fn a_caller_with_a_clock_sets_the_limit_by_time() {
    let (database, index) = open(u64::MAX);
    put(&database, &index, 10);
    let old = database.snapshot();
    put(&database, &index, 10);
    let noted = database.snapshot();
    assert_eq!(database.release_snapshots_before(noted.sequence()), 1);
    assert!(is_too_old(old.get(&index, b"x"), old.sequence()));
    assert!(noted.get(&index, &1u32.to_be_bytes()).unwrap().is_some());
}

/// Beside a compaction each sync may have to wait for what that writes. After the log, the manifest
/// and CURRENT wait together.
#[test]
fn a_checkpoint_waits_for_its_files_at_once() {
    let faulty = FaultyFs::new(Arc::new(MemoryFs::new()));
    let options = Options {
        fs: Arc::new(faulty.clone()),
        ..Options::default()
    };
    let database = Database::open(Path::new("/db"), options).unwrap();
    let index = database.index("index").unwrap();
    let mut batch = Batch::new();
    batch.put(&index, b"key", b"value");
    database.commit(batch).unwrap();
    // The next segment of the log is made ahead.
    while database.stats().log_spare_bytes == 0 {
        thread::yield_now();
    }
    let syncs = Arc::new((Mutex::new((0, true)), Condvar::new()));
    let seen = syncs.clone();
    faulty.after_sync(move || {
        // Zeros for the next segment of the log.
        if thread::current().name() == Some("babu-log") {
            return;
        }
        let (state, changed) = &*seen;
        let mut state = state.lock().unwrap();
        state.0 += 1;
        changed.notify_all();
        if state.0 == 1 {
            return;
        }
        let limit = Duration::from_secs(20);
        let waited = changed.wait_timeout_while(state, limit, |state| state.0 < 3);
        let (mut state, timeout) = waited.unwrap();
        state.1 &= !timeout.timed_out();
    });
    database.checkpoint(Path::new("/copy")).unwrap();
    faulty.after_sync(|| {});
    assert_eq!(*syncs.0.lock().unwrap(), (3, true));
}
