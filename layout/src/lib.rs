//! Where the bytes of a file live.
//!
//! A file is a row of *objects* of `object_size` bytes. Object `i` is stored as `k` data and `m`
//! parity *shards*; with `k = 1, m = 0` the one shard is the object itself. Shards rotate over the
//! OSDs of the file's *placement*. Everything here is arithmetic: no I/O, no clock, no randomness,
//! so the client, the OSD and the tools that use it always agree.
//!
//! Read in this order:
//! - [`Layout`] — the parameters of a file and their bounds;
//! - [`Span`] and [`spans`] — a byte range cut at object boundaries;
//! - [`cut`] — what a truncation keeps.
#![warn(missing_docs)]

mod arithmetic;
mod parameters;

pub use arithmetic::{Cut, Span, cut, object_count, spans};
pub use parameters::{Layout, LayoutError};
