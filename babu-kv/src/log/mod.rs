//! The log: what is committed, in order, before it reaches a table.

pub(crate) mod format;
pub(crate) mod reader;
pub(crate) mod seal;
pub(crate) mod spare;
pub(crate) mod writer;
