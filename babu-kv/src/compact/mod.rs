//! Compaction: tables move down the levels, and what is no longer needed is left out.

mod pick;
mod run;

pub(crate) use pick::{Job, Places};
