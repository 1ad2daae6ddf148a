//! How much writers are slowed: a pure function of what flush and compaction still have to do.
//!
//! A writer that is never slowed runs ahead of compaction until it must stop, and then waits for
//! seconds. Slowed in proportion to the debt, it comes to run as fast as compaction does, and no
//! single write waits long. (It must stop when memory for more is not there; see
//! `Options::memtables_waiting`.)

use super::{
    job::{bytes, shape},
    pick::level0_runs,
    shape::LAST,
};
use crate::{options::Options, state::State};

/// Level 0 that has so many times the tables that start a compaction slows writers.
const LEVEL0_SLOW: usize = 2;
/// Flushes wait for compaction when it has so many times the tables that start one.
const LEVEL0_STOP: usize = 4;
/// Bytes above what the levels may hold count when they are more than the first level holds, and
/// slow most when they are so many times as much.
const EXCESS_STOP: u64 = 8;
/// Nanoseconds that a writer waits for each KiB when the debt is largest: about 1 MB/s is left.
const DELAY_NS_MAX: f64 = 1e6;

/// What is still to be done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Debt {
    pub level0_runs: usize,
    pub memtables_waiting: usize,
    /// Bytes above what the levels may hold.
    pub excess_bytes: u64,
}

/// Tables of level 0 for one key at which flushes wait for compaction.
pub(crate) fn level0_stop(options: &Options) -> usize {
    options.level0_tables * LEVEL0_STOP
}

impl Debt {
    pub(crate) fn of(state: &State, options: &Options) -> Debt {
        let version = &state.version;
        let shape = shape(version, options);
        let excess = |n: usize| bytes(&version.levels[n]).saturating_sub(shape.bytes_max[n]);
        Debt {
            level0_runs: level0_runs(version),
            memtables_waiting: state.waiting.len(),
            excess_bytes: (1..LAST).map(excess).sum(),
        }
    }

    /// Nanoseconds that a writer waits for each KiB that it writes.
    pub(crate) fn delay_ns(&self, options: &Options) -> u64 {
        let runs = share(
            self.level0_runs as u64,
            (options.level0_tables * LEVEL0_SLOW) as u64,
            level0_stop(options) as u64,
        );
        let waiting = options.memtables_waiting as u64;
        let memory = share(self.memtables_waiting as u64, waiting / 2, waiting);
        let excess = share(
            self.excess_bytes,
            options.level1_bytes,
            options.level1_bytes.saturating_mul(EXCESS_STOP),
        );
        // Squared, so that a small debt hardly shows.
        let share = runs.max(memory).max(excess);
        (share * share * DELAY_NS_MAX) as u64
    }
}

/// How far `value` is from `from` to `to`: 0 before, 1 behind.
fn share(value: u64, from: u64, to: u64) -> f64 {
    let whole = to.saturating_sub(from).max(1);
    (value.saturating_sub(from) as f64 / whole as f64).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(count: usize, debt: impl Fn(usize) -> Debt) -> Vec<u64> {
        let options = Options {
            level0_tables: 4,
            memtables_waiting: 8,
            level1_bytes: 1000,
            ..Options::default()
        };
        (0..count).map(|n| debt(n).delay_ns(&options)).collect()
    }

    #[test]
    fn the_more_is_to_be_done_the_slower_writers_are() {
        let runs = |n| Debt {
            level0_runs: n,
            ..Debt::default()
        };
        let waiting = |n| Debt {
            memtables_waiting: n,
            ..Debt::default()
        };
        let excess = |n| Debt {
            excess_bytes: n as u64 * 100,
            ..Debt::default()
        };
        // Free so far; at the highest from there on.
        for (delays, free, most) in [
            (delays(40, runs), 8, 16),
            (delays(20, waiting), 4, 8),
            (delays(100, excess), 10, 80),
        ] {
            assert!(delays[..=free].iter().all(|ns| *ns == 0), "{delays:?}");
            assert!(
                delays[free..=most].windows(2).all(|w| w[0] < w[1]),
                "{delays:?}"
            );
            assert!(
                delays[most..].iter().all(|ns| *ns == 1_000_000),
                "{delays:?}"
            );
            // The first steps are small.
            assert!(delays[free + 1] <= 1_000_000 / 16, "{delays:?}");
        }
    }

    #[test]
    fn the_largest_debt_counts() {
        let debts = |n| Debt {
            level0_runs: 10,
            memtables_waiting: n,
            excess_bytes: 0,
        };
        let delays = delays(9, debts);
        assert!(delays[..5].iter().all(|ns| *ns == delays[0] && *ns > 0));
        assert_eq!(delays[8], 1_000_000);
    }
}
