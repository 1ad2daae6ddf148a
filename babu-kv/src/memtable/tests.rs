//! Walks over memtables, also beside a writer. What is unsafe in the list is exercised here; run it
//! under valgrind as well:
//! `valgrind --error-exitcode=9 target/debug/deps/babu_kv-HASH memtable::`

use super::{Memtable, MemtableCursor, list::List, node::Node};
use crate::{
    iter::{Cursor, Iter, Source, merge},
    keys::{Range, full_key},
    log::format::{self, OPERATIONS_AT, Operation},
    manifest::version::Version,
    pins::Pin,
    state::{State, Waiting},
};
use merge::{Direction, Limit};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    iter::successors,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Acquire, Ordering::Release},
    },
    thread,
};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

enum Change<'a> {
    Put(&'a [u8], &'a [u8]),
    Delete(&'a [u8]),
    DeleteRange(&'a [u8], &'a [u8]),
}

fn apply(memtable: &Memtable, sequence: u64, change: Change<'_>) {
    let mut record = vec![0; OPERATIONS_AT];
    let full;
    let (tag, key, value) = match change {
        Change::Put(key, value) => (Operation::PUT, key, Some(value)),
        Change::Delete(key) => (Operation::DELETE, key, None),
        Change::DeleteRange(from, to) => {
            full = full_key(1, to);
            (Operation::DELETE_RANGE, from, Some(full.as_slice()))
        }
    };
    format::put_operation(&mut record, tag, 1, key, value);
    format::number(&mut record, sequence, 1);
    memtable.apply(&record.into(), sequence, 1).unwrap();
}

fn key(n: u64) -> [u8; 8] {
    // Neighbours in time are far apart in order.
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// A state of memtables, the newest first.
fn state(memtables: &[Arc<Memtable>]) -> Arc<State> {
    let waiting = memtables[1..].iter().map(|memtable| Waiting {
        memtable: memtable.clone(),
        next_log: 0,
    });
    Arc::new(State {
        active: memtables[0].clone(),
        waiting: waiting.collect(),
        version: Arc::new(Version::default()),
    })
}

/// Random changes spread over three memtables; what there was after each of some of them.
fn history(random: &mut StdRng) -> (Arc<State>, Vec<(u64, Model)>) {
    let keys = [3, 40, 400, 4000][random.random_range(0..4)];
    let puts = random.random_range(0.05..0.6);
    let mut memtables = Vec::new();
    let (mut model, mut seen) = (Model::new(), vec![(0, Model::new())]);
    let mut sequence = 0;
    for _ in 0..3 {
        let memtable = Arc::new(Memtable::new());
        for _ in 0..random.random_range(1..1500) {
            sequence += 1;
            let name = key(random.random_range(0..keys));
            if random.random_bool(0.003) {
                let end = key(random.random_range(0..keys));
                let (from, to) = (name.min(end), name.max(end));
                model.retain(|k, _| k.as_slice() < &from[..] || k.as_slice() >= &to[..]);
                apply(&memtable, sequence, Change::DeleteRange(&from, &to));
            } else if random.random_bool(puts) {
                let value = sequence.to_le_bytes();
                model.insert(name.to_vec(), value.to_vec());
                apply(&memtable, sequence, Change::Put(&name, &value));
            } else {
                model.remove(name.as_slice());
                apply(&memtable, sequence, Change::Delete(&name));
            }
            if random.random_bool(0.003) {
                seen.push((sequence, model.clone()));
            }
        }
        memtables.insert(0, memtable);
    }
    seen.push((sequence, model));
    (state(&memtables), seen)
}

#[test]
fn any_walk_at_any_instant_shows_what_there_was() {
    let mut random = StdRng::seed_from_u64(7);
    for _ in 0..60 {
        let (state, seen) = history(&mut random);
        for _ in 0..12 {
            let (sequence, model) = &seen[random.random_range(0..seen.len())];
            let mut bounds = [key(random.random()), key(random.random())];
            bounds.sort();
            let [from, to] = bounds;
            let range = if random.random_bool(0.5) {
                Range::prefix(1, b"")
            } else {
                Range::new(1, Bound::Included(&from), Bound::Excluded(&to))
            };
            let inside = |k: &&Vec<u8>| {
                let full = full_key(1, k);
                range.from <= full && range.to.as_ref().is_none_or(|to| full < *to)
            };
            let mut left: Vec<_> = model.keys().filter(inside).collect();
            let mut iter = Iter::new(Pin::alone(state.clone(), *sequence), range.clone());
            let forward = [0.0, 1.0, 0.5, 0.95][random.random_range(0..4)];
            let seeks = [0.0, 0.1][random.random_range(0..2)];
            loop {
                if random.random_bool(seeks) {
                    let place = key(random.random());
                    let to = left.last().map(|k| k.to_vec());
                    // What was given from the back does not come back.
                    if let Some(to) = to {
                        iter.seek(&place);
                        let again = model.keys().filter(inside);
                        left = again
                            .filter(|k| k.as_slice() >= &place && **k <= to)
                            .collect();
                    }
                }
                let is_forward = random.random_bool(forward);
                let want = match is_forward {
                    true => (!left.is_empty()).then(|| left.remove(0)),
                    false => left.pop(),
                };
                let want = want.map(|key| (key.as_slice(), model[key].as_slice()));
                if random.random_bool(0.5) {
                    let got = match is_forward {
                        true => iter.next_borrowed(),
                        false => iter.next_back_borrowed(),
                    };
                    assert_eq!(got.map(|entry| entry.unwrap()), want);
                } else {
                    let got = match is_forward {
                        true => iter.next(),
                        false => iter.next_back(),
                    };
                    let got = got.map(|entry| entry.unwrap());
                    assert_eq!(got.as_ref().map(|(key, value)| (&**key, &**value)), want);
                }
                if want.is_none() {
                    break;
                }
            }
        }
    }
}

/// A spool directory with 50 files: file `n` comes with number `2n`, file `n - 50` goes with number
/// `2n + 1`, so that a reader knows from its number what it should find.
#[test]
fn readers_beside_a_writer_see_their_instant() {
    const LIVE: u64 = 50;
    const FILES: u64 = 6_000;
    let memtable = Arc::new(Memtable::new());
    let visible = AtomicU64::new(0);
    let check = |sequence: u64| {
        let last = sequence / 2;
        let gone = (sequence.saturating_sub(1) / 2).saturating_sub(LIVE);
        let mut expected: Vec<_> = (gone + 1..=last).map(|n| key(n).to_vec()).collect();
        expected.sort();
        let walk = || {
            let state = state(std::slice::from_ref(&memtable));
            Iter::new(Pin::alone(state, sequence), Range::prefix(1, b""))
        };
        let forward: Vec<_> = walk().map(|entry| entry.unwrap().0.to_vec()).collect();
        assert_eq!(forward, expected);
        let mut back: Vec<_> = walk().rev().map(|e| e.unwrap().0.to_vec()).collect();
        back.reverse();
        assert_eq!(back, expected);
    };
    let (visible, check) = (&visible, &check);
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..FILES {
                apply(&memtable, 2 * n, Change::Put(&key(n), &n.to_le_bytes()));
                visible.store(2 * n, Release);
                let gone = n.saturating_sub(LIVE);
                apply(&memtable, 2 * n + 1, Change::Delete(&key(gone)));
                visible.store(2 * n + 1, Release);
            }
        });
        for lag in [0, 0, 3, 1000] {
            scope.spawn(move || {
                let mut now = 0;
                while now < 2 * FILES - 1 {
                    now = visible.load(Acquire);
                    check(now.saturating_sub(lag));
                }
            });
        }
    });
}

fn steps(source: &Source) -> usize {
    match source {
        Source::Memtable(cursor) => cursor.steps(),
        _ => 0,
    }
}

/// Walks everything; how many live entries there are, and how many steps that took.
fn walk(state: &State, direction: Direction, sequence: u64) -> (usize, usize) {
    let all = Range::all();
    let mut merge = state.merge(&all, sequence, direction).unwrap();
    let mut live = 0;
    while merge.next_live(Limit::None).unwrap() {
        live += 1;
    }
    (live, merge.sources().iter().map(steps).sum())
}

#[test]
fn a_scan_over_a_million_tombstones_takes_a_step_for_each_bucket() {
    const FILES: u64 = 500_000;
    let memtable = Arc::new(Memtable::new());
    for n in 0..FILES {
        apply(&memtable, 2 * n + 1, Change::Put(&key(n), b"x"));
        apply(&memtable, 2 * n + 2, Change::Delete(&key(n)));
    }
    for n in 0..100 {
        apply(&memtable, 2 * FILES + 1 + n, Change::Put(&key(n * 7), b"x"));
    }
    let state = state(&[memtable]);
    let now = 2 * FILES + 100;
    for direction in [Direction::Forward, Direction::Back] {
        let (live, steps) = walk(&state, direction, now);
        assert_eq!(live, 100);
        assert!(steps < 60_000, "{steps} steps {direction:?}");
    }
}

/// The tombstones are in the newest memtable, what they delete in an older one.
#[test]
fn what_an_older_source_has_is_found_deleted_in_a_step_or_two() {
    const FILES: u64 = 20_000;
    let memtables = [Arc::new(Memtable::new()), Arc::new(Memtable::new())];
    for n in 0..FILES {
        apply(&memtables[1], n + 1, Change::Put(&key(n), b"x"));
        apply(&memtables[0], FILES + n + 1, Change::Delete(&key(n)));
    }
    let state = state(&memtables);
    for direction in [Direction::Forward, Direction::Back] {
        let (live, steps) = walk(&state, direction, 2 * FILES);
        assert_eq!(live, 0);
        assert!(steps < 3 * FILES as usize, "{steps} steps {direction:?}");
    }
}

/// Each key has hundreds of entries; whoever walks sees each key once, as it was then.
#[test]
fn a_key_with_many_versions_is_shown_once() {
    let memtable = Arc::new(Memtable::new());
    let mut states = vec![Model::new()];
    for sequence in 1..1500u64 {
        let key = [(sequence * sequence % 7) as u8];
        let value = sequence.to_be_bytes();
        apply(&memtable, sequence, Change::Put(&key, &value));
        let mut state = states[states.len() - 1].clone();
        state.insert(full_key(1, &key), value.to_vec());
        states.push(state);
    }
    for sequence in (1..1500).step_by(37) {
        let expected: Vec<_> = states[sequence].clone().into_iter().collect();
        let mut cursor = MemtableCursor::new(memtable.clone(), sequence as u64);
        let mut forward = Vec::new();
        cursor.seek(&[]).unwrap();
        while let Some(entry) = cursor.entry() {
            forward.push((entry.key.to_vec(), cursor.value().to_vec()));
            cursor.next().unwrap();
        }
        assert_eq!(forward, expected);
        let mut back = Vec::new();
        cursor.seek_back(None).unwrap();
        while let Some(entry) = cursor.entry() {
            back.insert(0, (entry.key.to_vec(), cursor.value().to_vec()));
            cursor.prev().unwrap();
        }
        assert_eq!(back, expected);
    }
}

/// A value outlives everything that it came from, and holds no more than its record.
#[test]
fn a_value_outlives_its_memtable() {
    let memtable = Arc::new(Memtable::new());
    apply(&memtable, 1, Change::Put(b"name", b"value"));
    let found = memtable.get(&full_key(1, b"name"), 1).unwrap();
    let weak = Arc::downgrade(&memtable);
    drop(memtable);
    assert!(weak.upgrade().is_none());
    assert_eq!(&*found.value, b"value");
}

#[test]
fn the_first_key_after_many_deleted_ones_is_near() {
    const FILES: u64 = 100_000;
    let memtable = Arc::new(Memtable::new());
    let name = |n: u64| [b"a".as_slice(), &key(n)].concat();
    for n in 0..FILES {
        apply(&memtable, 2 * n + 1, Change::Put(&name(n), b"x"));
        apply(&memtable, 2 * n + 2, Change::Delete(&name(n)));
    }
    apply(&memtable, 2 * FILES + 1, Change::Put(b"b", b"y"));
    let state = state(&[memtable]);
    let after = Range::new(1, Bound::Included(b"a"), Bound::Unbounded);
    let mut merge = state.merge(&after, u64::MAX, Direction::Forward).unwrap();
    assert!(merge.next_live(Limit::None).unwrap());
    assert_eq!(merge.key(), full_key(1, b"b"));
    let steps: usize = merge.sources().iter().map(steps).sum();
    assert!(steps < 6_000, "{steps} steps");
}

/// Also from a key that begins a bucket, behind one that is not dead.
#[test]
fn what_was_deleted_is_skipped_from_wherever_a_walk_begins() {
    const LIVE: u64 = 1_000;
    const DELETED: u64 = 10_000;
    let memtable = Arc::new(Memtable::new());
    for n in 0..LIVE + DELETED {
        apply(&memtable, 2 * n + 1, Change::Put(&n.to_be_bytes(), b"x"));
        if n >= LIVE {
            apply(&memtable, 2 * n + 2, Change::Delete(&n.to_be_bytes()));
        }
    }
    let state = state(&[memtable]);
    for n in 0..LIVE {
        let from = n.to_be_bytes();
        let rest = Range::new(1, Bound::Included(&from), Bound::Unbounded);
        let mut merge = state.merge(&rest, u64::MAX, Direction::Forward).unwrap();
        let mut live = 0;
        while merge.next_live(Limit::None).unwrap() {
            live += 1;
        }
        assert_eq!(live, LIVE - n);
        let steps: usize = merge.sources().iter().map(steps).sum();
        assert!(steps < 5_000, "{steps} steps from {n}");
    }
}

#[test]
fn an_iterator_holds_ten_memtables_until_it_is_dropped() {
    let memtables: Vec<_> = (0..10).map(|_| Arc::new(Memtable::new())).collect();
    let weak: Vec<_> = memtables.iter().map(Arc::downgrade).collect();
    for (n, memtable) in memtables.iter().enumerate() {
        // The newest is the first.
        let sequence = 100 - n as u64;
        apply(memtable, sequence, Change::Put(&[n as u8], b"x"));
    }
    let all = Range::prefix(1, b"");
    let mut iter = Iter::new(Pin::alone(state(&memtables), 100), all);
    assert_eq!(&*iter.next().unwrap().unwrap().0, [0]);
    apply(&memtables[0], 101, Change::Delete(&[9]));
    apply(&memtables[0], 102, Change::Put(&[20], b"x"));
    drop(memtables);
    assert_eq!(&*iter.next_back().unwrap().unwrap().0, [9]);
    assert_eq!(iter.by_ref().count(), 8);
    assert!(weak.iter().all(|memtable| memtable.upgrade().is_some()));
    drop(iter);
    assert!(weak.iter().all(|memtable| memtable.upgrade().is_none()));
}

/// Every level has the nodes that are high enough, in order; buckets know what is in them.
fn check_structure(list: &List) {
    let chain = |level| successors(list.head().after(level), move |node| node.after(level));
    let nodes: Vec<_> = chain(0).collect();
    assert!(nodes.windows(2).all(|pair| {
        let (a, b) = (pair[0], pair[1]);
        a.is_before(b.key(), b.sequence()) && b.prev() == Some(a)
    }));
    for level in 1..12 {
        let high = |node: &&Node<'_>| usize::from(node.raw().height) > level;
        assert!(chain(level).eq(nodes.iter().filter(high).copied()));
    }
    for (n, node) in nodes.iter().enumerate() {
        let is_older = n > 0 && nodes[n - 1].key() == node.key();
        assert_eq!(node.is_superseded(), is_older);
    }
    for bucket in successors(Some(list.head()), |bucket| bucket.bucket_end()) {
        let end = bucket.bucket_end();
        let first = Some(bucket).filter(|node| !node.is_head());
        let first = first.or(bucket.next());
        let inside: Vec<_> = successors(first, |node| node.next())
            .take_while(|node| Some(*node) != end)
            .collect();
        let live = inside.iter().filter(|node| node.is_live()).count();
        let latest = inside.iter().map(|node| node.sequence()).max();
        let summary = bucket.summary();
        assert_eq!(summary.live.load(Acquire) as usize, live);
        assert!(summary.changed.load(Acquire) >= latest.unwrap_or_default());
        assert!(end.is_none_or(|end| end.bucket_before() == Some(bucket)));
    }
}

/// Places of insertions that go up, go down, stay together and jump, taking turns in several
/// indices.
#[test]
fn the_list_is_whole_wherever_one_inserts() {
    let mut random = StdRng::seed_from_u64(7);
    for _ in 0..10 {
        let memtable = Memtable::new();
        for sequence in 1..4000u64 {
            let index = random.random_range(0..6);
            let name = match index {
                0 => sequence,
                1 => u64::MAX - sequence,
                2 => random.random_range(0..50),
                _ => {
                    random.random_range(sequence / 500..sequence / 500 + 2) << 32
                        | random.random_range(0..1000)
                }
            };
            let mut record = vec![0; OPERATIONS_AT];
            let (tag, value) = match random.random_bool(0.5) {
                true => (Operation::PUT, Some(b"x".as_slice())),
                false => (Operation::DELETE, None),
            };
            format::put_operation(&mut record, tag, index, &name.to_be_bytes(), value);
            format::number(&mut record, sequence, 1);
            memtable.apply(&record.into(), sequence, 1).unwrap();
        }
        check_structure(&memtable.list);
    }
}

#[test]
fn a_scan_over_what_a_range_deleted_takes_a_step_for_each_bucket() {
    const FILES: u64 = 100_000;
    let memtable = Arc::new(Memtable::new());
    for n in 0..FILES {
        apply(&memtable, n + 1, Change::Put(&key(n), b"x"));
    }
    apply(&memtable, FILES + 1, Change::DeleteRange(&[0], &[0xff; 9]));
    for n in 0..100 {
        apply(&memtable, FILES + 2 + n, Change::Put(&key(n * 7), b"y"));
    }
    let state = state(&[memtable]);
    for direction in [Direction::Forward, Direction::Back] {
        assert_eq!(walk(&state, direction, FILES).0, FILES as usize);
        let (live, steps) = walk(&state, direction, FILES + 101);
        assert_eq!(live, 100);
        assert!(steps < 20_000, "{steps} steps {direction:?}");
    }
}

/// Buckets are passed whose first key has a newer entry in the bucket before.
#[test]
fn what_came_after_a_range_tombstone_is_found_beside_what_is_passed() {
    const FILES: u64 = 2_000;
    let memtables = [Arc::new(Memtable::new()), Arc::new(Memtable::new())];
    let name = |n: u64, kind: u8| [n.to_be_bytes().as_slice(), &[kind]].concat();
    for n in 0..FILES {
        apply(&memtables[1], n + 1, Change::Put(&name(n, 1), b"x"));
        apply(&memtables[0], FILES + n + 1, Change::Delete(&name(n, 0)));
    }
    let range = Change::DeleteRange(&[0], &[0xff; 9]);
    apply(&memtables[0], 2 * FILES + 1, range);
    let buckets = successors(memtables[0].list.head().bucket_end(), |b| b.bucket_end());
    let firsts: Vec<_> = buckets.step_by(2).map(|b| b.key()[4..].to_vec()).collect();
    let mut now = 2 * FILES + 1;
    for first in &firsts {
        now += 1;
        apply(&memtables[0], now, Change::Put(first, b"y"));
    }
    let state = state(&memtables);
    for n in 0..FILES {
        let to = name(n, 0);
        let range = Range::new(1, Bound::Unbounded, Bound::Excluded(&to));
        let mut merge = state.merge(&range, now, Direction::Back).unwrap();
        let expected = firsts.iter().rfind(|first| **first < to);
        let found = merge.next_live(Limit::Inside(&range.from)).unwrap();
        assert_eq!(found, expected.is_some());
        assert!(expected.is_none_or(|first| merge.key()[4..] == *first.as_slice()));
    }
}
