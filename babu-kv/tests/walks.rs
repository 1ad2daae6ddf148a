//! Walks over tables of many blocks, beside memtables that delete long stretches of what is in there.

use babu_kv::{Batch, Database, Durability, Index, Options, fs::MemoryFs};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{collections::BTreeMap, ops::Bound, sync::Arc};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const KEYS: u32 = 4_000;

fn key(n: u32) -> Vec<u8> {
    format!("name-{n:06}").into_bytes()
}

/// Writes and deletes some of the keys between two.
fn change(
    random: &mut StdRng,
    (database, index, model): (&Database, &Index, &mut Model),
    (from, to): (u32, u32),
    (puts, deletes): (f64, f64),
) {
    let mut batch = Batch::new();
    for n in from..to {
        if random.random_bool(puts) {
            let value = vec![random.random(); random.random_range(0..60)];
            batch.put(index, &key(n), &value);
            model.insert(key(n), value);
        } else if random.random_bool(deletes) {
            batch.delete(index, &key(n));
            model.remove(&key(n));
        }
    }
    database.write(batch, Durability::Buffered).unwrap();
}

/// Walks from both ends, a random number of steps at each, until they meet.
fn check(random: &mut StdRng, database: &Database, index: &Index, model: &Model) {
    let (a, b) = (random.random_range(0..KEYS), random.random_range(0..KEYS));
    let (from, to) = (key(a.min(b)), key(a.max(b)));
    let mut expected = model.range(from.clone()..to.clone());
    let mut entries = database.range(
        index,
        Bound::Included(from.as_slice()),
        Bound::Excluded(to.as_slice()),
    );
    let steps_max = [1, 8, 300, KEYS][random.random_range(0..4)];
    loop {
        for is_back in [false, true] {
            for _ in 0..random.random_range(0..=steps_max) {
                let expected = match is_back {
                    false => expected.next(),
                    true => expected.next_back(),
                };
                let expected = expected.map(|(key, value)| (key.as_slice(), value.as_slice()));
                if random.random_bool(0.5) {
                    let entry = match is_back {
                        false => entries.next_borrowed(),
                        true => entries.next_back_borrowed(),
                    };
                    assert_eq!(entry.map(|entry| entry.unwrap()), expected);
                } else {
                    let entry = match is_back {
                        false => entries.next(),
                        true => entries.next_back(),
                    };
                    let entry = entry.map(|entry| entry.unwrap());
                    let entry = entry.as_ref().map(|(key, value)| (&**key, &**value));
                    assert_eq!(entry, expected);
                }
                if expected.is_none() {
                    return;
                }
            }
        }
    }
}

#[test]
fn what_memory_deletes_is_left_out_of_what_tables_have() {
    let mut random = StdRng::seed_from_u64(11);
    for round in 0..20 {
        let options = Options {
            block_bytes: 1 << 10,
            ..Options::simulated(Arc::new(MemoryFs::new()))
        };
        let database = Database::open("/db".as_ref(), options).unwrap();
        let index = database.index("names").unwrap();
        let mut model = Model::new();
        let of = &mut model;
        change(&mut random, (&database, &index, of), (0, KEYS), (0.9, 0.0));
        database.flush().unwrap();
        if round % 2 == 0 {
            change(&mut random, (&database, &index, of), (0, KEYS), (0.1, 0.1));
            database.flush().unwrap();
        }
        // Most of it long enough for whole stretches of the memtable without anything live.
        for from in (0..KEYS).step_by(500) {
            let to = from + random.random_range(100..500);
            let puts = [0.0, 0.0, 0.001, 0.3][random.random_range(0..4)];
            let deletes = [1.0, 0.99, 0.5][random.random_range(0..3)];
            let changed = (&database, &index, &mut *of);
            change(&mut random, changed, (from, to), (puts, deletes));
        }
        for _ in 0..40 {
            check(&mut random, &database, &index, &model);
        }
    }
}
