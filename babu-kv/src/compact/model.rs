//! Levels of tables that exist only as lists of keys: whatever is picked, every key keeps its
//! newest value, and the picking comes to an end.

use super::{
    job::Job,
    pick::{level0_runs, pick, pick_idle},
};
use crate::{
    fs::MemoryFs,
    keys::full_key,
    manifest::{edit::Edit, version::Version},
    options::Options,
    table::{Table, TableMeta, Tables},
};
use proptest::prelude::*;
use std::{collections::BTreeMap, path::Path, sync::Arc};

const ENTRY_BYTES: u64 = 100;

/// Key to sequence number, and whether it deletes.
type Content = BTreeMap<Vec<u8>, (u64, bool)>;

fn key(n: u8) -> Vec<u8> {
    full_key(u32::from(n >> 6), &[n])
}

struct Levels {
    tables: Arc<Tables>,
    options: Options,
    version: Version,
    contents: BTreeMap<u64, Content>,
    next_table: u64,
    sequence: u64,
    /// The newest value of each key.
    truth: BTreeMap<Vec<u8>, u64>,
    jobs: u64,
}

impl Levels {
    fn new(options: Options) -> Levels {
        let fs = Arc::new(MemoryFs::new());
        let tables = Tables::new(fs, Path::new("/db"), &options);
        Levels {
            tables: Arc::new(tables),
            options,
            version: Version::default(),
            contents: BTreeMap::new(),
            next_table: 1,
            sequence: 0,
            truth: BTreeMap::new(),
            jobs: 0,
        }
    }

    fn add(&mut self, content: Content) -> TableMeta {
        let number = self.next_table;
        self.next_table += 1;
        let first = content.keys().next().cloned().unwrap_or_default();
        let mut to = content.keys().next_back().cloned().unwrap_or_default();
        to.push(0);
        let meta = TableMeta {
            number,
            size: content.len() as u64 * ENTRY_BYTES,
            hash: 0,
            entries: content.len() as u64,
            tombstones: content.values().filter(|(_, deletes)| *deletes).count() as u64,
            sequence_max: content.values().map(|(s, _)| *s).max().unwrap_or(0),
            from: first,
            to,
        };
        self.contents.insert(number, content);
        meta
    }

    /// Tables of at most `length` entries, each of one index.
    fn cut(&mut self, content: Content, length: usize) -> Vec<TableMeta> {
        let mut pieces: Vec<Content> = Vec::new();
        for (key, value) in content {
            let full = pieces.last().is_none_or(|p| {
                p.len() >= length || p.keys().next().is_none_or(|k| k[..4] != key[..4])
            });
            if full {
                pieces.push(Content::new());
            }
            pieces.last_mut().unwrap().insert(key, value);
        }
        pieces.into_iter().map(|piece| self.add(piece)).collect()
    }

    fn flush(&mut self, changes: &[(u8, bool)]) {
        let mut content = Content::new();
        for (n, deletes) in changes {
            self.sequence += 1;
            content.insert(key(*n), (self.sequence, *deletes));
            if *deletes {
                self.truth.remove(&key(*n));
            } else {
                self.truth.insert(key(*n), self.sequence);
            }
        }
        let added = self.cut(content, usize::MAX);
        self.apply(Edit {
            added: added.into_iter().map(|meta| (0, meta)).collect(),
            ..Edit::default()
        });
    }

    fn apply(&mut self, edit: Edit) {
        self.version = self.version.apply(&edit, &self.tables).unwrap();
    }

    fn content(&self, table: &Table) -> &Content {
        &self.contents[&table.meta.number]
    }

    fn run(&mut self, job: &Job) {
        assert!(job.output_level > job.level || job.level == 6);
        let outputs = if job.is_move {
            assert_eq!(job.tables().count(), 1);
            vec![job.inputs[0].meta.clone()]
        } else {
            self.merge(job)
        };
        self.apply(Edit {
            removed: job.tables().map(|(n, t)| (n, t.meta.number)).collect(),
            added: outputs.into_iter().map(|m| (job.output_level, m)).collect(),
            ..Edit::default()
        });
        self.jobs += 1;
    }

    fn merge(&mut self, job: &Job) -> Vec<TableMeta> {
        let mut merged = Content::new();
        for (_, table) in job.tables() {
            for (key, value) in self.content(table) {
                merged.entry(key.clone()).or_insert(*value);
            }
        }
        let deeper = &self.version.levels[job.output_level + 1..];
        merged.retain(|key, (_, deletes)| {
            let known = || {
                deeper
                    .iter()
                    .flatten()
                    .any(|t| self.content(t).contains_key(key))
            };
            !*deletes || known()
        });
        self.cut(
            merged,
            (self.options.table_bytes as u64 / ENTRY_BYTES) as usize,
        )
    }

    /// Compacts until `pick` has nothing more.
    fn drain(&mut self, pick: fn(&Version, &Options) -> Option<Job>) {
        let limit = self.jobs + 10_000;
        while let Some(job) = pick(&self.version, &self.options) {
            self.run(&job);
            self.check();
            assert!(self.jobs < limit, "it does not come to an end");
        }
    }

    /// Reads find what was written last.
    fn check(&self) {
        for n in 0..=u8::MAX {
            let key = key(n);
            let found = self
                .version
                .covering(&key)
                .find_map(|t| self.content(t).get(&key));
            let value = found
                .filter(|(_, deletes)| !deletes)
                .map(|(sequence, _)| *sequence);
            assert_eq!(value, self.truth.get(&key).copied(), "key {n}");
        }
    }
}

fn options() -> impl Strategy<Value = Options> {
    (1..6usize, 1..40u64, 1..9usize).prop_map(|(level0_tables, base, table)| Options {
        level0_tables,
        level1_bytes: base * ENTRY_BYTES,
        table_bytes: table * ENTRY_BYTES as usize,
        ..Options::default()
    })
}

/// Changes of one flush: keys in a row, or scattered, many or few of which delete.
fn flush() -> impl Strategy<Value = Vec<(u8, bool)>> {
    let scattered = proptest::collection::vec((any::<u8>(), proptest::bool::weighted(0.3)), 1..40);
    let in_a_row = (any::<u8>(), 1..40u8, any::<bool>())
        .prop_map(|(from, n, deletes)| (0..n).map(|at| (from.wrapping_add(at), deletes)).collect());
    prop_oneof![scattered, in_a_row]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_key_keeps_its_newest_value_and_compaction_ends(
        options in options(),
        flushes in proptest::collection::vec((flush(), 0..3u8), 1..40),
    ) {
        let mut levels = Levels::new(options);
        for (changes, what) in flushes {
            levels.flush(&changes);
            match what {
                0 => {}
                1 => levels.drain(pick),
                _ => {
                    // Idle work that was cut short by the next flush.
                    if let Some(job) = pick_idle(&levels.version, &levels.options) {
                        levels.run(&job);
                    }
                }
            }
            levels.check();
        }
        levels.drain(pick);
        prop_assert!(level0_runs(&levels.version) < levels.options.level0_tables);
        levels.drain(pick_idle);
        prop_assert!(levels.version.levels[0].is_empty());
        prop_assert!(levels.version.tables().all(|t| t.meta.tombstones == 0));
        levels.drain(pick);
        // Nothing is stored twice for long.
        let stored: u64 = levels.version.tables().map(|t| t.meta.entries).sum();
        prop_assert!(stored <= 2 * levels.truth.len() as u64 + 40);
    }
}

fn small() -> Options {
    Options {
        level0_tables: 4,
        level1_bytes: 40 * ENTRY_BYTES,
        table_bytes: 8 * ENTRY_BYTES as usize,
        ..Options::default()
    }
}

#[test]
fn keys_in_order_are_never_merged() {
    let mut levels = Levels::new(small());
    for n in 0..25 {
        let changes: Vec<_> = (0..10).map(|k| (n * 10 + k, false)).collect();
        levels.flush(&changes);
        let job = pick(&levels.version, &levels.options).unwrap();
        assert!(job.is_move);
        levels.run(&job);
        levels.drain(pick);
    }
    assert!(levels.contents.len() as u64 + 1 == levels.next_table);
    assert!(levels.version.levels[..6].iter().all(Vec::is_empty));
}

/// A flush that deletes what lies below is merged with it at once, though level 0 is not full; not
/// when most of what it would read has nothing to do with it.
#[test]
fn many_deletions_for_little_reading_are_due_at_once() {
    let mut levels = Levels::new(small());
    levels.flush(&(0..60).map(|n| (n, false)).collect::<Vec<_>>());
    levels.drain(pick);
    levels.drain(pick_idle);
    let tables = levels.next_table;
    levels.flush(&[(0, true), (59, true)]);
    levels.drain(pick);
    assert_eq!(levels.next_table, tables + 1, "nothing was rewritten");
    assert!(pick_idle(&levels.version, &levels.options).is_some());
    levels.flush(&(20..40).map(|n| (n, true)).collect::<Vec<_>>());
    levels.drain(pick);
    assert!(levels.version.tables().all(|t| t.meta.tombstones == 0));
    assert_eq!(
        levels.version.tables().map(|t| t.meta.entries).sum::<u64>(),
        38
    );
}

/// Of two tables that could go down, the one that has less to rewrite below does.
#[test]
fn the_cheapest_table_goes_down() {
    let mut levels = Levels::new(small());
    let table = |levels: &mut Levels, keys: &[u8], level| {
        let content = keys.iter().map(|n| (key(*n), (1, false)));
        let meta = levels.add(content.collect());
        levels.apply(Edit {
            added: vec![(level, meta)],
            ..Edit::default()
        });
    };
    for n in 0..6 {
        let keys: Vec<u8> = (n * 10..n * 10 + 9).collect();
        table(&mut levels, &keys, 6);
    }
    table(&mut levels, &[0, 5, 10, 15, 20, 25], 5);
    table(&mut levels, &[40, 42, 44, 46, 47, 48], 5);
    let job = pick(&levels.version, &levels.options).unwrap();
    assert_eq!((job.level, job.output_level), (5, 6));
    assert_eq!(job.inputs[0].meta.from, key(40));
}
