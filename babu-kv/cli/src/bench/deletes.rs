//! What is left of much that was deleted.

use super::{Rows, Scale, Scratch, median, us, workload::Files};
use anyhow::{Result, ensure};
use babu_kv::Options;
use std::{fs, path::Path, time::Instant};

/// Files that live in the spool directory at any time.
const LIVE: u64 = 100;

fn timed(files: &Files, directory: u64, entries: u64) -> Result<f64> {
    let start = Instant::now();
    let found = files.list(directory)?;
    let time = us(start);
    ensure!(found == entries, "{found} entries instead of {entries}");
    Ok(time)
}

/// A directory that was just emptied: the first listing, one after a flush, and one when nothing
/// deleted is left in tables.
pub fn emptied(dir: &Path, scale: Scale, rows: &mut Rows) -> Result<()> {
    let scratch = Scratch::new(dir, "emptied")?;
    let files = Files::open(&scratch.0, Options::default())?;
    let (mut first, mut flushed, mut settled) = (Vec::new(), Vec::new(), Vec::new());
    for directory in 0..scale.rounds {
        for n in 0..scale.emptied {
            files.database.commit(files.create(directory, n))?;
        }
        files.database.flush()?;
        for n in 0..scale.emptied {
            files.database.commit(files.unlink(directory, n))?;
        }
        first.push(timed(&files, directory, 0)?);
        files.database.flush()?;
        timed(&files, directory, 0)?;
        flushed.push(timed(&files, directory, 0)?);
        files.database.compact()?;
        timed(&files, directory, 0)?;
        settled.push(timed(&files, directory, 0)?);
    }
    let name = format!("list a directory of {} just emptied", scale.emptied);
    rows.add(format!("{name}: first"), "us", median(first));
    rows.add(format!("{name}: flushed"), "us", median(flushed));
    rows.add(format!("{name}: compacted"), "us", median(settled));
    files.database.close()?;
    Ok(())
}

/// A directory in which files come and go.
pub fn spool(dir: &Path, scale: Scale, rows: &mut Rows) -> Result<()> {
    let scratch = Scratch::new(dir, "spool")?;
    let files = Files::open(&scratch.0, Options::default())?;
    for n in 0..LIVE {
        files.database.commit(files.create(0, n))?;
    }
    let (mut lists, mut rounds) = (Vec::new(), Vec::new());
    for round in 0..scale.rounds {
        let start = Instant::now();
        for n in round * scale.spooled..(round + 1) * scale.spooled {
            files.database.commit(files.create(0, n + LIVE))?;
            files.database.commit(files.unlink(0, n))?;
        }
        rounds.push(us(start) / scale.spooled as f64);
        lists.push(timed(&files, 0, LIVE)?);
    }
    rows.add("spool: create and unlink", "us", median(rounds));
    rows.add("spool: list its 100 files", "us", median(lists));
    files.database.flush()?;
    let stats = files.database.stats();
    let bytes: u64 = stats.levels.iter().map(|level| level.bytes).sum();
    rows.add("spool: tables at the end", "KiB", bytes as f64 / 1024.0);
    files.database.close()?;
    // All of it, the log included.
    let mut disk = 0;
    for entry in fs::read_dir(&scratch.0)? {
        disk += entry?.metadata()?.len();
    }
    rows.add("spool: disk at the end", "KiB", disk as f64 / 1024.0);
    Ok(())
}
