//! The folder of one test, and how everything that grew in it goes away.
//!
//! A [`Scratch`] cleans when it is dropped. A second process, the *warden*, cleans when the test
//! is killed before it can: it waits on a pipe whose other end dies with the test.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Signal};

use crate::process::await_exit;

/// How long killed processes may take to vanish.
const KILL_LIMIT: Duration = Duration::from_secs(20);

/// A folder that takes its mounts, its processes and itself away when it goes.
pub struct Scratch {
    path: PathBuf,
    warden: Option<Child>,
}

impl Scratch {
    /// A new empty folder that every user may enter. Its path is short: the names of sockets
    /// below it may have 107 bytes in all.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let warden = program("xtfs-test-warden");
        let path = tempfile::Builder::new()
            .prefix(&format!("{name}-"))
            .tempdir()
            .expect("make a scratch folder")
            .keep();
        let path = path.canonicalize().expect("scratch folder");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
            .expect("open the scratch folder to all users");
        let warden = Command::new(warden)
            .arg(&path)
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("start the warden");
        Self {
            path,
            warden: Some(warden),
        }
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A new folder in it.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn folder(&self, name: &str) -> PathBuf {
        let path = self.path.join(name);
        std::fs::create_dir_all(&path).expect("make a folder in the scratch folder");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let left = clean(&self.path);
        if let Some(mut warden) = self.warden.take() {
            if let Some(mut pipe) = warden.stdin.take() {
                let _ = pipe.write_all(b"done\n");
            }
            let _ = warden.wait();
        }
        if !left.is_empty() {
            eprintln!(
                "could not clean {}: {}",
                self.path.display(),
                left.join("; ")
            );
        }
    }
}

/// Takes away every mount at or below `folder`, every process that works there, and the folder.
/// Returns what it could not take away.
#[must_use]
pub fn clean(folder: &Path) -> Vec<String> {
    let mut left = Vec::new();
    release_mounts(folder, &mut left);
    end_processes(folder, &mut left);
    // A process that was ending may have mounted once more.
    release_mounts(folder, &mut left);
    for mount in mounts_below(folder) {
        left.push(format!("{} is still mounted", mount.point.display()));
    }
    if left.is_empty()
        && let Err(error) = std::fs::remove_dir_all(folder)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        left.push(format!("remove {}: {error}", folder.display()));
    }
    left
}

/// Cuts the connections of FUSE mounts, so that nothing stays stuck in them, and unmounts.
fn release_mounts(folder: &Path, left: &mut Vec<String>) {
    for mount in mounts_below(folder).into_iter().rev() {
        if mount.kind.starts_with("fuse") {
            abort_fuse(mount.minor, folder);
        }
        if let Err(error) = rustix::mount::unmount(&mount.point, UnmountFlags::DETACH) {
            left.push(format!("unmount {}: {error}", mount.point.display()));
        }
    }
}

/// Takes away what is mounted at this very place, however dead.
///
/// # Panics
/// When the kernel refuses.
pub fn release_mount(point: &Path) {
    for mount in mounts_below(point).into_iter().rev() {
        rustix::mount::unmount(&mount.point, UnmountFlags::DETACH).expect("unmount");
    }
}

/// Ends a FUSE connection whose server no longer answers: every call that waits in it fails.
pub fn abort_fuse(minor: u32, folder: &Path) {
    let entry = format!("{minor}/abort");
    if std::fs::write(Path::new("/sys/fs/fuse/connections").join(&entry), "1").is_ok() {
        return;
    }
    let control = folder.join(format!(".control-{}", std::process::id()));
    if std::fs::create_dir(&control).is_err() {
        return;
    }
    if rustix::mount::mount("none", &control, "fusectl", MountFlags::empty(), None).is_ok() {
        let _ = std::fs::write(control.join(&entry), "1");
        let _ = rustix::mount::unmount(&control, UnmountFlags::DETACH);
    }
    let _ = std::fs::remove_dir(&control);
}

/// A mount of this process's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Where.
    pub point: PathBuf,
    /// Minor number of its device: names a FUSE connection.
    pub minor: u32,
    /// Type of the file system.
    pub kind: String,
    /// What is mounted.
    pub source: String,
}

/// The mounts at and below a folder, in the order in which they were made.
///
/// # Panics
/// When `/proc` does not list them.
#[must_use]
pub fn mounts_below(folder: &Path) -> Vec<Mount> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").expect("read mountinfo");
    text.lines()
        .filter_map(parse_mount)
        .filter(|mount| mount.point.starts_with(folder))
        .collect()
}

fn parse_mount(line: &str) -> Option<Mount> {
    let (front, back) = line.split_once(" - ")?;
    let mut front = front.split(' ');
    let device = front.nth(2)?;
    let point = front.nth(1)?;
    let mut back = back.split(' ');
    Some(Mount {
        point: PathBuf::from(unescape(point)),
        minor: device.split_once(':')?.1.parse().ok()?,
        kind: back.next()?.to_owned(),
        source: unescape(back.next()?),
    })
}

/// The kernel writes blanks and the like as three octal digits.
fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 4);
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => out.push(byte.into()),
            None => out.push_str("\\???"),
        }
        rest = rest.get(at + 4..).unwrap_or("");
    }
    out + rest
}

fn end_processes(folder: &Path, left: &mut Vec<String>) {
    for pid in processes_of(folder) {
        let Some(handle) = Pid::from_raw(pid) else {
            continue;
        };
        let _ = rustix::process::kill_process(handle, Signal::KILL);
        if !await_exit(handle, KILL_LIMIT) {
            left.push(format!("process {pid} does not end"));
        }
    }
}

/// The processes, without this one and wardens, that were started for this folder: it is in their
/// environment or their arguments, or they work in it.
#[must_use]
pub fn processes_of(folder: &Path) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let own = std::process::id();
    let mut found: Vec<i32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &i32| u32::try_from(*pid).is_ok_and(|pid| pid != own))
        .filter(|pid| works_for(*pid, folder))
        .collect();
    found.sort_unstable();
    found
}

fn works_for(pid: i32, folder: &Path) -> bool {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let comm = std::fs::read_to_string(proc.join("comm")).unwrap_or_default();
    if comm.starts_with("xtfs-test-warde") || is_zombie(&proc) {
        return false;
    }
    let needle = folder.as_os_str().as_encoded_bytes();
    let names = |file: &str| {
        std::fs::read(proc.join(file))
            .is_ok_and(|bytes| bytes.windows(needle.len()).any(|part| part == needle))
    };
    names("cmdline")
        || names("environ")
        || std::fs::read_link(proc.join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder))
}

fn is_zombie(proc: &Path) -> bool {
    std::fs::read_to_string(proc.join("stat"))
        .ok()
        .and_then(|stat| {
            stat.rsplit_once(')')
                .map(|(_, rest)| rest.starts_with(" Z"))
        })
        .unwrap_or(true)
}

/// A program that was built beside this one.
///
/// # Panics
/// When it is not there.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("path of this program");
    let mut folder = own.parent();
    while let Some(at) = folder {
        let candidate = at.join(name);
        if candidate.is_file() {
            return candidate;
        }
        if at.ends_with("target") {
            break;
        }
        folder = at.parent();
    }
    panic!(
        "no program {name} near {}: run 'cargo build --workspace --bins' first",
        own.display()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_understood() {
        let line = "36 35 0:98 / /mnt\\040one rw,noatime shared:1 - fuse.xtfs my\\040source rw";
        let mount = parse_mount(line).unwrap();
        assert_eq!(mount.point, Path::new("/mnt one"));
        assert_eq!(mount.minor, 98);
        assert_eq!(mount.kind, "fuse.xtfs");
        assert_eq!(mount.source, "my source");
    }

    #[test]
    fn a_process_is_found_by_its_folder_and_ended() {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new("sleep")
            .arg("1000")
            .current_dir(folder.path())
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert_eq!(processes_of(folder.path()), [pid]);
        assert_eq!(clean(folder.path()), Vec::<String>::new());
        assert!(!child.wait().unwrap().success());
        assert!(!folder.path().exists());
    }
}
