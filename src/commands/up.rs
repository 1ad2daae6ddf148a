//! `xtfs up`: everything in one process.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use xtfs_protocol::env::Env;

use super::{Process, block_on};
use crate::cluster::Cluster;
use crate::data_dir::{self, DataDir, RunInfo};
use crate::serving::{self, Live, MountSpec};
use crate::{background, mountpoint, output};

/// Run a whole file system in one process and mount it
///
/// Starts the metadata service and the object stores of a data folder in this process and mounts
/// a volume. What is missing is made: the folder, the cell, the volume, the mount point. Prints
/// `mounted VOLUME at MOUNTPOINT` when the mount is ready.
///
/// Ends cleanly, with everything on disk, on Ctrl-C, SIGTERM, `xtfs down MOUNTPOINT` and `umount
/// MOUNTPOINT`. While it runs, `xtfs status`, `ls`, `scrub` and `cleanup` work with the same
/// `--data`, and `xtfs mount --data DIR` mounts its volumes once more.
#[derive(Debug, Args)]
#[command(after_long_help = "\
EXAMPLES:
    A file system at ~/mnt until Ctrl-C (data in /var/lib/xtfs as root, else in
    ~/.local/share/xtfs):
        xtfs up ~/mnt
    In the background, files striped over three object stores:
        xtfs up --data /srv/xtfs --osds 3 --detach /mnt/xtfs
        xtfs down /mnt/xtfs")]
pub struct Up {
    /// Folder that keeps everything [default: /var/lib/xtfs as root, else $XDG_DATA_HOME/xtfs]
    #[arg(long, value_name = "DIR", env = "XTFS_DATA")]
    data: Option<PathBuf>,
    /// Volume to mount; made when it does not exist
    #[arg(long, value_name = "NAME", default_value = "main")]
    volume: String,
    /// Object stores; new volumes are striped over all of them. Fixed by the first start
    /// [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    osds: Option<u8>,
    /// Stay in the foreground (the default)
    #[arg(long, conflicts_with = "detach")]
    foreground: bool,
    /// Return when the mount is ready and go on in the background; logs go to DIR/log
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    options: serving::Options,
    /// Directory to mount at; made when it does not exist
    mountpoint: PathBuf,
}

impl Up {
    pub fn run(self, process: &Process) -> Result<ExitCode> {
        let dir = match &self.data {
            Some(dir) => dir.clone(),
            None => data_dir::default_path()?,
        };
        if self.detach && !process.is_background_child() {
            std::fs::create_dir_all(&dir)
                .with_context(|| format!("data folder {}: cannot be made", dir.display()))?;
            output::print(&background::spawn(&dir.join("log"))?)?;
            return Ok(ExitCode::SUCCESS);
        }
        process.log_as_service()?;
        let settings = self.options.settings()?;
        if settings.cell.is_some() || settings.data.is_some() || settings.remount {
            bail!("mount options cell=, data= and remount: are for `xtfs mount` and mount(8)");
        }
        let data = DataDir::take(&dir)?;
        let mountpoint = mountpoint::prepare(&self.mountpoint)?;
        if mountpoint::overlap(data.path(), &mountpoint) {
            bail!(
                "mount point {}: overlaps the data folder {}; choose another place for one of them",
                mountpoint.display(),
                data.path().display()
            );
        }
        if process.is_background_child() {
            background::become_independent()?;
        }
        let live = Live::default();
        let spec = MountSpec {
            volume: self.volume.clone(),
            mountpoint: mountpoint.clone(),
            source: format!("xtfs:{}", self.volume),
            settings,
            env: Env::real(),
            live: live.clone(),
            background: process.is_background_child(),
        };
        let serving = self.serve(data, spec);
        block_on(serving::recorded(&mountpoint, &self.volume, &live, serving))??;
        Ok(ExitCode::SUCCESS)
    }

    async fn serve(&self, data: DataDir, spec: MountSpec) -> Result<()> {
        let cluster = Cluster::open(data, self.osds, &spec.env).await?;
        let served = self.serve_from(&cluster, spec).await;
        let closed = cluster.close().await;
        served.and(closed)
    }

    async fn serve_from(&self, cluster: &Cluster, spec: MountSpec) -> Result<()> {
        cluster.ensure_volume(&self.volume).await?;
        let run = RunInfo {
            pid: std::process::id(),
            role: "up".to_owned(),
            mountpoint: Some(spec.mountpoint.clone()),
            volume: Some(self.volume.clone()),
            address: Some(cluster.address().to_string()),
        };
        serving::serve(cluster.connector(), spec, || cluster.publish(&run)).await
    }
}
