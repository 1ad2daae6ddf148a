//! `xtfs bench`: measures directories.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use clap::Args;

use super::{Process, block_on};
use crate::bench::bound::BoundMount;
use crate::bench::{self, Sizes, Subject, summary};
use crate::output;
use crate::output::progress::Steps;
use crate::serving::Signals;
use crate::sizes;

/// Measure a directory of any file system
///
/// Prints how fast files in DIR are written, read, made, looked at and removed. With --compare and
/// --bound, several directories take turns in one run, and the ratio of each rate to that of the
/// first directory (with --bound: to that of an empty FUSE file system, the bound of what any FUSE
/// file system can reach) stands beside it. Every value is the median of all rounds.
///
/// What is cached: the large file is fsynced and its pages are dropped from the kernel's cache
/// before `sequential read` and `random read` (caches of a file system's own stay); `sequential
/// read, again`, `stat`, `open` and small reads come right after the files were made and may be
/// answered by any cache. Small files and names are not synced unless the row says fsync. Every
/// 4 KiB block that is written differs from all others and does not compress.
///
/// Work happens in a folder `.xtfs-bench-*` inside each directory, which is removed at the end.
#[derive(Debug, Args)]
#[command(after_long_help = "\
EXAMPLES:
    A mount beside local disk and the bound of FUSE:
        xtfs bench ~/mnt --compare /var/tmp --bound
    A first impression:
        xtfs bench ~/mnt --quick
    For programs:
        xtfs bench ~/mnt --json")]
pub struct Bench {
    /// Directory to measure
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Further directories to measure in turn
    #[arg(long, value_name = "DIR", num_args = 1..)]
    compare: Vec<PathBuf>,
    /// Also measure an empty FUSE file system, mounted in a temporary folder for this run
    #[arg(long)]
    bound: bool,
    /// Do a tenth of the work, once
    #[arg(long)]
    quick: bool,
    /// Times everything is done [default: 3, quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Size of the large file [default: 512M, quick: 64M]
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse)]
    file_size: Option<u64>,
    /// Files that are made, looked at and removed [default: 5000, quick: 500]
    #[arg(long, value_name = "N")]
    files: Option<u64>,
    /// Size of a small file [default: 4K]
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse)]
    small_size: Option<u64>,
    /// Random reads and writes of 4 KiB [default: 10000, quick: 1000]
    #[arg(long, value_name = "N")]
    random_ops: Option<u64>,
    /// Operations that each end with fsync [default: 500, quick: 50]
    #[arg(long, value_name = "N")]
    fsyncs: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Bench {
    pub fn run(self, process: &Process) -> Result<ExitCode> {
        process.log_as_tool()?;
        block_on(self.measure_all())??;
        Ok(ExitCode::SUCCESS)
    }

    async fn measure_all(&self) -> Result<()> {
        let mut subjects = vec![subject(&self.dir)];
        subjects.extend(self.compare.iter().map(|dir| subject(dir)));
        let bound = if self.bound {
            let bound = BoundMount::new().await?;
            let label = "empty FUSE".to_owned();
            subjects.push(Subject::new(label, bound.path().to_owned()));
            Some(bound)
        } else {
            None
        };
        let base = if bound.is_some() {
            subjects.len() - 1
        } else {
            0
        };
        let sizes = self.sizes();
        let measured = measure(subjects, sizes, !self.json).await;
        if let Some(bound) = bound {
            bound.end().await?;
        }
        let subjects = measured?;
        if self.json {
            output::print_json(&summary::json(&subjects, base, &sizes))
        } else {
            output::print(&summary::table(&subjects, base))
        }
    }

    fn sizes(&self) -> Sizes {
        let pick = |chosen: Option<u64>, full: u64, quick: u64| {
            chosen.unwrap_or(if self.quick { quick } else { full })
        };
        Sizes {
            file_bytes: pick(self.file_size, 512 << 20, 64 << 20),
            random_ops: pick(self.random_ops, 10_000, 1_000),
            files: pick(self.files, 5_000, 500),
            small_bytes: self.small_size.unwrap_or(4 << 10),
            fsyncs: pick(self.fsyncs, 500, 50),
            rounds: self.rounds.unwrap_or(if self.quick { 1 } else { 3 }),
        }
    }
}

fn subject(dir: &Path) -> Subject {
    Subject::new(dir.display().to_string(), dir.to_owned())
}

/// Measures on a thread of its own; Ctrl-C ends it early and leaves nothing behind.
async fn measure(
    mut subjects: Vec<Subject>,
    sizes: Sizes,
    show_progress: bool,
) -> Result<Vec<Subject>> {
    let mut signals = Signals::new()?;
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    let mut work = tokio::task::spawn_blocking(move || {
        let steps = Steps::on_terminal(show_progress, bench::steps(subjects.len(), &sizes));
        bench::run(&mut subjects, &sizes, &seen, || steps.done_one())?;
        anyhow::Ok(subjects)
    });
    tokio::select! {
        measured = &mut work => return measured.context("bench")?,
        _ = signals.next() => {}
    }
    stop.store(true, Ordering::Relaxed);
    work.await.context("bench")?
}
