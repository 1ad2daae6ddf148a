//! Leases: what clients may cache and for how long.
//!
//! Every attribute that is answered comes with a short read lease. Grants are remembered until
//! they run out, so that a step that changes an inode can recall it from the other sessions. The
//! recall is a courtesy: nothing waits for it, and what is not returned ends with its time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use xtfs_protocol::ids::{Ino, SessionId};
use xtfs_protocol::meta::{Entry, Lease, LeaseKind, MetaReply};

/// Most leases that are remembered; what does not fit is not granted.
const LEASES_MAX: usize = 1 << 20;

/// The leases of one volume.
pub(crate) struct Leases {
    duration: Duration,
    granted: Mutex<Granted>,
}

#[derive(Default)]
struct Granted {
    leases: BTreeMap<(Ino, SessionId), Times>,
    /// Each lease once, under the time at which it is looked at again.
    queue: VecDeque<(Instant, (Ino, SessionId))>,
}

/// When a lease ends, and under which time it is queued.
struct Times {
    end: Instant,
    queued: Instant,
}

impl Leases {
    pub fn new(duration: Duration) -> Self {
        Self {
            duration,
            granted: Mutex::default(),
        }
    }

    /// Puts a lease on every inode that a reply tells about.
    pub fn grant_reply(&self, session: SessionId, reply: &mut MetaReply) {
        match reply {
            MetaReply::Entry(entry) => self.grant(session, entry),
            MetaReply::Opened(opened) | MetaReply::Truncated(opened) => {
                self.grant(session, &mut opened.entry);
            }
            _ => {}
        }
    }

    fn grant(&self, session: SessionId, entry: &mut Entry) {
        let now = Instant::now();
        let mut granted = self.granted.lock();
        granted.forget_ended(now);
        if self.duration.is_zero() {
            return;
        }
        let key = (entry.attr.ino, session);
        let end = now + self.duration;
        if let Some(times) = granted.leases.get_mut(&key) {
            times.end = end;
        } else if granted.queue.len() < LEASES_MAX {
            granted.leases.insert(key, Times { end, queued: end });
            granted.queue.push_back((end, key));
        } else {
            return;
        }
        entry.lease = Lease {
            kind: LeaseKind::Read,
            duration_ms: u32::try_from(self.duration.as_millis()).unwrap_or(u32::MAX),
        };
    }

    /// The sessions, other than the one that changed it, that still rely on an inode. They are
    /// to be told, once.
    pub fn recall(&self, ino: Ino, by: SessionId) -> Vec<SessionId> {
        let now = Instant::now();
        let mut granted = self.granted.lock();
        let range = (ino, SessionId([0; 16]))..=(ino, SessionId([u8::MAX; 16]));
        let holders: Vec<_> = granted
            .leases
            .range(range)
            .filter(|((_, session), times)| *session != by && times.end > now)
            .map(|((_, session), _)| *session)
            .collect();
        for session in &holders {
            granted.leases.remove(&(ino, *session));
        }
        holders
    }

    /// A client gave a lease back.
    pub fn returned(&self, ino: Ino, session: SessionId) {
        self.granted.lock().leases.remove(&(ino, session));
    }
}

impl Granted {
    fn forget_ended(&mut self, now: Instant) {
        while let Some((queued, key)) = self.queue.front().copied() {
            if queued > now {
                break;
            }
            self.queue.pop_front();
            match self.leases.get_mut(&key) {
                Some(times) if times.queued != queued => {}
                Some(times) if times.end > now => {
                    times.queued = times.end;
                    self.queue.push_back((times.end, key));
                }
                _ => {
                    self.leases.remove(&key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use xtfs_protocol::meta::{Attr, FileKind};
    use xtfs_protocol::time::Time;

    use super::*;

    const ONE: SessionId = SessionId([1; 16]);
    const TWO: SessionId = SessionId([2; 16]);

    fn entry(ino: Ino) -> MetaReply {
        let time = Time::default();
        MetaReply::Entry(Entry {
            attr: Attr {
                ino,
                kind: FileKind::File,
                mode: 0,
                nlink: 1,
                uid: 0,
                gid: 0,
                rdev: 0,
                size: 0,
                allocated: 0,
                atime: time,
                mtime: time,
                ctime: time,
                btime: time,
                data_version: 0,
                has_acl: false,
            },
            lease: Lease {
                kind: LeaseKind::Read,
                duration_ms: 0,
            },
        })
    }

    fn grant(leases: &Leases, session: SessionId, ino: Ino) -> u32 {
        let mut reply = entry(ino);
        leases.grant_reply(session, &mut reply);
        match reply {
            MetaReply::Entry(entry) => entry.lease.duration_ms,
            _ => 0,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn others_are_recalled_once_and_only_while_their_lease_runs() {
        let leases = Leases::new(Duration::from_secs(1));
        assert_eq!(grant(&leases, ONE, 5), 1000);
        assert_eq!(grant(&leases, TWO, 5), 1000);
        assert_eq!(leases.recall(5, ONE), [TWO]);
        assert_eq!(leases.recall(5, ONE), []);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(leases.recall(5, TWO), []);
    }

    #[tokio::test(start_paused = true)]
    async fn ended_leases_leave_the_memory() {
        let leases = Leases::new(Duration::from_secs(1));
        for round in 0..10 {
            for ino in 0..100 {
                grant(&leases, ONE, ino);
                grant(&leases, ONE, ino + 1000 * round);
            }
            tokio::time::advance(Duration::from_millis(600)).await;
        }
        let granted = leases.granted.lock();
        assert!(granted.leases.len() <= 400, "{}", granted.leases.len());
        assert!(granted.queue.len() <= 500, "{}", granted.queue.len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_returned_lease_is_not_recalled() {
        let leases = Leases::new(Duration::from_secs(1));
        grant(&leases, TWO, 5);
        leases.returned(5, TWO);
        assert_eq!(leases.recall(5, ONE), []);
    }
}
