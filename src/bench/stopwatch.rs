//! The one place of the benchmark that reads a clock.

use std::time::Instant;

/// Shortest time that is believed, in seconds: what is faster counts as this.
const SECONDS_MIN: f64 = 1e-9;

/// Measures how long something takes.
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts.
    #[allow(
        clippy::disallowed_methods,
        reason = "measuring time is what this is for"
    )]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// How many of `amount` were done in a second.
    pub fn rate(&self, amount: f64) -> f64 {
        amount / self.0.elapsed().as_secs_f64().max(SECONDS_MIN)
    }
}
