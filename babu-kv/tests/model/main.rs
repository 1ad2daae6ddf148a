//! Random operations against a `BTreeMap`, with random options.
//!
//!     PROPTEST_CASES=100000 cargo test --release -p babu-kv --test model
//!
//! A failure prints the shortest list of steps that it was reduced to.

mod edges;
mod held;
mod step;

use babu_kv::{
    Batch, Database, Durability, Error, Index, IndexOptions, Iter, Options, Snapshot, backup,
    fs::{Crash, MemoryFs},
};
use held::{Held, bounds, within};
use proptest::prelude::*;
use std::{collections::BTreeMap, path::Path, sync::Arc};
use step::{Change, NAMES, Step, key, options, step, value};

type Model = [BTreeMap<Vec<u8>, Vec<u8>>; NAMES.len()];
type Indices = [Index; NAMES.len()];

const SAFE: &str = "/safe";
/// More would only hold more of the same.
const HELD_MAX: usize = 6;

fn expect_walk(
    iter: Iter,
    expected: impl DoubleEndedIterator<Item = (Vec<u8>, Vec<u8>)>,
    mut turns: u64,
) {
    let (mut iter, mut expected) = (iter, expected);
    loop {
        let (got, want) = if turns & 1 == 0 {
            (iter.next(), expected.next())
        } else {
            (iter.next_back(), expected.next_back())
        };
        let got = got
            .map(|entry| entry.unwrap())
            .map(|(k, v)| (k.to_vec(), v.to_vec()));
        assert_eq!(got, want);
        if got.is_none() {
            assert!(iter.next().is_none() && iter.next_back().is_none());
            return;
        }
        turns = turns.rotate_right(1);
    }
}

fn expect_all(snapshot: &Snapshot, indices: &Indices, model: &Model) {
    for (index, map) in indices.iter().zip(model) {
        for turns in [0, u64::MAX] {
            let entries = map.iter().map(|(k, v)| (k.clone(), v.clone()));
            expect_walk(snapshot.prefix(index, b""), entries, turns);
        }
        for n in (0..=u8::MAX).step_by(5) {
            let found = snapshot.get(index, &key(n)).unwrap();
            assert_eq!(found.as_deref(), map.get(&key(n)).map(Vec::as_slice));
        }
    }
    // In no order, and some of them twice.
    let asked: Vec<(usize, Vec<u8>)> = (0..=u8::MAX)
        .map(|n| (usize::from(n) % 2, key(n.wrapping_mul(37) | 1)))
        .collect();
    let keys: Vec<_> = asked
        .iter()
        .map(|(i, k)| (&indices[*i], k.as_slice()))
        .collect();
    let found = snapshot.multi_get(&keys).unwrap();
    let found: Vec<_> = found.iter().map(|value| value.as_deref()).collect();
    let expected = asked
        .iter()
        .map(|(i, k)| model[*i].get(k).map(Vec::as_slice));
    assert_eq!(found, expected.collect::<Vec<_>>());
}

/// A database and what it should hold.
struct Run {
    fs: MemoryFs,
    options: Options,
    database: Database,
    indices: Indices,
    model: Model,
    /// With the handles of their time: an index may have been dropped since.
    snapshots: Vec<(Snapshot, Indices, Model)>,
    held: Vec<Held>,
    backups: Vec<(u64, Model)>,
}

fn open(fs: &MemoryFs, dir: &str, options: &Options) -> (Database, Indices) {
    let options = Options {
        fs: Arc::new(fs.clone()),
        ..options.clone()
    };
    let database = Database::open(Path::new(dir), options).unwrap();
    // Prefixes of no, one and two bytes go into filters.
    let options_of = |name| IndexOptions {
        prefix_bytes: NAMES.iter().position(|n| *n == name).unwrap() as u8,
    };
    let indices = NAMES.map(|name| database.index_with(name, options_of(name)).unwrap());
    (database, indices)
}

impl Run {
    fn new(options: Options) -> Run {
        let fs = MemoryFs::new();
        let (database, indices) = open(&fs, "/db", &options);
        Run {
            fs,
            options,
            database,
            indices,
            model: Model::default(),
            snapshots: Vec::new(),
            held: Vec::new(),
            backups: Vec::new(),
        }
    }

    fn commit(&mut self, changes: &[Change], synced: bool) {
        let mut batch = Batch::new();
        for change in changes {
            match change {
                Change::Put(i, k, v) => {
                    batch.put(&self.indices[*i], &key(*k), &value(*v));
                    self.model[*i].insert(key(*k), value(*v));
                }
                Change::Delete(i, k) => {
                    batch.delete(&self.indices[*i], &key(*k));
                    self.model[*i].remove(&key(*k));
                }
                Change::DeleteRange(i, a, b) => {
                    let (from, to) = (key(*a), key(*b));
                    batch.delete_range(&self.indices[*i], &from, &to);
                    self.model[*i].retain(|k, _| *k < from || *k >= to);
                }
            }
        }
        let durability = if synced {
            Durability::Synced
        } else {
            Durability::Buffered
        };
        self.database.write(batch, durability).unwrap();
    }

    fn walk(&self, i: usize, a: u8, b: u8, turns: u64) {
        let (from, to) = (key(a), key(b));
        let bounds = bounds(turns, &from, &to);
        let expected = within(&self.model, i, bounds);
        let iter = || self.database.range(&self.indices[i], bounds.0, bounds.1);
        expect_walk(iter(), expected.clone().into_iter(), turns);
        let mut iter = iter();
        let half = expected.len() / 2;
        assert!(iter.by_ref().take(half).all(|e| e.is_ok()));
        iter.seek(&from);
        let rest = expected.into_iter().filter(|(k, _)| *k >= from);
        expect_walk(iter, rest, turns >> 3);
    }

    /// Lists a prefix of any length, and goes on listing from another place.
    fn prefix(&self, i: usize, key_of: &[u8], length: usize, to: u8) {
        let prefix = &key_of[..length.min(key_of.len())];
        let of_prefix = self.model[i].iter().filter(|(k, _)| k.starts_with(prefix));
        let expected: Vec<_> = of_prefix.map(|(k, v)| (k.clone(), v.clone())).collect();
        for turns in [0, 0b1101, u64::MAX] {
            let iter = self.database.prefix(&self.indices[i], prefix);
            expect_walk(iter, expected.clone().into_iter(), turns);
        }
        let mut iter = self.database.prefix(&self.indices[i], prefix);
        iter.seek(&key(to));
        let rest = expected.into_iter().filter(|(k, _)| *k >= key(to));
        expect_walk(iter, rest, 0);
    }

    fn multi_get(&self, asked: &[(usize, u8)]) {
        let asked: Vec<_> = asked.iter().map(|(i, n)| (*i, key(*n))).collect();
        let keys: Vec<(&Index, &[u8])> = asked
            .iter()
            .map(|(i, k)| (&self.indices[*i], &k[..]))
            .collect();
        let found = self.database.multi_get(&keys).unwrap();
        let found: Vec<_> = found.iter().map(|value| value.as_deref()).collect();
        let expected = asked
            .iter()
            .map(|(i, k)| self.model[*i].get(k).map(Vec::as_slice));
        assert_eq!(found, expected.collect::<Vec<_>>());
    }

    /// Drops an index and creates another one of its name, which may declare other prefixes.
    fn drop_index(&mut self, i: usize, prefix_bytes: u8) {
        let old = self.indices[i].clone();
        assert!(self.database.drop_index(NAMES[i]).unwrap());
        assert!(!self.database.drop_index(NAMES[i]).unwrap());
        let new = IndexOptions { prefix_bytes };
        self.indices[i] = self.database.index_with(NAMES[i], new).unwrap();
        for key in self.model[i].keys() {
            assert!(self.database.get(&old, key).unwrap().is_none());
        }
        assert!(self.database.prefix(&old, b"").next().is_none());
        let other = &self.indices[(i + 1) % NAMES.len()];
        let mut batch = Batch::new();
        batch.put(other, b"of a batch that is refused", b"");
        batch.put(&old, b"", b"");
        let refused = self.database.commit(batch).map(|_| ());
        assert!(matches!(refused, Err(Error::InvalidArgument { .. })));
        self.model[i].clear();
        self.expect_now();
    }

    fn expect_now(&self) {
        expect_all(&self.database.snapshot(), &self.indices, &self.model);
    }

    /// What others hold is still as it was.
    fn expect_kept(&mut self) {
        for (snapshot, indices, model) in self.snapshots.drain(..) {
            expect_all(&snapshot, &indices, &model);
        }
        for mut held in self.held.drain(..) {
            held.advance(u8::MAX, 0b0110_0101);
        }
    }

    fn copy_is_whole(&self, dir: &str) {
        let (copy, indices) = open(&self.fs, dir, &self.options);
        expect_all(&copy.snapshot(), &indices, &self.model);
        copy.verify().unwrap();
    }

    fn read_beside(&self) {
        let options = Options {
            fs: Arc::new(self.fs.clone()),
            ..self.options.clone()
        };
        let beside = match Database::open_read_only(Path::new("/db"), options) {
            Ok(beside) => beside,
            // The owner may replace files faster than they can be opened.
            Err(Error::Io { .. }) => return,
            Err(error) => panic!("{error}"),
        };
        let indices = NAMES.map(|name| beside.index(name).unwrap());
        expect_all(&beside.snapshot(), &indices, &self.model);
    }

    fn step(&mut self, n: usize, step: Step) {
        let some = |n: u8, length: usize| usize::from(n) % length;
        match step {
            Step::Commit(changes, synced) => self.commit(&changes, synced),
            Step::Get(i, k) => {
                let got = self.database.get(&self.indices[i], &key(k)).unwrap();
                let want = self.model[i].get(&key(k));
                assert_eq!(got.as_deref(), want.map(Vec::as_slice));
            }
            Step::Snapshot => {
                let snapshot = self.database.snapshot();
                let indices = self.indices.clone();
                self.snapshots.push((snapshot, indices, self.model.clone()));
            }
            Step::DropSnapshot(n) if !self.snapshots.is_empty() => {
                drop(self.snapshots.remove(some(n, self.snapshots.len())));
            }
            Step::CheckSnapshot(n, k) if !self.snapshots.is_empty() => {
                let (snapshot, indices, model) = &self.snapshots[some(n, self.snapshots.len())];
                expect_all(snapshot, indices, model);
                let got = snapshot.get(&indices[0], &key(k)).unwrap();
                let want = model[0].get(&key(k));
                assert_eq!(got.as_deref(), want.map(Vec::as_slice));
            }
            Step::DropSnapshot(_) | Step::CheckSnapshot(..) => {}
            Step::Walk(i, a, b, turns) => self.walk(i, a, b, turns),
            Step::Prefix(i, k, length, to) => self.prefix(i, &key(k), length, to),
            Step::MultiGet(asked) => self.multi_get(&asked),
            Step::DropIndex(i, prefix_bytes) => self.drop_index(i, prefix_bytes),
            Step::Settle => self.database.settle().unwrap(),
            Step::Hold(i, a, b, kind) => {
                let snapshot = self.database.snapshot();
                let held = Held::open(&snapshot, &self.indices, &self.model, (i, a, b, kind));
                self.held.truncate(HELD_MAX - 1);
                self.held.insert(0, held);
            }
            Step::Advance(n, steps, turns) if !self.held.is_empty() => {
                let n = some(n, self.held.len());
                self.held[n].advance(steps, turns);
            }
            Step::Seek(n, k) if !self.held.is_empty() => {
                let n = some(n, self.held.len());
                self.held[n].seek(k);
            }
            Step::Advance(..) | Step::Seek(..) => {}
            Step::Flush => self.database.flush().unwrap(),
            Step::Compact => self.database.compact().unwrap(),
            Step::Checkpoint => {
                let dir = format!("/checkpoint{n}");
                self.database.checkpoint(Path::new(&dir)).unwrap();
                self.copy_is_whole(&dir);
            }
            Step::Backup => {
                let made = self.database.backup(Path::new(SAFE)).unwrap();
                self.backups.push((made.number, self.model.clone()));
            }
            Step::Restore(which) if !self.backups.is_empty() => {
                let (number, model) = &self.backups[some(which, self.backups.len())];
                let dir = format!("/restored{n}");
                backup::restore(&self.fs, Path::new(SAFE), *number, Path::new(&dir)).unwrap();
                let (copy, indices) = open(&self.fs, &dir, &self.options);
                expect_all(&copy.snapshot(), &indices, model);
            }
            Step::Restore(_) => {}
            Step::ReadOnly => self.read_beside(),
            Step::Reopen => {
                self.database.clone().close().unwrap();
                self.expect_kept();
                (self.database, self.indices) = open(&self.fs, "/db", &self.options);
                self.expect_now();
            }
            Step::Kill => {
                // The old process's snapshots and iterators go on reading the old files.
                self.fs = self.fs.crash(Crash::Kept);
                (self.database, self.indices) = open(&self.fs, "/db", &self.options);
                self.expect_now();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn the_database_is_a_map(steps in proptest::collection::vec(step(), 1..200), options in options()) {
        let mut run = Run::new(options);
        for (n, step) in steps.into_iter().enumerate() {
            run.step(n, step);
        }
        run.expect_now();
        run.expect_kept();
    }
}
