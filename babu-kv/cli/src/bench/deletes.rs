//! What is left of much that was deleted.

use crate::{
    engine::{Durability, Setup},
    load::disk_bytes,
    report::{Rows, Target},
    samples::{Samples, thread_us, us},
    turns::Bench,
    workload::Files,
};
use anyhow::{Result, ensure};
use std::time::Instant;

/// Files that live in the spool directory at any time.
const LIVE: u64 = 100;

/// Microseconds for a listing of a directory that has so many entries.
fn timed(files: &Files, directory: u64, entries: u64) -> Result<f64> {
    let start = thread_us();
    let found = files.list(directory)?;
    let time = thread_us() - start;
    ensure!(
        found == entries,
        "{}: {found} entries instead of {entries}",
        files.engine
    );
    Ok(time)
}

/// A large directory in which each file is renamed, and then every other one removed.
pub fn renames(bench: &Bench<'_>, rows: &mut Rows) -> Result<()> {
    let folder = bench.folder("renames")?;
    let stores = bench.open(&folder, &Setup::default())?;
    let [mut renames, mut list] = [const { Samples::new() }; 2];
    let entries = bench.scale.directory;
    for (round, files) in bench.turns(&stores) {
        for n in 0..entries {
            files.create(round, n, Durability::Buffered)?;
        }
        let start = Instant::now();
        for n in 0..entries {
            files.rename(round, n, n + entries)?;
        }
        renames.add(files.engine, us(start) / entries as f64);
        for n in (0..entries).step_by(2) {
            files.unlink(round, n + entries)?;
        }
        list.add(files.engine, timed(files, round, entries / 2)?);
        files.settle()?;
    }
    rows.add(renames.row("rename", "us"));
    let name = format!("list {} of {entries} renamed", entries / 2);
    rows.add(list.row(name, "us"));
    bench.close(stores)
}

/// A directory that was just emptied: the first listing, one after a flush, and one when the engine
/// has settled.
pub fn emptied(bench: &Bench<'_>, rows: &mut Rows) -> Result<()> {
    let folder = bench.folder("emptied")?;
    let stores = bench.open(&folder, &Setup::default())?;
    let [mut first, mut flushed, mut settled] = [const { Samples::new() }; 3];
    let entries = bench.scale.emptied;
    for (round, files) in bench.turns(&stores) {
        for n in 0..entries {
            files.create(round, n, Durability::Buffered)?;
        }
        files.flush()?;
        for n in 0..entries {
            files.unlink(round, n)?;
        }
        first.add(files.engine, timed(files, round, 0)?);
        files.flush()?;
        timed(files, round, 0)?;
        flushed.add(files.engine, timed(files, round, 0)?);
        files.settle()?;
        timed(files, round, 0)?;
        settled.add(files.engine, timed(files, round, 0)?);
    }
    let name = format!("list a directory of {entries} just emptied");
    let first = first.row(format!("{name}: first"), "us");
    rows.add(first.target(Target::AtMost(10_000.0)));
    rows.add(flushed.row(format!("{name}: flushed"), "us"));
    let settled = settled.row(format!("{name}: settled"), "us");
    rows.add(settled.target(Target::AtMost(5.0)));
    bench.close(stores)
}

/// A directory in which files come and go.
pub fn spool(bench: &Bench<'_>, rows: &mut Rows) -> Result<()> {
    let folder = bench.folder("spool")?;
    let stores = bench.open(&folder, &Setup::default())?;
    let [mut pairs, mut list, mut disk] = [const { Samples::new() }; 3];
    let count = bench.scale.spooled;
    for files in &stores {
        for n in 0..LIVE {
            files.create(0, n, Durability::Buffered)?;
        }
    }
    for (round, files) in bench.turns(&stores) {
        let start = Instant::now();
        for n in round * count..(round + 1) * count {
            files.create(0, n + LIVE, Durability::Buffered)?;
            files.unlink(0, n)?;
        }
        pairs.add(files.engine, us(start) / count as f64);
        list.add(files.engine, timed(files, 0, LIVE)?);
        files.settle()?;
    }
    rows.add(pairs.row("spool: create and unlink", "us"));
    let list = list.row(format!("spool: list its {LIVE} files"), "us");
    rows.add(list.target(Target::AtMost(1_000.0)));
    for files in &stores {
        files.flush()?;
        files.settle()?;
    }
    bench.close(stores)?;
    for engine in bench.engines {
        let bytes = disk_bytes(&folder.0.join(engine.name()))?;
        disk.add(engine.name(), bytes as f64 / 1024.0);
    }
    rows.add(disk.row("spool: disk at the end", "KiB"));
    Ok(())
}
