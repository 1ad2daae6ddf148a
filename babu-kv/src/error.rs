//! One error type: kinds that a caller can act on, context that a person can act on.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The result of most calls of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong. Cloning is cheap, because one failed write may be the answer to many waiting
/// writers.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call to the file system failed.
    #[error("{op} {path}: {source}", path = path.display())]
    Io {
        /// What was tried.
        op: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the file system answered.
        source: Arc<io::Error>,
    },
    /// The disk or quota is full. Nothing acknowledged is lost, and writes work again once there is
    /// room.
    #[error("{op} {path}: no space left", path = path.display())]
    NoSpace {
        /// What was tried.
        op: &'static str,
        /// On which file or folder.
        path: PathBuf,
    },
    /// Bytes on disk are not what was written.
    #[error("{file} is damaged at byte {offset}: {what}", file = file.display())]
    Corrupt {
        /// The damaged file.
        file: PathBuf,
        /// Where in it.
        offset: u64,
        /// What does not fit.
        what: String,
    },
    /// Another process, or another handle of this one, has the database open.
    #[error("database {path} is in use by another process", path = path.display())]
    Locked {
        /// The folder of the database.
        path: PathBuf,
    },
    /// The call makes no sense as given.
    #[error("invalid argument: {0}")]
    InvalidArgument(String),
    /// The database was opened for reading only.
    #[error("database {path} is open for reading only", path = path.display())]
    ReadOnly {
        /// The folder of the database.
        path: PathBuf,
    },
    /// A snapshot or iterator was older than allowed and had to let go of what it read from; see
    /// [`Options::snapshot_operations_max`](crate::Options::snapshot_operations_max).
    #[error("the snapshot of operation {sequence} is too old and holds nothing any more")]
    SnapshotTooOld {
        /// The number of the last operation that it saw.
        sequence: u64,
    },
    /// The database was closed.
    #[error("the database is closed")]
    Closed,
}

impl Error {
    pub(crate) fn io(op: &'static str, path: &Path, source: io::Error) -> Error {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Error::NoSpace { op, path }
            }
            _ => Error::Io {
                op,
                path,
                source: Arc::new(source),
            },
        }
    }

    pub(crate) fn corrupt(file: &Path, offset: u64, what: impl Into<String>) -> Error {
        Error::Corrupt {
            file: file.to_path_buf(),
            offset,
            what: what.into(),
        }
    }

    pub(crate) fn invalid(what: impl Into<String>) -> Error {
        Error::InvalidArgument(what.into())
    }
}

/// Adds operation and path to an `io::Error`.
pub(crate) trait Context<T> {
    fn at(self, op: &'static str, path: &Path) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn at(self, op: &'static str, path: &Path) -> Result<T> {
        self.map_err(|e| Error::io(op, path, e))
    }
}
