//! Compares the database with what is expected, after a kill.

use crate::{
    Places,
    expected::{Expected, INDICES, Id, Place, Slot, THREADS, places},
};
use anyhow::{Context, Result, bail, ensure};
use babu_kv::{Database, Index, IndexOptions, Options, Snapshot, backup, fs::RealFs};
use std::{collections::BTreeMap, path::Path};

/// The indices, in the order of their places.
pub fn indices(database: &Database) -> Result<Vec<Index>> {
    // Keys begin with the number of a thread: prefixes of none, of just that, and of more.
    let index = |n| {
        let options = IndexOptions { prefix_bytes: n };
        Ok(database.index_with(&format!("index {n}"), options)?)
    };
    (0..INDICES).map(index).collect()
}

/// All entries of an index, in the order in which iteration gives them.
pub fn entries(
    snapshot: &Snapshot,
    index: &Index,
    prefix: &[u8],
    backward: bool,
) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let entries = snapshot.prefix(index, prefix);
    let owned = |entry: babu_kv::Result<(babu_kv::Key, babu_kv::Value)>| {
        let (key, value) = entry?;
        Ok((key.to_vec(), value.to_vec()))
    };
    if backward {
        entries.rev().map(owned).collect()
    } else {
        entries.map(owned).collect()
    }
}

/// Opens the database, compares all of it, and writes down what became of the batches that were
/// under way. Gives the number of changes so far.
pub fn run(places_of_run: &Places, options: Options) -> Result<u64> {
    let database = Database::open(&places_of_run.database, options).context("open")?;
    let expected = Expected::open(&places_of_run.expected)?;
    let snapshot = database.snapshot();
    let indices = indices(&database)?;
    let mut there: Vec<BTreeMap<Vec<u8>, Vec<u8>>> = Vec::new();
    for index in &indices {
        let forward = entries(&snapshot, index, b"", false)?;
        let mut backward = entries(&snapshot, index, b"", true)?;
        backward.reverse();
        ensure!(
            forward == backward,
            "{}: backward is not the reverse of forward",
            index.name()
        );
        there.push(forward.into_iter().collect());
    }
    for thread in 0..THREADS {
        settle(thread, &expected, &mut there)?;
    }
    for (index, left) in indices.iter().zip(&there) {
        if let Some(key) = left.keys().next() {
            bail!("{}: {} was never written", index.name(), key.escape_ascii());
        }
    }
    let changes = snapshot.sequence();
    drop(snapshot);
    backups(&places_of_run.backups)?;
    database.settle().context("settle")?;
    database.verify().context("verify")?;
    database.close().context("close")?;
    Ok(changes)
}

/// Each backup that is listed is whole, whenever the one that made it was killed.
fn backups(dir: &Path) -> Result<()> {
    if !dir.exists() {
        return Ok(());
    }
    for listed in backup::list(&RealFs, dir).context("list backups")? {
        let number = listed?.number;
        let report = backup::verify(&RealFs, dir, number)?;
        ensure!(
            report.damage.is_empty(),
            "backup {number}: {:?}",
            report.damage
        );
    }
    Ok(())
}

/// Takes the keys of a thread out of `there` when they are as expected: all as before its last
/// batch, or all as after it.
fn settle(thread: u8, expected: &Expected, there: &mut [BTreeMap<Vec<u8>, Vec<u8>>]) -> Result<()> {
    let mut open: Vec<(Place, Slot, Option<Vec<u8>>)> = Vec::new();
    for (index, there) in (0..INDICES).zip(there) {
        for place in places(thread, index) {
            let slot = expected.get(place)?;
            let found = there.remove(&place.bytes()[..]);
            if slot.now != slot.next {
                open.push((place, slot, found));
            } else {
                ensure!(
                    found == slot.now.value(),
                    "{place:?} should be {:?} and is {:?}",
                    slot.now,
                    found.map(|v| v.escape_ascii().to_string())
                );
            }
        }
    }
    let all_as = |side: fn(&Slot) -> Id| open.iter().all(|(_, s, f)| side(s).value() == *f);
    let side: fn(&Slot) -> Id = if all_as(|s| s.next) {
        |s| s.next
    } else if all_as(|s| s.now) {
        |s| s.now
    } else {
        bail!("a batch of thread {thread} is there in parts: {open:?}");
    };
    for (place, slot, _) in &open {
        let id = side(slot);
        expected.set(*place, Slot { now: id, next: id })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expected;

    /// A database with one batch of thread 0 over two indices under way.
    fn arranged(found: [Option<Id>; 2]) -> Result<Expected> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("expected");
        expected::create(&path)?;
        let expected = Expected::open(&path)?;
        let mut there = vec![BTreeMap::new(); usize::from(INDICES)];
        let slot = Slot {
            now: Id::default(),
            next: Id::put(1),
        };
        for (index, id) in (0u8..).zip(found) {
            let place = Place {
                thread: 0,
                index,
                key: 5,
            };
            expected.set(place, slot)?;
            if let Some(value) = id.and_then(Id::value) {
                there[usize::from(index)].insert(place.bytes().to_vec(), value);
            }
        }
        settle(0, &expected, &mut there)?;
        Ok(expected)
    }

    #[test]
    fn a_batch_is_there_as_a_whole_or_not_at_all() {
        let place = Place {
            thread: 0,
            index: 1,
            key: 5,
        };
        let whole = arranged([Some(Id::put(1)); 2]).unwrap();
        assert_eq!(whole.get(place).unwrap().now, Id::put(1));
        let none = arranged([None; 2]).unwrap();
        assert_eq!(none.get(place).unwrap().next, Id::default());
        assert!(arranged([Some(Id::put(1)), None]).is_err());
        assert!(arranged([Some(Id::put(2)); 2]).is_err());
    }
}
