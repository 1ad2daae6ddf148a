//! Which process serves which mount point: records that `xtfs down` finds by path.
//!
//! One file a mount in `/run/xtfs/` (for users other than root `$XDG_RUNTIME_DIR/xtfs/` or
//! `/tmp/xtfs-UID/`; for all where `$XTFS_RUN_DIR` says), locked by the process that serves it for as
//! long as it lives. A clean end removes the file; an end that
//! lost something leaves the reason in it.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::watch::Watch;

/// Pause between two looks at a record.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// What is recorded of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The process that serves it.
    pub pid: u32,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// What is mounted.
    pub volume: String,
    /// Why it did not end cleanly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// The record of a mount that this process serves.
pub struct Serving {
    record: Record,
    path: PathBuf,
    file: File,
}

/// What the records say about a mount point.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// A process serves it.
    Alive(Record),
    /// Its process ended, but not cleanly.
    Dead(Record),
    /// No record.
    Nothing,
}

/// Records that this process serves `mountpoint`. Where another one has unmounted it and is still
/// writing to disk, waits for its end, at most for `limit`.
pub async fn record(mountpoint: &Path, volume: &str, limit: Duration) -> Result<Serving> {
    let folder = folder()?;
    let until = Instant::now() + limit;
    loop {
        if let Some(serving) = record_in(&folder, mountpoint, volume)? {
            return Ok(serving);
        }
        let left = until.saturating_duration_since(Instant::now());
        let other = match find_in(&folder, mountpoint)? {
            Found::Alive(other) => Some(other.pid),
            Found::Dead(_) | Found::Nothing => None,
        };
        let served = || {
            let by = other.map_or("another process".to_owned(), |pid| format!("process {pid}"));
            anyhow!(
                "mount point {}: {by} serves it already",
                mountpoint.display()
            )
        };
        if left.is_zero() {
            return Err(served());
        }
        match other.and_then(Watch::new) {
            Some(watch) => watch.ended(left).await.map_err(|_| served())?,
            // It is between two states.
            None => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}

/// What is recorded of `mountpoint` (a path without symbolic links).
pub fn find(mountpoint: &Path) -> Result<Found> {
    find_in(&folder()?, mountpoint)
}

/// What the client that serves `mountpoint` calls itself towards the MRC, the same after every
/// restart of this machine. While it holds the mount's record no other client has this name.
pub fn client_name(mountpoint: &Path) -> Result<String> {
    let machine = fs::read_to_string("/etc/machine-id").unwrap_or_else(|_| {
        let system = rustix::system::uname();
        system.nodename().to_string_lossy().into_owned()
    });
    // Containers may share the rest.
    let namespace = fs::read_link("/proc/self/ns/mnt").unwrap_or_default();
    let record = file_in(&folder()?, mountpoint);
    Ok(format!(
        "{} {} {} {}",
        machine.trim(),
        namespace.display(),
        record.display(),
        mountpoint.display()
    ))
}

/// Forgets the record of a process that is dead.
pub fn forget(mountpoint: &Path) -> Result<()> {
    let path = file_in(&folder()?, mountpoint);
    fs::remove_file(&path).with_context(|| format!("{}", path.display()))
}

impl Serving {
    /// The mount ended cleanly.
    pub fn ended(self) -> Result<()> {
        fs::remove_file(&self.path).with_context(|| format!("{}", self.path.display()))
    }

    /// The mount ended, but something was lost.
    pub fn failed(mut self, reason: &str) -> Result<()> {
        self.record.failure = Some(reason.to_owned());
        write(&mut self.file, &self.record).with_context(|| format!("{}", self.path.display()))
    }
}

/// None while another process holds the record.
fn record_in(folder: &Path, mountpoint: &Path, volume: &str) -> Result<Option<Serving>> {
    sweep(folder);
    let path = file_in(folder, mountpoint);
    let failed = || format!("{}: cannot be written", path.display());
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&path)
        .with_context(failed)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(None),
        Err(error) => return Err(error).with_context(failed),
    }
    if file.metadata().with_context(failed)?.nlink() == 0 {
        // Its owner ended while it was opened here.
        return Ok(None);
    }
    let record = Record {
        pid: std::process::id(),
        mountpoint: mountpoint.to_owned(),
        volume: volume.to_owned(),
        failure: None,
    };
    write(&mut file, &record).with_context(failed)?;
    Ok(Some(Serving { record, path, file }))
}

/// Removes what killed processes left behind: records of mount points that no longer exist.
fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(text) = fs::read(entry.path()) else {
            continue;
        };
        let Ok(record) = serde_json::from_slice::<Record>(&text) else {
            continue;
        };
        // Asked first, because a live mount might not answer.
        let dead = matches!(find_in(folder, &record.mountpoint), Ok(Found::Dead(_)));
        let gone = || {
            fs::symlink_metadata(&record.mountpoint)
                .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        };
        if dead && gone() {
            // One that stays is only untidy.
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn find_in(folder: &Path, mountpoint: &Path) -> Result<Found> {
    let path = file_in(folder, mountpoint);
    let failed = || format!("{}: cannot be read", path.display());
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(error).with_context(failed),
    };
    let alive = match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => false,
        Err(Errno::WOULDBLOCK) => true,
        Err(error) => return Err(error).with_context(failed),
    };
    let mut text = Vec::new();
    file.read_to_end(&mut text).with_context(failed)?;
    let Ok(record) = serde_json::from_slice::<Record>(&text) else {
        // Killed while it wrote its first record, or a record of something else.
        return Ok(Found::Nothing);
    };
    if record.mountpoint != mountpoint {
        return Ok(Found::Nothing);
    }
    Ok(if alive {
        Found::Alive(record)
    } else {
        Found::Dead(record)
    })
}

fn write(file: &mut File, record: &Record) -> std::io::Result<()> {
    let text = serde_json::to_vec(record)?;
    file.rewind()?;
    file.set_len(0)?;
    file.write_all(&text)
}

/// The folder of the records; made when it is missing, refused when it is not ours.
fn folder() -> Result<PathBuf> {
    let user = rustix::process::geteuid();
    let absolute = |name| {
        let path = std::env::var_os(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let path = if let Some(path) = absolute("XTFS_RUN_DIR") {
        path
    } else if user.is_root() {
        PathBuf::from("/run/xtfs")
    } else {
        match absolute("XDG_RUNTIME_DIR") {
            Some(base) => base.join("xtfs"),
            None => std::env::temp_dir().join(format!("xtfs-{}", user.as_raw())),
        }
    };
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&path);
    made.with_context(|| format!("{}: cannot be made", path.display()))?;
    let owner = fs::metadata(&path)
        .with_context(|| format!("{}", path.display()))?
        .uid();
    if owner != user.as_raw() {
        bail!("{}: belongs to another user", path.display());
    }
    Ok(path)
}

/// Paths are longer than file names may be, so a file is named by a hash and says the path inside.
fn file_in(folder: &Path, mountpoint: &Path) -> PathBuf {
    let hash = mountpoint
        .as_os_str()
        .as_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    folder.join(format!("{hash:016x}.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_alive_while_its_process_holds_it_and_gone_after_a_clean_end() {
        let dir = tempfile::tempdir().unwrap();
        let place = Path::new("/mnt/a");
        assert_eq!(find_in(dir.path(), place).unwrap(), Found::Nothing);
        let serving = record_in(dir.path(), place, "main").unwrap().unwrap();
        let Found::Alive(found) = find_in(dir.path(), place).unwrap() else {
            panic!("the record is held");
        };
        assert_eq!(
            (found.pid, found.volume.as_str()),
            (std::process::id(), "main")
        );
        assert!(record_in(dir.path(), place, "main").unwrap().is_none());
        serving.ended().unwrap();
        assert_eq!(find_in(dir.path(), place).unwrap(), Found::Nothing);
    }

    #[test]
    fn records_of_places_that_are_gone_do_not_pile_up() {
        let dir = tempfile::tempdir().unwrap();
        let serving = record_in(dir.path(), Path::new("/no/such/place"), "main").unwrap();
        drop(serving);
        let here = record_in(dir.path(), dir.path(), "main").unwrap().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        here.ended().unwrap();
    }

    #[test]
    fn an_end_that_lost_something_leaves_its_reason() {
        let dir = tempfile::tempdir().unwrap();
        let place = Path::new("/mnt/a");
        let serving = record_in(dir.path(), place, "main").unwrap().unwrap();
        serving.failed("disk full").unwrap();
        let Found::Dead(found) = find_in(dir.path(), place).unwrap() else {
            panic!("the record stays");
        };
        assert_eq!(found.failure.as_deref(), Some("disk full"));
        // The next mount at the place starts afresh.
        let place = dir.path();
        record_in(dir.path(), place, "main")
            .unwrap()
            .unwrap()
            .failed("disk full")
            .unwrap();
        let serving = record_in(dir.path(), place, "main").unwrap().unwrap();
        assert!(matches!(
            find_in(dir.path(), place).unwrap(),
            Found::Alive(_)
        ));
        serving.ended().unwrap();
    }
}
