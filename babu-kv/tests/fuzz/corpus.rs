//! Valid files, made by the engine, and their checked pieces.

use babu_kv::{
    Batch, Compression, Database, Durability, Options,
    fs::{Crash, Fault, FaultyFs, Fs, MemoryFs, Open},
};
use std::{
    collections::BTreeMap,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};

pub const DIR: &str = "/db";
pub const SAFE: &str = "/safe";
pub const INDICES: [&str; 2] = ["first", "second"];

/// What the indices hold.
pub type Maps = [BTreeMap<Vec<u8>, Vec<u8>>; 2];

pub fn options(fs: &MemoryFs, compression: Compression) -> Options {
    Options {
        memtable_bytes: 4 << 10,
        table_bytes: 1 << 10,
        block_bytes: 300,
        level0_tables: 2,
        level1_bytes: 8 << 10,
        compression,
        ..Options::simulated(Arc::new(fs.clone()))
    }
}

pub fn key(n: u32) -> Vec<u8> {
    format!("key{n:03}").into_bytes()
}

/// Bytes that hardly get shorter by compression, so that there are several tables with any codec.
fn value(round: u32) -> Vec<u8> {
    let mix = |at: u32| (round << 8 | at).wrapping_mul(0x9e37_79b1);
    (0..60)
        .map(|at| (mix(at) >> 24) as u8 ^ mix(at + 60) as u8)
        .collect()
}

/// Keys of the corpus.
const KEYS: u32 = 60;

/// Each round is one batch.
fn batch(database: &Database, round: u32) -> Batch {
    let [first, second] = INDICES.map(|name| database.index(name).unwrap());
    let mut batch = Batch::new();
    let n = round.wrapping_mul(7) % KEYS;
    batch.put(&first, &key(n), &value(round));
    batch.put(&second, &key(n + 1), &round.to_be_bytes());
    if round.is_multiple_of(5) {
        batch.delete(&first, &key(n + 2));
    }
    if round.is_multiple_of(13) {
        batch.delete_range(&second, &key(n), &key(n + 3));
    }
    batch
}

/// What the first `rounds` rounds leave.
pub fn content(rounds: u32) -> Maps {
    let mut maps = Maps::default();
    for round in 0..rounds {
        let n = round.wrapping_mul(7) % KEYS;
        maps[0].insert(key(n), value(round));
        maps[1].insert(key(n + 1), round.to_be_bytes().to_vec());
        if round.is_multiple_of(5) {
            maps[0].remove(&key(n + 2));
        }
        if round.is_multiple_of(13) {
            maps[1].retain(|k, _| *k < key(n) || *k >= key(n + 3));
        }
    }
    maps
}

/// Rounds in tables, and with those in the log.
pub const ROUNDS: u32 = 170;
const ROUNDS_IN_TABLES: u32 = 150;

/// A database with tables in several levels, a manifest of several records, and a log of several
/// segments, one of which begins with a restart; and a folder with backups of it.
pub fn database(compression: Compression) -> MemoryFs {
    let memory = MemoryFs::new();
    let faulty = FaultyFs::new(Arc::new(memory.clone()));
    let with = |memtable_bytes| Options {
        fs: Arc::new(faulty.clone()),
        memtable_bytes,
        ..options(&memory, compression)
    };
    let database = Database::open(Path::new(DIR), with(4 << 10)).unwrap();
    for round in 0..ROUNDS_IN_TABLES {
        database.commit(batch(&database, round)).unwrap();
        if round == 90 {
            database.compact().unwrap();
        }
    }
    database.flush().unwrap();
    database.close().unwrap();
    let database = Database::open(Path::new(DIR), with(1 << 20)).unwrap();
    for round in ROUNDS_IN_TABLES..ROUNDS {
        let batch = batch(&database, round);
        if round == ROUNDS - 12 {
            faulty.arm(Some(Fault {
                at: 1,
                count: 1,
                kind: ErrorKind::Other,
                changes_only: true,
            }));
        }
        database.commit(batch).unwrap();
        if round >= ROUNDS - 12 {
            database.sync().unwrap();
        }
        if round == ROUNDS_IN_TABLES + 3 {
            database.backup(Path::new(SAFE)).unwrap();
        }
    }
    faulty.arm(None);
    let index = database.index(INDICES[0]).unwrap();
    let mut nothing = Batch::new();
    nothing.delete(&index, b"no such key");
    database.write(nothing, Durability::Synced).unwrap();
    // Killed, not closed: the manifest says nothing of what is in the last segments.
    memory.crash(Crash::Kept)
}

/// The files of a folder whose names end so.
pub fn files(fs: &MemoryFs, dir: &str, ending: &str) -> Vec<PathBuf> {
    let names = fs.list(Path::new(dir)).unwrap();
    let names = names.into_iter().filter(|name| name.ends_with(ending));
    names.map(|name| Path::new(dir).join(name)).collect()
}

pub fn read(fs: &MemoryFs, path: &Path) -> Vec<u8> {
    let file = fs.open(path, Open::Read).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// A copy of the file system with other bytes in one file.
pub fn with(fs: &MemoryFs, path: &Path, bytes: &[u8]) -> MemoryFs {
    let copy = fs.crash(Crash::Kept);
    let file = copy.open(path, Open::Create).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.sync_data().unwrap();
    copy
}
