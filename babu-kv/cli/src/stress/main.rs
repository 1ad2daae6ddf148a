//! `stress`: random operations by several threads of a process that is killed again and again, each
//! time checked against a file outside the database that says what must be there.
//!
//! | module | what lives there |
//! |---|---|
//! | `expected` | the file: for each key what is there, and what may be instead |
//! | `worker` | the process that is killed |
//! | `check` | what is compared after each kill |

mod check;
mod expected;
mod worker;

use anyhow::{Context, Result};
use babu_kv::{Compression, Options};
use clap::Parser;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Kills a process that uses a babu-kv database, again and again, and checks what is left.
///
/// Folder and seed are printed when something is wrong, and the folder is kept.
#[derive(Parser)]
#[command(
    name = "stress",
    version,
    after_help = "Example:\n  stress --minutes 30 --seed 7\n\nExit codes:\n  \
        0  all was well\n  1  it could not run\n  2  something that must be there is not, or is damaged"
)]
struct Arguments {
    /// How long it runs.
    #[arg(long, default_value_t = 1.0, value_name = "N")]
    minutes: f64,
    /// Where the random numbers begin; chosen and printed when not given. Threads and kills make
    /// every run different all the same.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Folder to work in; a temporary one when not given.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Run as the process that is killed.
    #[arg(long, hide = true)]
    worker: bool,
}

/// Small sizes, so that flushes and compactions are always under way; different at every start.
fn options(random: &mut StdRng) -> Options {
    Options {
        memtable_bytes: 2 << random.random_range(10..19),
        table_bytes: 16 << random.random_range(10..14),
        block_bytes: 256 << random.random_range(0..5),
        memory_bytes: 256 << random.random_range(10..16),
        open_tables: random.random_range(8..64),
        level0_tables: random.random_range(1..6),
        level1_bytes: 64 << random.random_range(10..14),
        compression: match random.random_range(0..3) {
            0 => Compression::None,
            1 => Compression::Lz4,
            _ => Compression::Zstd(1),
        },
        ..Options::default()
    }
}

/// The folders and the file of a run.
struct Places {
    database: PathBuf,
    expected: PathBuf,
    /// A copy that is just being compared.
    copy: PathBuf,
    backups: PathBuf,
}

impl Places {
    fn of(dir: &Path) -> Places {
        Places {
            database: dir.join("database"),
            expected: dir.join("expected"),
            copy: dir.join("copy"),
            backups: dir.join("backups"),
        }
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a worker and kills it after a while; whether it was still well.
fn kill_a_worker(dir: &Path, seed: u64, life: Duration) -> Result<bool> {
    let child = Command::new(env::current_exe()?)
        .args(["--worker", "--seed", &seed.to_string(), "--dir"])
        .arg(dir)
        .stdin(Stdio::piped())
        .spawn()
        .context("start the worker")?;
    let mut child = Killed(child);
    thread::sleep(life);
    // A worker ends by itself only when it found something wrong, and says what.
    Ok(child.0.try_wait()?.is_none())
}

fn run(minutes: f64, seed: u64, dir: &Path) -> Result<bool> {
    let length = Duration::try_from_secs_f64(minutes * 60.0).context("--minutes")?;
    let end = Instant::now() + length;
    let mut random = StdRng::seed_from_u64(seed);
    let places = Places::of(dir);
    expected::create(&places.expected)?;
    let (mut kills, mut batches) = (0, 0);
    while kills == 0 || Instant::now() < end {
        // Short lives kill it while it opens the database, long ones in the middle of compactions.
        let life = Duration::from_millis(match kills % 3 {
            0 => random.random_range(5..100),
            1 => random.random_range(100..800),
            _ => random.random_range(800..3_000),
        });
        if !kill_a_worker(dir, random.random(), life)? {
            eprintln!("stress: the worker ended by itself, after {kills} kills");
            return Ok(false);
        }
        kills += 1;
        if places.copy.exists() {
            fs::remove_dir_all(&places.copy)?;
        }
        batches = match check::run(&places, options(&mut random)) {
            Ok(batches) => batches,
            Err(error) => {
                eprintln!("stress: after {kills} kills: {error:#}");
                return Ok(false);
            }
        };
    }
    println!("killed {kills} times; what {batches} changes left is all there and nothing else");
    Ok(true)
}

fn start(arguments: &Arguments) -> Result<bool> {
    let seed = arguments.seed.unwrap_or_else(rand::random);
    let random = StdRng::seed_from_u64(seed);
    if arguments.worker {
        let dir = arguments.dir.as_deref().context("--dir is missing")?;
        worker::run(&Places::of(dir), random)?;
        return Ok(true);
    }
    println!("seed {seed}");
    let (dir, temporary) = match &arguments.dir {
        Some(dir) => {
            fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
            (fs::canonicalize(dir)?, None)
        }
        None => {
            let temporary = tempfile::tempdir()?;
            (temporary.path().to_path_buf(), Some(temporary))
        }
    };
    let well = run(arguments.minutes, seed, &dir);
    if !matches!(well, Ok(true)) {
        eprintln!("stress: seed {seed}; {} is kept", dir.display());
        let _ = temporary.map(tempfile::TempDir::keep);
    }
    well
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // When standard error is closed nobody can be told.
            let _ = error.print();
            return ExitCode::from(u8::from(error.use_stderr()));
        }
    };
    match start(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(2),
        Err(error) => {
            eprintln!("stress: {error:#}");
            ExitCode::from(1)
        }
    }
}
