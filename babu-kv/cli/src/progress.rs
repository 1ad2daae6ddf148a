//! Shows how far a long command is, on a terminal only, and keeps to a rate.

use babu_kv::Progress;
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    thread,
    time::{Duration, Instant},
};

/// A bar with bytes, rate and time left; nothing where standard error is not a terminal.
pub struct Bar {
    bar: ProgressBar,
    pace: Option<Pace>,
}

impl Bar {
    /// `bytes_per_second_max` slows down whoever calls [`Bar::at`].
    pub fn new(what: &'static str, bytes_per_second_max: Option<u64>) -> Bar {
        let bar = ProgressBar::new(0).with_message(what);
        let style = ProgressStyle::with_template(
            "{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
        );
        if let Ok(style) = style {
            bar.set_style(style);
        }
        Bar {
            bar,
            pace: bytes_per_second_max.map(Pace::new),
        }
    }

    pub fn at(&self, progress: Progress) {
        self.bar.set_length(progress.total_bytes);
        self.bar.set_position(progress.done_bytes);
        if let Some(pace) = &self.pace {
            let ahead = pace.ahead(progress.done_bytes, pace.start.elapsed());
            thread::sleep(ahead);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

struct Pace {
    start: Instant,
    bytes_per_second: u64,
}

impl Pace {
    fn new(bytes_per_second: u64) -> Pace {
        Pace {
            start: Instant::now(),
            bytes_per_second: bytes_per_second.max(1),
        }
    }

    /// How long to wait so that `bytes` are not too many after `elapsed`.
    fn ahead(&self, bytes: u64, elapsed: Duration) -> Duration {
        let seconds = bytes as f64 / self.bytes_per_second as f64;
        let due = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        due.saturating_sub(elapsed)
    }
}

/// Bytes, with K, M or G for powers of 1024.
pub fn bytes_of(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(digits) => (
            digits,
            10 * (1 + "KMG".find(&text[digits.len()..]).unwrap_or(0)),
        ),
        None => (text, 0),
    };
    let bytes = digits.parse::<u64>().ok();
    let bytes = bytes.and_then(|n| n.checked_mul(1 << shift));
    bytes
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "a number of bytes is needed, as in 500000, 64K, 20M or 1G".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_and_lost_time_is_not_waited_for() {
        let pace = Pace::new(1 << 20);
        let ahead = |mib: u64, seconds| pace.ahead(mib << 20, Duration::from_secs(seconds));
        assert_eq!(ahead(3, 1), Duration::from_secs(2));
        assert_eq!(ahead(3, 3), Duration::ZERO);
        assert_eq!(ahead(3, 9), Duration::ZERO);
    }

    #[test]
    fn bytes_may_have_a_unit() {
        for (text, bytes) in [
            ("7", 7),
            ("64K", 64 << 10),
            ("20M", 20 << 20),
            ("1G", 1 << 30),
        ] {
            assert_eq!(bytes_of(text), Ok(bytes));
        }
        for wrong in ["", "0", "K", "1T", "-1", "1.5M", "99999999999G", "5 M"] {
            assert!(bytes_of(wrong).is_err(), "{wrong}");
        }
    }
}
