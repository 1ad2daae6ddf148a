//! Commands: one file each, with what it takes, its help and its examples.

mod bench;
mod cell;
mod cleanup;
mod down;
pub mod helper;
mod install_helpers;
mod ls;
mod mkfs;
mod mount;
mod mrc;
mod osd;
mod quota;
mod rmfs;
mod scrub;
mod status;
mod up;

use std::future::Future;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

use crate::logging;

/// A distributed POSIX file system: one command for every part.
///
/// One machine: `xtfs up MOUNTPOINT` runs everything in one process and mounts a volume.
///
/// Several processes or machines: `xtfs cell init` makes a cell, `xtfs mrc` serves its metadata,
/// `xtfs osd` stores its objects, `xtfs mkfs` makes a volume and `xtfs mount` mounts it.
#[derive(Debug, Parser)]
#[command(name = "xtfs", version, max_term_width = 100, propagate_version = true)]
#[command(
    disable_help_subcommand = false,
    after_long_help = "\
EXIT CODES:
    0   done
    1   failed; the last line on stderr says what, why, and what to do
    2   xtfs scrub: something is damaged; xtfs quota check: something is recorded wrongly
    3   xtfs scrub, xtfs cleanup: an OSD could not be checked to its end
    64  the command line could not be understood

EXAMPLES:
    A file system on this machine, until Ctrl-C:
        xtfs up ~/mnt
    The same in the background, and its end:
        xtfs up --detach ~/mnt
        xtfs down ~/mnt
    What a command does and takes:
        xtfs help up"
)]
pub struct Cli {
    #[command(flatten)]
    pub process: Process,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Debug, Args)]
pub struct Process {
    /// What is logged: a level, or levels by crate such as `warn,xtfs_osd=debug`
    #[arg(
        long,
        global = true,
        value_name = "FILTER",
        env = "XTFS_LOG",
        help_heading = "Logging"
    )]
    log: Option<String>,
    /// Log to this file instead of stderr
    #[arg(long, global = true, value_name = "FILE", help_heading = "Logging")]
    log_file: Option<PathBuf>,
    /// This process was started by one that waits for its report
    #[arg(long, global = true, hide = true)]
    background_child: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(up::Up),
    Down(down::Down),
    #[command(subcommand)]
    Cell(cell::Cell),
    Mrc(mrc::Mrc),
    Osd(osd::Osd),
    Mkfs(mkfs::Mkfs),
    Mount(mount::Mount),
    InstallHelpers(install_helpers::InstallHelpers),
    Ls(ls::Ls),
    #[command(subcommand)]
    Quota(quota::Quota),
    Rmfs(rmfs::Rmfs),
    Status(status::Status),
    Scrub(scrub::Scrub),
    Cleanup(cleanup::Cleanup),
    Bench(bench::Bench),
}

/// Runs what was asked for.
pub fn run(cli: Cli) -> Result<ExitCode> {
    let process = &cli.process;
    match cli.command {
        Command::Up(command) => command.run(process),
        Command::Down(command) => command.run(process),
        Command::Cell(command) => command.run(process),
        Command::Mrc(command) => command.run(process),
        Command::Osd(command) => command.run(process),
        Command::Mkfs(command) => command.run(process),
        Command::Mount(command) => command.run(process),
        Command::InstallHelpers(command) => command.run(process),
        Command::Ls(command) => command.run(process),
        Command::Quota(command) => command.run(process),
        Command::Rmfs(command) => command.run(process),
        Command::Status(command) => command.run(process),
        Command::Scrub(command) => command.run(process),
        Command::Cleanup(command) => command.run(process),
        Command::Bench(command) => command.run(process),
    }
}

impl Process {
    /// Was this process started by [`background::spawn`](crate::background::spawn)?
    pub const fn is_background_child(&self) -> bool {
        self.background_child
    }

    /// Starts logging for a tool.
    fn log_as_tool(&self) -> Result<()> {
        self.start_log(logging::TOOL)
    }

    /// Starts logging for a long-running process.
    fn log_as_service(&self) -> Result<()> {
        self.start_log(logging::SERVICE)
    }

    fn start_log(&self, default: &str) -> Result<()> {
        let filter = self.log.as_deref().unwrap_or(default);
        logging::start(filter, self.log_file.as_deref())
    }
}

/// Runs a future on the runtime of this process.
fn block_on<T>(future: impl Future<Output = T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("threads: cannot be started")?;
    let value = runtime.block_on(future);
    // Work that still blocks, such as a read of a dead disk, does not keep the process alive.
    runtime.shutdown_timeout(std::time::Duration::from_secs(5));
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Cli, String> {
        Cli::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_help_with_an_example() {
        let mut cli = Cli::command();
        for command in cli.get_subcommands_mut() {
            let commands: Vec<_> = if command.has_subcommands() {
                command.get_subcommands_mut().collect()
            } else {
                vec![command]
            };
            for command in commands {
                if command.get_name() == "help" {
                    continue;
                }
                let help = command.render_long_help().to_string();
                assert!(help.contains("EXAMPLES:"), "{} {help}", command.get_name());
            }
        }
    }

    #[test]
    fn the_documented_lines_are_understood() {
        for line in [
            "xtfs up /mnt",
            "xtfs up --data /d --volume v --osds 3 --detach /mnt",
            "xtfs up --foreground /mnt",
            "xtfs down /mnt",
            "xtfs cell init --data /c",
            "xtfs mrc --cell /c --data /m --listen 127.0.0.1:0",
            "xtfs osd --cell /c --data /o --listen 127.0.0.1:0 --mrc localhost:1",
            "xtfs mkfs --cell /c main --width 3 --object-size 128K",
            "xtfs mount --cell /c main /mnt --detach -o ro,allow_other",
            "xtfs mount --data /d /mnt -o noatime -o cache=1G",
            "xtfs mount /c/main /mnt",
            "xtfs install-helpers --dir /sbin --remove",
            "xtfs ls --cell /c",
            "xtfs rmfs --cell /c main --yes",
            "xtfs status --data /d --json",
            "xtfs scrub --json --log debug",
            "xtfs cleanup --cell /c --json --grace 10",
            "xtfs bench /mnt --quick --bound --json --compare /tmp /var/tmp",
        ] {
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn what_makes_no_sense_together_is_refused() {
        for line in [
            "xtfs up",
            "xtfs up --detach --foreground /mnt",
            "xtfs up --osds 0 /mnt",
            "xtfs status --cell /c --data /d",
            "xtfs mkfs main --object-size 5",
            "xtfs mkfs main --width 0",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
