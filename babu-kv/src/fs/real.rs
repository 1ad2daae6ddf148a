//! The operating system's files.

use super::{File, Fs, Lock, Open, Space};
use rustix::fs::{FallocateFlags, FlockOperation};
use std::{
    fs,
    io::{self, ErrorKind},
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
};

/// The operating system's file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealFs;

#[derive(Debug)]
struct RealFile(fs::File);

/// A held `flock`. It is released by name: closing the descriptor is not enough as long as a child
/// that is just being started has inherited it.
#[derive(Debug)]
struct RealLock {
    file: fs::File,
}

impl Lock for RealLock {}

impl Drop for RealLock {
    fn drop(&mut self) {
        // Should it fail, the end of the descriptor releases it.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

impl File for RealFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        loop {
            match self.0.read_at(buffer, offset) {
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                result => return result,
            }
        }
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn preallocate(&self, offset: u64, length: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.0, FallocateFlags::KEEP_SIZE, offset, length) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

impl Fs for RealFs {
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>> {
        let mut options = fs::OpenOptions::new();
        options.read(true);
        match how {
            Open::Read => &mut options,
            Open::Write => options.write(true),
            Open::Create => options.write(true).create(true).truncate(true),
            Open::CreateNew => options.write(true).create_new(true),
        };
        Ok(Arc::new(RealFile(options.open(path)?)))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn file_len(&self, path: &Path) -> io::Result<u64> {
        Ok(fs::metadata(path)?.len())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let dir = if dir.as_os_str().is_empty() {
            Path::new(".")
        } else {
            dir
        };
        fs::File::open(dir)?.sync_all()
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        fs::remove_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Box::new(RealLock { file }))
    }

    fn space(&self, dir: &Path) -> io::Result<Space> {
        let s = rustix::fs::statvfs(dir)?;
        Ok(Space {
            total_bytes: s.f_blocks.saturating_mul(s.f_frsize),
            free_bytes: s.f_bavail.saturating_mul(s.f_frsize),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_ends_though_a_child_has_inherited_its_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("LOCK");
        let file = fs::File::create(&path).unwrap();
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        let inherited = file.try_clone().unwrap();
        drop(RealLock { file });
        RealFs.lock(&path).unwrap();
        drop(inherited);
    }
}
