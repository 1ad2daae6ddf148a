//! `xtfs down`: ends a mount and waits until everything is on disk.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};

use super::{Process, block_on};
use crate::mountpoint::{self, Busy};
use crate::mounts::{self, Found, Record};
use crate::watch::Watch;

/// Unmount and end the process that serves a mount
///
/// Unmounts MOUNTPOINT and waits until its process (`xtfs up` or `xtfs mount`) has written
/// everything to disk and ended. Fails, and says why, when files are still in use, when the
/// process could not write everything, or when it does not end in time.
#[derive(Debug, Args)]
#[command(after_long_help = "\
EXAMPLES:
    End the file system at ~/mnt:
        xtfs down ~/mnt
    Also when some process still uses files in it; that process gets errors:
        xtfs down --force ~/mnt")]
pub struct Down {
    /// End it although files in it are in use
    #[arg(long)]
    force: bool,
    /// Seconds to wait for the process to end
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    timeout: u64,
    /// Where it is mounted
    mountpoint: PathBuf,
}

impl Down {
    pub fn run(self, process: &Process) -> Result<ExitCode> {
        process.log_as_tool()?;
        block_on(self.end())??;
        Ok(ExitCode::SUCCESS)
    }

    async fn end(&self) -> Result<()> {
        let limit = Duration::from_secs(self.timeout);
        let asked = self.mountpoint.clone();
        let place = in_time(limit, move || mountpoint::resolve(&asked))
            .await
            .with_context(|| format!("{}: does not answer", self.mountpoint.display()))??;
        let record = match mounts::find(&place)? {
            Found::Alive(record) => record,
            Found::Dead(record) => return end_dead(&place, &record),
            Found::Nothing => return end_unknown(&place),
        };
        let watch = Watch::new(record.pid);
        let unmounted = self.unmount(&place, limit).await?;
        if !unmounted || self.force {
            // It ends by itself after an unmount; this reaches one whose mount is out of sight.
            signal(record.pid)?;
        }
        if let Some(watch) = watch {
            watch.ended(limit).await.with_context(|| {
                format!(
                    "process {}: did not end within {} s; it may still be writing",
                    record.pid, self.timeout
                )
            })?;
        }
        match mounts::find(&place)? {
            Found::Dead(record) => {
                let reason = record.failure.clone();
                mounts::forget(&place)?;
                Err(died(&record, reason.as_deref()))
            }
            Found::Nothing | Found::Alive(_) => Ok(()),
        }
    }

    /// Unmounts; false when nothing of ours is mounted in this process's sight.
    async fn unmount(&self, place: &Path, limit: Duration) -> Result<bool> {
        match mountpoint::find(place)? {
            Some(entry) if entry.fs_type == mountpoint::FS_TYPE => {}
            _ => return Ok(false),
        }
        let busy = if self.force {
            Busy::Detach
        } else {
            Busy::Refuse
        };
        let path = place.to_owned();
        let unmounted = in_time(limit, move || mountpoint::unmount(&path, busy)).await;
        let late = || format!("{}: cannot be unmounted in time", place.display());
        match unmounted.with_context(late)? {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                bail!("{}: in use{}", place.display(), used_by(place))
            }
            Err(error) => {
                Err(error).with_context(|| format!("{}: cannot be unmounted", place.display()))
            }
        }
    }
}

/// Does work that asks a mount, which may never answer.
async fn in_time<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    Ok(tokio::time::timeout(limit, tokio::task::spawn_blocking(work)).await??)
}

fn signal(pid: u32) -> Result<()> {
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let process = process.with_context(|| format!("process {pid}"))?;
    match kill_process(process, Signal::TERM) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("process {pid}: cannot be told to end")),
    }
}

/// The process is gone without having taken its mount away.
fn end_dead(place: &Path, record: &Record) -> Result<()> {
    if let Some(entry) = mountpoint::find(place)?
        && entry.fs_type == mountpoint::FS_TYPE
    {
        mountpoint::unmount(place, Busy::Detach)
            .with_context(|| format!("{}: its dead mount stays", place.display()))?;
    }
    mounts::forget(place)?;
    Err(died(record, record.failure.as_deref()))
}

fn died(record: &Record, reason: Option<&str>) -> anyhow::Error {
    let pid = record.pid;
    match reason {
        Some(reason) => anyhow!("process {pid}: did not end cleanly: {reason}"),
        None => anyhow!(
            "process {pid}: was killed before it could end cleanly; what was fsynced is safe, \
             and the next `xtfs up` or `xtfs mount` goes on from there"
        ),
    }
}

fn end_unknown(place: &Path) -> Result<()> {
    match mountpoint::find(place)? {
        Some(entry) if entry.fs_type == mountpoint::FS_TYPE => bail!(
            "{}: is mounted, but by a process that is gone or belongs to another user; \
             `umount {0}` takes it away",
            place.display()
        ),
        Some(entry) => bail!(
            "{}: a {} file system is mounted there, not xtfs",
            place.display(),
            entry.fs_type
        ),
        None => bail!("{}: nothing is mounted there", place.display()),
    }
}

fn used_by(place: &Path) -> String {
    const SHOWN_MAX: usize = 5;
    let users = mountpoint::users(place);
    let mut names: Vec<_> = users
        .iter()
        .take(SHOWN_MAX)
        .map(|(pid, name)| format!("{name} ({pid})"))
        .collect();
    if users.len() > SHOWN_MAX {
        names.push("...".to_owned());
    }
    if names.is_empty() {
        "; close its files, or use --force".to_owned()
    } else {
        format!(" by {}; end them, or use --force", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_an_unclean_end_is_told() {
        let record = Record {
            pid: 7,
            mountpoint: "/mnt".into(),
            volume: "main".to_owned(),
            failure: None,
        };
        assert!(died(&record, None).to_string().contains("killed"));
        assert!(
            died(&record, Some("disk full"))
                .to_string()
                .contains("disk full")
        );
    }
}
