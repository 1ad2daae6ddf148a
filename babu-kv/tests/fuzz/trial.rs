//! One case: a changed file system, and everything that can be done with the database in it.

use crate::{
    allocator,
    corpus::{self, INDICES, Maps},
};
use babu_kv::{Batch, Compression, Database, Durability, Error, backup, fs::MemoryFs};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{env, io::ErrorKind, path::Path};

/// Twice the largest content of a block, and something for the rest.
const PEAK_BYTES_MAX: usize = 300 << 20;

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Runs `case` with many seeds.
pub fn cases(share: u64, mut case: impl FnMut(&mut StdRng)) {
    struct Named(u64);
    impl Drop for Named {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("this was BABU_KV_FUZZ_SEED={}", self.0);
            }
        }
    }
    let first = number("BABU_KV_FUZZ_SEED", 1);
    for seed in first..first + number("BABU_KV_FUZZ_CASES", 800) / share {
        let named = Named(seed);
        let mut random = StdRng::seed_from_u64(seed);
        let bytes = allocator::peak(|| case(&mut random));
        assert!(bytes < PEAK_BYTES_MAX, "{bytes} bytes were allocated");
        drop(named);
    }
}

fn is_fitting(error: &Error) -> bool {
    match error {
        Error::Corrupt { .. } => true,
        // A file that is named and not there.
        Error::Io { source, .. } => source.kind() == ErrorKind::NotFound,
        _ => false,
    }
}

/// Passes on what fits damaged files.
fn expect<T>(result: Result<T, Error>) -> Result<T, Error> {
    if let Err(error) = &result {
        assert!(is_fitting(error), "not an error of damage: {error:?}");
    }
    result
}

/// Reads everything in every way; gives what a walk finds.
fn read(database: &Database, random: &mut StdRng) -> Result<Maps, Error> {
    let mut maps = Maps::default();
    let snapshot = database.snapshot();
    let mut first_error = None;
    for (name, map) in INDICES.iter().zip(&mut maps) {
        // Making one that the damage took away is not what is tried here.
        let Some(index) = database.indices().into_iter().find(|i| i.name() == *name) else {
            continue;
        };
        for n in 0..30 {
            let found = expect(snapshot.get(&index, &corpus::key(n)));
            first_error = first_error.or(found.err());
        }
        for entry in snapshot.prefix(&index, b"") {
            match expect(entry) {
                Ok((k, v)) => drop(map.insert(k.to_vec(), v.to_vec())),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        for entry in snapshot.prefix(&index, b"").rev() {
            first_error = first_error.or(expect(entry).err());
        }
        let mut iter = snapshot.prefix(&index, b"key");
        for _ in 0..3 {
            iter.seek(&corpus::key(random.random_range(0..30)));
            for entry in iter.by_ref().take(3) {
                first_error = first_error.or(expect(entry).err());
            }
        }
    }
    first_error.map_or(Ok(maps), Err)
}

/// Opens and reads; gives what a walk finds.
pub fn open_and_read(fs: &MemoryFs, random: &mut StdRng) -> Result<Maps, Error> {
    let database = expect(Database::open(
        Path::new(corpus::DIR),
        corpus::options(fs, Compression::Lz4),
    ))?;
    let found = read(&database, random);
    expect(database.close())?;
    found
}

/// Opens, reads, and goes on to work with it. An error of damage may come from each step and ends
/// none of the others.
pub fn everything(fs: &MemoryFs, random: &mut StdRng) {
    let compressions = [Compression::None, Compression::Lz4, Compression::Zstd(1)];
    let options = corpus::options(fs, compressions[random.random_range(0..3)]);
    let Ok(database) = expect(Database::open(Path::new(corpus::DIR), options.clone())) else {
        return;
    };
    let _ = read(&database, random);
    let _ = expect(database.verify().map(drop));
    let made = expect(database.backup(Path::new("/backup-of-trial")));
    if let Ok(made) = made {
        let from = Path::new("/backup-of-trial");
        backup::restore(fs, from, made.number, Path::new("/restored")).unwrap();
    }
    let _ = expect(database.checkpoint(Path::new("/copy")));
    for round in 0..3u32 {
        if let Ok(index) = expect(database.index(INDICES[0])) {
            let mut batch = Batch::new();
            batch.put(&index, &corpus::key(round), &[7; 400]);
            batch.delete_range(&index, &corpus::key(5), &corpus::key(9));
            let _ = expect(database.write(batch, Durability::Synced));
        }
    }
    let _ = expect(database.flush());
    let _ = expect(database.compact());
    let _ = read(&database, random);
    let _ = database.stats();
    let _ = expect(database.close());
    let again = expect(Database::open(Path::new(corpus::DIR), options));
    let _ = again.and_then(|database| read(&database, random));
}
