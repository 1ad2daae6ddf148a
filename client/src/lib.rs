//! The xtfs client: a mounted volume, as a library and through FUSE.
//!
//! What always holds:
//! - a read sees this client's own writes at once, and what others closed before it opened;
//! - what `fsync` acknowledged is on the disks of the OSDs and of the MRC;
//! - an error of a write that was acknowledged early reaches every handle of the file, once;
//! - memory for clean and dirty bytes is bounded; writers wait at the bound;
//! - every operation ends by its deadline, and a change is never applied twice.
//!
//! Read in this order:
//! - [`vfs`] — the file system's operations, without FUSE;
//! - `session` — requests to the MRC and the OSDs, with retries;
//! - `cache` — bytes of objects, clean and dirty;
//! - `data` — between cache and OSDs: reading, writing, flushing, truncating;
//! - [`fuse`] — requests of the kernel become calls of the vfs;
//! - [`admin`] — what administrators and their tools ask a cell.
#![warn(missing_docs)]

pub mod admin;
mod background;
mod cache;
mod data;
pub mod fuse;
mod options;
mod session;
pub mod vfs;

pub use data::write::Write;
pub use options::ClientOptions;
pub use vfs::directory::Entries;
pub use vfs::locks::LockAsk;
pub use vfs::open::{OpenOptions, OpenedFile};
pub use vfs::space::{Allocate, Seek};
pub use vfs::{Found, Invalidate, Vfs};
