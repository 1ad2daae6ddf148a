//! Mount points of this machine: making them ready, finding what is mounted, unmounting.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::mounts::{self, Found};

/// File system type of our mounts, as in `/proc/mounts`.
pub const FS_TYPE: &str = "fuse.xtfs";

/// A mount as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Where.
    pub mountpoint: PathBuf,
    /// File system type.
    pub fs_type: String,
    /// What is mounted.
    pub source: OsString,
}

/// Makes `path` ready to be mounted on and returns it without symbolic links: makes the directory
/// when it is missing, and takes a dead mount of ours away.
pub fn prepare(path: &Path) -> Result<PathBuf> {
    match fs::metadata(path) {
        Ok(found) if !found.is_dir() => {
            bail!("mount point {}: is not a directory", path.display())
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs::create_dir_all(path)
            .with_context(|| format!("mount point {}: cannot be made", path.display()))?,
        Err(error) if is_dead(&error) => take_dead_away(path)?,
        Err(error) => {
            return Err(error).with_context(|| format!("mount point {}", path.display()));
        }
    }
    let path = resolve(path)?;
    if let Some(entry) = find(&path)?
        && entry.fs_type == FS_TYPE
    {
        if matches!(mounts::find(&path)?, Found::Dead(_)) {
            // The kernel still answers from its cache, but its process is gone.
            take_dead_away(&path)?;
            return Ok(path);
        }
        bail!(
            "mount point {}: {} is mounted there already; `xtfs down {0}` ends it",
            path.display(),
            entry.source.display()
        );
    }
    Ok(path)
}

/// Refuses a mount point that is not there; `prepare` would make it.
pub fn require(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Err(error) if !is_dead(&error) => {
            Err(error).with_context(|| format!("mount point {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// The absolute path without symbolic links, also of a mount whose process is dead.
pub fn resolve(path: &Path) -> Result<PathBuf> {
    let failed = || format!("mount point {}", path.display());
    match fs::canonicalize(path) {
        Err(error) if is_dead(&error) => {
            let absolute = std::path::absolute(path).with_context(failed)?;
            let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
                return Err(error).with_context(failed);
            };
            Ok(fs::canonicalize(parent).with_context(failed)?.join(name))
        }
        result => result.with_context(failed),
    }
}

/// What is mounted exactly at `path` (which has no symbolic links), if anything is.
pub fn find(path: &Path) -> Result<Option<MountEntry>> {
    let table = fs::read("/proc/self/mountinfo").context("/proc/self/mountinfo")?;
    // The last of several mounts on one place is the visible one.
    Ok(parse(&table)
        .filter(|entry| entry.mountpoint == path)
        .last())
}

/// How an unmount goes about files that are still open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Busy {
    /// It fails.
    Refuse,
    /// The mount disappears from the tree now and goes away with its last open file.
    Detach,
}

/// Unmounts. Without root's rights, by the help of `fusermount3`.
pub fn unmount(path: &Path, busy: Busy) -> io::Result<()> {
    let flags = match busy {
        Busy::Refuse => UnmountFlags::NOFOLLOW,
        Busy::Detach => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    match rustix::mount::unmount(path, flags) {
        Err(Errno::PERM) => {
            let mut command = Command::new("fusermount3");
            command.arg("-u").arg("-q");
            if busy == Busy::Detach {
                command.arg("-z");
            }
            let output = command.arg("--").arg(path).output()?;
            if output.status.success() {
                return Ok(());
            }
            let text = String::from_utf8_lossy(&output.stderr);
            let kind = if text.contains("busy") || text.is_empty() {
                io::ErrorKind::ResourceBusy
            } else {
                io::ErrorKind::Other
            };
            Err(io::Error::new(
                kind,
                format!("fusermount3: {}", text.trim()),
            ))
        }
        result => result.map_err(Into::into),
    }
}

/// Processes that have a file open below `path` or work in it, as far as we may see: pid and name.
pub fn users(path: &Path) -> Vec<(u32, String)> {
    let below = |link: PathBuf| fs::read_link(link).is_ok_and(|target| target.starts_with(path));
    let uses = |process: &Path| {
        let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten();
        below(process.join("cwd"))
            || below(process.join("exe"))
            || descriptors.flatten().any(|entry| below(entry.path()))
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let process = entry.path();
            uses(&process).then(|| {
                let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
                (pid, name.trim().to_owned())
            })
        })
        .collect()
}

/// "Transport endpoint is not connected": a FUSE mount whose process is gone.
fn is_dead(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error())
}

fn take_dead_away(path: &Path) -> Result<()> {
    let place = resolve(path)?;
    match find(&place)? {
        Some(entry) if entry.fs_type == FS_TYPE => {
            tracing::warn!(mountpoint = %place.display(), "taking a dead mount away");
            unmount(&place, Busy::Detach)
                .with_context(|| format!("mount point {}: its dead mount stays", place.display()))
        }
        _ => bail!(
            "mount point {}: a dead mount of another file system is there; \
             `umount {0}` takes it away",
            place.display()
        ),
    }
}

/// The lines of a mountinfo table (proc(5)); what is not understood is left out.
fn parse(table: &[u8]) -> impl Iterator<Item = MountEntry> + '_ {
    table.split(|&byte| byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|&byte| byte == b' ');
        let mountpoint = fields.by_ref().nth(4)?;
        let mut behind = fields.skip_while(|field| *field != b"-").skip(1);
        let fs_type = behind.next()?;
        let source = behind.next()?;
        Some(MountEntry {
            mountpoint: PathBuf::from(unescape(mountpoint)),
            fs_type: String::from_utf8_lossy(fs_type).into_owned(),
            source: unescape(source),
        })
    })
}

/// Undoes the octal escapes (`\040` for a space) of a mountinfo field.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|_| byte == b'\\');
        let escaped = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(escaped.unwrap_or(byte));
        rest = match escaped {
            Some(_) => &behind[3..],
            None => behind,
        };
    }
    OsString::from_vec(bytes)
}

/// Is one of the two directories the other or inside it?
pub fn overlap(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_table_is_read_with_its_escapes_and_optional_fields() {
        let table = b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            90 22 0:50 / /mnt/with\\040space rw,nosuid shared:5 master:1 - fuse.xtfs xtfs:main rw\n\
            broken line\n";
        let entries: Vec<_> = parse(table).collect();
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[1].mountpoint, Path::new("/mnt/with space"));
        assert_eq!(entries[1].fs_type, "fuse.xtfs");
        assert_eq!(entries[1].source, "xtfs:main");
    }

    #[test]
    fn a_missing_mount_point_is_made_and_a_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let new = dir.path().join("a/b");
        assert!(prepare(&new).unwrap().is_absolute());
        assert!(new.is_dir());
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let error = prepare(&file).unwrap_err();
        assert!(error.to_string().contains("is not a directory"), "{error}");
    }

    #[test]
    fn a_process_that_works_in_a_directory_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(dir.path()).unwrap();
        let _open = fs::File::create(path.join("file")).unwrap();
        let found = users(&path);
        assert!(found.iter().any(|(pid, _)| *pid == std::process::id()));
    }

    #[test]
    fn directories_inside_one_another_overlap_and_neighbours_do_not() {
        assert!(overlap(Path::new("/a/b"), Path::new("/a")));
        assert!(overlap(Path::new("/a"), Path::new("/a")));
        assert!(!overlap(Path::new("/a/b"), Path::new("/a/bc")));
    }
}
