//! Creates, buffered and durable, and commits while checkpoints are made.

use super::{
    Rows, Scale, Scratch,
    counting::CountingFs,
    median, nanoseconds, percentile_us, us,
    workload::{self, Files, directory},
};
use anyhow::{Result, anyhow};
use babu_kv::{Durability, Options};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Instant,
};

/// Fills the database that `reads` reads from.
pub fn create(dir: &Path, scale: Scale, rows: &mut Rows) -> Result<()> {
    let files = Files::open(dir, Options::default())?;
    let (mut wall, mut cpu, mut p99) = (Vec::new(), Vec::new(), Vec::new());
    let count = scale.creates / scale.rounds;
    for round in 0..scale.rounds {
        let mut latencies = Vec::with_capacity(count as usize);
        let (start, cpu_before) = (Instant::now(), workload::cpu_us());
        for n in round * count..(round + 1) * count {
            let one = Instant::now();
            files.database.commit(files.create(directory(n), n))?;
            latencies.push(nanoseconds(one));
        }
        wall.push(us(start) / count as f64);
        cpu.push((workload::cpu_us() - cpu_before) / count as f64);
        p99.push(percentile_us(latencies, 0.01));
    }
    rows.add("create, buffered", "us", median(wall));
    rows.add("create, buffered: processor", "us", median(cpu));
    rows.add("create, buffered: p99", "us", median(p99));
    files.database.close()?;
    Ok(())
}

/// Synced creates from 1 and from 16 threads.
pub fn durable(dir: &Path, scale: Scale, rows: &mut Rows) -> Result<()> {
    for threads in [1, 16] {
        let scratch = Scratch::new(dir, "durable")?;
        let fs = CountingFs::default();
        let files = Files::open(
            &scratch.0,
            Options {
                fs: Arc::new(fs.clone()),
                ..Options::default()
            },
        )?;
        let (mut commits, mut syncs, mut p99) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..scale.rounds {
            let (before, start) = (fs.0.syncs.load(Relaxed), Instant::now());
            let latencies = synced_round(&files, threads, round, scale.durable)?;
            let seconds = us(start) / 1e6;
            commits.push(latencies.len() as f64 / seconds);
            syncs.push((fs.0.syncs.load(Relaxed) - before) as f64 / seconds);
            p99.push(percentile_us(latencies, 0.01));
        }
        let name = format!("durable create, {threads} threads");
        rows.add(name.clone(), "commits/s", median(commits));
        rows.add(format!("{name}: syncs"), "fsyncs/s", median(syncs));
        rows.add(format!("{name}: p99"), "us", median(p99));
        files.database.close()?;
    }
    Ok(())
}

fn synced_round(files: &Files, threads: u64, round: u64, count: u64) -> Result<Vec<u64>> {
    thread::scope(|scope| {
        let writers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut latencies = Vec::new();
                    let first = (round * threads + thread) * count;
                    for n in first..first + count {
                        let start = Instant::now();
                        files
                            .database
                            .write(files.create(thread, n), Durability::Synced)?;
                        latencies.push(nanoseconds(start));
                    }
                    Ok::<_, babu_kv::Error>(latencies)
                })
            })
            .collect();
        let mut all = Vec::new();
        for writer in writers {
            all.extend(
                writer
                    .join()
                    .map_err(|_| anyhow!("a writer ended in a panic"))??,
            );
        }
        Ok(all)
    })
}

/// Checkpoints of the database in `dir`, alone and beside a writer at full speed.
pub fn checkpoints(dir: &Path, scratch: &Path, scale: Scale, rows: &mut Rows) -> Result<()> {
    let files = Files::open(dir, Options::default())?;
    let (mut before, mut during, mut times) = (Vec::new(), Vec::new(), Vec::new());
    let mut next = 0;
    for _ in 0..scale.rounds {
        let stop = AtomicBool::new(false);
        // As many as fit into memory beside the rest; they go to a directory of their own.
        let mut writes = |until: &dyn Fn(usize) -> bool| {
            let mut latencies = Vec::new();
            while !until(latencies.len()) {
                let start = Instant::now();
                files.database.commit(files.create(1, next % 50_000))?;
                latencies.push(nanoseconds(start));
                next += 1;
            }
            Ok::<_, babu_kv::Error>(percentile_us(latencies, 0.01))
        };
        let count = (scale.gets / 4) as usize;
        before.push(writes(&|done| done >= count)?);
        thread::scope(|scope| {
            let maker = scope.spawn(|| {
                let made = (0..5).try_for_each(|_| {
                    let copy = Scratch::new(scratch, "checkpoint")?;
                    let start = Instant::now();
                    files.database.checkpoint(&copy.0)?;
                    times.push(us(start) / 1e3);
                    anyhow::Ok(())
                });
                stop.store(true, Relaxed);
                made
            });
            during.push(writes(&|_| stop.load(Relaxed))?);
            maker
                .join()
                .map_err(|_| anyhow!("the maker of checkpoints ended in a panic"))?
        })?;
    }
    rows.add("checkpoint, beside a writer", "ms", median(times));
    rows.add("create p99 before checkpoints", "us", median(before));
    rows.add("create p99 during checkpoints", "us", median(during));
    files.database.close()?;
    Ok(())
}
