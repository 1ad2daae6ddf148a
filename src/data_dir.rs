//! Folders that one process owns while it runs.
//!
//! ```text
//! DIR/lock        held by the process that uses the folder
//! DIR/run.json    what that process does: pid, mount point, address; removed at a clean end
//! DIR/up.toml     what `xtfs up` decided at its first start
//! DIR/log         log of a process in the background
//! DIR/cell/       the cell: authority and host identity
//! DIR/mrc/        the MRC's identity and database
//! DIR/osd-N/      identity and store of OSD N, counted from 1
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// A data folder that this process owns.
pub struct DataDir {
    path: PathBuf,
    _lock: File,
}

/// What the process that owns a folder does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunInfo {
    /// The process.
    pub pid: u32,
    /// What it is: `up`, `mrc`, `osd`, or the tool that opened stopped data.
    pub role: String,
    /// Where the volume is mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mountpoint: Option<PathBuf>,
    /// The volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// Address of its (first) service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// What `xtfs up` decided at its first start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpConfig {
    /// OSDs in the process.
    pub osds: u8,
}

/// The folder that `xtfs up` uses where none is named.
pub fn default_path() -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/xtfs".into());
    }
    let absolute = |name: &str| {
        let path = std::env::var_os(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    absolute("XDG_DATA_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/share")))
        .map(|base| base.join("xtfs"))
        .context("data folder: neither XDG_DATA_HOME nor HOME is set; name one with --data DIR")
}

impl DataDir {
    /// Takes a folder for this process, and makes it when it is missing.
    pub fn take(path: &Path) -> Result<Self> {
        fs::create_dir_all(path)
            .with_context(|| format!("data folder {}: cannot be made", path.display()))?;
        let path =
            fs::canonicalize(path).with_context(|| format!("data folder {}", path.display()))?;
        let lock_path = path.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&lock_path)
            .with_context(|| format!("data folder {}", path.display()))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => bail!("data folder {}: {}", path.display(), owner(&path)),
            Err(error) => {
                return Err(error).with_context(|| format!("{}: no lock", lock_path.display()));
            }
        }
        // What a process that was killed left behind is no longer true.
        remove_if_there(&path.join("run.json"))?;
        Ok(Self { path, _lock: lock })
    }

    /// The folder, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Says what this process does with the folder.
    pub fn publish(&self, info: &RunInfo) -> Result<()> {
        let text = serde_json::to_vec_pretty(info).context("run.json")?;
        replace(&self.path.join("run.json"), &text)
    }

    /// Nothing is done with the folder any more.
    pub fn retract(&self) -> Result<()> {
        remove_if_there(&self.path.join("run.json"))
    }

    /// What `xtfs up` decided at its first start, if there was one.
    pub fn up_config(&self) -> Result<Option<UpConfig>> {
        let path = self.path.join("up.toml");
        match fs::read_to_string(&path) {
            Ok(text) => toml::from_str(&text)
                .map(Some)
                .with_context(|| format!("{}: not understood", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    /// Remembers what `xtfs up` decided.
    pub fn set_up_config(&self, config: UpConfig) -> Result<()> {
        let text = toml::to_string(&config).context("up.toml")?;
        replace(&self.path.join("up.toml"), text.as_bytes())
    }

    /// Folder of the cell.
    pub fn cell(&self) -> PathBuf {
        cell_in(&self.path)
    }

    /// Folder of the MRC.
    pub fn mrc(&self) -> PathBuf {
        self.path.join("mrc")
    }

    /// Folder of an OSD, counted from 1.
    pub fn osd(&self, number: u8) -> PathBuf {
        self.path.join(format!("osd-{number}"))
    }
}

/// Has `xtfs up` made a data folder there?
pub fn is_made(path: &Path) -> bool {
    path.join("up.toml").exists()
}

/// Folder of the cell in a data folder.
pub fn cell_in(path: &Path) -> PathBuf {
    path.join("cell")
}

/// What the process that owns `path` does; none when nobody owns it.
pub fn running(path: &Path) -> Result<Option<RunInfo>> {
    let lock = match File::open(path.join("lock")) {
        Ok(lock) => lock,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(error).with_context(|| format!("data folder {}", path.display()));
        }
    };
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(None),
        Err(Errno::WOULDBLOCK) => read_run_info(path).map(Some),
        Err(error) => Err(error).with_context(|| format!("data folder {}", path.display())),
    }
}

fn read_run_info(path: &Path) -> Result<RunInfo> {
    let run = path.join("run.json");
    let text = fs::read(&run).with_context(|| {
        format!(
            "data folder {}: a process is starting or ending there; try again in a moment",
            path.display()
        )
    })?;
    serde_json::from_slice(&text).with_context(|| format!("{}: not understood", run.display()))
}

/// Who holds a folder, for an error message.
fn owner(path: &Path) -> String {
    match read_run_info(path) {
        Ok(RunInfo {
            pid,
            mountpoint: Some(mountpoint),
            ..
        }) => format!(
            "`xtfs up` runs on it already (process {pid}, mounted at {}); \
             `xtfs down {1}` ends it",
            mountpoint.display(),
            mountpoint.display()
        ),
        Ok(RunInfo { pid, role, .. }) => format!("`xtfs {role}` uses it (process {pid})"),
        Err(_) => "another process uses it that is just starting or ending; \
                   try again in a moment"
            .to_owned(),
    }
}

/// Puts a file in place whole and durable.
fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let beside = path.with_extension("new");
    let write = || {
        let mut file = File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
    };
    write().with_context(|| format!("{}: cannot be written", path.display()))
}

fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("{}: cannot be removed", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> RunInfo {
        RunInfo {
            pid: 4711,
            role: "up".to_owned(),
            mountpoint: Some("/mnt/here".into()),
            volume: Some("main".to_owned()),
            address: None,
        }
    }

    #[test]
    fn a_second_process_is_refused_and_told_who_has_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let first = DataDir::take(&path).unwrap();
        first.publish(&info()).unwrap();
        assert_eq!(running(&path).unwrap(), Some(info()));
        let error = DataDir::take(&path).err().unwrap().to_string();
        assert!(error.contains("process 4711"), "{error}");
        assert!(error.contains("xtfs down /mnt/here"), "{error}");
    }

    #[test]
    fn what_a_killed_process_left_is_not_taken_for_running() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDir::take(dir.path()).unwrap();
        first.publish(&info()).unwrap();
        drop(first);
        assert_eq!(running(dir.path()).unwrap(), None);
        let _second = DataDir::take(dir.path()).unwrap();
        assert!(!dir.path().join("run.json").exists());
    }

    #[test]
    fn decisions_of_the_first_start_are_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::take(dir.path()).unwrap();
        assert_eq!(data.up_config().unwrap(), None);
        data.set_up_config(UpConfig { osds: 3 }).unwrap();
        assert_eq!(data.up_config().unwrap(), Some(UpConfig { osds: 3 }));
        fs::write(dir.path().join("up.toml"), "osds = 'many'").unwrap();
        let error = data.up_config().unwrap_err().to_string();
        assert!(error.contains("up.toml"), "{error}");
    }
}
