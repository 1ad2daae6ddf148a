//! The process that is killed: threads that change their own keys, write down what they do, and
//! look whether they read it back.

use crate::{
    Places, check,
    expected::{Expected, INDICES, Id, KEYS, NUMBER_MAX, Place, Slot, THREADS, places},
};
use anyhow::{Result, bail, ensure};
use babu_kv::{
    Background, Batch, Database, Durability, Index, IndexOptions, Options, backup, fs::RealFs,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read},
    process, thread,
};

/// Works until it is killed, its parent ends, or something is wrong.
pub fn run(places: &Places, mut random: StdRng) -> Result<()> {
    // The parent holds the other end and never writes.
    thread::spawn(|| {
        // Whatever ends the reading, nobody waits for this process any more.
        let _ = io::stdin().read(&mut [0]);
        process::exit(0);
    });
    let database = Database::open(&places.database, crate::options(&mut random))?;
    let indices = check::indices(&database)?;
    let seeds: Vec<u64> = (0..THREADS).map(|_| random.random()).collect();
    thread::scope(|scope| {
        for (thread, seed) in (0..THREADS).zip(seeds) {
            let (database, indices) = (&database, &indices);
            scope.spawn(move || {
                let writer = Writer::new(database, indices, places, thread, seed);
                let Err(error) = writer.and_then(Writer::work);
                eprintln!("stress: thread {thread}: {error:#}");
                process::exit(2);
            });
        }
    });
    Ok(())
}

struct Writer<'a> {
    database: &'a Database,
    indices: &'a [Index],
    places: &'a Places,
    expected: Expected,
    thread: u8,
    random: StdRng,
    model: BTreeMap<Place, Id>,
    number: u32,
}

impl<'a> Writer<'a> {
    fn new(
        database: &'a Database,
        indices: &'a [Index],
        places_of_run: &'a Places,
        thread: u8,
        seed: u64,
    ) -> Result<Writer<'a>> {
        let expected = Expected::open(&places_of_run.expected)?;
        let mut model = BTreeMap::new();
        for place in (0..INDICES).flat_map(|index| places(thread, index)) {
            let slot = expected.get(place)?;
            ensure!(slot.now == slot.next, "{place:?} was not settled");
            model.insert(place, slot.now);
        }
        let number = model.values().map(|id| id.number()).max();
        Ok(Writer {
            database,
            indices,
            places: places_of_run,
            expected,
            thread,
            random: StdRng::seed_from_u64(seed),
            model,
            number: number.unwrap_or(0),
        })
    }

    fn work(mut self) -> Result<std::convert::Infallible> {
        loop {
            match self.random.random_range(0..1_000) {
                0..700 => self.change()?,
                700..850 => self.read_one()?,
                850..900 => self.read_several()?,
                900..970 => self.read_all()?,
                970..980 => self.database.sync()?,
                980..990 => self.database.flush()?,
                990..993 => self.database.compact()?,
                993 if self.thread == 0 => self.checkpoint()?,
                994 if self.thread == 0 => self.backup()?,
                995..997 if self.thread == 0 => self.drop_index()?,
                _ => {}
            }
        }
    }

    fn place(&mut self) -> Place {
        Place {
            thread: self.thread,
            index: self.random.random_range(0..INDICES),
            key: self.random.random_range(0..KEYS),
        }
    }

    /// Commits a batch over several indices.
    fn change(&mut self) -> Result<()> {
        let mut batch = Batch::new();
        let mut changes = BTreeMap::new();
        for _ in 0..self.random.random_range(1..8) {
            // After as many as an id can count, the first ones are long overwritten.
            self.number = (self.number % NUMBER_MAX) + 1;
            let place = self.place();
            let index = &self.indices[usize::from(place.index)];
            match self.random.random_range(0..20) {
                0 => {
                    let end = (place.key + self.random.random_range(1..40)).min(KEYS);
                    let to = Place { key: end, ..place };
                    batch.delete_range(index, &place.bytes(), &to.bytes());
                    let keys = place.key..end;
                    let id = Id::delete(self.number);
                    changes.extend(keys.map(|key| (Place { key, ..place }, id)));
                }
                1..7 => {
                    batch.delete(index, &place.bytes());
                    changes.insert(place, Id::delete(self.number));
                }
                _ => {
                    let id = Id::put(self.number);
                    batch.put(index, &place.bytes(), &id.value().unwrap_or_default());
                    changes.insert(place, id);
                }
            }
        }
        for (place, next) in &changes {
            let (now, next) = (self.model[place], *next);
            self.expected.set(*place, Slot { now, next })?;
        }
        let durability = match self.random.random_range(0..50) {
            0 => Durability::Synced,
            _ => Durability::Buffered,
        };
        self.database.write(batch, durability)?;
        // Killed in here, some keys of the batch count as settled: it must be there then.
        for (place, id) in changes {
            self.expected.set(place, Slot { now: id, next: id })?;
            self.model.insert(place, id);
        }
        Ok(())
    }

    fn read_one(&mut self) -> Result<()> {
        let place = self.place();
        let index = &self.indices[usize::from(place.index)];
        let found = self.database.get(index, &place.bytes())?;
        let id = self.model[&place];
        if found.as_deref() != id.value().as_deref() {
            bail!("{place:?} should be {id:?} and is {found:?}");
        }
        Ok(())
    }

    fn read_several(&mut self) -> Result<()> {
        let asked: Vec<_> = (0..self.random.random_range(0..30))
            .map(|_| self.place())
            .map(|place| (place, place.bytes()))
            .collect();
        let keys: Vec<(&Index, &[u8])> = asked
            .iter()
            .map(|(place, bytes)| (&self.indices[usize::from(place.index)], &bytes[..]))
            .collect();
        let found = self.database.multi_get(&keys)?;
        ensure!(found.len() == keys.len(), "{} values", found.len());
        for ((place, _), found) in asked.iter().zip(&found) {
            let id = self.model[place];
            if found.as_deref() != id.value().as_deref() {
                bail!("{place:?} should be {id:?} and is {found:?} among several");
            }
        }
        Ok(())
    }

    /// An index of this thread alone comes and goes, also where a kill finds it half way.
    fn drop_index(&mut self) -> Result<()> {
        let index = self
            .database
            .index_with("passing", IndexOptions { prefix_bytes: 1 })?;
        let snapshot = self.database.snapshot();
        let left = check::entries(&snapshot, &index, b"", false)?;
        drop(snapshot);
        // Keys were written in order, so that any that is missing was dropped without the others.
        ensure!(
            left.iter()
                .zip(0u8..)
                .all(|((key, _), n)| key[..] == [n; 20]),
            "an index was dropped in parts"
        );
        let keys = self.random.random_range(1..200u8);
        for key in 0..keys {
            let mut batch = Batch::new();
            batch.put(&index, &[key; 20], &[key; 300]);
            self.database.write(batch, Durability::Buffered)?;
        }
        let there = self.database.prefix(&index, b"").count();
        ensure!(there >= usize::from(keys), "{there} of {keys} passing keys");
        self.database.drop_index("passing")?;
        let left = self.database.prefix(&index, b"").count();
        let again = self.database.index("passing")?;
        let left = left + self.database.prefix(&again, b"").count();
        ensure!(
            left == 0,
            "{left} keys are left of an index that was dropped"
        );
        Ok(())
    }

    /// All keys of this thread in an index, on a snapshot.
    fn read_all(&mut self) -> Result<()> {
        let (database, place) = (self.database.clone(), self.place());
        let backward = self.random.random();
        self.compare(&database, place.index, backward)
    }

    fn compare(&self, database: &Database, index: u8, backward: bool) -> Result<()> {
        let snapshot = database.snapshot();
        let handle = &self.indices[usize::from(index)];
        let mut found = check::entries(&snapshot, handle, &[self.thread], backward)?;
        if backward {
            found.reverse();
        }
        let should: Vec<_> = places(self.thread, index)
            .filter_map(|place| Some((place.bytes().to_vec(), self.model[&place].value()?)))
            .collect();
        ensure!(
            found == should,
            "index {index}, backward {backward}: {} entries instead of {}, or others",
            found.len(),
            should.len()
        );
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<()> {
        let dir = &self.places.copy;
        self.database.checkpoint(dir)?;
        self.compare_copy()
    }

    fn backup(&mut self) -> Result<()> {
        let (backups, copy) = (&self.places.backups, &self.places.copy);
        let made = self.database.backup(backups)?;
        backup::restore(&RealFs, backups, made.number, copy)?;
        backup::prune(&RealFs, backups, 3)?;
        self.compare_copy()
    }

    /// A copy has what this thread committed before, all of it and nothing else.
    fn compare_copy(&mut self) -> Result<()> {
        let dir = &self.places.copy;
        let options = Options {
            background: Background::Inline,
            ..crate::options(&mut self.random)
        };
        let copy = Database::open(dir, options)?;
        for index in 0..INDICES {
            self.compare(&copy, index, false)?;
        }
        copy.verify()?;
        copy.close()?;
        fs::remove_dir_all(dir)?;
        Ok(())
    }
}
