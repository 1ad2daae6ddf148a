//! Creates, buffered and durable.

use crate::{
    engine::{Durability, Setup},
    report::{Rows, Target},
    samples::{Percentiles, Samples, cpu_us, nanoseconds, us},
    turns::{Bench, Scratch},
    workload::{Files, directory},
};
use anyhow::{Result, anyhow};
use std::{thread, time::Instant};

/// Fills the databases that are read from afterwards.
pub fn buffered(bench: &Bench<'_>, folder: &Scratch, rows: &mut Rows) -> Result<()> {
    let stores = bench.open(folder, &Setup::default())?;
    let [mut wall, mut cpu, mut cpu_settled] = [const { Samples::new() }; 3];
    let mut latency = Percentiles::default();
    let count = bench.scale.creates_in_round();
    for (round, files) in bench.turns(&stores) {
        let mut latencies = Vec::with_capacity(count as usize);
        let (start, cpu_before) = (Instant::now(), cpu_us());
        for n in round * count..(round + 1) * count {
            let one = Instant::now();
            files.create(directory(n), n, Durability::Buffered)?;
            latencies.push(nanoseconds(one));
        }
        wall.add(files.engine, us(start) / count as f64);
        cpu.add(files.engine, (cpu_us() - cpu_before) / count as f64);
        files.settle()?;
        cpu_settled.add(files.engine, (cpu_us() - cpu_before) / count as f64);
        latency.add(files.engine, latencies);
    }
    let target = Target::Times(0.7);
    rows.add(wall.row("create, buffered", "us"));
    rows.add(cpu.row("create, buffered: processor", "us").target(target));
    rows.add(cpu_settled.row("create, buffered: processor until settled", "us"));
    latency.rows("create, buffered", None, rows);
    bench.close(stores)
}

/// Synced creates from 1 and from 16 threads.
pub fn durable(bench: &Bench<'_>, rows: &mut Rows) -> Result<()> {
    let setup = Setup {
        count_syncs: true,
        ..Setup::default()
    };
    for threads in [1, 16] {
        let folder = bench.folder("durable")?;
        let stores = bench.open(&folder, &setup)?;
        let [mut commits, mut syncs] = [const { Samples::new() }; 2];
        let mut latency = Percentiles::default();
        for (round, files) in bench.turns(&stores) {
            let (before, start) = (files.syncs(), Instant::now());
            let latencies = durable_round(files, threads, round, bench.scale.durable)?;
            let seconds = us(start) / 1e6;
            commits.add(files.engine, latencies.len() as f64 / seconds);
            if let (Some(before), Some(after)) = (before, files.syncs()) {
                syncs.add(files.engine, (after - before) as f64 / seconds);
            }
            latency.add(files.engine, latencies);
            files.settle()?;
        }
        let name = format!("durable create, threads: {threads}");
        let commits = commits.row(name.clone(), "commits/s");
        let (commits, p99) = match threads {
            1 => (commits, None),
            _ => (commits.target(Target::Times(1.2)), Some(Target::Times(1.0))),
        };
        rows.add(commits);
        rows.add(syncs.row(format!("{name}: syncs"), "fsyncs/s"));
        latency.rows(&name, p99, rows);
        bench.close(stores)?;
    }
    Ok(())
}

fn durable_round(files: &Files, threads: u64, round: u64, count: u64) -> Result<Vec<u64>> {
    let write = move |thread: u64| {
        let mut latencies = Vec::with_capacity(count as usize);
        let first = (round * threads + thread) * count;
        for n in first..first + count {
            let start = Instant::now();
            files.create(thread, n, Durability::Synced)?;
            latencies.push(nanoseconds(start));
        }
        Ok::<_, anyhow::Error>(latencies)
    };
    thread::scope(|scope| {
        let writers: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || write(thread)))
            .collect();
        let mut all = Vec::new();
        for writer in writers {
            let latencies = writer.join();
            all.extend(latencies.map_err(|_| anyhow!("a writer ended in a panic"))??);
        }
        Ok(all)
    })
}
