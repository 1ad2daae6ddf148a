//! Leases: what clients may cache and for how long.
//!
//! Every attribute that is answered comes with a short lease. Grants are remembered until they run
//! out. A step that changes an inode recalls it from the other sessions, and its reply leaves only
//! when each of them has returned the lease or its time is over: who made the change may rely on
//! nobody seeing what was before.
//!
//! A read runs on a snapshot, beside the writer. What changed between its snapshot and its reply is
//! not granted: changes are numbered, and the last few are remembered.
//!
//! [`LeaseKind::Alone`] goes to the only session of a volume: it may also cache which name leads
//! where. A second session starts only when the last of those leases is over.
//!
//! [`LeaseKind::Write`] comes with a file that nobody else has open: what is written to it may be
//! sent later. Before somebody else looks at the file, that is recalled; from then on, until the
//! file is closed, its writer writes *through*.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use xtfs_protocol::ids::{Ino, SessionId};
use xtfs_protocol::meta::{Entry, Lease, LeaseKind, MetaReply};

/// Most leases that are remembered; what does not fit is not granted.
const LEASES_MAX: usize = 1 << 20;

/// Changes that are remembered for reads that run beside them.
const CHANGES_MAX: usize = 1024;

/// The leases of one volume.
pub(crate) struct Leases {
    duration: Duration,
    /// When leases of an earlier process, of which nothing is known, are over.
    unknown_until: Instant,
    granted: Mutex<Granted>,
    /// Told when a lease that was recalled came back.
    returned: Notify,
}

#[derive(Default)]
struct Granted {
    leases: BTreeMap<(Ino, SessionId), Times>,
    /// Each lease once, under the time at which it is looked at again.
    queue: VecDeque<(Instant, (Ino, SessionId))>,
    /// Files, and who writes them through.
    through: BTreeSet<(Ino, SessionId)>,
    /// The last changes, and by whom.
    changes: VecDeque<(Ino, SessionId)>,
    /// Number of the next change.
    next_change: u64,
}

/// When a lease ends, and under which time it is queued.
struct Times {
    end: Instant,
    queued: Instant,
    /// Recalls that have not come back: each is answered by one return, and the last one counts.
    recalled: u32,
}

/// To whom a reply goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asker {
    pub session: SessionId,
    /// No other session has the volume.
    pub alone: bool,
    /// How the session may deal with a file that it opened.
    pub file: LeaseKind,
    /// What [`Leases::mark`] said before the operation.
    pub mark: u64,
}

/// What a change has to wait for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    keys: Vec<(Ino, SessionId)>,
}

impl Leases {
    pub fn new(duration: Duration) -> Self {
        Self {
            duration,
            unknown_until: Instant::now() + duration,
            granted: Mutex::default(),
            returned: Notify::new(),
        }
    }

    /// How long a lease lasts.
    pub const fn duration(&self) -> Duration {
        self.duration
    }

    /// The changes so far; to be taken before a read.
    pub fn mark(&self) -> u64 {
        self.granted.lock().next_change
    }

    /// Puts a lease on every inode that a reply tells about.
    pub fn grant_reply(&self, asker: Asker, reply: &mut MetaReply) {
        match reply {
            MetaReply::Entry(entry) => self.grant(asker, LeaseKind::Read, entry),
            MetaReply::Opened(opened) | MetaReply::Truncated(opened) => {
                self.grant(asker, asker.file, &mut opened.entry);
            }
            _ => {}
        }
    }

    fn grant(&self, asker: Asker, kind: LeaseKind, entry: &mut Entry) {
        let kind = if asker.alone { LeaseKind::Alone } else { kind };
        // What may be delayed does not end with the time.
        entry.lease.kind = kind;
        let now = Instant::now();
        let mut granted = self.granted.lock();
        granted.forget_ended(now);
        let key = (entry.attr.ino, asker.session);
        if self.duration.is_zero() || granted.changed_since(asker.mark, key) {
            return;
        }
        let end = now + self.duration;
        if let Some(times) = granted.leases.get_mut(&key) {
            if times.recalled > 0 {
                // Its return, which is on its way, would take this one, too.
                return;
            }
            times.end = end;
        } else if granted.queue.len() < LEASES_MAX {
            let times = Times {
                end,
                queued: end,
                recalled: 0,
            };
            granted.leases.insert(key, times);
            granted.queue.push_back((end, key));
        } else {
            return;
        }
        entry.lease = Lease {
            kind,
            duration_ms: u32::try_from(self.duration.as_millis()).unwrap_or(u32::MAX),
        };
    }

    /// An inode was changed. Returns the sessions, other than the one that changed it, that rely on
    /// it and are to be told; whom to wait for goes to `waiting`. Those that have it `open` may
    /// rely on its content without a lease.
    pub fn recall(
        &self,
        ino: Ino,
        by: SessionId,
        open: impl IntoIterator<Item = (SessionId, bool)>,
        waiting: &mut Waiting,
    ) -> Vec<SessionId> {
        let now = Instant::now();
        let mut granted = self.granted.lock();
        granted.note_change(ino, by);
        for (session, writes) in open {
            granted.hold((ino, session), now, self.duration);
            if writes {
                // A client that is told of another's change writes through from then on.
                granted.through.insert((ino, session));
            }
        }
        let range = (ino, SessionId([0; 16]))..=(ino, SessionId([u8::MAX; 16]));
        let mut told = Vec::new();
        for (key, times) in granted.leases.range_mut(range) {
            if key.1 == by || times.end <= now {
                continue;
            }
            waiting.keys.push(*key);
            // Also those that were told of an earlier change: they may have read again since.
            times.recalled += 1;
            told.push(key.1);
        }
        told
    }

    /// Somebody else looks at a file. Returns those of its writers that may have something unsent
    /// and are to be told to write through from now on; whom to wait for goes to `waiting`.
    pub fn expose(
        &self,
        ino: Ino,
        writers: impl IntoIterator<Item = SessionId>,
        waiting: &mut Waiting,
    ) -> Vec<SessionId> {
        let now = Instant::now();
        let mut granted = self.granted.lock();
        let mut told = Vec::new();
        for session in writers {
            let key = (ino, session);
            if granted.through.insert(key) {
                granted.hold(key, now, self.duration);
                waiting.keys.push(key);
                if let Some(times) = granted.leases.get_mut(&key) {
                    times.recalled += 1;
                }
                told.push(session);
            } else if granted
                .leases
                .get(&key)
                .is_some_and(|times| times.recalled > 0)
            {
                waiting.keys.push(key);
            }
        }
        told
    }

    /// The session writes the file through, because others have it open already.
    pub fn writes_through(&self, ino: Ino, session: SessionId) {
        self.granted.lock().through.insert((ino, session));
    }

    /// The session has closed the file.
    pub fn closed(&self, ino: Ino, session: SessionId) {
        self.granted.lock().through.remove(&(ino, session));
    }

    /// The session is over.
    pub fn forget_session(&self, session: SessionId) {
        let mut granted = self.granted.lock();
        granted.through.retain(|(_, by)| *by != session);
    }

    /// Waits until what was recalled has come back or is over: at most the time of a lease.
    pub async fn settled(&self, waiting: &Waiting) {
        if self.unknown_until > Instant::now() {
            tokio::time::sleep_until(self.unknown_until).await;
        }
        loop {
            let told = self.returned.notified();
            tokio::pin!(told);
            told.as_mut().enable();
            let Some(end) = self.granted.lock().last_end(waiting) else {
                return;
            };
            tokio::select! {
                () = told => {}
                () = tokio::time::sleep_until(end) => {}
            }
        }
    }

    /// A client gave a lease back.
    pub fn returned(&self, ino: Ino, session: SessionId) {
        let key = (ino, session);
        let mut granted = self.granted.lock();
        let left = granted.leases.get_mut(&key).map_or(0, |times| {
            times.recalled = times.recalled.saturating_sub(1);
            times.recalled
        });
        if left == 0 {
            granted.leases.remove(&key);
        }
        drop(granted);
        self.returned.notify_waiters();
    }
}

impl Granted {
    /// Makes sure of an entry that lasts for a while.
    fn hold(&mut self, key: (Ino, SessionId), now: Instant, duration: Duration) {
        let end = now + duration;
        match self.leases.get_mut(&key) {
            Some(times) if times.end > now => times.end = end,
            Some(times) => {
                times.end = end;
                times.recalled = 0;
            }
            None => {
                let times = Times {
                    end,
                    queued: end,
                    recalled: 0,
                };
                self.leases.insert(key, times);
                self.queue.push_back((end, key));
            }
        }
    }

    fn note_change(&mut self, ino: Ino, by: SessionId) {
        if self.changes.len() == CHANGES_MAX {
            self.changes.pop_front();
        }
        self.changes.push_back((ino, by));
        self.next_change += 1;
    }

    /// May somebody else have changed the inode since `mark`?
    fn changed_since(&self, mark: u64, (ino, asking): (Ino, SessionId)) -> bool {
        let new = usize::try_from(self.next_change - mark).unwrap_or(usize::MAX);
        let Some(first) = self.changes.len().checked_sub(new) else {
            return true;
        };
        let mut changes = self.changes.iter().skip(first);
        changes.any(|(changed, by)| *changed == ino && *by != asking)
    }

    /// When the last of these that are still out is over.
    fn last_end(&self, waiting: &Waiting) -> Option<Instant> {
        let now = Instant::now();
        let out = waiting.keys.iter().filter_map(|key| {
            let times = self.leases.get(key)?;
            (times.recalled > 0 && times.end > now).then_some(times.end)
        });
        out.max()
    }

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
                    let times = self.leases.remove(&key);
                    if times.is_some_and(|times| times.recalled > 0) {
                        // It was not heard of: it may not know that it is to write through.
                        self.through.remove(&key);
                    }
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

    fn grant_since(leases: &Leases, mark: u64, session: SessionId, ino: Ino) -> u32 {
        let mut reply = entry(ino);
        let asker = Asker {
            session,
            alone: false,
            file: LeaseKind::Read,
            mark,
        };
        leases.grant_reply(asker, &mut reply);
        match reply {
            MetaReply::Entry(entry) => entry.lease.duration_ms,
            _ => 0,
        }
    }

    fn grant(leases: &Leases, session: SessionId, ino: Ino) -> u32 {
        grant_since(leases, leases.mark(), session, ino)
    }

    fn recall(leases: &Leases, ino: Ino, by: SessionId) -> (Vec<SessionId>, Waiting) {
        let mut waiting = Waiting::default();
        let told = leases.recall(ino, by, [], &mut waiting);
        (told, waiting)
    }

    /// Leases of a process that has been there for a while.
    async fn leases() -> Leases {
        let leases = Leases::new(Duration::from_secs(1));
        tokio::time::advance(Duration::from_secs(1)).await;
        leases
    }

    #[tokio::test(start_paused = true)]
    async fn others_are_recalled_while_their_lease_runs() {
        let leases = leases().await;
        assert_eq!(grant(&leases, ONE, 5), 1000);
        assert_eq!(grant(&leases, TWO, 5), 1000);
        assert_eq!(recall(&leases, 5, ONE).0, [TWO]);
        assert_eq!(recall(&leases, 5, ONE).0, [TWO], "it may have read again");
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(recall(&leases, 5, TWO), (vec![], Waiting::default()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_waits_for_the_return_and_no_longer_than_the_lease() {
        let leases = leases().await;
        grant(&leases, TWO, 5);
        let (_, waiting) = recall(&leases, 5, ONE);
        let began = Instant::now();
        let give_back = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            leases.returned(5, TWO);
        };
        tokio::join!(leases.settled(&waiting), give_back);
        assert_eq!(began.elapsed(), Duration::from_millis(300));

        grant(&leases, TWO, 5);
        let (_, second) = recall(&leases, 5, ONE);
        let began = Instant::now();
        leases.settled(&second).await;
        let waited = began.elapsed();
        assert!(waited >= Duration::from_secs(1) && waited < Duration::from_millis(1100));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_being_recalled_or_changed_during_a_read_is_not_granted() {
        let leases = leases().await;
        grant(&leases, TWO, 5);
        recall(&leases, 5, ONE);
        assert_eq!(grant(&leases, TWO, 5), 0, "its return is on its way");
        leases.returned(5, TWO);
        assert_eq!(grant(&leases, TWO, 5), 1000);
        leases.returned(5, TWO);

        let mark = leases.mark();
        recall(&leases, 5, ONE);
        assert_eq!(
            grant_since(&leases, mark, TWO, 5),
            0,
            "read before the change"
        );
        assert_eq!(grant_since(&leases, mark, ONE, 5), 1000, "made the change");
        assert_eq!(grant_since(&leases, mark, TWO, 6), 1000);
        for _ in 0..CHANGES_MAX {
            recall(&leases, 7, ONE);
        }
        assert_eq!(
            grant_since(&leases, mark, TWO, 8),
            0,
            "too long ago to know"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_changes_wait_for_leases_of_an_earlier_process() {
        let leases = Leases::new(Duration::from_secs(1));
        let began = Instant::now();
        leases.settled(&Waiting::default()).await;
        assert_eq!(began.elapsed(), Duration::from_secs(1));
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
        let leases = leases().await;
        grant(&leases, TWO, 5);
        leases.returned(5, TWO);
        assert_eq!(recall(&leases, 5, ONE).0, []);
    }

    #[tokio::test(start_paused = true)]
    async fn the_return_of_an_earlier_recall_does_not_count_for_a_later_one() {
        let leases = leases().await;
        grant(&leases, TWO, 5);
        assert_eq!(recall(&leases, 5, ONE).0, [TWO]);
        let mut waiting = Waiting::default();
        assert_eq!(leases.expose(5, [TWO], &mut waiting), [TWO]);
        leases.returned(5, TWO);
        assert!(leases.granted.lock().last_end(&waiting).is_some());
        leases.returned(5, TWO);
        assert!(leases.granted.lock().last_end(&waiting).is_none());
    }
}
