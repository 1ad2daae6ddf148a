//! Files that a rename replaced while nobody had them open.
//!
//! Between finding a name and opening the file behind it, a program may be overtaken by a rename
//! that replaces the file. On a local disk it then gets the old file; so it does here, because the
//! replaced file stays for a moment for the session that renamed. Other sessions are told that it
//! is gone and look again. What lingers is kept in memory only: after a restart it is an orphan
//! like any other.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;
use xtfs_protocol::ids::{Ino, SessionId};

/// How long a replaced file stays.
const LINGER: Duration = Duration::from_secs(1);
/// Most files that stay; the oldest makes room.
const FILES_MAX: usize = 65_536;

/// The replaced files of one volume that stay for a moment.
#[derive(Default)]
pub(crate) struct Lingering {
    /// In the order in which they go.
    queue: VecDeque<(Instant, Ino)>,
    by: BTreeMap<Ino, SessionId>,
}

impl Lingering {
    /// A file was replaced by a rename of this session.
    pub fn add(&mut self, ino: Ino, session: SessionId, now: Instant) {
        if self.queue.len() >= FILES_MAX {
            self.end_first();
        }
        if self.by.insert(ino, session).is_none() {
            self.queue.push_back((now + LINGER, ino));
        }
    }

    /// Does the file stay, for whomever?
    pub fn holds(&self, ino: Ino) -> bool {
        self.by.contains_key(&ino)
    }

    /// Does the file stay, but for another session than this one?
    pub fn holds_for_another(&self, ino: Ino, session: SessionId) -> bool {
        self.by.get(&ino).is_some_and(|by| *by != session)
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
            self.by.remove(&ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_file_stays_for_its_session_until_its_time_is_over() {
        let (own, other) = (SessionId([1; 16]), SessionId([2; 16]));
        let mut lingering = Lingering::default();
        let start = Instant::now();
        lingering.add(7, own, start);
        assert!(lingering.holds(7));
        assert!(!lingering.holds_for_another(7, own));
        assert!(lingering.holds_for_another(7, other));
        assert!(!lingering.end(start));
        assert!(lingering.end(start + LINGER));
        assert!(!lingering.holds(7));
        assert_eq!(lingering.next_deadline(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_makes_room_when_too_many_stay() {
        let mut lingering = Lingering::default();
        for ino in 0..=FILES_MAX as u64 {
            lingering.add(ino, SessionId([1; 16]), Instant::now());
        }
        assert!(!lingering.holds(0));
        assert!(lingering.holds(1));
        assert_eq!(lingering.by.len(), FILES_MAX);
    }
}
