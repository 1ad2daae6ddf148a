//! Numbers of several rounds, and what becomes of them.

use crate::report::{Row, Rows, Target};
use rustix::time::{ClockId, clock_gettime};
use std::{collections::BTreeMap, time::Instant};

/// What was measured of each engine, round by round.
#[derive(Default)]
pub struct Samples(BTreeMap<&'static str, Vec<f64>>);

impl Samples {
    /// Nothing yet.
    pub const fn new() -> Samples {
        Samples(BTreeMap::new())
    }

    /// Adds a round of an engine.
    pub fn add(&mut self, engine: &'static str, value: f64) {
        self.0.entry(engine).or_default().push(value);
    }

    /// A row with the median of each engine.
    pub fn row(self, name: impl Into<String>, unit: &'static str) -> Row {
        let values = self.0.into_iter();
        Row::new(
            name.into(),
            unit,
            values.filter_map(|(engine, values)| Some((engine, median(values)?))),
        )
    }
}

/// Latencies that half, one in a hundred and one in a thousand operations exceed.
#[derive(Default)]
pub struct Percentiles([Samples; 3]);

const SHARES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.01), ("p999", 0.001)];

impl Percentiles {
    /// Adds the latencies of a round of an engine; those of p50, p99 and p999 in microseconds.
    pub fn add(&mut self, engine: &'static str, mut nanoseconds: Vec<u64>) -> [f64; 3] {
        nanoseconds.sort_unstable();
        let found = SHARES.map(|(_, share)| percentile_us(&nanoseconds, share));
        for (samples, value) in self.0.iter_mut().zip(found) {
            samples.add(engine, value);
        }
        found
    }

    /// Adds a row for each percentile, the p99 with a target.
    pub fn rows(self, name: &str, p99: Option<Target>, rows: &mut Rows) {
        for (samples, (label, _)) in self.0.into_iter().zip(SHARES) {
            let row = samples.row(format!("{name}: {label}"), "us");
            rows.add(match p99 {
                Some(target) if label == "p99" => row.target(target),
                _ => row,
            });
        }
    }
}

/// The value in the middle, the greater of two.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The latency in microseconds that `share` of the sorted ones exceed; 0 of none.
fn percentile_us(nanoseconds: &[u64], share: f64) -> f64 {
    let at = (nanoseconds.len() as f64 * (1.0 - share)) as usize;
    let last = nanoseconds.len().saturating_sub(1);
    nanoseconds
        .get(at.min(last))
        .map_or(0.0, |ns| *ns as f64 / 1e3)
}

/// Microseconds since then.
pub fn us(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

/// Time that all threads of this process ran, in microseconds.
pub fn cpu_us() -> f64 {
    clock_us(ClockId::ProcessCPUTime)
}

/// Time that this thread ran, in microseconds. What reads from memory and from the page cache takes
/// as long as this on a machine that has nothing else to do.
pub fn thread_us() -> f64 {
    clock_us(ClockId::ThreadCPUTime)
}

fn clock_us(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// Nanoseconds since then.
pub fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_and_a_percentile_are_values_that_were_measured() {
        assert_eq!(median(vec![9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(vec![]), None);
        let latencies: Vec<u64> = (1..=100).map(|n| n * 1000).collect();
        assert_eq!(percentile_us(&latencies, 0.01), 100.0);
        assert_eq!(percentile_us(&latencies, 0.5), 51.0);
        assert_eq!(percentile_us(&[], 0.01), 0.0);
    }
}
