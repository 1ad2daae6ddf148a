//! A large database, written by a process of its own: what it takes on disk and in memory, and how
//! long it takes to open it after that process was killed.

use super::{
    Rows, Scale, Scratch,
    counting::CountingFs,
    median, us,
    workload::{CREATE_BYTES, Files, directory},
};
use anyhow::{Context, Result, ensure};
use babu_kv::{Database, Options};
use serde_json::json;
use std::{
    env, fs,
    io::{self, BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Instant,
};

/// The process that loads: writes, says what it took, and then waits until it is killed or its
/// standard input ends.
pub fn child(dir: &Path, entries: u64) -> Result<()> {
    let fs = CountingFs::default();
    let files = Files::open(
        dir,
        Options {
            fs: Arc::new(fs.clone()),
            ..Options::default()
        },
    )?;
    let creates = entries / 2;
    for n in 0..creates {
        files.database.commit(files.create(directory(n), n))?;
    }
    let report = json!({
        "log_bytes": fs.0.log_bytes.load(Relaxed),
        "other_bytes": fs.0.other_bytes.load(Relaxed),
        "memory_bytes": memory_peak_bytes()?,
    });
    let mut out = io::stdout();
    writeln!(out, "{report}")?;
    out.flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// The most memory that this process had at any time.
fn memory_peak_bytes() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("read /proc/self/status")?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let digits = line.map(|l| l.trim().trim_end_matches(" kB"));
    let kib: u64 = digits
        .context("/proc/self/status has no VmHWM")?
        .trim()
        .parse()?;
    Ok(kib * 1024)
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn run(dir: &Path, scale: Scale, rows: &mut Rows) -> Result<()> {
    let scratch = Scratch::new(dir, "load")?;
    let child = Command::new(env::current_exe()?)
        .arg("bench-load")
        .arg(&scratch.0)
        .arg(scale.load_entries.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("start the process that loads")?;
    let mut child = Killed(child);
    let out = child.0.stdout.take().context("it has no output")?;
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line)?;
    drop(child);
    let report: serde_json::Value =
        serde_json::from_str(&line).context("the process that loads did not say what it took")?;
    let bytes = |name: &str| report[name].as_u64().unwrap_or_default() as f64;

    let start = Instant::now();
    let files = Files::open(&scratch.0, Options::default())?;
    let after_kill = us(start) / 1e3;
    let last = scale.load_entries / 2 - 1;
    let key = super::workload::key(directory(last), last);
    ensure!(
        files.database.get(&files.records, &key)?.is_some(),
        "the last file that was created is gone"
    );
    files.database.flush()?;
    files.database.close()?;
    let disk: u64 = fs::read_dir(&scratch.0)?
        .map(|entry| Ok(entry?.metadata()?.len()))
        .sum::<io::Result<u64>>()?;
    let mut clean = Vec::new();
    for _ in 0..scale.rounds {
        let start = Instant::now();
        let database = Database::open(&scratch.0, Options::default())?;
        clean.push(us(start) / 1e3);
        database.close()?;
    }
    let data = (scale.load_entries / 2 * CREATE_BYTES) as f64;
    let mib = f64::from(1 << 20);
    rows.add("load: data", "MiB", data / mib);
    rows.add("load: disk", "MiB", disk as f64 / mib);
    rows.add(
        "load: tables written for each byte",
        "bytes",
        bytes("other_bytes") / data,
    );
    rows.add(
        "load: the same with the log",
        "bytes",
        (bytes("other_bytes") + bytes("log_bytes")) / data,
    );
    rows.add("load: peak memory", "MiB", bytes("memory_bytes") / mib);
    rows.add("load: open after kill -9", "ms", after_kill);
    rows.add("load: open after a clean close", "ms", median(clean));
    Ok(())
}
