//! `xtfs scrub`: verifies every object.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use xtfs_scrub::{Progress, Report, Unwatched};

use super::{Process, block_on};
use crate::output;
use crate::output::progress::Bar;
use crate::reach::Where;

/// Verify every object on every OSD
///
/// All OSDs at once read back everything they store and check it against checksums and
/// fingerprints; then objects are compared with the files of the MRC. Changes nothing. Works while
/// the cell is in use, and on the data of a stopped `xtfs up`.
///
/// Exit code 0: everything was checked and is good. 2: something is damaged or lies on the wrong
/// OSD. 3: nothing damaged was found, but an OSD could not be checked to its end. 1: the scrub
/// could not be done at all.
#[derive(Debug, Args)]
#[command(after_long_help = "\
EXAMPLES:
        xtfs scrub --cell /etc/xtfs
    Of `xtfs up`, running or stopped, for programs:
        xtfs scrub --data /var/lib/xtfs --json
    The name of a damaged file of inode 17:
        find /mnt -inum 17")]
pub struct Scrub {
    #[command(flatten)]
    place: Where,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Scrub {
    pub fn run(self, process: &Process) -> Result<ExitCode> {
        process.log_as_tool()?;
        let bar = Bar::on_terminal(!self.json);
        let progress: &dyn Progress = match &bar {
            Some(bar) => bar,
            None => &Unwatched,
        };
        let report = block_on(async {
            let reach = self.place.reach().await?;
            let report = xtfs_scrub::scrub(reach.connector(), progress).await;
            reach.close().await?;
            anyhow::Ok(report?)
        })??;
        if let Some(bar) = bar {
            bar.clear();
        }
        if self.json {
            let mut json = serde_json::to_value(&report)?;
            json["outcome"] = serde_json::to_value(report.outcome())?;
            output::print_json(&json)?;
        } else {
            print_report(&report)?;
        }
        Ok(ExitCode::from(report.outcome().exit_code()))
    }
}

fn print_report(report: &Report) -> Result<()> {
    output::print(&output::scrub_osds(report))?;
    for damaged in report.osds.iter().flat_map(|osd| &osd.damaged) {
        let volume = damaged.volume.as_deref().unwrap_or("unknown volume");
        let file = damaged
            .ino
            .map_or_else(|| "unknown file".to_owned(), |ino| format!("inode {ino}"));
        for damage in &damaged.damage {
            output::print(&format!(
                "damaged: {} ({volume}, {file}): bytes {} to {}, {}: {}",
                damaged.object,
                damage.offset,
                u64::from(damage.offset) + u64::from(damage.length),
                damage.place,
                damage.what
            ))?;
        }
    }
    for finding in &report.findings.list {
        output::print(&format!(
            "{}: on osd {}: {}",
            finding.object, finding.osd, finding.what
        ))?;
    }
    output::print(&output::scrub_summary(report))
}
