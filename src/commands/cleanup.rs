//! `xtfs cleanup`: finds orphaned objects.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use super::{Process, block_on};
use crate::output;
use crate::reach::Where;

/// Find objects whose file no longer exists
///
/// Reports only; changes nothing. Objects are looked at twice, so that those of files that are
/// just being made or deleted are not reported.
///
/// Exit code 0: all OSDs were asked, whatever was found. 3: an OSD could not be asked. 1: the
/// search could not be done at all.
#[derive(Debug, Args)]
#[command(after_long_help = "\
EXAMPLES:
        xtfs cleanup --cell /etc/xtfs
    Of `xtfs up`, running or stopped, for programs:
        xtfs cleanup --data /var/lib/xtfs --json")]
pub struct Cleanup {
    #[command(flatten)]
    place: Where,
    /// Seconds between the first and the second look
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    grace: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Cleanup {
    pub fn run(self, process: &Process) -> Result<ExitCode> {
        process.log_as_tool()?;
        let grace = Duration::from_secs(self.grace);
        let report = block_on(async {
            let reach = self.place.reach().await?;
            let report = xtfs_cleanup::find(reach.connector(), grace).await;
            reach.close().await?;
            anyhow::Ok(report?)
        })??;
        if self.json {
            output::print_json(&report)?;
        } else {
            output::print(&output::orphans(&report))?;
        }
        Ok(ExitCode::from(report.exit_code()))
    }
}
