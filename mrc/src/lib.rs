//! The metadata and replica catalog of an xtfs cell: volumes and their namespaces, sessions and
//! leases, placement of new files, deletion of old ones, and the directory of services.
//!
//! An [`Mrc`] keeps everything below one folder: `directory/` holds the services, the list of
//! volumes and the keys of capabilities; `volumes/UUID/` holds one volume each. All of them are
//! `babu-kv` databases.
//!
//! What always holds:
//! - a namespace operation is one pure step and one atomic batch; what was answered survives the
//!   end of the process, and what [`MetaOp::Sync`](xtfs_protocol::meta::MetaOp::Sync) answered
//!   survives loss of power;
//! - a changing request has one effect and one answer, however often it arrives;
//! - no lock is held while a disk flush or another peer is waited for;
//! - content is deleted on OSDs only when its removal here is durable, and then it is deleted,
//!   whatever restarts in between.
//!
//! Read in this order:
//! - `keys`, `records`, `inode`, `acl`, `quota`, `codec` — the bytes of a volume;
//! - `view`, `step` — what a namespace operation does, without I/O;
//! - `volume`, `database`, `replies`, `session`, `lease`, `locks` — one volume at work;
//! - `directory`, `placement` — the services, and where new files go;
//! - `catalog`, `server`, `admin` — all volumes, and how calls reach them;
//! - `deletion`, `workers` — what happens in the background.
#![warn(missing_docs)]

mod acl;
mod admin;
mod catalog;
mod codec;
mod database;
mod deletion;
mod directory;
mod error;
mod inode;
mod keys;
mod lease;
mod lingering;
mod locks;
mod placement;
mod quota;
mod records;
mod replies;
mod server;
mod session;
mod step;
mod view;
mod volume;
mod workers;

pub use server::{Mrc, MrcOptions};
