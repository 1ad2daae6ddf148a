//! `xtfs ls`: lists volumes.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::{Process, block_on};
use crate::output;
use crate::reach::Where;

/// List the volumes of a cell
#[derive(Debug, Args)]
#[command(after_long_help = "\
EXAMPLES:
        xtfs ls --cell /etc/xtfs
    Of a running or stopped `xtfs up`:
        xtfs ls --data /var/lib/xtfs")]
pub struct Ls {
    #[command(flatten)]
    place: Where,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Ls {
    pub fn run(self, process: &Process) -> Result<ExitCode> {
        process.log_as_tool()?;
        let volumes = block_on(async {
            let reach = self.place.reach().await?;
            let volumes = reach.admin().volumes().await;
            reach.close().await?;
            anyhow::Ok(volumes?)
        })??;
        if self.json {
            output::print_json(&volumes)?;
        } else {
            output::print(&output::volumes(&volumes))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
