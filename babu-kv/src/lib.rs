//! An embedded key-value engine: a log-structured merge tree with atomic batches over several
//! indices, snapshots, checkpoints and backups.
//!
//! A *database* is a folder. It holds named *indices*, which are ordered maps of bytes to bytes and
//! share one log. A *batch* changes several indices at once, atomically. Everything is synchronous;
//! callers decide on which thread it runs.
//!
//! ```
//! use babu_kv::{Batch, Database, Durability, Options};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! let database = Database::open(dir.path(), Options::default())?;
//! let names = database.index("names")?;
//! let owners = database.index("owners")?;
//!
//! let mut batch = Batch::new();
//! batch.put(&names, b"readme", b"7");
//! batch.put(&owners, b"7", b"root");
//! database.write(batch, Durability::Synced)?;
//!
//! let snapshot = database.snapshot();
//! assert_eq!(snapshot.get(&names, b"readme")?.as_deref(), Some(b"7".as_slice()));
//! for entry in snapshot.prefix(&owners, b"").rev() {
//!     let (key, value) = entry?;
//!     assert_eq!((&*key, &*value), (b"7".as_slice(), b"root".as_slice()));
//! }
//! database.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # What always holds
//!
//! - When a write returns, its batch is visible as a whole and survives the end of the process;
//!   synced, it survives power loss. After a crash the database is what some prefix of the batches
//!   made of it, with every acknowledged one in it.
//! - Everything read from disk is checked first. Damage gives [`Error::Corrupt`] with file and
//!   offset, never a wrong answer and never a panic.
//! - A reader never waits for a writer, and keeps what it reads from for as long as it reads.
//! - A full disk or a failed sync gives an error to those who wait for it. Reads go on, and writes
//!   work again when the cause is gone.
//!
//! # Parts, in reading order
//!
//! | module | what lives there |
//! |---|---|
//! | `db`, `batch`, `snapshot`, `iter` | the public face |
//! | `keys`, `coding`, `slice` | full keys and ranges, integers in files, bytes that keep their buffer alive |
//! | `core` | the database behind the handles; who touches what |
//! | `indices` | creating and dropping indices |
//! | `commit`, `sync` | the order of writers; which batches are durable |
//! | `log` | segments of the log: format, writing, replay |
//! | `memtable`, `state`, `multi_get` | the newest entries; what a reader reads; many keys at once |
//! | `tombstones` | deleted ranges, arranged for questions |
//! | `table`, `cache`, `memory` | sorted tables: format, building, reading; what stays in memory |
//! | `pins` | what snapshots hold, and how they let go |
//! | `stats`, `metrics`, `events` | what can be seen from the outside |
//! | `manifest` | which files make up the database |
//! | `flush`, `compact`, `idle`, `worker` | from memory to disk and down the levels |
//! | `threads` | what threads meet in, so that a scheduler can take their place |
//! | `open`, `read_only`, `checkpoint`, `verify` | the beginning, also beside the owner; copies, and whether all is well |
//! | [`backup`] | folders of backups that share what is equal; verify, restore, prune |
//! | [`repair`](mod@repair) | what is left of a damaged database, made into one that opens |
//! | [`fs`] | the file system: real, in memory, faulty |

#![warn(missing_docs)]

pub mod backup;
mod batch;
mod cache;
mod checkpoint;
mod coding;
mod commit;
mod compact;
mod core;
mod db;
mod error;
mod events;
mod flush;
pub mod fs;
mod idle;
mod indices;
mod iter;
mod keys;
mod log;
mod manifest;
mod memory;
mod memtable;
mod metrics;
mod multi_get;
mod open;
mod options;
mod pins;
mod progress;
mod read_only;
pub mod repair;
mod slice;
mod snapshot;
mod state;
mod stats;
mod sync;
mod table;
mod threads;
mod tombstones;
mod verify;
mod worker;

pub use batch::{BATCH_BYTES_MAX, Batch, KEY_BYTES_MAX, VALUE_BYTES_MAX};
pub use db::{Database, Index, Ticket};
pub use error::{Error, Result};
pub use events::{Event, Listener};
pub use iter::Iter;
pub use options::{Background, Compression, Durability, IndexOptions, Options};
pub use progress::Progress;
pub use slice::{Key, Value};
pub use snapshot::Snapshot;
pub use stats::{LevelStats, Stats};
pub use verify::Verified;
