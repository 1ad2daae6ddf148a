//! Waiting for locks.
//!
//! Cycles of waiting owners are looked for when a wait begins, because only that can close one:
//! giving a lock ends a wait. They are looked for among locks of ranges only, as local file systems
//! do, and as far as [`STEPS_MAX`] owners; what lies further is not found and waits.

use std::collections::{BTreeMap, BTreeSet};

use xtfs_protocol::ids::SessionId;
use xtfs_protocol::lock::{LockSpace, LockState};
use xtfs_protocol::{Code, Error, Result};

use super::{Locks, Owner, Place, Request, too_many};

/// Most owners that are looked at for one cycle.
const STEPS_MAX: usize = 1 << 12;

type Number = (SessionId, u64);

struct Wait {
    request: Request,
    /// When it arrived, in relation to others; `None` when the lock was given.
    arrival: Option<u64>,
}

/// Who waits.
#[derive(Default)]
pub(super) struct Waits {
    waits: BTreeMap<Number, Wait>,
    /// Those that wait still, by arrival.
    queues: BTreeMap<Place, BTreeMap<u64, Number>>,
    owners: BTreeMap<Owner, BTreeSet<Number>>,
    of_sessions: BTreeMap<SessionId, usize>,
    last_arrival: u64,
}

impl Waits {
    /// How a wait stands; one that ended well is told once and forgotten.
    pub fn state(&mut self, session: SessionId, number: u64) -> Option<LockState> {
        let wait = self.waits.get(&(session, number))?;
        if wait.arrival.is_some() {
            return Some(LockState::Waiting);
        }
        self.remove((session, number));
        Some(LockState::Held)
    }

    /// Forgets the waits of a session.
    pub fn end(&mut self, session: SessionId) {
        let all = (session, 0)..=(session, u64::MAX);
        let numbers: Vec<_> = self.waits.range(all).map(|(number, _)| *number).collect();
        for number in numbers {
            self.remove(number);
        }
    }

    fn add(&mut self, number: Number, request: Request) {
        self.last_arrival += 1;
        let arrival = self.last_arrival;
        let wait = Wait {
            request,
            arrival: Some(arrival),
        };
        self.waits.insert(number, wait);
        let queue = self.queues.entry(request.place).or_default();
        queue.insert(arrival, number);
        self.owners.entry(request.owner).or_default().insert(number);
        *self.of_sessions.entry(number.0).or_default() += 1;
    }

    /// The lock was given: the wait stays until its client knows.
    fn fulfil(&mut self, number: Number) {
        let Some(wait) = self.waits.get_mut(&number) else {
            return;
        };
        let request = wait.request;
        if let Some(arrival) = wait.arrival.take() {
            self.leave(number, &request, arrival);
        }
    }

    fn remove(&mut self, number: Number) {
        let Some(wait) = self.waits.remove(&number) else {
            return;
        };
        if let Some(arrival) = wait.arrival {
            self.leave(number, &wait.request, arrival);
        }
        if let Some(count) = self.of_sessions.get_mut(&number.0) {
            *count -= 1;
            if *count == 0 {
                self.of_sessions.remove(&number.0);
            }
        }
    }

    fn leave(&mut self, number: Number, request: &Request, arrival: u64) {
        if let Some(queue) = self.queues.get_mut(&request.place) {
            queue.remove(&arrival);
            if queue.is_empty() {
                self.queues.remove(&request.place);
            }
        }
        if let Some(numbers) = self.owners.get_mut(&request.owner) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.owners.remove(&request.owner);
            }
        }
    }

    /// What an owner waits for.
    fn of_owner(&self, owner: Owner) -> impl Iterator<Item = &Request> {
        let numbers = self.owners.get(&owner).into_iter().flatten();
        numbers.filter_map(|number| Some(&self.waits.get(number)?.request))
    }

    /// Those that wait for a file, by arrival.
    fn of_place(&self, place: Place) -> Vec<(Number, Request)> {
        let numbers = self.queues.get(&place).into_iter().flatten();
        numbers
            .filter_map(|(_, number)| Some((*number, self.waits.get(number)?.request)))
            .collect()
    }
}

impl Locks {
    pub(super) fn wait(&mut self, request: &Request, number: u64) -> Result<LockState> {
        let session = request.owner.session;
        let (limits, waits) = (&self.limits, &self.waits);
        if waits.waits.len() >= limits.waits_of_volume {
            let limit = limits.waits_of_volume;
            return Err(too_many("waits for locks in the volume", limit));
        }
        if waits.of_sessions.get(&session).copied().unwrap_or(0) >= limits.waits_of_session {
            let limit = limits.waits_of_session;
            return Err(too_many("waits for locks of one client", limit));
        }
        if waits.queues.get(&request.place).map_or(0, BTreeMap::len) >= limits.waits_of_file {
            return Err(too_many("waits for one file", limits.waits_of_file));
        }
        if self.closes_a_cycle(request) {
            return Err(Error::new(Code::Deadlock, "a cycle of waiting owners"));
        }
        self.waits.add((session, number), *request);
        Ok(LockState::Waiting)
    }

    pub(super) fn cancel(&mut self, session: SessionId, number: u64) -> LockState {
        match self.waits.state(session, number) {
            Some(LockState::Held) => LockState::Held,
            _ => {
                self.waits.remove((session, number));
                LockState::Cancelled
            }
        }
    }

    /// Gives those who wait for a file what they can have by now.
    pub(super) fn give(&mut self, place: Place) {
        // What was given may be a weaker lock in the place of a stronger one, which lets in who
        // was passed over: then the queue is looked at again, and every time it has become shorter.
        loop {
            let before = self.given.len();
            for (number, request) in self.waits.of_place(place) {
                let free = self.conflict(&request).is_none() && !self.is_uncertain(&request);
                if free && self.check_room(place, number.0).is_ok() {
                    let kind = Some(request.kind);
                    self.set(place, request.owner, request.range, kind, request.pid);
                    self.waits.fulfil(number);
                    self.given.push(number);
                }
            }
            if self.given.len() == before {
                return;
            }
        }
    }

    /// When nothing is uncertain any more, looks at every wait.
    pub(super) fn give_after_grace(&mut self) {
        if self.unsettled.is_empty() {
            let places: Vec<_> = self.waits.queues.keys().copied().collect();
            for place in places {
                self.give(place);
            }
        }
    }

    /// Does an owner in the way wait, over any number of others, for the one that asks?
    fn closes_a_cycle(&self, request: &Request) -> bool {
        if request.place.1 != LockSpace::Record {
            return false;
        }
        let blockers = |request: &Request| -> Vec<Owner> {
            self.conflicts(request).map(|(owner, _)| owner).collect()
        };
        let mut seen = BTreeSet::new();
        let mut ahead = blockers(request);
        while let Some(owner) = ahead.pop() {
            if owner == request.owner {
                return true;
            }
            if seen.len() >= STEPS_MAX || !seen.insert(owner) {
                continue;
            }
            for waiting in self.waits.of_owner(owner) {
                if waiting.place.1 == LockSpace::Record {
                    ahead.extend(blockers(waiting));
                }
            }
        }
        false
    }
}
