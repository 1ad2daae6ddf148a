//! Many orders of the same threads: the engine under a scheduler that decides at each lock and
//! atomic who goes on. A deadlock, a panic or a broken promise ends with the schedule that shows
//! it.
//!
//!     cargo test --release -p babu-kv --features shuttle --test schedules
//!
//! `BABU_KV_SCHEDULES=N` tries N orders of each test instead of a few, `BABU_KV_SEED=S` others.
//! Memory orders weaker than sequential consistency are not explored.

use babu_kv::{
    Background, Batch, Database, Error, Index, Options,
    fs::{Crash, Fault, FaultyFs, Fs, MemoryFs},
};
use rand::{Rng as _, SeedableRng, rngs::StdRng};
use shuttle::{
    Config, Runner,
    rand::Rng,
    scheduler::{RandomScheduler, Schedule, Scheduler, Task, TaskId},
    thread,
};
use std::{env, io::ErrorKind, path::Path, sync::Arc};

const DIR: &str = "/db";

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Changes threads seldom: one is stopped between any two of its steps, and others do much before
/// it goes on.
struct Seldom {
    seed: u64,
    orders: u64,
    random: StdRng,
    /// How often, in this order.
    change: f64,
}

impl Seldom {
    fn new(seed: u64, orders: u64) -> Seldom {
        Seldom {
            seed,
            orders,
            random: StdRng::seed_from_u64(seed),
            change: 0.5,
        }
    }
}

impl Scheduler for Seldom {
    fn new_execution(&mut self) -> Option<Schedule> {
        self.orders = self.orders.checked_sub(1)?;
        let seed = self.seed << 32 | self.orders;
        self.random = StdRng::seed_from_u64(seed);
        self.change = 1.0 / f64::from(1 << self.random.random_range(2..9));
        Some(Schedule::new(seed))
    }

    fn next_task(
        &mut self,
        tasks: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        let can_stay = !is_yielding && tasks.iter().any(|task| Some(task.id()) == current);
        if can_stay && !self.random.random_bool(self.change) {
            return current;
        }
        let n = self.random.random_range(0..tasks.len());
        tasks.get(n).map(|task| task.id())
    }

    fn next_u64(&mut self) -> u64 {
        self.random.random()
    }
}

/// Runs `test` in many orders: some with a choice at each step, most with few changes of thread at
/// unlikely places.
fn explore(test: fn()) {
    let orders = number("BABU_KV_SCHEDULES", 1000);
    let seed = number("BABU_KV_SEED", 7);
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    let random = RandomScheduler::new_from_seed(seed, orders as usize / 4);
    Runner::new(random, config.clone()).run(test);
    let seldom = Seldom::new(seed, orders);
    Runner::new(seldom, config).run(test);
}

/// A memtable is full after two batches.
fn small(fs: Arc<dyn Fs>, background: Background) -> Options {
    Options {
        memtable_bytes: 1 << 10,
        memtables_waiting: 2,
        table_bytes: 4 << 10,
        level0_tables: 2,
        background,
        fs,
        ..Options::default()
    }
}

fn some_background() -> Background {
    if shuttle::rand::thread_rng().gen_bool(0.5) {
        Background::Threads
    } else {
        Background::Inline
    }
}

/// The same number under two keys, and one key for each number.
fn batch(index: &Index, thread: u8, n: u8) -> Batch {
    let mut batch = Batch::new();
    batch.put(index, b"left", &[thread, n]);
    batch.put(index, &[thread, n], &[n; 400]);
    batch.put(index, b"right", &[thread, n]);
    batch
}

fn has(database: &Database, index: &Index, thread: u8, n: u8) -> bool {
    let found = database.get(index, &[thread, n]).unwrap();
    found.as_deref() == Some([n; 400].as_slice())
}

/// Opens what a crash at this moment would leave.
fn after_crash(memory: &MemoryFs, crash: Crash) -> (Database, Index) {
    let image: Arc<dyn Fs> = Arc::new(memory.crash(crash));
    let options = small(image, Background::Inline);
    let database = Database::open(Path::new(DIR), options).unwrap();
    let index = database.index("index").unwrap();
    (database, index)
}

/// In memory, with room for other threads after each sync.
fn file_system() -> (MemoryFs, FaultyFs) {
    let memory = MemoryFs::new();
    let faulty = FaultyFs::new(Arc::new(memory.clone()));
    faulty.after_sync(thread::yield_now);
    (memory, faulty)
}

fn open(fs: &FaultyFs, background: Background) -> (Database, Index) {
    let options = small(Arc::new(fs.clone()), background);
    let database = Database::open(Path::new(DIR), options).unwrap();
    let index = database.index("index").unwrap();
    (database, index)
}

#[test]
fn batches_are_visible_as_a_whole_and_at_once_to_their_writers() {
    explore(|| {
        let (_, fs) = file_system();
        let (database, index) = open(&fs, some_background());
        let writers: Vec<_> = (0..3u8)
            .map(|writer| {
                let (database, index) = (database.clone(), index.clone());
                thread::spawn(move || {
                    for n in 0..3 {
                        let ticket = database.commit(batch(&index, writer, n)).unwrap();
                        assert!(has(&database, &index, writer, n));
                        assert!(database.snapshot().sequence() >= ticket.sequence());
                    }
                })
            })
            .collect();
        let reader = {
            let (database, index) = (database.clone(), index.clone());
            thread::spawn(move || {
                let mut sequence = 0;
                for _ in 0..4 {
                    let snapshot = database.snapshot();
                    assert!(snapshot.sequence() >= sequence);
                    sequence = snapshot.sequence();
                    let get = |key: &[u8]| snapshot.get(&index, key).unwrap().map(|v| v.to_vec());
                    let (left, right) = (get(b"left"), get(b"right"));
                    assert_eq!(left, right);
                    let walked: Vec<_> = snapshot.prefix(&index, b"").map(Result::unwrap).collect();
                    // Three operations a batch, one key of each its own and two for all.
                    let expected = sequence / 3 + if sequence > 0 { 2 } else { 0 };
                    assert_eq!(walked.len() as u64, expected);
                    if let Some(key) = left {
                        assert_eq!(get(&key).as_deref(), Some([key[1]; 400].as_slice()));
                    }
                }
            })
        };
        writers.into_iter().for_each(|w| w.join().unwrap());
        reader.join().unwrap();
        database.close().unwrap();
    });
}

/// Little else goes on, so that many orders of a snapshot beside rotations and flushes are tried.
#[test]
fn a_snapshot_is_of_one_instant_beside_rotations_and_flushes() {
    explore(|| {
        let (_, fs) = file_system();
        let (database, index) = open(&fs, Background::Inline);
        let writer = {
            let (database, index) = (database.clone(), index.clone());
            thread::spawn(move || {
                for n in 0..5 {
                    database.commit(batch(&index, 0, n)).unwrap();
                }
            })
        };
        let snapshots: Vec<_> = (0..20).map(|_| database.snapshot()).collect();
        writer.join().unwrap();
        for snapshot in snapshots {
            let batches = snapshot.prefix(&index, &[0]).count() as u64;
            assert_eq!(batches, snapshot.sequence() / 3);
        }
        database.close().unwrap();
    });
}

#[test]
fn what_was_said_to_be_durable_survives_power_loss_at_that_moment() {
    explore(|| {
        let (memory, fs) = file_system();
        let (database, index) = open(&fs, some_background());
        let writers: Vec<_> = (0..3u8)
            .map(|writer| {
                let (database, index, memory) = (database.clone(), index.clone(), memory.clone());
                thread::spawn(move || {
                    for n in 0..3 {
                        let ticket = database.commit(batch(&index, writer, n)).unwrap();
                        if n > 0 {
                            ticket.wait_durable().unwrap();
                            let (copy, index) = after_crash(&memory, Crash::Lost);
                            assert!((0..=n).all(|n| has(&copy, &index, writer, n)));
                        }
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|w| w.join().unwrap());
        database.close().unwrap();
    });
}

#[test]
fn a_failed_call_beside_other_writers_loses_nothing_acknowledged() {
    explore(|| {
        let (memory, fs) = file_system();
        let (database, index) = open(&fs, Background::Inline);
        let mut random = shuttle::rand::thread_rng();
        fs.arm(Some(Fault {
            at: random.gen_range(0..20),
            count: random.gen_range(1..3),
            kind: ErrorKind::Other,
            changes_only: true,
        }));
        let writers: Vec<_> = (0..3u8)
            .map(|writer| {
                let (database, index, memory) = (database.clone(), index.clone(), memory.clone());
                thread::spawn(move || {
                    let mut durable = Vec::new();
                    for n in 0..3 {
                        let Ok(ticket) = database.commit(batch(&index, writer, n)) else {
                            assert!(!has(&database, &index, writer, n));
                            continue;
                        };
                        assert!(has(&database, &index, writer, n));
                        if ticket.wait_durable().is_ok() {
                            durable.push(n);
                            let (copy, index) = after_crash(&memory, Crash::Lost);
                            assert!(durable.iter().all(|n| has(&copy, &index, writer, *n)));
                        }
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|w| w.join().unwrap());
        fs.arm(None);
        database.sync().unwrap();
        let before: Vec<_> = database.prefix(&index, b"").map(Result::unwrap).collect();
        for crash in [Crash::Kept, Crash::Lost] {
            let (copy, index) = after_crash(&memory, crash);
            let after: Vec<_> = copy.prefix(&index, b"").map(Result::unwrap).collect();
            assert!(before == after, "{crash:?}");
        }
    });
}

#[test]
fn closing_beside_writers_keeps_what_they_were_told() {
    explore(|| {
        let (memory, fs) = file_system();
        let (database, index) = open(&fs, some_background());
        let writers: Vec<_> = (0..2u8)
            .map(|writer| {
                let (database, index) = (database.clone(), index.clone());
                thread::spawn(move || {
                    let done = |n: &u8| match database.commit(batch(&index, writer, *n)) {
                        Ok(_) => true,
                        Err(Error::Closed) => false,
                        Err(error) => panic!("{error}"),
                    };
                    (0..3).take_while(done).count() as u8
                })
            })
            .collect();
        database.close().unwrap();
        let done: Vec<u8> = writers.into_iter().map(|w| w.join().unwrap()).collect();
        let (copy, index) = after_crash(&memory, Crash::Lost);
        for (writer, done) in (0..2u8).zip(done) {
            for n in 0..3 {
                assert_eq!(has(&copy, &index, writer, n), n < done, "{writer} {n}");
            }
        }
    });
}

#[test]
fn a_checkpoint_beside_writers_is_a_prefix_with_all_before_it() {
    explore(|| {
        let (memory, fs) = file_system();
        let (database, index) = open(&fs, some_background());
        database.commit(batch(&index, 9, 0)).unwrap();
        let writer = {
            let (database, index) = (database.clone(), index.clone());
            thread::spawn(move || {
                for n in 0..4 {
                    database.commit(batch(&index, 0, n)).unwrap();
                }
            })
        };
        let copy = Path::new("/copy");
        database.checkpoint(copy).unwrap();
        writer.join().unwrap();
        let options = small(Arc::new(memory.crash(Crash::Lost)), Background::Inline);
        let copy = Database::open(copy, options).unwrap();
        let index = copy.index("index").unwrap();
        assert!(has(&copy, &index, 9, 0));
        let there: Vec<bool> = (0..4).map(|n| has(&copy, &index, 0, n)).collect();
        assert!(there.is_sorted_by(|a, b| a >= b), "{there:?}");
        database.close().unwrap();
    });
}
