//! Clock, randomness and blocking work: what a simulation replaces.
//!
//! Nothing outside this module asks the system for the time of day, for random bytes, or for a
//! thread to block on. Sleeping and time limits go through `tokio::time`, which a simulation
//! drives by itself.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rand::{RngCore, SeedableRng};

use crate::time::Time;

/// Tells the time of day.
pub trait Clock: Send + Sync + 'static {
    /// The time of day in UTC.
    fn now(&self) -> Time;
}

/// Gives random bytes.
pub trait Random: Send + Sync + 'static {
    /// Fills `bytes`.
    fn fill(&self, bytes: &mut [u8]);
}

/// Where work that may wait for a disk runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocking {
    /// On the calling thread: for simulation, and where callers have threads of their own to wait
    /// on.
    Inline,
    /// On tokio's pool of blocking threads.
    Pool,
}

/// The surroundings of a part: cheap to clone, handed down from `main` or the simulation.
#[derive(Clone)]
pub struct Env {
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    blocking: Blocking,
    boot: u64,
}

impl Env {
    /// The real machine, with blocking work on tokio's pool.
    #[must_use]
    pub fn real() -> Self {
        let env = Self::new(
            Arc::new(SystemClock),
            Arc::new(SystemRandom),
            Blocking::Pool,
        );
        match system_boot() {
            Some(boot) => env.with_boot(boot),
            None => env,
        }
    }

    /// Surroundings of one's own, on a machine that was started just now.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, random: Arc<dyn Random>, blocking: Blocking) -> Self {
        let mut boot = [0; 8];
        random.fill(&mut boot);
        Self {
            clock,
            random,
            blocking,
            boot: u64::from_le_bytes(boot),
        }
    }

    /// The same surroundings on another start of the machine.
    #[must_use]
    pub fn with_boot(mut self, boot: u64) -> Self {
        self.boot = boot;
        self
    }

    /// Which start of the machine this is: another number means that what was written before and
    /// not synced may be gone. The end of a process alone does not change it.
    #[must_use]
    pub fn boot(&self) -> u64 {
        self.boot
    }

    /// Surroundings that give the same bytes and times for the same seed: a clock that follows
    /// tokio's (virtual) time and a seeded generator; blocking work runs inline.
    #[must_use]
    pub fn simulated(seed: u64) -> Self {
        Self::new(
            Arc::new(VirtualClock::default()),
            Arc::new(SeededRandom::new(seed)),
            Blocking::Inline,
        )
    }

    /// The same surroundings with another place for blocking work.
    #[must_use]
    pub fn with_blocking(mut self, blocking: Blocking) -> Self {
        self.blocking = blocking;
        self
    }

    /// The time of day in UTC.
    #[must_use]
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// A random array.
    #[must_use]
    pub fn random<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.random.fill(&mut bytes);
        bytes
    }

    /// A random number.
    #[must_use]
    pub fn random_u64(&self) -> u64 {
        u64::from_le_bytes(self.random())
    }

    /// Runs work that may wait for a disk. A panic in it becomes `None`.
    pub fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Pin<Box<dyn Future<Output = Option<T>> + Send>> {
        match self.blocking {
            Blocking::Inline => {
                let value = work();
                Box::pin(std::future::ready(Some(value)))
            }
            Blocking::Pool => {
                let task = tokio::task::spawn_blocking(work);
                Box::pin(async move { task.await.ok() })
            }
        }
    }
}

/// The kernel's name for this start of the machine. Where it tells none, every process counts as
/// a start, which is careful.
fn system_boot() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).ok()?;
    Some((number >> 64) as u64 ^ number as u64)
}

/// The machine's clock.
struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Time {
        let distance = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or(Duration::ZERO);
        Time::since_epoch(distance)
    }
}

/// The machine's random numbers.
struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&self, bytes: &mut [u8]) {
        rand::rng().fill_bytes(bytes);
    }
}

/// Starts at a fixed day and follows tokio's time from its first use.
#[derive(Default)]
struct VirtualClock {
    start: std::sync::OnceLock<tokio::time::Instant>,
}

impl Clock for VirtualClock {
    fn now(&self) -> Time {
        let now = tokio::time::Instant::now();
        let start = *self.start.get_or_init(|| now);
        Time::since_epoch(Duration::from_secs(1_700_000_000) + now.saturating_duration_since(start))
    }
}

/// The same bytes for the same seed.
struct SeededRandom(Mutex<rand::rngs::StdRng>);

impl SeededRandom {
    fn new(seed: u64) -> Self {
        Self(Mutex::new(rand::rngs::StdRng::seed_from_u64(seed)))
    }
}

impl Random for SeededRandom {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().fill_bytes(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_bytes() {
        let draw = |seed| Env::simulated(seed).random::<32>();
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[tokio::test]
    async fn work_on_the_pool_answers() {
        assert_eq!(Env::real().blocking(|| 6 * 7).await, Some(42));
    }
}
