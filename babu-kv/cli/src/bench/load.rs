//! A large database, written by a process of its own: what it takes on disk and in memory, what it
//! writes, and how long it takes to open it after that process was killed.
//!
//! Bytes written are those that the operating system counted for the process, so that they mean the
//! same for each engine. How many of them went to the log is known from early creates, which write
//! nothing else: behind what an engine prepares when it is opened, before its first flush.

use crate::{
    engine::{Durability, Engine, Index, Setup},
    report::{Rows, Target},
    samples::{Samples, cpu_us, us},
    turns::{Bench, turns},
    workload::{CREATE_BYTES, Files, directory, key},
};
use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::json;
use std::{
    env, fs,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Instant,
};

/// Creates between which the bytes in the log are looked at.
const LOG_SAMPLE: std::ops::Range<u64> = 4_000..8_000;

/// Arguments of the process that loads.
#[derive(Args)]
pub struct LoadArguments {
    /// Name of the engine.
    pub(crate) engine: String,
    /// Folder of the database.
    dir: PathBuf,
    /// Batches of two puts to write.
    creates: u64,
}

/// The process that loads: writes, says what it took, and then waits until it is killed or its
/// standard input ends.
pub fn child(engine: &dyn Engine, arguments: &LoadArguments) -> Result<()> {
    let files = Files {
        engine: engine.name(),
        store: engine.open(&arguments.dir, &Setup::default())?,
    };
    let (mut before, mut log) = (0, 0);
    for n in 0..arguments.creates {
        if n == LOG_SAMPLE.start {
            before = written_bytes()?;
        } else if n == LOG_SAMPLE.end {
            log = (written_bytes()? - before) / (LOG_SAMPLE.end - LOG_SAMPLE.start);
        }
        files.create(directory(n), n, Durability::Buffered)?;
    }
    let report = json!({
        "written_bytes": written_bytes()?,
        "log_bytes": log * arguments.creates,
        "memory_bytes": memory_peak_bytes()?,
        "cpu_us": cpu_us(),
    });
    let mut out = io::stdout();
    writeln!(out, "{report}")?;
    out.flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// The number behind a label in a file of `/proc/self`.
fn number(file: &str, label: &str) -> Result<u64> {
    let file = format!("/proc/self/{file}");
    let text = fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(label));
    let word = line.and_then(|line| line.split_whitespace().next());
    let word = word.with_context(|| format!("{file} has no {label}"))?;
    Ok(word.parse()?)
}

/// The most memory that this process had at any time.
fn memory_peak_bytes() -> Result<u64> {
    Ok(number("status", "VmHWM:")? * 1024)
}

/// The bytes that this process gave to the operating system to write.
fn written_bytes() -> Result<u64> {
    number("io", "wchar:")
}

/// The bytes that the files in a folder take on disk.
pub fn disk_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => disk_bytes(&entry.path())?,
            false => entry.metadata()?.blocks() * 512,
        };
    }
    Ok(bytes)
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the process said that loaded; it was killed then.
fn loaded(engine: &dyn Engine, dir: &Path, creates: u64) -> Result<serde_json::Value> {
    let child = Command::new(env::current_exe()?)
        .args(["bench-load", engine.name()])
        .arg(dir)
        .arg(creates.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("start the process that loads")?;
    let mut child = Killed(child);
    let out = child.0.stdout.take().context("it has no output")?;
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line)?;
    drop(child);
    serde_json::from_str(&line).context("the process that loads did not say what it took")
}

/// The rows of the large database.
#[derive(Default)]
struct Load {
    disk: Samples,
    tables: Samples,
    written: Samples,
    memory: Samples,
    cpu: Samples,
    killed: Samples,
    closed: Samples,
}

pub fn run(bench: &Bench<'_>, rows: &mut Rows) -> Result<()> {
    let mut load = Load::default();
    let mut data = Samples::new();
    let creates = bench.scale.load_entries / 2;
    // In each round the last memtable is filled to another part.
    let step = Setup::default().memtable_bytes as u64 / CREATE_BYTES / bench.scale.rounds;
    let step = step.min(creates / 10);
    for (round, engine) in turns(bench.scale.rounds, bench.engines) {
        let folder = bench.folder("load")?;
        let creates = creates + round * step;
        load.measure(*engine, &folder.0, creates)?;
        data.add(engine.name(), (creates * CREATE_BYTES) as f64 / MIB);
    }
    rows.add(data.row("load: data", "MiB"));
    let disk = load.disk.row("load: disk, settled", "MiB");
    rows.add(disk.target(Target::Times(1.0)));
    let tables = load.tables.row("load: tables written for each byte", "x");
    rows.add(tables.target(Target::AtMost(2.2)));
    rows.add(load.written.row("load: the same with the log", "x"));
    let memory = load.memory.row("load: peak memory", "MiB");
    rows.add(memory.target(Target::Times(0.8)));
    rows.add(load.cpu.row("load: processor for each create", "us"));
    let killed = load.killed.row("load: open after kill -9", "ms");
    rows.add(killed.target(Target::Times(0.5)));
    let closed = load.closed.row("load: open after a clean close", "ms");
    rows.add(closed.target(Target::AtMost(60.0)));
    Ok(())
}

const MIB: f64 = 1024.0 * 1024.0;

impl Load {
    fn measure(&mut self, engine: &dyn Engine, dir: &Path, creates: u64) -> Result<()> {
        let name = engine.name();
        let report = loaded(engine, dir, creates)?;
        let said = |what: &str| report[what].as_f64().unwrap_or_default();

        let (written, start) = (written_bytes()?, Instant::now());
        let store = engine.open(dir, &Setup::default())?;
        self.killed.add(name, us(start) / 1e3);
        let last = creates - 1;
        ensure!(
            store.get(Index::Records, &key(directory(last), last))?,
            "{name}: the last file that was created is gone"
        );
        // What was not yet written when the process ended is written now.
        store.flush()?;
        store.settle()?;
        store.close()?;
        let written = (written_bytes()? - written) as f64 + said("written_bytes");
        let start = Instant::now();
        let store = engine.open(dir, &Setup::default())?;
        self.closed.add(name, us(start) / 1e3);
        store.close()?;

        let data = (creates * CREATE_BYTES) as f64;
        self.disk.add(name, disk_bytes(dir)? as f64 / MIB);
        self.tables.add(name, (written - said("log_bytes")) / data);
        self.written.add(name, written / data);
        self.memory.add(name, said("memory_bytes") / MIB);
        self.cpu.add(name, said("cpu_us") / creates as f64);
        Ok(())
    }
}
