//! A file system that makes room when the process has no descriptors left.
//!
//! Other parts of the process, or other databases in it, may eat up the descriptors. Then the
//! tables that a database has open are the ones that can be done without: half of those of every
//! database are closed, and the call is tried once more.

use super::readers::Readers;
use crate::fs::{File, Fs, Lock, Open, Space};
use parking_lot::Mutex;
use std::{
    io,
    path::Path,
    sync::{Arc, Weak},
};

/// Descriptors belong to the process, and so does the list of those who can spare some. Each
/// database is in it once, from its opening until its end.
static READERS: Mutex<Vec<Weak<Readers>>> = Mutex::new(Vec::new());

#[derive(Debug)]
pub(crate) struct Sparing {
    fs: Arc<dyn Fs>,
}

impl Sparing {
    pub(crate) fn new(fs: Arc<dyn Fs>, readers: &Arc<Readers>) -> Sparing {
        let mut all = READERS.lock();
        all.retain(|readers| readers.strong_count() > 0);
        all.push(Arc::downgrade(readers));
        Sparing { fs }
    }

    fn with<T>(&self, call: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match call() {
            Err(error) if is_exhausted(&error) && close_some() => call(),
            result => result,
        }
    }
}

/// Whether the process or the system has no descriptors left.
fn is_exhausted(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::MFILE, Errno::NFILE]
        .iter()
        .any(|e| error.raw_os_error() == Some(e.raw_os_error()))
}

fn close_some() -> bool {
    // Files are closed outside of the lock.
    let all: Vec<_> = READERS.lock().iter().filter_map(Weak::upgrade).collect();
    all.iter().filter(|readers| readers.close_half()).count() > 0
}

impl Fs for Sparing {
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>> {
        self.with(|| self.fs.open(path, how))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.fs.exists(path)
    }

    fn file_len(&self, path: &Path) -> io::Result<u64> {
        self.fs.file_len(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fs.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.fs.remove(path)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fs.hard_link(from, to)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.with(|| self.fs.list(dir))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.with(|| self.fs.sync_dir(dir))
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.fs.create_dir_all(dir)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.fs.remove_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        self.with(|| self.fs.lock(path))
    }

    fn space(&self, dir: &Path) -> io::Result<Space> {
        self.fs.space(dir)
    }
}
