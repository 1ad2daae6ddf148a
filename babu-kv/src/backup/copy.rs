//! Reads and copies whole files, never without a look at the checksum.

use crate::{
    error::{Context, Error, Result},
    fs::{File, Fs, Open},
    progress::Meter,
};
use std::{path::Path, sync::Arc};
use xxhash_rust::xxh3::Xxh3;

/// Bytes that are read and written at once.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;

/// The first `bytes` bytes of an open file, and what it is called in errors.
pub(super) struct Source<'a> {
    pub file: Arc<dyn File>,
    pub path: &'a Path,
    pub bytes: u64,
}

impl Source<'_> {
    /// Opens a file that must have `bytes` bytes.
    pub(super) fn open<'a>(fs: &dyn Fs, path: &'a Path, bytes: u64) -> Result<Source<'a>> {
        let file = fs.open(path, Open::Read).at("open", path)?;
        let length = file.len().at("measure", path)?;
        if length != bytes {
            let what = format!("it has {length} bytes instead of {bytes}");
            return Err(Error::corrupt(path, length.min(bytes), what));
        }
        Ok(Source { file, path, bytes })
    }

    /// Hands out the file piece by piece; gives its XXH3-64.
    fn read(&self, mut take: impl FnMut(&[u8], u64) -> Result<()>) -> Result<u64> {
        let mut hasher = Xxh3::new();
        let mut buffer = vec![0; self.bytes.min(CHUNK_BYTES) as usize];
        let mut at = 0;
        while at < self.bytes {
            let n = (self.bytes - at).min(CHUNK_BYTES);
            let chunk = &mut buffer[..n as usize];
            self.file.read_exact_at(chunk, at).at("read", self.path)?;
            hasher.update(chunk);
            take(chunk, at)?;
            at += n;
        }
        Ok(hasher.digest())
    }

    pub(super) fn hash(&self) -> Result<u64> {
        self.read(|_, _| Ok(()))
    }

    /// Hands out all of it piece by piece; the checksum must match.
    pub(super) fn give(
        &self,
        hash: u64,
        meter: &mut Meter<'_>,
        mut take: impl FnMut(&[u8], u64) -> Result<()>,
    ) -> Result<()> {
        let found = self.read(|chunk, at| {
            take(chunk, at)?;
            meter.add(chunk.len() as u64);
            Ok(())
        })?;
        if found == hash {
            Ok(())
        } else {
            let what = "the checksum of the file does not match";
            Err(Error::corrupt(self.path, 0, what))
        }
    }

    /// Copies it to the new file `to` and syncs that. What stays after an error is to be removed.
    pub(super) fn copy(
        &self,
        hash: u64,
        meter: &mut Meter<'_>,
        fs: &dyn Fs,
        to: &Path,
    ) -> Result<()> {
        let target = fs.open(to, Open::CreateNew).at("create", to)?;
        self.give(hash, meter, |chunk, at| {
            target.write_at(chunk, at).at("write", to)
        })?;
        target.sync_data().at("sync", to)
    }
}
