//! `xtfs cell`: the certificate authority of an installation.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use xtfs_protocol::Code;
use xtfs_protocol::env::Env;

use super::Process;
use crate::output;

/// Make and look after cells
///
/// A cell is one installation with a certificate authority of its own: only what holds a
/// certificate of the cell can talk to its services.
#[derive(Debug, Subcommand)]
pub enum Cell {
    Init(Init),
}

/// Make a new cell: its authority and the identity of this host
///
/// The folder then holds `cell.toml`, `ca.pem` (the authority's key: keep it secret and keep a
/// copy) and `host.pem` (what lets this host use and administer the cell).
#[derive(Debug, Args)]
#[command(after_long_help = "\
EXAMPLES:
    A cell in /etc/xtfs, and its first services:
        xtfs cell init --data /etc/xtfs
        xtfs mrc --cell /etc/xtfs --data /srv/mrc
        xtfs osd --cell /etc/xtfs --data /srv/osd-1")]
pub struct Init {
    /// Folder of the new cell
    #[arg(long, visible_alias = "cell", value_name = "DIR", env = "XTFS_CELL")]
    data: PathBuf,
}

impl Cell {
    pub fn run(self, process: &Process) -> Result<ExitCode> {
        process.log_as_tool()?;
        match self {
            Self::Init(init) => init.run(),
        }
    }
}

impl Init {
    fn run(&self) -> Result<ExitCode> {
        match xtfs_protocol::Cell::init(&self.data, &Env::real()) {
            Ok(cell) => {
                output::print(&format!(
                    "cell {} ready in {}",
                    cell.id(),
                    self.data.display()
                ))?;
                Ok(ExitCode::SUCCESS)
            }
            Err(error) if error.code == Code::Exists => {
                bail!("{error}; name another folder, or go on with that cell")
            }
            Err(error) => Err(error.into()),
        }
    }
}
