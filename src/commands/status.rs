//! `xtfs status`: services, volumes and space.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::{Process, block_on};
use crate::output;
use crate::reach::Where;

/// Show services, volumes and space of a cell
///
/// Works on a running cell, on a running `xtfs up`, and on the data of a stopped one.
#[derive(Debug, Args)]
#[command(after_long_help = "\
EXAMPLES:
        xtfs status --cell /etc/xtfs
    Of `xtfs up` with its default data folder, for programs:
        xtfs status --json")]
pub struct Status {
    #[command(flatten)]
    place: Where,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Status {
    pub fn run(self, process: &Process) -> Result<ExitCode> {
        process.log_as_tool()?;
        let (process, services, volumes) = block_on(async {
            let reach = self.place.reach().await?;
            let admin = reach.admin();
            let answers = async { Ok((admin.services().await?, admin.volumes().await?)) };
            let answers: Result<_> = answers.await;
            let process = reach.process().cloned();
            reach.close().await?;
            let (services, volumes) = answers?;
            anyhow::Ok((process, services, volumes))
        })??;
        if self.json {
            let services: Vec<_> = services.iter().map(output::service_json).collect();
            output::print_json(&json!({
                "process": process,
                "services": services,
                "volumes": volumes,
            }))?;
        } else {
            output::print(&output::process(process.as_ref()))?;
            output::print(&output::services(&services))?;
            output::print(&output::volumes(&volumes))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
