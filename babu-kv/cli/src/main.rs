//! `babu-kv`: looks at, checks, copies and measures databases of the engine from a shell.
//!
//! | module | what lives there |
//! |---|---|
//! | `place` | opens a database that is there, and never makes one |
//! | `commands` | stats, verify, dump, checkpoint, compact |
//!
//! The measures are a library of their own, `babu_kv_bench`.

mod commands;
mod place;

use babu_kv_bench::BabuKv;
use clap::{Args, Parser, Subcommand, error::ErrorKind};
use std::{path::PathBuf, process::ExitCode};

const EXIT_CODES: &str = "Exit codes:
  0  done; for `verify`: no damage
  1  it could not be done: wrong arguments, no database there, in use, disk full
  2  the database is damaged; the message names file and offset";

/// Looks at, checks, copies and measures a babu-kv database.
///
/// A database is open in one process at a time, this command included. What must run beside the
/// owner of a database runs on a checkpoint that the owner makes.
#[derive(Parser)]
#[command(name = "babu-kv", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// What is in a database: indices, levels, files.
    #[command(after_help = "Example:\n  babu-kv stats /var/lib/db --json")]
    Stats(Report),
    /// Reads every block of every table, the log and the manifest, and checks all of it.
    ///
    /// Opening recovers as every open does: it cuts the torn end that a crash may have left in the
    /// log. Damage is named with file and offset, the first that is found.
    #[command(
        after_help = "Example:\n  babu-kv verify /var/lib/db || echo damaged, or not to be read\n\n\
            Exit codes: 0 no damage, 1 it could not be looked at, 2 damage"
    )]
    Verify(Report),
    /// Prints entries as escaped text, one a line: key, tab, value.
    #[command(after_help = "Examples:\n  babu-kv dump /var/lib/db\n  \
            babu-kv dump /var/lib/db names --prefix 00ff --limit 10 --keys-only")]
    Dump(Dump),
    /// Copies a database into another folder by hard links.
    #[command(after_help = "Example:\n  babu-kv checkpoint /var/lib/db /var/lib/db-copy")]
    Checkpoint {
        /// Folder of the database.
        dir: PathBuf,
        /// Folder of the copy: missing or empty, on the same file system.
        destination: PathBuf,
    },
    /// Merges all tables into one level; nothing deleted is on disk then.
    #[command(after_help = "Example:\n  babu-kv compact /var/lib/db")]
    Compact {
        /// Folder of the database.
        dir: PathBuf,
    },
    /// Measures the engine on this machine and prints a table.
    #[command(after_help = "Examples:\n  babu-kv bench --quick\n  \
            babu-kv bench /mnt/disk/scratch --entries 5000000 --json")]
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

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Stats(Report { dir, json }) => commands::stats(&dir, json),
        Command::Verify(Report { dir, json }) => commands::verify(&dir, json),
        Command::Dump(dump) => commands::dump(&dump),
        Command::Checkpoint { dir, destination } => commands::checkpoint(&dir, &destination),
        Command::Compact { dir } => commands::compact(&dir),
        Command::Bench(arguments) => babu_kv_bench::run(&[&BabuKv], &arguments),
        Command::BenchLoad(arguments) => babu_kv_bench::load(&[&BabuKv], &arguments),
    }
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
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        // Who reads the output has seen enough.
        Err(error) if place::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("babu-kv: {error:#}");
            ExitCode::from(if place::is_damage(&error) { 2 } else { 1 })
        }
    }
}
