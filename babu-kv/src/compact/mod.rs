//! Compaction: tables move down the levels, and what is no longer needed is left out.

mod cut;
mod job;
#[cfg(test)]
mod model;
mod output;
mod pace;
mod pick;
mod run;
mod shape;

pub(crate) use output::Outputs;
pub(crate) use pace::{Debt, level0_stop};
pub(crate) use pick::level0_runs;
