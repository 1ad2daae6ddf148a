//! Gets, misses and listings.

use crate::{
    engine::{Durability, Index, Setup},
    report::{Rows, Target},
    samples::{Samples, thread_us},
    scale::Scale,
    turns::{Bench, Scratch},
    workload::{CREATE_BYTES, FILES, Files, directory, key},
};
use anyhow::{Result, ensure};
use rand::{Rng, SeedableRng, rngs::StdRng};

/// Files that the hot gets ask for.
const HOT: u64 = 20_000;
/// The number of the large directory.
const LARGE: u64 = 3;

/// Reads from the databases that `writes` filled.
pub fn run(bench: &Bench<'_>, folder: &Scratch, rows: &mut Rows) -> Result<()> {
    let scale = bench.scale;
    let made = scale.creates_in_round() * scale.rounds;
    let stores = bench.open(folder, &Setup::reading(Setup::default().cache_bytes))?;
    for files in &stores {
        for n in 0..scale.directory {
            files.create(LARGE, n, Durability::Buffered)?;
        }
        files.flush()?;
        files.settle()?;
    }
    let hot = HOT.min(made);
    let hot = gets(bench, &stores, true, |random| random.random_range(0..hot))?;
    rows.add(hot.row("get, hot", "us").target(Target::Times(0.7)));
    let zipf = gets(bench, &stores, true, |random| zipf(random, made))?;
    rows.add(zipf.row("get, zipf", "us"));
    let any = |random: &mut StdRng| random.random_range(0..made);
    let missing = gets(bench, &stores, false, any)?;
    rows.add(missing.row("get, missing", "us").target(Target::Times(1.0)));
    let half = Target::Times(0.5);
    let list = lists(bench, &stores, FILES, |_| directory(0))?;
    rows.add(list.row(format!("list {FILES}, hot"), "us").target(half));
    let list = lists(bench, &stores, scale.directory, |_| LARGE)?;
    let name = format!("list {}, hot", scale.directory);
    rows.add(list.row(name, "us").target(half));
    bench.close(stores)?;

    let small_cache = Setup::reading((made * CREATE_BYTES / 10) as usize);
    let stores = bench.open(folder, &small_cache)?;
    let cold = gets(bench, &stores, true, any)?;
    let cold = cold.row("get, data 10 times the cache", "us");
    rows.add(cold.target(Target::Times(0.6)));
    let directories = (made / FILES).max(1);
    let scattered = |n: u64| directory((n * 7919 % directories) * FILES);
    let list = lists(bench, &stores, FILES, scattered)?;
    rows.add(list.row(format!("list {FILES}, any"), "us"));
    bench.close(stores)
}

/// One of `count` numbers, each as often as Zipf's law with exponent 1 says, the frequent ones
/// scattered.
fn zipf(random: &mut StdRng, count: u64) -> u64 {
    let rank = (count as f64).powf(random.random_range(0.0..1.0)) as u64;
    rank.wrapping_mul(7919) % count
}

/// Microseconds for a get of the files that `choose` names, or of others in their directories that
/// are not there.
fn gets(
    bench: &Bench<'_>,
    stores: &[Files],
    present: bool,
    choose: impl Fn(&mut StdRng) -> u64,
) -> Result<Samples> {
    let Scale { gets, creates, .. } = bench.scale;
    let pass = |files: &Files, round| {
        let mut random = StdRng::seed_from_u64(round);
        let asked: Vec<[u8; 24]> = (0..gets)
            .map(|_| choose(&mut random))
            .map(|n| key(directory(n), if present { n } else { creates + n }))
            .collect();
        let start = thread_us();
        let mut found = 0;
        for key in &asked {
            found += u64::from(files.get(Index::Records, key)?);
        }
        let time = (thread_us() - start) / gets as f64;
        ensure!(
            found == if present { gets } else { 0 },
            "{}: {found} of {gets} names were found",
            files.engine
        );
        Ok(time)
    };
    // The first pass brings blocks into the cache.
    for files in stores {
        pass(files, bench.scale.rounds)?;
    }
    let mut times = Samples::new();
    for (round, files) in bench.turns(stores) {
        times.add(files.engine, pass(files, round)?);
    }
    Ok(times)
}

/// Microseconds for a listing of the directories that `choose` names, which have `entries` each.
fn lists(
    bench: &Bench<'_>,
    stores: &[Files],
    entries: u64,
    choose: impl Fn(u64) -> u64,
) -> Result<Samples> {
    let mut times = Samples::new();
    let count = (bench.scale.gets / entries).clamp(3, 1_000);
    let pass = |files: &Files, first| {
        let start = thread_us();
        for n in first..first + count {
            let found = files.list(choose(n))?;
            ensure!(
                found == entries,
                "{}: {found} entries instead of {entries}",
                files.engine
            );
        }
        Ok((thread_us() - start) / count as f64)
    };
    for files in stores {
        pass(files, bench.scale.rounds * count)?;
    }
    for (round, files) in bench.turns(stores) {
        times.add(files.engine, pass(files, round * count)?);
    }
    Ok(times)
}
