//! Mounting, waiting for the end, unmounting.
//!
//! Root mounts by itself, so that source and type stand in the mount table letter for letter;
//! others go through `fusermount3`.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::mount::UnmountFlags;
use tokio::runtime::Handle;
use tokio::sync::watch;
use xtfs_protocol::ids::Ino;
use xtfs_protocol::{Code, Error, Result};

pub use rustix::mount::MountFlags;

use super::filesystem::Adaptor;
use super::kernel::fusermount;
use super::kernel::interrupts::Interrupts;
use super::kernel::reply::Notifier;
use super::kernel::session::{Serve, Session};
use crate::background::Tasks;
use crate::vfs::{Invalidate, Vfs};

/// How long an ordinary unmount may take before the mount is detached.
const UNMOUNT_MAX: Duration = Duration::from_secs(10);
/// What the kernel reads ahead, in KiB: one request of the largest size.
const KERNEL_READ_AHEAD_KIB: u32 = 1024;

/// How and where to mount. Set-id bits and device files work when root mounts.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// An existing directory.
    pub mountpoint: PathBuf,
    /// What the mount table shows as source.
    pub source: String,
    /// Flags of mount(2), such as `RDONLY` and `NOATIME`. Users other than root may set those that
    /// `fusermount3` knows; the rest is left out.
    pub flags: MountFlags,
    /// Every user may use the mount; otherwise only who mounted it.
    pub allow_other: bool,
}

impl MountOptions {
    /// Good defaults: for root, open to every user as a disk is; for others, private.
    #[must_use]
    pub fn new(mountpoint: impl Into<PathBuf>, source: impl Into<String>) -> Self {
        Self {
            mountpoint: mountpoint.into(),
            source: source.into(),
            flags: MountFlags::empty(),
            allow_other: rustix::process::geteuid().is_root(),
        }
    }
}

/// A live mount. Dropping it leaves the mount in place; see [`Mounted::unmount`].
pub struct Mounted {
    mountpoint: PathBuf,
    device: Option<u32>,
    ended: watch::Receiver<bool>,
    watcher: Mutex<Option<thread::JoinHandle<()>>>,
}

impl Mounted {
    /// Waits until the mount is gone, whoever unmounted it, and every request was answered.
    pub async fn wait_unmounted(&self) {
        let mut ended = self.ended.clone();
        // An error means that the watching thread is gone, and the mount with it.
        let _ = ended.wait_for(|ended| *ended).await;
        let watcher = self.watcher.lock().take();
        if let Some(watcher) = watcher
            && watcher.join().is_err()
        {
            tracing::error!("the thread that watches the mount failed");
        }
    }

    /// Where it is mounted.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Unmounts. Where that is refused or takes too long because the mount is in use, it is
    /// detached: the name is free at once, and open files go on until they are closed. Returns
    /// within some 20 seconds in every case. May block: not for a runtime's threads.
    ///
    /// # Errors
    /// The kernel refuses even to detach.
    pub fn unmount(&self) -> Result<()> {
        if *self.ended.borrow() {
            return Ok(());
        }
        let failed = |error: io::Error| {
            let text = format!("unmount {}: {error}", self.mountpoint.display());
            Error::new(Code::Io, text)
        };
        match self.unmount_in_time() {
            Some(Ok(())) => {}
            Some(Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT)) => return Ok(()),
            Some(Err(rustix::io::Errno::PERM)) => {
                fusermount_detach(&self.mountpoint).map_err(failed)?
            }
            Some(Err(_)) | None => {
                tracing::info!(mountpoint = %self.mountpoint.display(), "in use: detaching");
                let detached = rustix::mount::unmount(&self.mountpoint, UnmountFlags::DETACH);
                detached.map_err(|error| failed(error.into()))?;
            }
        }
        if !self.ends_within(UNMOUNT_MAX) {
            self.abort();
            self.ends_within(Duration::from_secs(1));
        }
        Ok(())
    }

    fn unmount_in_time(&self) -> Option<std::result::Result<(), rustix::io::Errno>> {
        let (tell, told) = mpsc::sync_channel(1);
        let mountpoint = self.mountpoint.clone();
        let spawned = thread::Builder::new()
            .name("xtfs-unmount".to_owned())
            .spawn(move || {
                // Nobody listens any more when it took too long.
                let _ = tell.send(rustix::mount::unmount(&mountpoint, UnmountFlags::empty()));
            });
        let waiting = spawned.ok()?;
        let outcome = told.recv_timeout(UNMOUNT_MAX).ok()?;
        if waiting.join().is_err() {
            return None;
        }
        Some(outcome)
    }

    fn ends_within(&self, limit: Duration) -> bool {
        let step = Duration::from_millis(5);
        let mut left = limit;
        while !*self.ended.borrow() {
            if left.is_zero() {
                return false;
            }
            thread::sleep(step.min(left));
            left = left.saturating_sub(step);
        }
        true
    }

    /// Ends the connection: what still waits for an answer gets an error.
    fn abort(&self) {
        if let Some(device) = self.device {
            let path = format!("/sys/fs/fuse/connections/{device}/abort");
            if let Err(error) = fs::write(&path, "1") {
                tracing::warn!(path, %error, "could not abort the connection");
            }
        }
    }
}

/// Mounts a volume; returns when the mount is live. The runtime carries on what cannot be
/// answered at once.
///
/// # Errors
/// The mount point does not exist or the kernel refuses.
pub fn mount(vfs: Vfs, runtime: Handle, options: MountOptions) -> Result<Mounted> {
    let tasks = Arc::new(Tasks::new(runtime.clone()));
    let adaptor = Adaptor {
        vfs: vfs.clone(),
        runtime: runtime.clone(),
        tasks: Arc::clone(&tasks),
        interrupts: Arc::new(Interrupts::default()),
    };
    let unread = MountFlags::NOATIME | MountFlags::RDONLY;
    if options.flags.intersects(unread) {
        vfs.keep_access_times();
    }
    let limit = vfs.op_deadline();
    let told = vfs.clone();
    mount_filesystem(
        adaptor,
        &options,
        |notifier| vfs.set_invalidate(Some(Arc::new(KernelCache(notifier)))),
        move || {
            told.set_invalidate(None);
            runtime.block_on(tasks.finish(limit));
        },
    )
}

/// Mounts any file system; `live` is told how to reach the kernel's caches, `end` runs when the
/// mount is gone.
pub(crate) fn mount_filesystem(
    filesystem: impl Serve,
    options: &MountOptions,
    live: impl FnOnce(Notifier),
    end: impl FnOnce() + Send + 'static,
) -> Result<Mounted> {
    let failed = |error: io::Error| {
        let text = format!("mount {}: {error}", options.mountpoint.display());
        Error::new(Code::Io, text)
    };
    let mountpoint = options.mountpoint.canonicalize().map_err(failed)?;
    let is_root = rustix::process::geteuid().is_root();
    let device = if is_root {
        mount_as_root(&mountpoint, options)
    } else {
        mount_as_user(&mountpoint, options)
    };
    let device = device.map_err(failed)?;
    let served = Session::start(device, filesystem).and_then(|session| {
        let notifier = Notifier(session.device());
        let serving = session.spawn(threads())?;
        Ok((notifier, serving))
    });
    let (notifier, serving) = match served {
        Ok(served) => served,
        Err(error) => {
            // Nobody answers for this mount. Whoever may not unmount it gets errors from it.
            let _ = rustix::mount::unmount(&mountpoint, UnmountFlags::DETACH);
            return Err(failed(error));
        }
    };
    live(notifier);
    let device = device_of(&mountpoint);
    if let Some(minor) = device {
        set_kernel_read_ahead(minor);
    }
    let (tell, ended) = watch::channel(false);
    let watcher = thread::Builder::new()
        .name("xtfs-mount".to_owned())
        .spawn(move || {
            if let Err(error) = serving.join() {
                tracing::error!(%error, "serving the kernel ended with an error");
            }
            end();
            tell.send_replace(true);
        })
        .map_err(failed)?;
    Ok(Mounted {
        mountpoint,
        device,
        ended,
        watcher: Mutex::new(Some(watcher)),
    })
}

/// Threads that take requests from the kernel: those of one core share little, and an operation
/// that waits for a disk holds one.
fn threads() -> usize {
    thread::available_parallelism().map_or(4, |cores| cores.get().clamp(4, 16))
}

fn mount_as_root(mountpoint: &Path, options: &MountOptions) -> io::Result<File> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse")?;
    let data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions{}",
        device.as_raw_fd(),
        if options.allow_other {
            ",allow_other"
        } else {
            ""
        },
    );
    let source = if options.source.is_empty() {
        "xtfs"
    } else {
        &options.source
    };
    rustix::mount::mount(
        source,
        mountpoint,
        "fuse.xtfs",
        options.flags,
        CString::new(data)?.as_c_str(),
    )?;
    Ok(device)
}

fn mount_as_user(mountpoint: &Path, options: &MountOptions) -> io::Result<File> {
    // A comma would end the option.
    let source = options.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut words = vec![
        format!("fsname={source}"),
        "subtype=xtfs".to_owned(),
        "default_permissions".to_owned(),
    ];
    let known = [
        (MountFlags::RDONLY, "ro"),
        (MountFlags::NOATIME, "noatime"),
        (MountFlags::NOEXEC, "noexec"),
        (MountFlags::SYNCHRONOUS, "sync"),
        (MountFlags::DIRSYNC, "dirsync"),
    ];
    let known = known
        .iter()
        .filter(|(flag, _)| options.flags.contains(*flag));
    words.extend(known.map(|(_, word)| (*word).to_owned()));
    if options.allow_other {
        words.push("allow_other".to_owned());
    }
    fusermount::mount(mountpoint, &words.join(","))
}

fn fusermount_detach(mountpoint: &Path) -> io::Result<()> {
    let status = Command::new("fusermount3")
        .args(["-u", "-z", "--"])
        .arg(mountpoint)
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("fusermount3: {status}")))
    }
}

/// Minor device number of the file system mounted last at a path, from the mount table: asking
/// the file system itself could wait for the caller.
fn device_of(mountpoint: &Path) -> Option<u32> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let wanted = escape(mountpoint.to_str()?);
    table.lines().rev().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let device = fields.next()?;
        let place = fields.nth(1)?;
        (place == wanted).then(|| device.split_once(':')?.1.parse().ok())?
    })
}

/// As the mount table writes a path.
fn escape(path: &str) -> String {
    path.chars().fold(String::new(), |mut text, c| {
        match c {
            ' ' | '\t' | '\n' | '\\' => text.push_str(&format!("\\{:03o}", u32::from(c))),
            _ => text.push(c),
        }
        text
    })
}

/// The first exchange can only lower what the kernel offers. Where we may not raise it, reading is
/// slower.
fn set_kernel_read_ahead(minor: u32) {
    let path = format!("/sys/class/bdi/0:{minor}/read_ahead_kb");
    let written = File::options()
        .write(true)
        .open(&path)
        .and_then(|mut file| {
            io::Write::write_all(&mut file, KERNEL_READ_AHEAD_KIB.to_string().as_bytes())
        });
    if let Err(error) = written {
        tracing::debug!(path, %error, "the kernel's read-ahead stays as it is");
    }
}

/// The kernel's caches of a mount.
struct KernelCache(Notifier);

impl Invalidate for KernelCache {
    fn inode(&self, ino: Ino) {
        if let Err(error) = self.0.inval_inode(ino, 0) {
            tracing::debug!(ino, %error, "the kernel did not take an invalidation");
        }
    }

    fn attributes(&self, ino: Ino) {
        if let Err(error) = self.0.inval_inode(ino, -1) {
            tracing::debug!(ino, %error, "the kernel did not take an invalidation");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_in_the_mount_table_as_it_writes_them() {
        assert_eq!(escape("/a b\\c"), "/a\\040b\\134c");
        assert!(device_of(Path::new("/proc")).is_some());
        assert_eq!(device_of(Path::new("/no such place")), None);
    }
}
