//! Cached bytes of files: clean and dirty, bounded, per object.
//!
//! - [`ranges`] — sets of byte ranges;
//! - [`object`] — the bytes of one object;
//! - [`budget`] — how much may be cached and dirty, and what leaves first.

pub(crate) mod budget;
pub(crate) mod object;
pub(crate) mod ranges;
