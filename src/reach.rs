//! How a command finds the cell that it is about.
//!
//! A cell's folder (`--cell`) leads to its MRC over QUIC. A data folder (`--data`) belongs to
//! `xtfs up`: while that runs, its services are reached over QUIC on this machine; when it does
//! not, its stores are opened in this process for as long as the command takes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use tokio::time::Instant;
use xtfs_client::admin::Admin;
use xtfs_protocol::env::Env;
use xtfs_protocol::transport::Connector;
use xtfs_protocol::transport::quic::QuicConnector;
use xtfs_protocol::{Cell, Code};

use crate::cluster::Cluster;
use crate::data_dir::{self, DataDir, RunInfo};

/// Time for goodbyes.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// Time for the first MRC of a cell to say where it is.
const FIRST_MRC_LIMIT: Duration = Duration::from_secs(5);

/// Pause between two looks at the folder of a cell.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Which cell.
#[derive(Debug, Clone, Args)]
pub struct Where {
    /// Folder of the cell [env: XTFS_CELL]
    #[arg(long, value_name = "DIR", conflicts_with = "data")]
    cell: Option<PathBuf>,
    /// Data folder of an `xtfs up`, running or stopped [env: XTFS_DATA] [default, without --cell:
    /// the one that `xtfs up` uses by default]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

/// An open way to a cell. [`close`](Reach::close) it.
pub struct Reach {
    way: Way,
    process: Option<RunInfo>,
}

enum Way {
    Network(Arc<QuicConnector>),
    InProcess(Box<Cluster>),
}

impl Where {
    /// Opens the way. What is typed counts before what the environment says.
    pub async fn reach(&self) -> Result<Reach> {
        let set = |name: &str| std::env::var_os(name).map(PathBuf::from);
        if let Some(dir) = &self.cell {
            return cell(dir).await;
        }
        if let Some(dir) = &self.data {
            return data(dir).await;
        }
        if let Some(dir) = set("XTFS_CELL") {
            return cell(&dir).await;
        }
        match set("XTFS_DATA") {
            Some(dir) => data(&dir).await,
            None => data(&data_dir::default_path()?).await,
        }
    }
}

/// The way to the cell of a folder.
pub async fn cell(dir: &Path) -> Result<Reach> {
    let addresses = mrc_addresses(dir, FIRST_MRC_LIMIT).await?;
    network(&open_cell(dir)?, addresses, None)
}

/// The addresses of a cell's MRC. In a cell whose first MRC is only starting, waits until it has
/// said where it is, at most for `limit`.
pub async fn mrc_addresses(dir: &Path, limit: Duration) -> Result<Vec<String>> {
    let deadline = Instant::now() + limit;
    loop {
        let addresses = open_cell(dir)?.mrc_addresses().to_vec();
        if !addresses.is_empty() {
            return Ok(addresses);
        }
        if Instant::now() >= deadline {
            bail!(
                "cell {}: no MRC has been started yet; `xtfs mrc --cell {0} --data DIR` starts one",
                dir.display()
            );
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// The way to the services of a data folder.
pub async fn data(dir: &Path) -> Result<Reach> {
    if !dir.join("up.toml").exists() {
        bail!(
            "data folder {}: holds no file system; `xtfs up --data {0} MOUNTPOINT` makes one, \
             or name a cell with --cell DIR",
            dir.display()
        );
    }
    match data_dir::running(dir)? {
        Some(run) => {
            let address = run.address.clone().with_context(|| {
                format!(
                    "data folder {}: `xtfs {}` (process {}) uses it; try again when it has ended",
                    dir.display(),
                    run.role,
                    run.pid
                )
            })?;
            network(
                &open_cell(&data_dir::cell_in(dir))?,
                vec![address],
                Some(run),
            )
        }
        None => {
            let folder = DataDir::take(dir)?;
            let cluster = Cluster::open(folder, None, &Env::real()).await?;
            Ok(Reach {
                way: Way::InProcess(Box::new(cluster)),
                process: None,
            })
        }
    }
}

/// Opens a cell's folder.
pub fn open_cell(dir: &Path) -> Result<Cell> {
    match Cell::open(dir, &Env::real()) {
        Err(error) if error.code == Code::NotFound => bail!(
            "cell {}: there is none; `xtfs cell init --data {0}` makes one",
            dir.display()
        ),
        result => result.with_context(|| format!("cell {}", dir.display())),
    }
}

fn network(cell: &Cell, addresses: Vec<String>, process: Option<RunInfo>) -> Result<Reach> {
    let identity = cell.host().context("identity of this host")?;
    let connector = QuicConnector::new(&identity, addresses, &Env::real())?;
    Ok(Reach {
        way: Way::Network(Arc::new(connector)),
        process,
    })
}

impl Reach {
    /// The way itself.
    pub fn connector(&self) -> Arc<dyn Connector> {
        match &self.way {
            Way::Network(connector) => connector.clone(),
            Way::InProcess(cluster) => cluster.connector(),
        }
    }

    /// The questions of administrators.
    pub fn admin(&self) -> Admin {
        Admin::new(self.connector())
    }

    /// The process that runs the data folder, if that is how the cell was found.
    pub fn process(&self) -> Option<&RunInfo> {
        self.process.as_ref()
    }

    /// Closes the way, and the stores if they were opened for it.
    pub async fn close(self) -> Result<()> {
        match self.way {
            Way::Network(connector) => {
                connector.shutdown(CLOSE_LIMIT).await;
                Ok(())
            }
            Way::InProcess(cluster) => cluster.close().await,
        }
    }
}
