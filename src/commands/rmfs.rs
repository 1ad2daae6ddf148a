//! `xtfs rmfs`: removes a volume.

use std::io::{self, BufRead, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;

use super::{Process, block_on};
use crate::output;
use crate::reach::Where;

/// Remove a volume with everything in it
///
/// Asks first on a terminal. The objects of its files are deleted in the background.
#[derive(Debug, Args)]
#[command(after_long_help = "\
EXAMPLES:
        xtfs rmfs --cell /etc/xtfs home
    From a script:
        xtfs rmfs --cell /etc/xtfs home --yes")]
pub struct Rmfs {
    #[command(flatten)]
    place: Where,
    /// Volume
    name: String,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

impl Rmfs {
    pub fn run(self, process: &Process) -> Result<ExitCode> {
        process.log_as_tool()?;
        if !self.yes && !confirmed(&self.name)? {
            bail!("volume {}: not removed", self.name);
        }
        block_on(async {
            let reach = self.place.reach().await?;
            let removed = reach.admin().delete_volume(&self.name).await;
            reach.close().await?;
            removed.with_context(|| {
                format!(
                    "volume {}: not removed (`xtfs ls` lists volumes)",
                    self.name
                )
            })
        })??;
        output::print(&format!("volume {} removed", self.name))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn confirmed(name: &str) -> Result<bool> {
    if !io::stdin().is_terminal() {
        bail!("volume {name}: not removed without being asked for twice; add --yes");
    }
    eprint!("Remove volume {name} with all its files? Type its name: ");
    io::stderr().flush()?;
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(line.trim() == name)
}
