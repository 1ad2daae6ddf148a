//! Random operations against a `BTreeMap`.

use babu_kv::{
    Background, Batch, Database, Durability, Index, Iter, Options, Snapshot,
    fs::{Crash, MemoryFs},
};
use proptest::prelude::*;
use std::{collections::BTreeMap, ops::Bound, path::Path, sync::Arc};

type Model = [BTreeMap<Vec<u8>, Vec<u8>>; 2];

const NAMES: [&str; 2] = ["first", "second"];

#[derive(Clone, Debug)]
enum Change {
    Put(usize, u8, u8),
    Delete(usize, u8),
    DeleteRange(usize, u8, u8),
}

#[derive(Clone, Debug)]
enum Step {
    Commit(Vec<Change>, bool),
    Get(usize, u8),
    Snapshot,
    DropSnapshot(u8),
    CheckSnapshot(u8, u8),
    Walk(usize, u8, u8, u64),
    Prefix(usize, u8),
    Flush,
    Compact,
    Checkpoint,
    Reopen,
    Kill,
}

/// Keys of different lengths, many of which are prefixes of others.
fn key(n: u8) -> Vec<u8> {
    let mut key = vec![n >> 6; usize::from(n & 3)];
    key.extend(format!("{:x}", n >> 2).into_bytes());
    if n == 255 {
        key = vec![0xff; 3];
    }
    key
}

fn value(n: u8) -> Vec<u8> {
    vec![n; usize::from(n) * if n.is_multiple_of(50) { 40 } else { 1 }]
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        6 => (0..2usize, any::<u8>(), any::<u8>()).prop_map(|(i, k, v)| Change::Put(i, k, v)),
        3 => (0..2usize, any::<u8>()).prop_map(|(i, k)| Change::Delete(i, k)),
        1 => (0..2usize, any::<u8>(), any::<u8>()).prop_map(|(i, a, b)| Change::DeleteRange(i, a, b)),
    ];
    proptest::collection::vec(change, 0..12)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        30 => (changes(), any::<bool>()).prop_map(|(c, synced)| Step::Commit(c, synced)),
        10 => (0..2usize, any::<u8>()).prop_map(|(i, k)| Step::Get(i, k)),
        3 => Just(Step::Snapshot),
        1 => any::<u8>().prop_map(Step::DropSnapshot),
        4 => (any::<u8>(), any::<u8>()).prop_map(|(n, k)| Step::CheckSnapshot(n, k)),
        6 => (0..2usize, any::<u8>(), any::<u8>(), any::<u64>()).prop_map(|(i, a, b, turns)| Step::Walk(i, a, b, turns)),
        3 => (0..2usize, any::<u8>()).prop_map(|(i, k)| Step::Prefix(i, k)),
        3 => Just(Step::Flush),
        1 => Just(Step::Compact),
        1 => Just(Step::Checkpoint),
        2 => Just(Step::Reopen),
        1 => Just(Step::Kill),
    ]
}

fn options() -> impl Strategy<Value = Options> {
    let sizes = (10..16u32, 6..13u32, 10..14u32, 1..5usize, 11..15u32);
    (sizes, any::<bool>(), 0..20u32, 1..4usize).prop_map(
        |((memtable, block, table, level0, level1), threads, cache, waiting)| Options {
            memtable_bytes: 1 << memtable,
            memtables_waiting: waiting,
            block_bytes: 1 << block,
            table_bytes: 1 << table,
            level0_tables: level0,
            level1_bytes: 1 << level1,
            cache_bytes: 1 << cache,
            background: if threads {
                Background::Threads
            } else {
                Background::Inline
            },
            ..Options::default()
        },
    )
}

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

fn expect_all(snapshot: &Snapshot, indices: &[Index], model: &Model) {
    for (index, map) in indices.iter().zip(model) {
        let entries = map.iter().map(|(k, v)| (k.clone(), v.clone()));
        expect_walk(snapshot.prefix(index, b""), entries, 0);
        let entries = map.iter().map(|(k, v)| (k.clone(), v.clone()));
        expect_walk(snapshot.prefix(index, b""), entries, u64::MAX);
    }
}

fn open(fs: &MemoryFs, dir: &str, options: &Options) -> (Database, Vec<Index>) {
    let database = Database::open(
        Path::new(dir),
        Options {
            fs: Arc::new(fs.clone()),
            ..options.clone()
        },
    )
    .unwrap();
    let indices = NAMES.map(|name| database.index(name).unwrap()).to_vec();
    (database, indices)
}

fn commit(
    database: &Database,
    indices: &[Index],
    model: &mut Model,
    changes: &[Change],
    synced: bool,
) {
    let mut batch = Batch::new();
    for change in changes {
        match change {
            Change::Put(i, k, v) => {
                batch.put(&indices[*i], &key(*k), &value(*v));
                model[*i].insert(key(*k), value(*v));
            }
            Change::Delete(i, k) => {
                batch.delete(&indices[*i], &key(*k));
                model[*i].remove(&key(*k));
            }
            Change::DeleteRange(i, a, b) => {
                let (from, to) = (key(*a), key(*b));
                batch.delete_range(&indices[*i], &from, &to);
                model[*i].retain(|k, _| *k < from || *k >= to);
            }
        }
    }
    database
        .write(
            batch,
            if synced {
                Durability::Synced
            } else {
                Durability::Buffered
            },
        )
        .unwrap();
}

fn run(steps: Vec<Step>, options: Options) {
    let mut fs = MemoryFs::new();
    let (mut database, mut indices) = open(&fs, "/db", &options);
    let mut model = Model::default();
    let mut snapshots: Vec<(Snapshot, Model)> = Vec::new();
    for (n, step) in steps.into_iter().enumerate() {
        match step {
            Step::Commit(changes, synced) => {
                commit(&database, &indices, &mut model, &changes, synced)
            }
            Step::Get(i, k) => {
                let got = database
                    .get(&indices[i], &key(k))
                    .unwrap()
                    .map(|v| v.to_vec());
                assert_eq!(got.as_ref(), model[i].get(&key(k)));
            }
            Step::Snapshot => snapshots.push((database.snapshot(), model.clone())),
            Step::DropSnapshot(n) if !snapshots.is_empty() => {
                drop(snapshots.remove(usize::from(n) % snapshots.len()))
            }
            Step::CheckSnapshot(n, k) if !snapshots.is_empty() => {
                let (snapshot, model) = &snapshots[usize::from(n) % snapshots.len()];
                expect_all(snapshot, &indices, model);
                let got = snapshot
                    .get(&indices[0], &key(k))
                    .unwrap()
                    .map(|v| v.to_vec());
                assert_eq!(got.as_ref(), model[0].get(&key(k)));
            }
            Step::DropSnapshot(_) | Step::CheckSnapshot(..) => {}
            Step::Walk(i, a, b, turns) => {
                let (from, to) = (key(a), key(b));
                let bounds = match turns % 4 {
                    0 => (
                        Bound::Included(from.as_slice()),
                        Bound::Excluded(to.as_slice()),
                    ),
                    1 => (
                        Bound::Excluded(from.as_slice()),
                        Bound::Included(to.as_slice()),
                    ),
                    2 => (Bound::Unbounded, Bound::Included(to.as_slice())),
                    _ => (Bound::Included(from.as_slice()), Bound::Unbounded),
                };
                let inside = |k: &[u8]| {
                    (match bounds.0 {
                        Bound::Included(f) => k >= f,
                        Bound::Excluded(f) => k > f,
                        Bound::Unbounded => true,
                    }) && match bounds.1 {
                        Bound::Included(t) => k <= t,
                        Bound::Excluded(t) => k < t,
                        Bound::Unbounded => true,
                    }
                };
                let expected: Vec<_> = model[i]
                    .iter()
                    .filter(|(k, _)| inside(k))
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect();
                expect_walk(
                    database.range(&indices[i], bounds.0, bounds.1),
                    expected.clone().into_iter(),
                    turns,
                );
                let mut iter = database.range(&indices[i], bounds.0, bounds.1);
                let half = expected.len() / 2;
                assert!(iter.by_ref().take(half).all(|e| e.is_ok()));
                iter.seek(&from);
                expect_walk(
                    iter,
                    expected.into_iter().filter(|(k, _)| *k >= from),
                    turns >> 3,
                );
            }
            Step::Prefix(i, k) => {
                let prefix = key(k)[..1].to_vec();
                let expected: Vec<_> = model[i]
                    .iter()
                    .filter(|(k, _)| k.starts_with(&prefix))
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect();
                expect_walk(
                    database.prefix(&indices[i], &prefix),
                    expected.into_iter(),
                    0,
                );
            }
            Step::Flush => database.flush().unwrap(),
            Step::Compact => database.compact().unwrap(),
            Step::Checkpoint => {
                let dir = format!("/checkpoint{n}");
                database.checkpoint(Path::new(&dir)).unwrap();
                let (copy, indices) = open(&fs, &dir, &options);
                expect_all(&copy.snapshot(), &indices, &model);
            }
            Step::Reopen => {
                database.close().unwrap();
                snapshots
                    .drain(..)
                    .for_each(|(snapshot, model)| expect_all(&snapshot, &indices, &model));
                (database, indices) = open(&fs, "/db", &options);
                expect_all(&database.snapshot(), &indices, &model);
            }
            Step::Kill => {
                // The old process's snapshots go on reading the old files.
                fs = fs.crash(Crash::Kept);
                (database, indices) = open(&fs, "/db", &options);
                expect_all(&database.snapshot(), &indices, &model);
            }
        }
    }
    expect_all(&database.snapshot(), &indices, &model);
    for (snapshot, model) in snapshots {
        expect_all(&snapshot, &indices, &model);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn the_database_is_a_map(steps in proptest::collection::vec(step(), 1..150), options in options()) {
        run(steps, options);
    }
}
