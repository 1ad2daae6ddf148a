//! Points in time with nanoseconds, as files carry them.

use rkyv::{Archive, Deserialize, Serialize};

/// Seconds and nanoseconds since 1970-01-01 UTC. Ordered by time.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Default,
)]
pub struct Time {
    /// Whole seconds, negative before 1970.
    pub secs: i64,
    /// Nanoseconds within the second, 0 to 999 999 999.
    pub nanos: u32,
}

impl Time {
    /// From a distance to 1970 that may not be negative.
    #[must_use]
    pub fn since_epoch(distance: std::time::Duration) -> Self {
        Self {
            secs: i64::try_from(distance.as_secs()).unwrap_or(i64::MAX),
            nanos: distance.subsec_nanos(),
        }
    }

    /// Nanoseconds since 1970, limited to the range of the result.
    #[must_use]
    pub fn as_nanos(self) -> i64 {
        self.secs
            .saturating_mul(1_000_000_000)
            .saturating_add(i64::from(self.nanos))
    }
}
