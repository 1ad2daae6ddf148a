//! `xtfs mrc`: a metadata service.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::{Process, block_on};
use crate::service::{self, Place};

/// Run a metadata and replica catalog (MRC)
///
/// Serves the volumes, names and attributes of a cell and its directory of services. Prints `mrc
/// UUID ready at ADDR` when it is ready. Its address is written to the cell's folder, where the
/// other commands of this machine find it. Ends cleanly on Ctrl-C and SIGTERM.
#[derive(Debug, Args)]
#[command(after_long_help = "\
EXAMPLES:
    On this machine only:
        xtfs mrc --cell /etc/xtfs --data /srv/mrc
    For a network:
        xtfs mrc --cell /etc/xtfs --data /srv/mrc --listen 0.0.0.0:32636 --advertise mrc1:32636")]
pub struct Mrc {
    #[command(flatten)]
    place: Place,
}

impl Mrc {
    pub fn run(self, process: &Process) -> Result<ExitCode> {
        process.log_as_service()?;
        block_on(service::run_mrc(&self.place))??;
        Ok(ExitCode::SUCCESS)
    }
}
