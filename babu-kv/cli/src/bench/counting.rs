//! The operating system's files, counting how often logs are synced.

use babu_kv::fs::{File, Fs, Lock, Open, RealFs, Space};
use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// `RealFs` that counts.
#[derive(Clone, Debug, Default)]
pub struct CountingFs {
    /// How often a log file was synced so far.
    pub syncs: Arc<AtomicU64>,
}

#[derive(Debug)]
struct CountingFile {
    file: Arc<dyn File>,
    syncs: Arc<AtomicU64>,
}

impl File for CountingFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(data, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.syncs.fetch_add(1, Relaxed);
        self.file.sync_data()
    }
    fn set_len(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn preallocate(&self, offset: u64, length: u64) -> io::Result<()> {
        self.file.preallocate(offset, length)
    }
}

impl Fs for CountingFs {
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>> {
        let file = RealFs.open(path, how)?;
        if path.extension().is_some_and(|e| e == "log") {
            let syncs = self.syncs.clone();
            return Ok(Arc::new(CountingFile { file, syncs }));
        }
        Ok(file)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        RealFs.exists(path)
    }
    fn file_len(&self, path: &Path) -> io::Result<u64> {
        RealFs.file_len(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealFs.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        RealFs.remove(path)
    }
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealFs.hard_link(from, to)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealFs.list(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealFs.sync_dir(dir)
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        RealFs.create_dir_all(dir)
    }
    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        RealFs.remove_dir(dir)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        RealFs.lock(path)
    }
    fn space(&self, dir: &Path) -> io::Result<Space> {
        RealFs.space(dir)
    }
}
