//! Creates at full speed while checkpoints and backups are made of the same database.

use crate::{
    engine::{Durability, Setup},
    report::{Rows, Target},
    samples::{Percentiles, Samples, nanoseconds, us},
    turns::{Bench, Scratch},
    workload::Files,
};
use anyhow::{Result, anyhow};
use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Instant,
};

/// Checkpoints that follow each other in a round.
const CHECKPOINTS: u64 = 10;
/// The directory that the creates go to, and how many files it gets before they are replaced.
const DIRECTORY: (u64, u64) = (1, 50_000);

/// Checkpoints, and what they do to the latency of creates.
pub fn checkpoints(bench: &Bench<'_>, folder: &Scratch, rows: &mut Rows) -> Result<()> {
    let target = Target::AtMost(20.0);
    let copies = Copies {
        name: "checkpoint",
        unit: ("ms", 1e3),
        count: CHECKPOINTS,
        make: |files, destination| files.checkpoint(destination),
    };
    copies.measure(bench, folder, Some(target), rows)
}

/// Full backups, and what they do to the latency of creates.
pub fn backups(bench: &Bench<'_>, folder: &Scratch, rows: &mut Rows) -> Result<()> {
    let copies = Copies {
        name: "full backup",
        unit: ("s", 1e6),
        count: 1,
        make: |files, destination| files.backup(destination),
    };
    copies.measure(bench, folder, None, rows)
}

/// A way to copy a database that is written to.
struct Copies {
    name: &'static str,
    /// Name of the unit of its time, and its length in microseconds.
    unit: (&'static str, f64),
    /// Copies in a round.
    count: u64,
    /// Makes a copy; whether the engine can.
    make: fn(&Files, &Path) -> Result<bool>,
}

impl Copies {
    fn measure(
        &self,
        bench: &Bench<'_>,
        folder: &Scratch,
        target: Option<Target>,
        rows: &mut Rows,
    ) -> Result<()> {
        let stores = bench.open(folder, &Setup::default())?;
        let [mut times, mut slower] = [const { Samples::new() }; 2];
        let (mut before, mut during) = (Percentiles::default(), Percentiles::default());
        let (unit, unit_us) = self.unit;
        for (_, files) in bench.turns(&stores) {
            let scratch = bench.folder("copies")?;
            let count = bench.scale.gets;
            let calm = creates(files, |done| done >= count)?;
            let Some((made, disturbed)) = self.beside_creates(files, &scratch.0)? else {
                continue;
            };
            for time in made {
                times.add(files.engine, time / unit_us);
            }
            let [_, p99_before, _] = before.add(files.engine, calm);
            let [_, p99_during, _] = during.add(files.engine, disturbed);
            slower.add(files.engine, p99_during / p99_before);
            files.settle()?;
        }
        let name = self.name;
        let time = times.row(format!("{name}, beside creates"), unit);
        rows.add(match target {
            Some(target) => time.target(target),
            None => time,
        });
        before.rows(&format!("create, before a {name}"), None, rows);
        during.rows(&format!("create, during a {name}"), None, rows);
        let slower = slower.row(format!("create, during a {name}: p99 to that before"), "x");
        rows.add(match target {
            Some(_) => slower.target(Target::AtMost(2.0)),
            None => slower,
        });
        bench.close(stores)
    }

    /// The microseconds that each copy took, and the latencies of creates meanwhile; nothing when
    /// the engine makes no such copies.
    fn beside_creates(&self, files: &Files, dir: &Path) -> Result<Option<(Vec<f64>, Vec<u64>)>> {
        let done = AtomicBool::new(false);
        let copy = || {
            let mut times = Vec::new();
            for number in 0..self.count {
                let destination: PathBuf = dir.join(number.to_string());
                let start = Instant::now();
                if !(self.make)(files, &destination)? {
                    return Ok(None);
                }
                times.push(us(start));
            }
            anyhow::Ok(Some(times))
        };
        thread::scope(|scope| {
            let maker = scope.spawn(|| {
                let made = copy();
                done.store(true, Relaxed);
                made
            });
            let latencies = creates(files, |_| done.load(Relaxed));
            let made = maker.join();
            let made = made.map_err(|_| anyhow!("the maker of copies ended in a panic"))??;
            Ok(made.zip(Some(latencies?)))
        })
    }
}

/// The latencies of creates until `enough` of their number.
fn creates(files: &Files, enough: impl Fn(u64) -> bool) -> Result<Vec<u64>> {
    let (directory, different) = DIRECTORY;
    let mut latencies = Vec::new();
    while !enough(latencies.len() as u64) {
        let n = latencies.len() as u64 % different;
        let start = Instant::now();
        files.create(directory, n, Durability::Buffered)?;
        latencies.push(nanoseconds(start));
    }
    Ok(latencies)
}
