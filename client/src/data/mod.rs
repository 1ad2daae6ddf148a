//! Objects of a file between the cache and the OSDs.
//!
//! - [`ahead`] — when to fetch more than was asked for;
//! - [`access`] — operations on objects under a capability that is renewed when refused;
//! - [`read`] — from the cache, the rest from the OSDs;
//! - [`write`] — into the cache;
//! - [`flush`] — from the cache to the OSDs, then to the MRC;
//! - [`truncate`] — shorter and longer.

pub(crate) mod access;
pub(crate) mod ahead;
pub(crate) mod flush;
pub(crate) mod read;
pub(crate) mod truncate;
pub(crate) mod write;
