//! The budget of memory, by what the database says and by what was really allocated.
//!
//! The counting allocator sees the whole process, so that tests take turns.

use babu_kv::{Background, Batch, Compression, Database, Durability, Index, Options, fs::MemoryFs};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: it hands everything to the system's allocator and only counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let bytes = BYTES.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(bytes, Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

const BUDGET: usize = 16 << 20;
/// What is in no budget: buffers of one flush or compaction, and lists of files.
const BESIDE: usize = 3 << 20;
const KEYS: u32 = 120_000;

fn key(n: u32) -> Vec<u8> {
    format!("key{:010}", n.wrapping_mul(2_654_435_761)).into_bytes()
}

fn value(n: u32) -> Vec<u8> {
    let mut state = u64::from(n) + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..160).map(|_| next()).collect()
}

fn accounted(database: &Database) -> usize {
    let stats = database.stats();
    stats.memtable_bytes
        + stats.pinned_memtable_bytes
        + stats.index_bytes
        + stats.cache_bytes
        + stats.pinned_block_bytes
}

fn check(database: &Database, before: usize, what: &str) {
    let said = accounted(database);
    assert!(
        said <= BUDGET + BUDGET / 10,
        "{what}: {said} bytes accounted"
    );
    let measured = PEAK.load(Relaxed) - before;
    assert!(
        measured <= BUDGET + BUDGET / 10 + BESIDE,
        "{what}: {measured} bytes at the peak"
    );
}

fn read(database: &Database, index: &Index) {
    for n in (0..KEYS).step_by(7) {
        let found = database.get(index, &key(n)).unwrap();
        assert!(found.is_some());
    }
}

#[test]
fn memtables_tables_and_cache_stay_within_one_budget() {
    let _turn = turn();
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let dir = dir.unwrap();
    let options = Options {
        memory_bytes: BUDGET,
        memtable_bytes: 4 << 20,
        table_bytes: 256 << 10,
        level1_bytes: 4 << 20,
        background: Background::Threads,
        ..Options::default()
    };
    let before = BYTES.load(Relaxed);
    PEAK.store(before, Relaxed);
    let database = Database::open(dir.path(), options).unwrap();
    let index = database.index("names").unwrap();
    for n in 0..KEYS {
        let mut batch = Batch::new();
        batch.put(&index, &key(n), &value(n));
        database.write(batch, Durability::Buffered).unwrap();
        if n % 1000 == 0 {
            check(&database, before, "while writing");
        }
    }
    database.compact().unwrap();
    check(&database, before, "compacted");
    assert!(
        database
            .stats()
            .levels
            .iter()
            .map(|l| l.tables)
            .sum::<usize>()
            > 50
    );

    // The cache takes what memtables leave.
    read(&database, &index);
    check(&database, before, "while reading");
    let full = accounted(&database);
    assert!(full > BUDGET / 10 * 8, "{full} of {BUDGET} bytes are used");
    // And gives it back.
    for n in 0..KEYS / 8 {
        let mut batch = Batch::new();
        batch.put(&index, &key(n), &value(n + 1));
        database.write(batch, Durability::Buffered).unwrap();
        if n % 1000 == 0 {
            check(&database, before, "while writing again");
        }
    }

    // Blocks that values hold are reported when the cache no longer has them.
    let held: Vec<_> = (0..200)
        .map(|n| database.get(&index, &key(KEYS - 1 - n)))
        .collect();
    read(&database, &index);
    let pinned = database.stats().pinned_block_bytes;
    assert!(pinned > 10 * 4096, "{pinned} bytes pinned");
    check(&database, before, "with values held");
    drop(held);
    assert_eq!(database.stats().pinned_block_bytes, 0);
    database.close().unwrap();
}

const SMALL_BUDGET: usize = 1 << 20;
const SMALL_KEYS: u32 = 40_000;
const OPEN_TABLES: usize = 16;

/// Tables whose filters and indices take nine tenths of the budget when all are open.
fn many_tables(open_tables: usize) -> (Database, Index) {
    let options = Options {
        memory_bytes: SMALL_BUDGET,
        memtables_waiting: 1,
        open_tables,
        table_bytes: 16 << 10,
        block_bytes: 128,
        level1_bytes: 1 << 20,
        filter_bits_per_key: 40,
        compression: Compression::None,
        ..Options::simulated(Arc::new(MemoryFs::new()))
    };
    let database = Database::open(Path::new("/db"), options).unwrap();
    let index = database.index("names").unwrap();
    (0..SMALL_KEYS).for_each(|n| put_small(&database, &index, n));
    database.compact().unwrap();
    (database, index)
}

fn put_small(database: &Database, index: &Index, n: u32) {
    let mut batch = Batch::new();
    batch.put(index, &key(n), &[n as u8; 40]);
    database.write(batch, Durability::Buffered).unwrap();
}

fn read_each_table(database: &Database, index: &Index) {
    for n in (0..SMALL_KEYS).step_by(7) {
        assert!(database.get(index, &key(n)).unwrap().is_some());
    }
}

#[test]
fn open_tables_give_way_to_memtables() {
    let _turn = turn();
    let (database, index) = many_tables(10_000);
    read_each_table(&database, &index);
    let before = database.stats();
    assert!(
        before.index_bytes > SMALL_BUDGET / 5 * 4,
        "{}",
        before.index_bytes
    );
    // Nothing but writes: they open no table.
    let mut n = SMALL_KEYS;
    while database.stats().memtable_bytes < SMALL_BUDGET / 10 * 3 {
        put_small(&database, &index, n);
        n += 1;
        let said = accounted(&database);
        assert!(said <= SMALL_BUDGET, "{said} bytes accounted");
    }
    assert!(database.stats().open_tables < before.open_tables / 5 * 4);
    // What was flushed makes room at once, without another write.
    database.flush().unwrap();
    read_each_table(&database, &index);
    assert!(database.stats().open_tables >= before.open_tables);
}

#[test]
fn the_bytes_of_closed_tables_do_not_count() {
    let _turn = turn();
    let (database, index) = many_tables(OPEN_TABLES);
    read_each_table(&database, &index);
    let first = database.stats();
    for round in 0..20 {
        read_each_table(&database, &index);
        let stats = database.stats();
        assert_eq!(stats.open_tables, OPEN_TABLES, "round {round}");
        assert!(
            stats.index_bytes.abs_diff(first.index_bytes) < first.index_bytes / 10,
            "round {round}: {} bytes, {} at first",
            stats.index_bytes,
            first.index_bytes
        );
    }
    database.drop_index("names").unwrap();
    database.compact().unwrap();
    let stats = database.stats();
    assert_eq!((stats.open_tables, stats.index_bytes), (0, 0));
}
