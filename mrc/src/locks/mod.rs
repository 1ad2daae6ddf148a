//! The advisory locks of one volume: who holds what, who waits for it.
//!
//! Locks live in memory only. After a restart each session tells the locks that it held, and until
//! the last session from before has told its own or has run out (*grace*), whatever is not known
//! to be free counts as taken: nobody gets a new lock that could be another one's.
//!
//! A wait costs an entry here and nothing else: no call stays open for it. Waits for one file are
//! looked at in the order of their arrival whenever something of it becomes free, and what can be
//! given is given on the spot; the waiting client hears of it by a push, and when the push is lost
//! by asking again. What is given is the client's, also when it does not know yet: a client that
//! ends its wait too late is told so.
//!
//! What always holds: the locks of different owners in one space never conflict; every session
//! that has a lock or a wait is one of the volume's; all counts are bounded.
//!
//! - `waits` — waiting, giving, and cycles of waiting owners.

#[cfg(test)]
mod tests;
mod waits;

use std::collections::{BTreeMap, BTreeSet};

use xtfs_protocol::ids::{Ino, SessionId};
use xtfs_protocol::lock::{
    FileLock, HeldRange, LockKind, LockRange, LockSpace, LockState, LockTarget, Ranges,
};
use xtfs_protocol::meta::{MetaOp, MetaReply};
use xtfs_protocol::{Code, Error, Result};

use waits::Waits;

/// Most ranges that are held, and most waits: of the volume, of one session, of one file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub volume: usize,
    pub session: usize,
    pub file: usize,
    pub waits_of_volume: usize,
    pub waits_of_session: usize,
    pub waits_of_file: usize,
}

const LIMITS: Limits = Limits {
    volume: 1 << 20,
    session: 1 << 16,
    file: 1 << 15,
    waits_of_volume: 1 << 16,
    waits_of_session: 1 << 12,
    waits_of_file: 1 << 10,
};

/// Pause before a request is sent again that comes before its session has told its locks, and
/// before one that may have to wait for what other sessions tell.
const UNSETTLED_PAUSE_MS: u32 = 20;
const GRACE_PAUSE_MS: u32 = 200;

/// An owner of locks in the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Owner {
    session: SessionId,
    number: u64,
}

/// A file as far as locks see each other.
type Place = (Ino, LockSpace);

/// The locks of one file in one space.
#[derive(Default)]
struct Held {
    owners: BTreeMap<Owner, Ranges>,
    ranges: usize,
}

/// What is known of a session.
#[derive(Default)]
struct Holder {
    ranges: usize,
    /// Where it holds something.
    places: BTreeSet<Place>,
}

/// A lock that is asked for.
#[derive(Debug, Clone, Copy)]
struct Request {
    place: Place,
    owner: Owner,
    pid: u32,
    range: LockRange,
    kind: LockKind,
}

impl Request {
    fn new(session: SessionId, target: &LockTarget, range: LockRange, kind: LockKind) -> Self {
        Self {
            place: (target.ino, target.space),
            owner: Owner {
                session,
                number: target.owner,
            },
            pid: target.pid,
            range,
            kind,
        }
    }
}

/// The locks of one volume.
pub(crate) struct Locks {
    limits: Limits,
    files: BTreeMap<Place, Held>,
    sessions: BTreeMap<SessionId, Holder>,
    ranges: usize,
    /// Sessions from before a restart that have not told their locks.
    unsettled: BTreeSet<SessionId>,
    waits: Waits,
    /// Waits that ended well and whose clients are to be told.
    given: Vec<(SessionId, u64)>,
}

fn check_range(range: LockRange) -> Result<()> {
    if range.start > range.end {
        return Err(Error::new(
            Code::Invalid,
            "a range that ends before it starts",
        ));
    }
    Ok(())
}

fn too_many(of: &str, limit: usize) -> Error {
    Error::new(Code::NoLocks, format!("{limit} {of}"))
}

fn grace() -> Error {
    let context = "not every client has told its locks since the MRC was restarted";
    Error::retryable(Code::Busy, context, GRACE_PAUSE_MS)
}

impl Locks {
    /// No locks, and sessions of which each may have some.
    pub fn restored(sessions: impl IntoIterator<Item = SessionId>) -> Self {
        Self::with_limits(LIMITS, sessions)
    }

    fn with_limits(limits: Limits, sessions: impl IntoIterator<Item = SessionId>) -> Self {
        let unsettled: BTreeSet<_> = sessions.into_iter().collect();
        let holders = unsettled.iter().map(|id| (*id, Holder::default()));
        Self {
            limits,
            files: BTreeMap::new(),
            sessions: holders.collect(),
            ranges: 0,
            unsettled,
            waits: Waits::default(),
            given: Vec::new(),
        }
    }

    /// A new session, which has no locks.
    pub fn add(&mut self, session: SessionId) {
        self.sessions.entry(session).or_default();
    }

    /// A session ended: its locks are free, its waits are over.
    pub fn end(&mut self, session: SessionId) {
        let told_nothing = self.unsettled.remove(&session);
        self.waits.end(session);
        let holder = self.sessions.remove(&session).unwrap_or_default();
        for place in &holder.places {
            if let Some(held) = self.files.get_mut(place) {
                let all = Owner { session, number: 0 }..=Owner {
                    session,
                    number: u64::MAX,
                };
                let owners: Vec<_> = held.owners.range(all).map(|(owner, _)| *owner).collect();
                for owner in owners {
                    let ranges = held.owners.remove(&owner).unwrap_or_default();
                    held.ranges -= ranges.as_slice().len();
                    self.ranges -= ranges.as_slice().len();
                }
                if held.owners.is_empty() {
                    self.files.remove(place);
                }
            }
        }
        for place in holder.places {
            self.give(place);
        }
        if told_nothing {
            self.give_after_grace();
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::with_limits(self.limits, []);
    }

    /// Waits that ended well since it was asked last.
    pub fn take_given(&mut self) -> Vec<(SessionId, u64)> {
        std::mem::take(&mut self.given)
    }

    /// Carries out an operation on locks.
    pub fn answer(&mut self, session: SessionId, op: &MetaOp) -> Result<MetaReply> {
        if !self.sessions.contains_key(&session) {
            let context = format!("session {session}: it does not exist any more");
            return Err(Error::reopen(Code::SessionExpired, context));
        }
        match op {
            MetaOp::ReclaimLocks { locks, end } => {
                self.reclaim(session, locks, *end).map(MetaReply::LostLocks)
            }
            // What it held has to be known before something of it is changed.
            _ if self.unsettled.contains(&session) => {
                let context = "the session has not told its locks";
                Err(Error::retryable(Code::Busy, context, UNSETTLED_PAUSE_MS))
            }
            MetaOp::SetLock {
                target,
                range,
                kind,
                wait,
            } => {
                check_range(*range)?;
                let state = match kind {
                    Some(kind) => {
                        let request = Request::new(session, target, *range, *kind);
                        self.lock(&request, *wait)
                    }
                    None => self.unlock(session, target, *range),
                };
                state.map(MetaReply::Lock)
            }
            MetaOp::CancelLock { wait } => Ok(MetaReply::Lock(self.cancel(session, *wait))),
            MetaOp::GetLock {
                target,
                range,
                kind,
            } => {
                check_range(*range)?;
                self.test(&Request::new(session, target, *range, *kind))
                    .map(MetaReply::Conflict)
            }
            _ => Err(Error::new(Code::Protocol, "not an operation on locks")),
        }
    }

    fn test(&self, request: &Request) -> Result<Option<FileLock>> {
        match self.conflict(request) {
            Some((owner, held)) => {
                let (ino, space) = request.place;
                let target = LockTarget {
                    ino,
                    space,
                    owner: owner.number,
                    pid: held.pid,
                };
                Ok(Some(FileLock {
                    target,
                    range: held.range,
                    kind: held.kind,
                }))
            }
            None if self.is_uncertain(request) => Err(grace()),
            None => Ok(None),
        }
    }

    fn lock(&mut self, request: &Request, wait: Option<u64>) -> Result<LockState> {
        if let Some(number) = wait
            && let Some(state) = self.waits.state(request.owner.session, number)
        {
            return Ok(state);
        }
        let blocked = self.conflict(request).is_some();
        if !blocked && !self.is_uncertain(request) {
            self.check_room(request.place, request.owner.session)?;
            self.set(
                request.place,
                request.owner,
                request.range,
                Some(request.kind),
                request.pid,
            );
            // A weaker lock in the place of a stronger one lets others in.
            self.give(request.place);
            return Ok(LockState::Held);
        }
        match wait {
            Some(number) => self.wait(request, number),
            None if blocked => Err(Code::WouldBlock.into()),
            None => Err(grace()),
        }
    }

    fn unlock(
        &mut self,
        session: SessionId,
        target: &LockTarget,
        range: LockRange,
    ) -> Result<LockState> {
        let place = (target.ino, target.space);
        let owner = Owner {
            session,
            number: target.owner,
        };
        if range != LockRange::ALL {
            // It may make two ranges of one.
            self.check_room(place, session)?;
        }
        self.set(place, owner, range, None, target.pid);
        self.give(place);
        Ok(LockState::Held)
    }

    fn reclaim(
        &mut self,
        session: SessionId,
        locks: &[FileLock],
        end: bool,
    ) -> Result<Vec<FileLock>> {
        if locks.len() > MetaOp::LOCKS_MAX {
            return Err(Error::new(Code::Invalid, "too many locks at once"));
        }
        // A session that is new here has no locks of its own to speak of.
        let known = self.unsettled.contains(&session);
        let mut lost = Vec::new();
        for lock in locks {
            check_range(lock.range)?;
            let request = Request::new(session, &lock.target, lock.range, lock.kind);
            let free = self.conflict(&request).is_none();
            let free = free && (known || !self.is_uncertain(&request));
            if free && self.check_room(request.place, session).is_ok() {
                let kind = Some(lock.kind);
                self.set(
                    request.place,
                    request.owner,
                    lock.range,
                    kind,
                    lock.target.pid,
                );
            } else {
                lost.push(*lock);
            }
        }
        if end && self.unsettled.remove(&session) {
            self.give_after_grace();
        }
        Ok(lost)
    }

    /// The lock of another owner that is in the way.
    fn conflict(&self, request: &Request) -> Option<(Owner, HeldRange)> {
        self.conflicts(request).next()
    }

    /// A lock of each owner that is in the way.
    fn conflicts(&self, request: &Request) -> impl Iterator<Item = (Owner, HeldRange)> {
        let owners = self.files.get(&request.place).map(|held| &held.owners);
        let others = owners
            .into_iter()
            .flatten()
            .filter(|(owner, _)| **owner != request.owner);
        others.filter_map(|(owner, ranges)| {
            let held = ranges.conflict(request.range, request.kind)?;
            Some((*owner, held))
        })
    }

    /// May another session hold something that is not known, in the way of this lock?
    fn is_uncertain(&self, request: &Request) -> bool {
        if self.unsettled.is_empty() {
            return false;
        }
        let own = self
            .files
            .get(&request.place)
            .and_then(|held| held.owners.get(&request.owner));
        !own.is_some_and(|own| own.covers(request.range, request.kind))
    }

    /// Is there room for the ranges that one change may add?
    fn check_room(&self, place: Place, session: SessionId) -> Result<()> {
        let room = |held: usize, limit: usize| held + Ranges::GROWTH_MAX <= limit;
        let limits = &self.limits;
        if !room(self.ranges, limits.volume) {
            return Err(too_many("locks in the volume", limits.volume));
        }
        if !room(
            self.sessions
                .get(&session)
                .map_or(0, |holder| holder.ranges),
            limits.session,
        ) {
            return Err(too_many("locks of one client", limits.session));
        }
        if !room(
            self.files.get(&place).map_or(0, |held| held.ranges),
            limits.file,
        ) {
            return Err(too_many("locks of one file", limits.file));
        }
        Ok(())
    }

    fn set(
        &mut self,
        place: Place,
        owner: Owner,
        range: LockRange,
        kind: Option<LockKind>,
        pid: u32,
    ) {
        let Some(holder) = self.sessions.get_mut(&owner.session) else {
            return;
        };
        if kind.is_none() && !self.files.contains_key(&place) {
            return;
        }
        let held = self.files.entry(place).or_default();
        let ranges = held.owners.entry(owner).or_default();
        let before = ranges.as_slice().len();
        ranges.set(range, kind, pid);
        let after = ranges.as_slice().len();
        for count in [&mut held.ranges, &mut holder.ranges, &mut self.ranges] {
            *count = *count + after - before;
        }
        if after > 0 {
            holder.places.insert(place);
            return;
        }
        held.owners.remove(&owner);
        let session = owner.session;
        let all = Owner { session, number: 0 }..=Owner {
            session,
            number: u64::MAX,
        };
        if held.owners.range(all).next().is_none() {
            holder.places.remove(&place);
        }
        if held.owners.is_empty() {
            self.files.remove(&place);
        }
    }
}
