//! Gets, misses and listings.

use super::{
    Rows, Scale, median, us,
    workload::{CREATE_BYTES, FILES, Files, directory, key},
};
use anyhow::{Result, ensure};
use babu_kv::Options;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{path::Path, time::Instant};

/// Files that the hot gets ask for.
const HOT: u64 = 20_000;
/// The number of the large directory.
const LARGE: u64 = 3;

pub fn run(dir: &Path, scale: Scale, rows: &mut Rows) -> Result<()> {
    let files = Files::open(dir, Options::default())?;
    for n in 0..scale.directory {
        files.database.commit(files.create(LARGE, n))?;
    }
    files.database.compact()?;
    let made = scale.creates / scale.rounds * scale.rounds;
    // The first pass brings the blocks into the cache.
    gets(&files, scale, HOT.min(made), 0)?;
    let hot = gets(&files, scale, HOT.min(made), 0)?;
    rows.add("get, hot", "us", hot);
    rows.add("get, missing", "us", gets(&files, scale, made, made)?);
    listing(&files, "list 100, hot", scale, FILES, rows, |_| {
        directory(0)
    })?;
    let name = format!("list {}, hot", scale.directory);
    listing(&files, &name, scale, scale.directory, rows, |_| LARGE)?;
    files.database.close()?;

    let options = Options {
        cache_bytes: (made * CREATE_BYTES / 10) as usize,
        ..Options::default()
    };
    let files = Files::open(dir, options)?;
    gets(&files, scale, made, 0)?;
    let cold = gets(&files, scale, made, 0)?;
    rows.add("get, data 10 times the cache", "us", cold);
    let directories = (made / FILES).max(1);
    listing(&files, "list 100, any", scale, FILES, rows, |n| {
        directory((n * 7919 % directories) * FILES)
    })?;
    files.database.close()?;
    Ok(())
}

/// Microseconds for a get of one of `count` files after the first `skip`, which are there when
/// `skip` is 0.
fn gets(files: &Files, scale: Scale, count: u64, skip: u64) -> Result<f64> {
    let mut random = StdRng::seed_from_u64(count ^ skip);
    let mut times = Vec::new();
    for _ in 0..scale.rounds {
        let asked: Vec<_> = (0..scale.gets)
            .map(|_| skip + random.random_range(0..count))
            // Absent names are asked for in directories that are there.
            .map(|n| key(directory(n - skip), n))
            .collect();
        let start = Instant::now();
        let mut found = 0;
        for key in &asked {
            found += u64::from(files.database.get(&files.records, key)?.is_some());
        }
        times.push(us(start) / scale.gets as f64);
        ensure!(
            found == if skip == 0 { scale.gets } else { 0 },
            "{found} of {} names were found",
            scale.gets
        );
    }
    Ok(median(times))
}

fn listing(
    files: &Files,
    name: &str,
    scale: Scale,
    entries: u64,
    rows: &mut Rows,
    directory: impl Fn(u64) -> u64,
) -> Result<()> {
    let mut times = Vec::new();
    let count = (scale.gets / entries).clamp(3, 1_000);
    files.list(directory(0))?;
    for round in 0..scale.rounds {
        let start = Instant::now();
        for n in 0..count {
            let found = files.list(directory(round * count + n))?;
            ensure!(found == entries, "{found} entries instead of {entries}");
        }
        times.push(us(start) / count as f64);
    }
    rows.add(name, "us", median(times));
    Ok(())
}
