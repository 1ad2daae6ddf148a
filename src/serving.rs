//! A mounted volume from its start to its clean end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use xtfs_client::fuse::{self, MountOptions, Mounted};
use xtfs_client::{ClientOptions, Vfs};
use xtfs_protocol::Code;
use xtfs_protocol::env::Env;
use xtfs_protocol::transport::Connector;

use crate::{background, mounts, sizes};

/// Time for a new mount to answer its first question.
const LIVE_LIMIT: Duration = Duration::from_secs(30);

/// Time to write everything out at the end.
const CLOSE_LIMIT: Duration = Duration::from_secs(110);

/// Options of a mount.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Mount options, separated by commas
    #[arg(
        short = 'o',
        long = "options",
        value_name = "OPTIONS",
        value_delimiter = ','
    )]
    options: Vec<MountOption>,
    /// File content that is cached in memory. Doubling it keeps more of what was read
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = sizes::parse)]
    cache: u64,
}

/// What `-o` takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum MountOption {
    /// Nothing can be changed
    Ro,
    /// Everything can be changed (the default)
    Rw,
    /// Other users may use the mount (the default for root)
    AllowOther,
    /// The defaults
    Defaults,
}

/// What is mounted where.
pub struct MountSpec {
    /// The volume.
    pub volume: String,
    /// The directory, as [`prepare`](crate::mountpoint::prepare) gave it.
    pub mountpoint: PathBuf,
    /// Options.
    pub options: Options,
    /// Clock and randomness.
    pub env: Env,
    /// Becomes true when the mount is live.
    pub live: Live,
}

/// Whether a mount has ever been live.
#[derive(Debug, Clone, Default)]
pub struct Live(Arc<AtomicBool>);

impl MountSpec {
    fn has(&self, option: MountOption) -> bool {
        self.options.options.contains(&option)
    }

    fn client_options(&self) -> ClientOptions {
        ClientOptions {
            env: self.env.clone(),
            volume: self.volume.clone(),
            cache_bytes: usize::try_from(self.options.cache).unwrap_or(usize::MAX),
            read_only: self.has(MountOption::Ro),
            ..ClientOptions::default()
        }
    }
}

/// Mounts, calls `on_live` and prints one line when the mount answers, and serves until a signal or
/// an unmount ends it. Everything written is on the OSDs when it returns without an error.
pub async fn serve(
    connector: Arc<dyn Connector>,
    spec: MountSpec,
    on_live: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let mut signals = Signals::new()?;
    match Vfs::open(connector, spec.client_options()).await {
        Ok(vfs) => {
            let mounted = mount_and_wait(&vfs, &spec, &mut signals, on_live).await;
            let closed = close(&vfs).await;
            mounted.and(closed)
        }
        Err(error) if error.code == Code::NotFound => Err(anyhow!(
            "volume {}: there is none of that name; `xtfs ls` lists volumes, `xtfs mkfs` makes one",
            spec.volume
        )),
        Err(error) => Err(error).with_context(|| format!("volume {}", spec.volume)),
    }
}

/// Serves a mount from its first preparation to its very end, with a record of it that `xtfs down`
/// finds. The record outlives everything that could still fail; where something did, after the
/// mount was live, it keeps the reason.
pub async fn recorded(
    mountpoint: &Path,
    volume: &str,
    live: &Live,
    serving: impl Future<Output = Result<()>>,
) -> Result<()> {
    let record = mounts::record(mountpoint, volume)?;
    let Err(error) = serving.await else {
        return record.ended();
    };
    if live.0.load(Ordering::Relaxed) {
        record.failed(&format!("{error:#}"))?;
    } else {
        record.ended()?;
    }
    Err(error)
}

async fn mount_and_wait(
    vfs: &Vfs,
    spec: &MountSpec,
    signals: &mut Signals,
    on_live: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let place = &spec.mountpoint;
    let mounted =
        fuse::mount(vfs.clone(), Handle::current(), mount_options(spec)).with_context(|| {
            format!(
                "mount point {}: cannot be mounted (this needs /dev/fuse and, for users other \
                 than root, fusermount3 from the package fuse3)",
                place.display()
            )
        })?;
    let live = async {
        answers(place).await?;
        on_live()
    };
    if let Err(error) = live.await {
        end_mount(mounted, place).await?;
        return Err(error);
    }
    spec.live.0.store(true, Ordering::Relaxed);
    background::report_ready(&format!("mounted {} at {}", spec.volume, place.display()));
    let signal = tokio::select! {
        () = mounted.wait_unmounted() => None,
        name = signals.next() => Some(name),
    };
    tracing::info!(mountpoint = %place.display(), signal, "ending");
    match signal {
        Some(_) => end_mount(mounted, place).await,
        None => Ok(()),
    }
}

/// The mount is live when its root answers.
async fn answers(place: &Path) -> Result<()> {
    let path = place.to_owned();
    let look = tokio::task::spawn_blocking(move || std::fs::metadata(path));
    let looked = tokio::time::timeout(LIVE_LIMIT, look).await;
    let failed = || {
        format!(
            "mount point {}: the new mount does not answer",
            place.display()
        )
    };
    looked
        .with_context(failed)?
        .with_context(failed)?
        .with_context(failed)?;
    Ok(())
}

/// Unmounts. A mount in use disappears from the tree, and its open files get errors when this
/// process ends; what was written to them is kept.
async fn end_mount(mounted: Mounted, place: &Path) -> Result<()> {
    let failed = || format!("mount point {}: cannot be unmounted", place.display());
    tokio::task::spawn_blocking(move || mounted.unmount())
        .await
        .with_context(failed)?
        .with_context(failed)
}

async fn close(vfs: &Vfs) -> Result<()> {
    tokio::time::timeout(CLOSE_LIMIT, vfs.close())
        .await
        .map_err(|_| anyhow!("not everything was written within {CLOSE_LIMIT:?}"))?
        .context("not everything was written")
}

/// The signals that ask this process to end.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    /// From now on these signals are waited for and do not kill.
    pub fn new() -> Result<Self> {
        let listen = |kind| signal(kind).context("signals: cannot be received");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// The name of the next one.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.hang_up.recv() => "SIGHUP",
        }
    }
}

fn mount_options(spec: &MountSpec) -> MountOptions {
    let mut options = MountOptions::new(&spec.mountpoint, format!("xtfs:{}", spec.volume));
    options.read_only = spec.has(MountOption::Ro);
    options.allow_other |= spec.has(MountOption::AllowOther);
    options
}
