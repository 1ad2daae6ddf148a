//! What can go wrong in the store, and what the caller is told.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xtfs_protocol::ids::{FileId, ObjectId, ServiceId};
use xtfs_protocol::{Code, Error};

/// Result of the store.
pub(crate) type Result<T> = std::result::Result<T, StoreError>;

/// Why the store could not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A file operation failed.
    #[error("{what} {path}: {source}", path = path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the file system said.
        source: Arc<io::Error>,
    },
    /// The disk is full, or what is free is kept for the index and for deletions.
    #[error("no space left in {path}", path = path.display())]
    NoSpace {
        /// The store's folder.
        path: PathBuf,
    },
    /// Stored bytes do not check.
    #[error("object {object} bytes {offset}+{length} at {place}: {what}")]
    Damaged {
        /// The object.
        object: ObjectId,
        /// First byte within it.
        offset: u32,
        /// Bytes.
        length: u32,
        /// File and offset.
        place: String,
        /// What is wrong.
        what: &'static str,
    },
    /// A segment was removed because its bytes moved; look the object up again.
    #[error("segment {segment} is gone")]
    SegmentGone {
        /// The segment.
        segment: u64,
    },
    /// The file was truncated or deleted since the request was allowed.
    #[error("file {file}: {what}")]
    Outdated {
        /// The file.
        file: FileId,
        /// What happened to it.
        what: String,
    },
    /// A later write of the same client came before this one.
    #[error("object {object}: overtaken by a later write of the same client")]
    Overtaken {
        /// The object.
        object: ObjectId,
    },
    /// Bytes that were written before could not be made durable, and may be lost.
    #[error("writes to file {file} could not be made durable")]
    NotDurable {
        /// The file.
        file: FileId,
    },
    /// An fsync failed, or did not end in time.
    #[error("fsync of the segments: {what}")]
    Sync {
        /// What happened.
        what: &'static str,
    },
    /// The index failed.
    #[error("index: {0}")]
    Index(#[from] babu_kv::Error),
    /// An entry of the index cannot be read.
    #[error("index: an entry of `{index}` cannot be read")]
    IndexEntry {
        /// The index.
        index: &'static str,
    },
    /// The folder belongs to another OSD.
    #[error("{path} belongs to OSD {found}, not {wanted}", path = path.display())]
    ForeignFolder {
        /// The folder.
        path: PathBuf,
        /// Whose it is.
        found: String,
        /// Who wanted to open it.
        wanted: ServiceId,
    },
    /// Another process has the folder open.
    #[error("{path} is in use by another process", path = path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// An argument is out of its bounds.
    #[error("{0}")]
    Invalid(&'static str),
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        let context = error.to_string();
        match error {
            StoreError::NoSpace { .. } | StoreError::Index(babu_kv::Error::NoSpace { .. }) => {
                Error::new(Code::NoSpace, context)
            }
            StoreError::Damaged { .. }
            | StoreError::IndexEntry { .. }
            | StoreError::Index(babu_kv::Error::Corrupt { .. }) => {
                Error::new(Code::Corrupt, context)
            }
            // Who still waits for the answer sends it again, under a later number.
            StoreError::Overtaken { .. } => Error::retryable(Code::Busy, context, 0),
            StoreError::Outdated { .. } => Error::reopen(Code::BadCapability, context),
            StoreError::Invalid(_) => Error::new(Code::Invalid, context),
            StoreError::Io { .. }
            | StoreError::SegmentGone { .. }
            | StoreError::NotDurable { .. }
            | StoreError::Sync { .. }
            | StoreError::Index(_)
            | StoreError::ForeignFolder { .. }
            | StoreError::InUse { .. } => Error::new(Code::Io, context),
        }
    }
}

/// Says which operation on which file failed.
pub(crate) trait At<T> {
    fn at(self, what: &'static str, path: &Path) -> Result<T>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, what: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::NoSpace {
                path: path.to_path_buf(),
            },
            _ => StoreError::Io {
                what,
                path: path.to_path_buf(),
                source: Arc::new(source),
            },
        })
    }
}
