//! Compaction: tables move down the levels, and what is no longer needed is left out.

mod cut;
mod job;
#[cfg(test)]
mod model;
mod output;
mod pick;
mod run;
mod shape;

pub(crate) use output::Outputs;
pub(crate) use pick::level0_runs;
