//! What may happen, and to what.

use babu_kv::{Background, Compression, Options};
use proptest::prelude::*;

/// Indices that a batch may change.
pub const NAMES: [&str; 3] = ["first", "second", "third"];

#[derive(Clone, Debug)]
pub enum Change {
    Put(usize, u8, u8),
    Delete(usize, u8),
    DeleteRange(usize, u8, u8),
}

#[derive(Clone, Debug)]
pub enum Step {
    Commit(Vec<Change>, bool),
    Get(usize, u8),
    Snapshot,
    DropSnapshot(u8),
    CheckSnapshot(u8, u8),
    /// Opens an iterator over a range and walks it to its end.
    Walk(usize, u8, u8, u64),
    /// Lists a prefix of this length of a key, and then from another key on.
    Prefix(usize, u8, usize, u8),
    MultiGet(Vec<(usize, u8)>),
    /// Drops an index and creates it again with prefixes of this length.
    DropIndex(usize, u8),
    Settle,
    /// Opens an iterator over a range and keeps it.
    Hold(usize, u8, u8, u8),
    /// Walks a kept iterator for a few steps in turns.
    Advance(u8, u8, u64),
    Seek(u8, u8),
    Flush,
    Compact,
    Checkpoint,
    Backup,
    Restore(u8),
    ReadOnly,
    Reopen,
    Kill,
}

/// Keys of different lengths, many of which are prefixes of others.
pub fn key(n: u8) -> Vec<u8> {
    let mut key = vec![n >> 6; usize::from(n & 3)];
    key.extend(format!("{:x}", n >> 2).into_bytes());
    if n == 255 {
        key = vec![0xff; 3];
    }
    key
}

pub fn value(n: u8) -> Vec<u8> {
    vec![n; usize::from(n) * if n.is_multiple_of(50) { 40 } else { 1 }]
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let index = 0..NAMES.len();
    let change = prop_oneof![
        6 => (index.clone(), any::<u8>(), any::<u8>()).prop_map(|(i, k, v)| Change::Put(i, k, v)),
        3 => (index.clone(), any::<u8>()).prop_map(|(i, k)| Change::Delete(i, k)),
        1 => (index, any::<u8>(), any::<u8>()).prop_map(|(i, a, b)| Change::DeleteRange(i, a, b)),
    ];
    proptest::collection::vec(change, 0..12)
}

pub fn step() -> impl Strategy<Value = Step> {
    let index = 0..NAMES.len();
    let range = (index.clone(), any::<u8>(), any::<u8>());
    prop_oneof![
        30 => (changes(), any::<bool>()).prop_map(|(c, synced)| Step::Commit(c, synced)),
        10 => (index.clone(), any::<u8>()).prop_map(|(i, k)| Step::Get(i, k)),
        3 => Just(Step::Snapshot),
        1 => any::<u8>().prop_map(Step::DropSnapshot),
        4 => (any::<u8>(), any::<u8>()).prop_map(|(n, k)| Step::CheckSnapshot(n, k)),
        6 => (range.clone(), any::<u64>()).prop_map(|((i, a, b), turns)| Step::Walk(i, a, b, turns)),
        6 => (index.clone(), any::<u8>(), 0..5usize, any::<u8>()).prop_map(|(i, k, length, to)| Step::Prefix(i, k, length, to)),
        4 => proptest::collection::vec((index.clone(), any::<u8>()), 0..20).prop_map(Step::MultiGet),
        2 => (index, 0..4u8).prop_map(|(i, prefix_bytes)| Step::DropIndex(i, prefix_bytes)),
        1 => Just(Step::Settle),
        3 => (range, any::<u8>()).prop_map(|((i, a, b), kind)| Step::Hold(i, a, b, kind)),
        12 => (any::<u8>(), 1..20u8, any::<u64>()).prop_map(|(n, steps, turns)| Step::Advance(n, steps, turns)),
        6 => (any::<u8>(), any::<u8>()).prop_map(|(n, k)| Step::Seek(n, k)),
        3 => Just(Step::Flush),
        1 => Just(Step::Compact),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Backup),
        1 => any::<u8>().prop_map(Step::Restore),
        1 => Just(Step::ReadOnly),
        2 => Just(Step::Reopen),
        1 => Just(Step::Kill),
    ]
}

fn compression() -> impl Strategy<Value = Compression> {
    prop_oneof![
        Just(Compression::None),
        Just(Compression::Lz4),
        Just(Compression::Zstd(1)),
    ]
}

pub fn options() -> impl Strategy<Value = Options> {
    let sizes = (10..16u32, 6..13u32, 10..14u32, 1..5usize, 11..15u32);
    let others = (
        any::<bool>(),
        0..20u32,
        1..4usize,
        compression(),
        1..20usize,
    );
    (sizes, others).prop_map(
        |(
            (memtable, block, table, level0, level1),
            (threads, cache, waiting, compression, bits),
        )| {
            Options {
                memtable_bytes: 1 << memtable,
                memtables_waiting: waiting,
                block_bytes: 1 << block,
                table_bytes: 1 << table,
                level0_tables: level0,
                level1_bytes: 1 << level1,
                memory_bytes: (1 << cache) + (6 << memtable),
                open_tables: 8,
                filter_bits_per_key: bits,
                compression,
                background: if threads {
                    Background::Threads
                } else {
                    Background::Inline
                },
                ..Options::default()
            }
        },
    )
}
