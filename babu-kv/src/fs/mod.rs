//! The file system as this crate sees it.
//!
//! Every byte that the engine reads or writes goes through [`Fs`] and [`File`], so that the same
//! code runs on a real disk ([`RealFs`]), in memory with crash images ([`MemoryFs`]), and with
//! faults injected at any call ([`FaultyFs`]).
//!
//! What holds for every implementation:
//! - a write is volatile until [`File::sync_data`] of that file returns; a new name, a rename, a
//!   link or a removal is volatile until [`Fs::sync_dir`] of the folder returns;
//! - [`File::write_at`] writes everything or returns an error, after which any part may have been
//!   written;
//! - reads and writes at an offset may run from many threads on one handle.

mod faulty;
mod memory;
mod real;

pub use faulty::{Fault, FaultyFs};
pub use memory::{Crash, MemoryFs};
pub use real::RealFs;

use std::{fmt, io, path::Path, sync::Arc};

/// How [`Fs::open`] opens a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// An existing file, for reading.
    Read,
    /// An existing file, for reading and writing.
    Write,
    /// A file for reading and writing, created when missing and emptied when present.
    Create,
    /// A file for reading and writing that must not exist yet.
    CreateNew,
}

/// Size and free bytes of the file system that holds a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Size in bytes.
    pub total_bytes: u64,
    /// Bytes that can still be written.
    pub free_bytes: u64,
}

/// An open file.
pub trait File: Send + Sync + fmt::Debug {
    /// Reads up to `buffer.len()` bytes at `offset`; fewer only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `data` at `offset`, extending the file where needed.
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
    /// Makes content and length durable. After an error the state of unsynced bytes is unknown: do
    /// not sync this file again.
    fn sync_data(&self) -> io::Result<()>;
    /// Cuts or extends (with zeros) to `length` bytes.
    fn set_len(&self, length: u64) -> io::Result<()>;
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file holds no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Reserves room for `length` bytes at `offset` where the file system can; a hint that may do
    /// nothing.
    fn preallocate(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }
    /// Fills `buffer` from `offset`; `UnexpectedEof` when the file ends before.
    fn read_exact_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            let n = self.read_at(buffer, offset)?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            buffer = buffer.split_at_mut(n).1;
            offset += n as u64;
        }
        Ok(())
    }
}

/// A held lock; released on drop.
pub trait Lock: Send + Sync + fmt::Debug {}

/// A file system.
pub trait Fs: Send + Sync + fmt::Debug {
    /// Opens a file.
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>>;
    /// Whether a file or folder of this name exists.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// Length of the file of this name in bytes.
    fn file_len(&self, path: &Path) -> io::Result<u64>;
    /// Renames a file, replacing `to` when it exists.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file's name.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Gives a file a second name, which must not exist.
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Names in a folder, sorted; names that are not UTF-8 are left out.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Makes the names in a folder durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Creates a folder and its missing parents; no error when it exists.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;
    /// Removes an empty folder.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;
    /// Takes the lock file `path` (created when missing) exclusively, across processes and within
    /// this one; `WouldBlock` when held.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>>;
    /// Size and free bytes of the file system that holds `dir`.
    fn space(&self, dir: &Path) -> io::Result<Space>;
}
