//! How a command finds the cell that it is about.
//!
//! A cell's folder (`--cell`) leads to its MRC over QUIC. A data folder (`--data`) belongs to
//! `xtfs up`: while that runs, its services are reached over QUIC on this machine; when it does
//! not, its stores are opened in this process for as long as the command takes.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use tokio::time::Instant;
use xtfs_client::admin::Admin;
use xtfs_protocol::env::Env;
use xtfs_protocol::transport::Connector;
use xtfs_protocol::transport::quic::QuicConnector;
use xtfs_protocol::{Cell, Code, Identity};

use crate::cluster::Cluster;
use crate::data_dir::{self, DataDir, RunInfo};

/// Time for goodbyes.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// Time for the first MRC of a cell to say where it is.
const FIRST_MRC_LIMIT: Duration = Duration::from_secs(5);

/// Pause between two looks at the folder of a cell.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Which cell.
#[derive(Debug, Clone, Default, Args)]
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
    addresses: Vec<String>,
}

enum Way {
    Network(Arc<QuicConnector>),
    InProcess(Box<Cluster>),
}

/// A folder that leads to a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The cell's own.
    Cell(PathBuf),
    /// The data folder of an `xtfs up`.
    Data(PathBuf),
}

impl Where {
    /// Was a folder named?
    pub fn is_named(&self) -> bool {
        self.cell.is_some() || self.data.is_some()
    }

    /// A folder that was named in another way than by `--cell` and `--data`, if one was.
    pub fn or(mut self, cell: Option<PathBuf>, data: Option<PathBuf>) -> Self {
        if !self.is_named() {
            (self.cell, self.data) = (cell, data);
        }
        self
    }

    /// The folder. What is typed counts before what the environment says.
    pub fn place(&self) -> Result<Place> {
        let set = |name: &str| std::env::var_os(name).map(PathBuf::from);
        if let Some(dir) = &self.cell {
            return Ok(Place::Cell(dir.clone()));
        }
        if let Some(dir) = &self.data {
            return Ok(Place::Data(dir.clone()));
        }
        if let Some(dir) = set("XTFS_CELL") {
            return Ok(Place::Cell(dir));
        }
        match set("XTFS_DATA") {
            Some(dir) => Ok(Place::Data(dir)),
            None => Ok(Place::Data(data_dir::default_path()?)),
        }
    }

    /// Opens the way.
    pub async fn reach(&self) -> Result<Reach> {
        match self.place()? {
            Place::Cell(dir) => cell(&dir).await,
            Place::Data(dir) => data(&dir).await,
        }
    }
}

impl Place {
    /// The folder itself.
    pub fn dir(&self) -> &Path {
        match self {
            Self::Cell(dir) | Self::Data(dir) => dir,
        }
    }

    /// The same place by an absolute path.
    pub fn absolute(&self) -> Result<Self> {
        let absolute = |dir| std::path::absolute(dir).context("current folder");
        Ok(match self {
            Self::Cell(dir) => Self::Cell(absolute(dir)?),
            Self::Data(dir) => Self::Data(absolute(dir)?),
        })
    }

    /// Is there a cell that this user may mount? In a data folder, one that is running: says by
    /// which process.
    pub fn look(&self) -> Result<Option<RunInfo>> {
        match self {
            Self::Cell(dir) => host_of(dir).map(|_| None),
            Self::Data(dir) => {
                let run = running(dir)?;
                host_of(&data_dir::cell_in(dir))?;
                Ok(Some(run))
            }
        }
    }

    /// Opens the way to the running services.
    pub async fn running(&self) -> Result<Reach> {
        match self {
            Self::Cell(dir) => cell(dir).await,
            Self::Data(dir) => by_address(dir, running(dir)?),
        }
    }
}

/// The process that serves a data folder.
fn running(dir: &Path) -> Result<RunInfo> {
    let nothing = || {
        anyhow!(
            "data folder {}: no `xtfs up` runs on it; `xtfs up --data {0} MOUNTPOINT` starts one",
            dir.display()
        )
    };
    data_dir::running(dir)
        .map_err(|error| refused_to_others(dir, error))?
        .ok_or_else(nothing)
}

/// Names the owner where a folder is another user's.
fn refused_to_others(dir: &Path, error: anyhow::Error) -> anyhow::Error {
    let denied = error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
            || cause
                .downcast_ref::<xtfs_protocol::Error>()
                .is_some_and(|error| error.code == Code::AccessDenied)
    });
    match std::fs::metadata(dir) {
        Ok(found) if denied => error.context(format!(
            "{}: belongs to the user with number {}; mount it as that user or as root",
            dir.display(),
            found.uid()
        )),
        _ => error,
    }
}

/// The identity that this host has in a cell.
fn host_of(dir: &Path) -> Result<Identity> {
    open_cell(dir)
        .and_then(|cell| Ok(cell.host()?))
        .map_err(|error| refused_to_others(dir, error))
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
    if !data_dir::is_made(dir) {
        bail!(
            "data folder {}: holds no file system; `xtfs up --data {0} MOUNTPOINT` makes one, \
             or name a cell with --cell DIR",
            dir.display()
        );
    }
    match data_dir::running(dir)? {
        Some(run) => by_address(dir, run),
        None => {
            let folder = DataDir::take(dir)?;
            let cluster = Cluster::open(folder, None, &Env::real()).await?;
            Ok(Reach {
                way: Way::InProcess(Box::new(cluster)),
                process: None,
                addresses: Vec::new(),
            })
        }
    }
}

/// The way to the process that serves a data folder.
fn by_address(dir: &Path, run: RunInfo) -> Result<Reach> {
    let address = run.address.clone().with_context(|| {
        format!(
            "data folder {}: `xtfs {}` (process {}) uses it; try again when it has ended",
            dir.display(),
            run.role,
            run.pid
        )
    })?;
    let cell = open_cell(&data_dir::cell_in(dir))?;
    network(&cell, vec![address], Some(run))
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
    let connector = QuicConnector::new(&identity, addresses.clone(), &Env::real())?;
    Ok(Reach {
        way: Way::Network(Arc::new(connector)),
        process,
        addresses,
    })
}

/// Whom a command asks, for its errors.
impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = self.addresses.join(", ");
        match (&self.process, addresses.as_str()) {
            (Some(run), _) => write!(
                f,
                "`xtfs {}` (process {}) at {addresses}",
                run.role, run.pid
            ),
            (None, "") => f.write_str("data folder"),
            (None, _) => write!(f, "MRC at {addresses}"),
        }
    }
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
