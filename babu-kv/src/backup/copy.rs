//! Reads and copies whole files, never without a look at the checksum.

use crate::{
    error::{Context, Error, Result},
    fs::{File, Fs, Open},
};
use std::path::Path;
use xxhash_rust::xxh3::Xxh3;

/// Bytes that are read and written at once.
const CHUNK_BYTES: u64 = 1 << 20;

/// An open file and what it is called in errors.
pub(super) struct Source<'a> {
    pub file: &'a dyn File,
    pub path: &'a Path,
}

impl Source<'_> {
    /// Hands out the file piece by piece; gives its XXH3-64. It must have `bytes` bytes.
    fn read(&self, bytes: u64, mut take: impl FnMut(&[u8], u64) -> Result<()>) -> Result<u64> {
        let length = self.file.len().at("measure", self.path)?;
        if length != bytes {
            let what = format!("it has {length} bytes instead of {bytes}");
            return Err(Error::corrupt(self.path, length.min(bytes), what));
        }
        let mut hasher = Xxh3::new();
        let mut buffer = vec![0; bytes.min(CHUNK_BYTES) as usize];
        let mut at = 0;
        while at < bytes {
            let n = (bytes - at).min(CHUNK_BYTES);
            let chunk = &mut buffer[..n as usize];
            self.file.read_exact_at(chunk, at).at("read", self.path)?;
            hasher.update(chunk);
            take(chunk, at)?;
            at += n;
        }
        Ok(hasher.digest())
    }

    pub(super) fn hash(&self, bytes: u64) -> Result<u64> {
        self.read(bytes, |_, _| Ok(()))
    }

    fn expect(&self, found: u64, hash: u64) -> Result<()> {
        if found == hash {
            Ok(())
        } else {
            let what = "the checksum of the file does not match";
            Err(Error::corrupt(self.path, 0, what))
        }
    }

    /// Reads all of it: the length and the checksum must match.
    pub(super) fn check(&self, bytes: u64, hash: u64) -> Result<()> {
        self.expect(self.hash(bytes)?, hash)
    }

    /// Copies it to the new file `to` and syncs that. What stays after an error is to be removed.
    pub(super) fn copy(&self, bytes: u64, hash: u64, fs: &dyn Fs, to: &Path) -> Result<()> {
        let target = fs.open(to, Open::CreateNew).at("create", to)?;
        let found = self.read(bytes, |chunk, at| {
            target.write_at(chunk, at).at("write", to)
        })?;
        self.expect(found, hash)?;
        target.sync_data().at("sync", to)
    }
}
