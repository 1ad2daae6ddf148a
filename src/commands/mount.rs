//! `xtfs mount`: mounts a volume of a cell.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use xtfs_protocol::env::Env;

use super::{Process, block_on};
use crate::serving::{self, Live, MountSpec};
use crate::{background, mountpoint, reach};

/// Mount a volume of a cell
///
/// Prints `mounted VOLUME at MOUNTPOINT` when the mount is ready. Ends cleanly, with everything
/// written to the OSDs, on Ctrl-C, SIGTERM, `xtfs down MOUNTPOINT` and `umount MOUNTPOINT`. While
/// a server is away, operations wait for it up to 60 seconds.
#[derive(Debug, Args)]
#[command(after_long_help = "\
EXAMPLES:
    Until Ctrl-C:
        xtfs mount --cell /etc/xtfs home /mnt/home
    In the background, read-only:
        xtfs mount --cell /etc/xtfs home /mnt/home --detach -o ro
        xtfs down /mnt/home")]
pub struct Mount {
    /// Folder of the cell
    #[arg(long, value_name = "DIR", env = "XTFS_CELL")]
    cell: PathBuf,
    /// Stay in the foreground (the default)
    #[arg(long, conflicts_with = "detach")]
    foreground: bool,
    /// Return when the mount is ready and go on in the background; logs go to
    /// mount-VOLUME.log in the cell's folder, or where --log-file says
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    options: serving::Options,
    /// Volume
    name: String,
    /// Directory to mount at; made when it does not exist
    mountpoint: PathBuf,
}

impl Mount {
    pub fn run(self, process: &Process) -> Result<ExitCode> {
        if self.detach && !process.is_background_child() {
            return background::spawn(&self.cell.join(format!("mount-{}.log", self.name)));
        }
        process.log_as_service()?;
        let spec = MountSpec {
            volume: self.name.clone(),
            mountpoint: mountpoint::prepare(&self.mountpoint)?,
            options: self.options.clone(),
            env: Env::real(),
            live: Live::default(),
        };
        let cell = std::path::absolute(&self.cell)?;
        if process.is_background_child() {
            background::become_independent()?;
        }
        let (mountpoint, live) = (spec.mountpoint.clone(), spec.live.clone());
        block_on(serving::recorded(&mountpoint, &self.name, &live, async {
            let reach = reach::cell(&cell).await?;
            let served = serving::serve(reach.connector(), spec, || Ok(())).await;
            served.and(reach.close().await)
        }))??;
        Ok(ExitCode::SUCCESS)
    }
}
