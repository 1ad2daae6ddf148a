//! `babu-kv`: looks at, checks, repairs, copies and measures databases of the engine from a shell.
//!
//! | module | what lives there |
//! |---|---|
//! | `place` | opens a database that is there, and never makes one |
//! | `commands` | stats, verify, dump, checkpoint, compact |
//! | `repair` | repair |
//! | `backup`, `stream` | the commands of `backup`; where their streams come from and go to |
//! | `progress` | progress bars, and keeping to a rate |
//!
//! The measures are a library of their own, `babu_kv_bench`.

mod backup;
mod commands;
mod place;
mod progress;
mod repair;
mod stream;

use babu_kv_bench::BabuKv;
use clap::{Args, Parser, Subcommand, error::ErrorKind};
use std::{path::PathBuf, process::ExitCode};

const EXIT_CODES: &str = "Exit codes:
  0  done; for `verify`: no damage
  1  it could not be done: wrong arguments, no database there, in use, disk full
  2  the database or backup is damaged; the message names file and offset
  3  for `repair`: the database opens again, and something of it is lost

Messages and progress go to standard error, results to standard output.";

/// Looks at, checks, repairs, copies and measures babu-kv databases.
///
/// `stats`, `verify`, `dump` and `backup create` read a database as it is at one instant, and change
/// nothing in its folder: they also work while another process has it open and writes, and where
/// they may not write. The other commands need it for themselves.
#[derive(Parser)]
#[command(name = "babu-kv", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// What is in a database: indices, levels, files.
    ///
    /// Works beside the process that has the database open.
    #[command(after_help = "Examples:\n  babu-kv stats /var/lib/db\n  \
            babu-kv stats /var/lib/db --json | jq .levels\n\n\
            Exit codes: 0 done, 1 no database there or not to be read, 2 damage")]
    Stats {
        #[command(flatten)]
        report: Report,
        /// Print all numbers of this moment in Prometheus' text format.
        #[arg(long, conflicts_with = "json")]
        prometheus: bool,
    },
    /// Reads every block of every table, the log and the manifest, and checks all of it.
    ///
    /// Works beside the process that has the database open, on one instant. A torn end of the log, as
    /// a crash or a writer at work leaves it, is no damage. Damage is named with file and offset, the
    /// first that is found; `repair --dry-run` finds all of it.
    #[command(
        after_help = "Example:\n  babu-kv verify /var/lib/db || echo damaged, or not to be read\n\n\
            Exit codes: 0 no damage, 1 it could not be looked at, 2 damage"
    )]
    Verify(Report),
    /// Prints entries as escaped text, one a line: key, tab, value.
    ///
    /// Works beside the process that has the database open, on one instant.
    #[command(after_help = "Examples:\n  babu-kv dump /var/lib/db\n  \
            babu-kv dump /var/lib/db names --prefix 00ff --limit 10 --keys-only\n\n\
            Exit codes: 0 done, 1 no such database or index, 2 damage")]
    Dump(Dump),
    /// Copies a database into another folder by hard links.
    ///
    /// Needs the database for itself: beside its owner, let the owner make the checkpoint, or make a
    /// backup.
    #[command(
        after_help = "Example:\n  babu-kv checkpoint /var/lib/db /var/lib/db-copy\n\n\
            Exit codes: 0 done, 1 it could not be done, 2 damage"
    )]
    Checkpoint {
        /// Folder of the database.
        dir: PathBuf,
        /// Folder of the copy: missing or empty, on the same file system.
        destination: PathBuf,
    },
    /// Merges all tables into one level; nothing deleted is on disk then.
    ///
    /// Needs the database for itself.
    #[command(after_help = "Example:\n  babu-kv compact /var/lib/db\n\n\
            Exit codes: 0 done, 1 it could not be done, 2 damage")]
    Compact {
        /// Folder of the database.
        dir: PathBuf,
    },
    /// Full and incremental backups, in folders and as streams.
    #[command(subcommand)]
    Backup(backup::Command),
    Repair(repair::Arguments),
    /// Measures the engine on this machine and prints a table.
    #[command(after_help = "Examples:\n  babu-kv bench --quick\n  \
            babu-kv bench /mnt/disk/scratch --entries 5000000 --json\n\n\
            Exit codes: 0 done, 1 it could not be done")]
    Bench(babu_kv_bench::Arguments),
    /// Loads a database for `bench` and waits to be killed.
    #[command(hide = true)]
    BenchLoad(babu_kv_bench::LoadArguments),
}

#[derive(Args)]
struct Report {
    /// Folder of the database.
    dir: PathBuf,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Dump {
    /// Folder of the database.
    dir: PathBuf,
    /// Name of an index. Without it: all, and each line begins with the name and a tab.
    index: Option<String>,
    /// Only keys that start with these bytes, in hexadecimal.
    #[arg(long, value_name = "HEX", value_parser = commands::bytes_of_hex)]
    prefix: Option<commands::Prefix>,
    /// At most so many entries.
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// No values.
    #[arg(long)]
    keys_only: bool,
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Stats {
            report: Report { dir, .. },
            prometheus: true,
        } => commands::prometheus(&dir)?,
        Command::Stats {
            report: Report { dir, json },
            prometheus: false,
        } => commands::stats(&dir, json)?,
        Command::Verify(Report { dir, json }) => commands::verify(&dir, json)?,
        Command::Dump(dump) => commands::dump(&dump)?,
        Command::Checkpoint { dir, destination } => commands::checkpoint(&dir, &destination)?,
        Command::Compact { dir } => commands::compact(&dir)?,
        Command::Backup(command) => backup::run(command)?,
        Command::Repair(arguments) => return repair::run(&arguments),
        Command::Bench(arguments) => babu_kv_bench::run(&[&BabuKv], &arguments)?,
        Command::BenchLoad(arguments) => babu_kv_bench::load(&[&BabuKv], &arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // When standard error is closed nobody can be told.
            let _ = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::from(1),
            };
        }
    };
    place::raise_file_limit();
    match run(cli.command) {
        Ok(code) => code,
        // Who reads the output has seen enough.
        Err(error) if place::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("babu-kv: {error:#}");
            ExitCode::from(if place::is_damage(&error) { 2 } else { 1 })
        }
    }
}
