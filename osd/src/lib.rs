//! The object storage daemon of xtfs: keeps the bytes of files as objects.
//!
//! What always holds:
//! - a write is all there or not at all, for readers and after a crash;
//! - what was acknowledged as written survives the end of the process, what was acknowledged as
//!   durable survives loss of power, and after a crash the state is a prefix of what was done;
//! - every byte lies under a checksum that is checked at every read; bytes that do not check give
//!   an error that names them, and never get a good checksum;
//! - a client can do only what its capability says, and nothing that a truncation or deletion
//!   overtook;
//! - a full disk refuses writes and damages nothing; reads and deletions go on.
//!
//! Read in this order:
//! - [`OsdOptions`] — where, who, how large;
//! - [`Osd`] — answers calls, is started and shut down;
//! - `heartbeat` and `worker` — what runs beside the calls;
//! - `store` — segments, index, recovery: begin with its module comment;
//! - [`StoreError`] — what can go wrong.
#![warn(missing_docs)]

mod bytes;
mod error;
mod heartbeat;
mod options;
mod server;
mod store;
mod worker;

pub use error::StoreError;
pub use options::OsdOptions;
pub use server::Osd;
