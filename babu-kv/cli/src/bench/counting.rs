//! The operating system's files, counting what is written and synced.

use babu_kv::fs::{File, Fs, Lock, Open, RealFs, Space};
use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// What was done to files so far.
#[derive(Debug, Default)]
pub struct Counts {
    pub syncs: AtomicU64,
    pub log_bytes: AtomicU64,
    /// Bytes written to tables and manifests.
    pub other_bytes: AtomicU64,
}

#[derive(Clone, Debug, Default)]
pub struct CountingFs(pub Arc<Counts>);

#[derive(Debug)]
struct CountingFile {
    file: Arc<dyn File>,
    counts: Arc<Counts>,
    is_log: bool,
}

impl File for CountingFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let bytes = if self.is_log {
            &self.counts.log_bytes
        } else {
            &self.counts.other_bytes
        };
        bytes.fetch_add(data.len() as u64, Relaxed);
        self.file.write_at(data, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.counts.syncs.fetch_add(1, Relaxed);
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
        Ok(Arc::new(CountingFile {
            file: RealFs.open(path, how)?,
            counts: self.0.clone(),
            is_log: path.extension().is_some_and(|e| e == "log"),
        }))
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
        self.0.syncs.fetch_add(1, Relaxed);
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
