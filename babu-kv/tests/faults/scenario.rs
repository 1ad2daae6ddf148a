//! A script that goes through all the machinery, and what its content must be.

use babu_kv::{Background, Batch, Database, Error, Options, fs::Fs};
use std::{collections::BTreeMap, path::Path, sync::Arc};

pub const DIR: &str = "/db";
pub const INDICES: [&str; 2] = ["forward", "reverse"];

/// Small enough that a few dozen batches go through flush and compaction.
pub fn small(fs: Arc<dyn Fs>) -> Options {
    Options {
        memtable_bytes: 3 << 10,
        table_bytes: 2 << 10,
        block_bytes: 256,
        level0_tables: 2,
        level1_bytes: 4 << 10,
        background: Background::Inline,
        fs,
        ..Options::default()
    }
}

/// What the two indices hold.
pub type Maps = [BTreeMap<Vec<u8>, Vec<u8>>; 2];

/// A batch that became visible.
#[derive(Clone, Copy, Debug)]
pub struct Applied {
    pub round: u32,
    /// It was acknowledged as durable.
    pub synced: bool,
}

pub fn key(n: u32) -> Vec<u8> {
    format!("key{:03}", n % 23).into_bytes()
}

/// Two puts and, at times, a deletion; the value names the round.
pub fn batch(database: &Database, round: u32) -> Result<Batch, Error> {
    let (forward, reverse) = (database.index(INDICES[0])?, database.index(INDICES[1])?);
    let mut batch = Batch::new();
    batch.put(&forward, &key(round), &[round as u8; 60]);
    batch.put(&reverse, &key(round + 7), &round.to_be_bytes());
    if round.is_multiple_of(5) {
        batch.delete(&forward, &key(round + 3));
    }
    if round.is_multiple_of(11) {
        batch.delete_range(&reverse, &key(round), &key(round + 4));
    }
    Ok(batch)
}

/// The content after `rounds`.
pub fn content(rounds: impl Iterator<Item = u32>) -> Maps {
    let mut maps: Maps = Default::default();
    for round in rounds {
        maps[0].insert(key(round), vec![round as u8; 60]);
        maps[1].insert(key(round + 7), round.to_be_bytes().to_vec());
        if round.is_multiple_of(5) {
            maps[0].remove(&key(round + 3));
        }
        if round.is_multiple_of(11) {
            maps[1].retain(|k, _| *k < key(round) || *k >= key(round + 4));
        }
    }
    maps
}

pub fn read_all(database: &Database) -> Result<Maps, Error> {
    let mut maps: Maps = Default::default();
    let snapshot = database.snapshot();
    for (name, map) in INDICES.iter().zip(&mut maps) {
        let index = database.index(name)?;
        for entry in snapshot.prefix(&index, b"") {
            let (k, v) = entry?;
            map.insert(k.to_vec(), v.to_vec());
        }
        for (k, v) in map.iter() {
            assert_eq!(database.get(&index, k)?.as_deref(), Some(v.as_slice()));
        }
    }
    Ok(maps)
}

/// Either ends at the first error, or tries again what failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    Stop,
    Retry,
}

pub fn attempt<T>(
    on_error: OnError,
    mut call: impl FnMut(u32) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut result = call(0);
    for n in 1..4 {
        if result.is_err() && on_error == OnError::Retry {
            result = call(n);
        }
    }
    result
}

/// Writes with all the machinery: synced and buffered batches, flush, compaction, checkpoint,
/// reopen.
pub fn scenario(
    fs: &Arc<dyn Fs>,
    on_error: OnError,
    applied: &mut Vec<Applied>,
) -> Result<(), Error> {
    let mut round = 0;
    for part in 0..3 {
        let database = attempt(on_error, |_| {
            Database::open(Path::new(DIR), small(fs.clone()))
        })?;
        for _ in 0..14 {
            let ticket = attempt(on_error, |_| {
                batch(&database, round).and_then(|batch| database.commit(batch))
            })?;
            applied.push(Applied {
                round,
                synced: false,
            });
            if round % 3 == 0 {
                attempt(on_error, |_| ticket.wait_durable())?;
                applied.iter_mut().for_each(|a| a.synced = true);
            }
            if on_error == OnError::Retry {
                assert_eq!(
                    read_all(&database)?,
                    content(applied.iter().map(|a| a.round))
                );
            }
            round += 1;
        }
        attempt(on_error, |n| match part {
            0 => database.flush(),
            1 => database.checkpoint(Path::new(&format!("/copy{}", n / 2))),
            _ => database.compact(),
        })?;
        match database.close() {
            Err(error) if on_error == OnError::Stop => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
