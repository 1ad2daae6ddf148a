//! Backups: a folder that takes in one backup of a database after the other, and gives each of them
//! back.
//!
//! ```text
//! folder   = content files · manifests · LOCK
//! content file  HASH-BYTES.table | HASH-BYTES.log     a table or a closed log segment, byte for byte; HASH is its XXH3-64
//!                                                     in 16 hex digits, BYTES its length in decimal
//! manifest      NNNNNN.backup                         what one backup consists of: a number of six digits or more
//! *.part                                              on its way; of no use after a crash, and removed by the next backup
//!
//! manifest = magic "babuback" · version u32 · body · XXH3-64 of all before                integers little endian
//! body     = number · sequence · new bytes (all varint)
//!          · 0 | 1 · time in seconds since 1970 varint
//!          · log files varint · (segment number · bytes · XXH3-64, all varint)*
//!          · edit                                     to the end: the tables in their levels, as in the manifest of a database
//!                                                     (see `manifest/format.rs`)
//! ```
//!
//! Files of a database that a backup needs never change, and here they are named by what they hold.
//! So backups share them, and only those that are not there yet travel: each backup is complete, and
//! yet costs only what is new since the one before. Where a database has few tables, each in a file
//! of megabytes, compaction decides how much that is.
//!
//! What always holds:
//! - A content file is on disk as a whole before it gets its name, and all names are on disk before
//!   the manifest gets its own. A backup that fails or is killed half-way leaves the earlier ones as
//!   they were, and is not listed. What it had copied already does not travel again.
//! - A backup holds what was committed before one instant, in all indices, and nothing after it.
//! - Nothing is taken from the database, and nothing given back, whose checksum does not match.
//! - One process at a time writes to a folder ([`Error::Locked`](crate::Error::Locked) otherwise);
//!   [`list`], [`verify`] and [`restore`] only read, and do not need to write there.
//!
//! A backup can also travel as one stream, made by [`Database::backup_to`](crate::Database::backup_to)
//! or from a folder by [`send`], and taken in by [`receive`] or [`restore_stream`]; `stream.rs` opens
//! with its layout.
//!
//! ```
//! use babu_kv::{Batch, Database, Durability, Options, backup, fs::RealFs};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let (data, safe, again) = (dir.path().join("data"), dir.path().join("safe"), dir.path().join("again"));
//! let database = Database::open(&data, Options::default())?;
//! let names = database.index("names")?;
//! let mut batch = Batch::new();
//! batch.put(&names, b"readme", b"7");
//! database.write(batch, Durability::Synced)?;
//!
//! let made = database.backup(&safe)?;
//! assert!(backup::verify(&RealFs, &safe, made.number)?.damage.is_empty());
//! backup::restore(&RealFs, &safe, made.number, &again)?;
//!
//! let restored = Database::open(&again, Options::default())?;
//! let names = restored.index("names")?;
//! assert_eq!(restored.get(&names, b"readme")?.as_deref(), Some(b"7".as_slice()));
//! # Ok(())
//! # }
//! ```

mod copy;
mod folder;
mod format;
mod make;
mod restore;
mod stream;

pub use folder::{Pruned, contents, list, prune};
pub use restore::{Report, restore, restore_with, verify, verify_with};
pub use stream::{receive, restore_stream, send};

/// One backup in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backup {
    /// Its number in the folder: later ones have higher numbers.
    pub number: u64,
    /// When it was made, in seconds since 1970, if who made it said so.
    pub time: Option<u64>,
    /// The sequence number of the last operation in it.
    pub sequence: u64,
    /// Bytes that were not in the folder before and were copied for it.
    pub bytes_new: u64,
    /// The files in the folder that it consists of, besides its manifest.
    pub files: Vec<BackupFile>,
}

/// A content file in the folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct BackupFile {
    /// Its name in the folder.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// XXH3-64 of all of it.
    pub hash: u64,
}

impl Backup {
    /// Bytes of all its files, whether other backups share them or not.
    pub fn bytes(&self) -> u64 {
        self.files
            .iter()
            .fold(0, |sum, file| sum.saturating_add(file.bytes))
    }
}
