//! `xtfs osd`: an object store.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::{Process, block_on};
use crate::service::{self, Place};

/// Run an object storage daemon (OSD)
///
/// Stores objects of files in a folder and registers with the cell's MRC. Prints `osd UUID ready
/// at ADDR` when it is ready. Ends cleanly on Ctrl-C and SIGTERM.
#[derive(Debug, Args)]
#[command(after_long_help = "\
EXAMPLES:
    An OSD on the machine of the MRC:
        xtfs osd --cell /etc/xtfs --data /srv/osd-1
    For a network:
        xtfs osd --cell /etc/xtfs --data /srv/osd-1 --listen 0.0.0.0:32640 --advertise osd1:32640")]
pub struct Osd {
    #[command(flatten)]
    place: Place,
    /// Address of the MRC [default: the one in the cell's folder]
    #[arg(long, value_name = "HOST:PORT")]
    mrc: Option<String>,
}

impl Osd {
    pub fn run(self, process: &Process) -> Result<ExitCode> {
        process.log_as_service()?;
        block_on(service::run_osd(&self.place, self.mrc.as_deref()))??;
        Ok(ExitCode::SUCCESS)
    }
}
