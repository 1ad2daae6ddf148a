//! A mounted volume from its start to its clean end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail};
use clap::Args;
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use xtfs_client::fuse::{self, MountFlags, MountOptions, Mounted};
use xtfs_client::{ClientOptions, Vfs};
use xtfs_protocol::Code;
use xtfs_protocol::env::Env;
use xtfs_protocol::transport::Connector;

use crate::mount_options::MountSettings;
use crate::{background, mounts, sizes};

/// File content that is cached where nothing is said.
const CACHE_BYTES: u64 = 256 << 20;

/// Time for a new mount to answer its first question.
const LIVE_LIMIT: Duration = Duration::from_secs(30);

/// Time to write everything out at the end.
const CLOSE_LIMIT: Duration = Duration::from_secs(110);

/// Options of a mount.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Mount options, separated by commas; see MOUNT OPTIONS
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    options: Vec<String>,
    /// File content that is cached in memory [default: 256M]. Doubling it keeps more of what was
    /// read. The same as -o cache=SIZE
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse)]
    cache: Option<u64>,
}

impl Options {
    /// What the options ask for together.
    pub fn settings(&self) -> Result<MountSettings> {
        let lines = self.options.iter().map(String::as_str);
        let mut settings = MountSettings::parse(lines, false).map_err(Error::msg)?;
        settings.cache = self.cache.or(settings.cache);
        Ok(settings)
    }
}

/// What is mounted where.
pub struct MountSpec {
    /// The volume.
    pub volume: String,
    /// The directory, as [`prepare`](crate::mountpoint::prepare) gave it.
    pub mountpoint: PathBuf,
    /// What the mount table shows as source.
    pub source: String,
    /// Options.
    pub settings: MountSettings,
    /// Clock and randomness.
    pub env: Env,
    /// Becomes true when the mount is live.
    pub live: Live,
    /// Another process waits for this one's report.
    pub background: bool,
}

/// Whether a mount has ever been live.
#[derive(Debug, Clone, Default)]
pub struct Live(Arc<AtomicBool>);

impl MountSpec {
    fn client_options(&self) -> Result<ClientOptions> {
        let mut options = ClientOptions {
            env: self.env.clone(),
            volume: self.volume.clone(),
            client: mounts::client_name(&self.mountpoint)?,
            cache_bytes: usize::try_from(self.settings.cache.unwrap_or(CACHE_BYTES))
                .unwrap_or(usize::MAX),
            read_only: self.settings.flags.contains(MountFlags::RDONLY),
            ..ClientOptions::default()
        };
        if let Some(limit) = self.settings.timeout {
            options.op_deadline = limit;
        }
        Ok(options)
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
    let opened = tokio::select! {
        opened = Vfs::open(connector, spec.client_options()?) => opened,
        name = signals.next() => bail!("ended by {name} before volume {} answered", spec.volume),
    };
    match opened {
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
    let record = mounts::record(mountpoint, volume, CLOSE_LIMIT).await?;
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
    let line = format!("mounted {} at {}", spec.volume, place.display());
    let signal = if background::report_ready(&line) || !spec.background {
        tokio::select! {
            () = mounted.wait_unmounted() => None,
            name = signals.next() => Some(name),
        }
    } else {
        Some("who asked for it has gone")
    };
    tracing::info!(mountpoint = %place.display(), reason = signal, "ending");
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
    let mut options = MountOptions::new(&spec.mountpoint, &spec.source);
    options.flags = spec.settings.flags;
    options.allow_other |= spec.settings.allow_other;
    options
}
