//! `xtfs`: the one command that people type. It parses and calls a crate.
//!
//! Read in this order:
//! - [`commands`] — one file a command, with its help;
//! - [`reach`] — how a command finds the cell it is about;
//! - [`cluster`] — MRC and OSDs inside this process, for `xtfs up` and for stopped data;
//! - [`serving`] — a mounted volume from its start to its clean end;
//! - [`mount_options`] — what `-o` takes;
//! - [`mountpoint`], [`mounts`], [`data_dir`] — what lies on this machine: mounts and folders;
//! - [`background`], [`logging`], [`watch`] — the process itself;
//! - [`mod@bench`] — measuring directories.

mod background;
mod bench;
mod cluster;
mod commands;
mod data_dir;
mod logging;
mod mount_options;
mod mountpoint;
mod mounts;
mod output;
mod reach;
mod service;
mod serving;
mod sizes;
mod watch;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

/// Exit code of a command line that cannot be understood. Not clap's 2, which means damage here.
const USAGE_EXIT: u8 = 64;

fn main() -> ExitCode {
    // mount(8) calls this program by other names.
    if commands::helper::is_called_as_one() {
        return commands::helper::run();
    }
    let cli = match commands::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let shown = matches!(
                error.kind(),
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
            );
            let _ = error.print();
            return if shown {
                ExitCode::SUCCESS
            } else {
                ExitCode::from(USAGE_EXIT)
            };
        }
    };
    let background_child = cli.process.is_background_child();
    match commands::run(cli) {
        Ok(code) => code,
        Err(error) => {
            if background_child {
                background::report_failure(&error);
            }
            // Where it cannot be written, nobody can be told.
            let _ = writeln!(std::io::stderr(), "xtfs: {error:#}");
            ExitCode::FAILURE
        }
    }
}
