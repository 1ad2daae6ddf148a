//! Files that a rename replaced while nobody had them open.
//!
//! Between finding a name and opening the file behind it, a program may be overtaken by a rename
//! that replaces the file. On a local disk it then gets the old file; so it does here, because the
//! replaced file stays for a moment, for every session: who looks again might be overtaken again. What
//! lingers is kept in memory only: after a restart it is an orphan like any other.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;
use xtfs_protocol::ids::Ino;

/// How long a replaced file stays.
const LINGER: Duration = Duration::from_secs(1);
/// Most files that stay; the oldest makes room.
const FILES_MAX: usize = 65_536;

/// The replaced files of one volume that stay for a moment.
#[derive(Default)]
pub(crate) struct Lingering {
    /// In the order in which they go.
    queue: VecDeque<(Instant, Ino)>,
    held: BTreeSet<Ino>,
}

impl Lingering {
    /// A file was replaced by a rename.
    pub fn add(&mut self, ino: Ino, now: Instant) {
        if self.queue.len() >= FILES_MAX {
            self.end_first();
        }
        if self.held.insert(ino) {
            self.queue.push_back((now + LINGER, ino));
        }
    }

    /// Does the file stay?
    pub fn holds(&self, ino: Ino) -> bool {
        self.held.contains(&ino)
    }

    /// Lets go of the files whose time is over; true when there were some.
    pub fn end(&mut self, now: Instant) -> bool {
        let mut ended = false;
        while self.queue.front().is_some_and(|(at, _)| *at <= now) {
            self.end_first();
            ended = true;
        }
        ended
    }

    /// When the next file goes.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.queue.front().map(|(at, _)| *at)
    }

    fn end_first(&mut self) {
        if let Some((_, ino)) = self.queue.pop_front() {
            self.held.remove(&ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_file_stays_until_its_time_is_over() {
        let mut lingering = Lingering::default();
        let start = Instant::now();
        lingering.add(7, start);
        assert!(lingering.holds(7));
        assert!(!lingering.end(start));
        assert!(lingering.end(start + LINGER));
        assert!(!lingering.holds(7));
        assert_eq!(lingering.next_deadline(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_makes_room_when_too_many_stay() {
        let mut lingering = Lingering::default();
        for ino in 0..=FILES_MAX as u64 {
            lingering.add(ino, Instant::now());
        }
        assert!(!lingering.holds(0));
        assert!(lingering.holds(1));
        assert_eq!(lingering.held.len(), FILES_MAX);
    }
}
