//! The sessions of one volume: who may ask, what they have open, which replies are kept.
//!
//! What must survive a restart lies in the volume's database (the session itself and its kept
//! replies); open files are told anew by the client when it resumes. Until every session from
//! before the restart has resumed or run out, any file may be open.
//!
//! A session that ends without its client's word is remembered as *lost*: what its client wrote
//! last may have reached the OSDs without being told here (see `step::tails`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use xtfs_protocol::ids::{Ino, SessionId};
use xtfs_protocol::meta::MetaReply;
use xtfs_protocol::transport::{Peer, Pusher};
use xtfs_protocol::{Code, Error, Result};

use crate::lingering::Lingering;
use crate::records::SessionRecord;
use crate::step::{Effect, Held, OpenFiles};

/// Most sessions of a volume.
const SESSIONS_MAX: usize = 65_536;
/// Most files that one session has open.
const OPEN_FILES_MAX: usize = 1 << 20;
/// Most users of one open file whose way of opening is remembered; more are checked again.
const USERS_MAX: usize = 64;
/// Most replies of one session that its client has not said to have received.
const KEPT_MAX: usize = 8192;
/// Most lost sessions that are remembered one by one.
pub(crate) const LOST_MAX: usize = 4096;
/// Longest name of a client.
const CLIENT_BYTES_MAX: usize = 8192;

/// Kept replies from which on a session is looked through for those that its client knows.
const KEPT_BEFORE_LOOK: usize = 256;

/// A reply that must be given again when its request is repeated.
#[derive(Debug, Clone)]
pub(crate) enum Kept {
    /// It lies in the database, in the batch of its effect.
    Stored,
    /// The same, from before a restart: what it did to the open files is not known any more.
    Restored,
    /// The request changed nothing but open files, which a restart forgets as well.
    Answered(Box<MetaReply>),
    /// The request failed and had no effect.
    Failed(Error),
}

impl Kept {
    const fn is_in_database(&self) -> bool {
        matches!(self, Self::Stored | Self::Restored)
    }
}

struct Session {
    epoch: u64,
    /// A loss of power may have made the volume forget what it told.
    is_older: bool,
    owner: String,
    client: String,
    deadline: Instant,
    /// Its open files are known.
    resumed: bool,
    open: BTreeMap<Ino, Vec<(u32, Held)>>,
    kept: BTreeMap<u64, Kept>,
    answered: u64,
    pusher: Option<Arc<dyn Pusher>>,
}

impl Session {
    fn writes(&self, ino: Ino) -> bool {
        self.open.get(&ino).is_some_and(|users| writes(users))
    }
}

fn writes(users: &[(u32, Held)]) -> bool {
    users.iter().any(|(_, held)| held.write)
}

/// The sessions of one volume.
pub(crate) struct Sessions {
    duration: Duration,
    sessions: BTreeMap<SessionId, Session>,
    /// The epochs of those that are open.
    epochs: BTreeSet<u64>,
    /// Those that were lost, by epoch.
    lost: BTreeMap<u64, SessionId>,
    limits: EpochLimits,
    /// How many sessions have an inode open.
    holders: BTreeMap<Ino, u32>,
    /// How many of them may write it.
    writers: BTreeMap<Ino, u32>,
    unresumed: BTreeSet<SessionId>,
    pub lingering: Lingering,
}

/// What the epochs of sessions say on their own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct EpochLimits {
    /// What sessions of earlier epochs did may have been forgotten with a loss of power.
    pub remembered_from: u64,
    /// Sessions of earlier epochs that are not open count as lost.
    pub lost_before: u64,
}

/// Who a peer is, as text that is kept with its sessions.
pub(crate) fn owner(peer: &Peer) -> String {
    match peer {
        Peer::Service(id) => format!("service {id}"),
        Peer::Host(name) => format!("host {name}"),
        Peer::User { uid, .. } => format!("user {uid}"),
    }
}

fn check_open_files(open_files: &[Ino]) -> Result<()> {
    if open_files.len() > OPEN_FILES_MAX {
        return Err(Error::new(Code::Invalid, "too many open files"));
    }
    Ok(())
}

fn expired(id: SessionId, why: &str) -> Error {
    Error::reopen(Code::SessionExpired, format!("session {id}: {why}"))
}

impl Sessions {
    /// The sessions that the database knows, none of them resumed.
    pub fn restored(
        duration: Duration,
        limits: EpochLimits,
        records: BTreeMap<SessionId, SessionRecord>,
        kept: Vec<(SessionId, u64)>,
    ) -> Self {
        let mut sessions = Self {
            duration,
            sessions: BTreeMap::new(),
            epochs: BTreeSet::new(),
            lost: BTreeMap::new(),
            limits,
            holders: BTreeMap::new(),
            writers: BTreeMap::new(),
            unresumed: BTreeSet::new(),
            lingering: Lingering::default(),
        };
        for (id, record) in records {
            if record.lost {
                sessions.lost.insert(record.epoch, id);
                continue;
            }
            sessions.add(id, record);
            sessions.unresumed.insert(id);
        }
        for (id, sequence) in kept {
            if let Some(session) = sessions.sessions.get_mut(&id) {
                session.kept.insert(sequence, Kept::Restored);
            }
        }
        sessions
    }

    /// Adds a session; it is of use when it is resumed.
    pub fn add(&mut self, id: SessionId, record: SessionRecord) {
        self.epochs.insert(record.epoch);
        let session = Session {
            epoch: record.epoch,
            is_older: false,
            owner: record.owner,
            client: record.client,
            deadline: Instant::now() + self.duration,
            resumed: false,
            open: BTreeMap::new(),
            kept: BTreeMap::new(),
            answered: 0,
            pusher: None,
        };
        self.sessions.insert(id, session);
    }

    /// Is there room for one more, with so many files open?
    pub fn check_room(&self, client: &str, open_files: &[Ino]) -> Result<()> {
        if client.len() > CLIENT_BYTES_MAX {
            return Err(Error::new(
                Code::Invalid,
                "the name of the client is too long",
            ));
        }
        check_open_files(open_files)?;
        if self.sessions.len() < SESSIONS_MAX {
            return Ok(());
        }
        let context = format!("the volume has {SESSIONS_MAX} sessions, no more are accepted");
        Err(Error::retryable(Code::Busy, context, 5000))
    }

    /// Goes on with a session whose client tells what it has open. Returns its epoch.
    pub fn resume(
        &mut self,
        id: SessionId,
        peer: &Peer,
        open_files: &[Ino],
        pusher: Option<Arc<dyn Pusher>>,
    ) -> Result<u64> {
        check_open_files(open_files)?;
        let trusted = peer.is_trusted();
        let held = Held {
            read: trusted,
            write: trusted,
        };
        let duration = self.duration;
        let session = self.of_peer(id, peer)?;
        let more = open_files
            .iter()
            .filter(|ino| !session.open.contains_key(ino));
        // Twice, because it may not have heard of the last ones that it opened and closed.
        if session.open.len().saturating_add(more.count()) > 2 * OPEN_FILES_MAX {
            let context = format!("the session has {} files open", session.open.len());
            return Err(Error::new(Code::Invalid, context));
        }
        session.resumed = true;
        session.deadline = Instant::now() + duration;
        session.pusher = pusher;
        let epoch = session.epoch;
        self.unresumed.remove(&id);
        for ino in open_files {
            self.note_open(id, *ino, 0, held);
        }
        Ok(epoch)
    }

    /// The sessions that the same client opened before it was started anew.
    pub fn earlier(&self, peer: &Peer, client: &str) -> Vec<SessionId> {
        if client.is_empty() {
            return Vec::new();
        }
        let owner = owner(peer);
        let same = |s: &Session| s.client == client && s.owner == owner;
        let earlier = self.sessions.iter().filter(|(_, s)| same(s));
        earlier.map(|(id, _)| *id).collect()
    }

    /// What the session is in the database, for as long as it is open.
    pub fn record(&self, id: SessionId) -> Option<SessionRecord> {
        self.sessions.get(&id).map(|session| SessionRecord {
            epoch: session.epoch,
            owner: session.owner.clone(),
            client: session.client.clone(),
            lost: false,
        })
    }

    /// Gives a session another epoch, because of a loss of power.
    pub fn set_epoch(&mut self, id: SessionId, epoch: u64) {
        if let Some(session) = self.sessions.get_mut(&id) {
            self.epochs.remove(&session.epoch);
            self.epochs.insert(epoch);
            session.epoch = epoch;
            session.is_older = true;
        }
    }

    pub const fn limits(&self) -> EpochLimits {
        self.limits
    }

    /// The lost session that must not be remembered on its own any more when another is lost.
    pub fn excess_loss(&self) -> Option<(u64, SessionId)> {
        let first = self.lost.first_key_value()?;
        (self.lost.len() >= LOST_MAX).then_some((*first.0, *first.1))
    }

    /// Remembers a session as lost, and those before `lost_before` together.
    pub fn note_lost(&mut self, id: SessionId, epoch: u64, lost_before: u64) {
        self.limits.lost_before = lost_before;
        self.lost = self.lost.split_off(&lost_before);
        self.lost.insert(epoch, id);
    }

    /// Was everything told here that a session of this epoch wrote to files that it has closed?
    fn has_told(&self, epoch: u64) -> bool {
        if epoch < self.limits.remembered_from {
            return false;
        }
        let lost = epoch < self.limits.lost_before || self.lost.contains_key(&epoch);
        self.epochs.contains(&epoch) || !lost
    }

    fn of_peer(&mut self, id: SessionId, peer: &Peer) -> Result<&mut Session> {
        let session = self
            .sessions
            .get_mut(&id)
            .ok_or_else(|| expired(id, "it does not exist any more"))?;
        if session.owner == owner(peer) {
            Ok(session)
        } else {
            let context = format!("session {id} belongs to another peer");
            Err(Error::new(Code::NotPermitted, context))
        }
    }

    /// A call of the session arrived: it lives on. Returns its epoch.
    pub fn touch(
        &mut self,
        id: SessionId,
        peer: &Peer,
        pusher: Option<&Arc<dyn Pusher>>,
    ) -> Result<u64> {
        let deadline = Instant::now() + self.duration;
        let session = self.of_peer(id, peer)?;
        if !session.resumed {
            return Err(expired(id, "the MRC was restarted, resume it"));
        }
        session.deadline = deadline;
        if let Some(pusher) = pusher
            && !session
                .pusher
                .as_ref()
                .is_some_and(|known| Arc::ptr_eq(known, pusher))
        {
            session.pusher = Some(pusher.clone());
        }
        Ok(session.epoch)
    }

    /// What is known of a changing request of a session: nothing, or its kept reply. Number 0 is
    /// never known. Replies that the client knows, up to `answered`, are forgotten here when they
    /// lie in memory only, because no batch may follow that would do it.
    pub fn kept(&mut self, id: SessionId, sequence: u64, answered: u64) -> Result<Option<Kept>> {
        let session = self
            .sessions
            .get_mut(&id)
            .ok_or_else(|| expired(id, "it does not exist any more"))?;
        if sequence > 0 {
            if let Some(kept) = session.kept.get(&sequence) {
                return Ok(Some(kept.clone()));
            }
            if sequence <= session.answered {
                let context = format!("request {sequence} was answered and forgotten");
                return Err(Error::new(Code::Protocol, context));
            }
        }
        session.answered = session.answered.max(answered);
        if session.kept.len() >= KEPT_BEFORE_LOOK {
            session
                .kept
                .retain(|number, kept| *number > answered || kept.is_in_database());
        }
        let unknown = (Bound::Excluded(answered), Bound::Unbounded);
        if session.kept.len() >= KEPT_MAX && session.kept.range(unknown).count() >= KEPT_MAX {
            let context = format!("{KEPT_MAX} replies wait to be acknowledged");
            return Err(Error::retryable(Code::Busy, context, 100));
        }
        Ok(None)
    }

    /// May the session open one more file?
    pub fn check_open_room(&self, id: SessionId) -> Result<()> {
        let open = self
            .sessions
            .get(&id)
            .map_or(0, |session| session.open.len());
        if open < OPEN_FILES_MAX {
            return Ok(());
        }
        let context = format!("the session has {open} files open");
        Err(Error::retryable(Code::Busy, context, 100))
    }

    /// The replies up to `answered` that lie in the database and may be forgotten.
    pub fn forgettable(&self, id: SessionId, answered: u64) -> Vec<u64> {
        let Some(session) = self.sessions.get(&id) else {
            return Vec::new();
        };
        let stored = session.kept.range(..=answered);
        stored
            .filter(|(_, kept)| kept.is_in_database())
            .map(|(sequence, _)| *sequence)
            .collect()
    }

    /// Forgets the replies up to `answered`.
    pub fn forget(&mut self, id: SessionId, answered: u64) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.answered = session.answered.max(answered);
            session.kept.retain(|sequence, _| *sequence > answered);
        }
    }

    pub fn remember(&mut self, id: SessionId, sequence: u64, kept: Kept) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.kept.insert(sequence, kept);
        }
    }

    /// Applies what a step did to the session's open files.
    pub fn apply(&mut self, id: SessionId, effect: Effect) {
        match effect {
            Effect::Opened { ino, uid, held } => self.note_open(id, ino, uid, held),
            Effect::Replaced { ino } => self.lingering.add(ino, Instant::now()),
            Effect::Released { ino } => {
                let session = self.sessions.get_mut(&id);
                if let Some(users) = session.and_then(|session| session.open.remove(&ino)) {
                    self.drop_holder(ino, &users);
                }
            }
        }
    }

    fn note_open(&mut self, id: SessionId, ino: Ino, uid: u32, held: Held) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let users = session.open.entry(ino).or_default();
        if users.is_empty() {
            *self.holders.entry(ino).or_insert(0) += 1;
        }
        let wrote = writes(users);
        match users.iter_mut().find(|(user, _)| *user == uid) {
            Some((_, known)) => {
                known.read |= held.read;
                known.write |= held.write;
            }
            None => {
                if users.len() >= USERS_MAX {
                    users.remove(0);
                }
                users.push((uid, held));
            }
        }
        match (wrote, writes(users)) {
            (false, true) => *self.writers.entry(ino).or_insert(0) += 1,
            (true, false) => drop_one(&mut self.writers, ino),
            _ => {}
        }
    }

    fn drop_holder(&mut self, ino: Ino, users: &[(u32, Held)]) {
        drop_one(&mut self.holders, ino);
        if writes(users) {
            drop_one(&mut self.writers, ino);
        }
    }

    /// Ends a session; what it had open is open no longer.
    pub fn remove(&mut self, id: SessionId) {
        self.unresumed.remove(&id);
        let Some(session) = self.sessions.remove(&id) else {
            return;
        };
        self.epochs.remove(&session.epoch);
        for (ino, users) in &session.open {
            self.drop_holder(*ino, users);
        }
    }

    /// Forgets every session.
    pub fn clear(&mut self) {
        self.sessions.clear();
        self.epochs.clear();
        self.holders.clear();
        self.writers.clear();
        self.unresumed.clear();
        self.lingering = Lingering::default();
    }

    /// The sessions whose time ran out.
    pub fn overdue(&self, now: Instant) -> Vec<SessionId> {
        let overdue = self.sessions.iter().filter(|(_, s)| s.deadline <= now);
        overdue.map(|(id, _)| *id).collect()
    }

    /// Did the session's time run out?
    pub fn is_overdue(&self, id: SessionId, now: Instant) -> bool {
        self.sessions.get(&id).is_some_and(|s| s.deadline <= now)
    }

    /// When the next session runs out if it is not heard of, or the next replaced file goes.
    pub fn next_deadline(&self) -> Option<Instant> {
        let sessions = self.sessions.values().map(|s| s.deadline);
        sessions.chain(self.lingering.next_deadline()).min()
    }

    /// Is there no other session?
    pub fn is_alone(&self, id: SessionId) -> bool {
        self.sessions.keys().all(|known| *known == id)
    }

    /// The other sessions that have it open, and whether they may write.
    pub fn openers(&self, ino: Ino, asking: SessionId) -> Vec<(SessionId, bool)> {
        let own = self
            .sessions
            .get(&asking)
            .is_some_and(|session| session.open.contains_key(&ino));
        if self.holders.get(&ino).copied().unwrap_or(0) <= u32::from(own) {
            return Vec::new();
        }
        let others = self.sessions.iter().filter(|(id, _)| **id != asking);
        others
            .filter(|(_, session)| session.open.contains_key(&ino))
            .map(|(id, session)| (*id, session.writes(ino)))
            .collect()
    }

    pub fn ids(&self) -> Vec<SessionId> {
        self.sessions.keys().copied().collect()
    }

    pub fn pusher(&self, id: SessionId) -> Option<Arc<dyn Pusher>> {
        self.sessions.get(&id)?.pusher.clone()
    }

    fn is_open(&self, ino: Ino) -> bool {
        !self.unresumed.is_empty() || self.holders.contains_key(&ino) || self.lingering.holds(ino)
    }

    fn is_open_elsewhere(&self, ino: Ino, asking: SessionId) -> bool {
        let own = self
            .sessions
            .get(&asking)
            .is_some_and(|session| session.open.contains_key(&ino));
        let holders = self.holders.get(&ino).copied().unwrap_or(0);
        !self.unresumed.is_empty() || holders > u32::from(own) || self.lingering.holds(ino)
    }

    fn is_written_elsewhere(&self, ino: Ino, asking: SessionId) -> bool {
        let own = self.is_written_by(ino, asking);
        let writers = self.writers.get(&ino).copied().unwrap_or(0);
        !self.unresumed.is_empty() || writers > u32::from(own)
    }

    fn is_written_by(&self, ino: Ino, id: SessionId) -> bool {
        self.sessions.get(&id).is_some_and(|s| s.writes(ino))
    }

    fn held(&self, ino: Ino, uid: u32, asking: SessionId) -> Held {
        let users = self.sessions.get(&asking).and_then(|s| s.open.get(&ino));
        users
            .and_then(|users| users.iter().find(|(user, _)| *user == uid))
            .map_or(Held::default(), |(_, held)| *held)
    }
}

/// Takes one off a count.
fn drop_one(counts: &mut BTreeMap<Ino, u32>, ino: Ino) {
    if let Some(count) = counts.get_mut(&ino) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(&ino);
        }
    }
}

/// What a step of one session may know of the open files.
pub(crate) struct Asking<'a> {
    pub sessions: &'a Mutex<Sessions>,
    pub session: SessionId,
}

impl OpenFiles for Asking<'_> {
    fn is_open(&self, ino: Ino) -> bool {
        self.sessions.lock().is_open(ino)
    }

    fn is_open_elsewhere(&self, ino: Ino) -> bool {
        self.sessions.lock().is_open_elsewhere(ino, self.session)
    }

    fn held(&self, ino: Ino, uid: u32) -> Held {
        self.sessions.lock().held(ino, uid, self.session)
    }

    fn is_written_here(&self, ino: Ino) -> bool {
        self.sessions.lock().is_written_by(ino, self.session)
    }

    fn is_written_elsewhere(&self, ino: Ino) -> bool {
        self.sessions.lock().is_written_elsewhere(ino, self.session)
    }

    fn has_told(&self, epoch: u64) -> bool {
        self.sessions.lock().has_told(epoch)
    }

    fn may_have_told_more(&self) -> bool {
        let sessions = self.sessions.lock();
        sessions
            .sessions
            .get(&self.session)
            .is_some_and(|session| session.is_older)
    }
}
