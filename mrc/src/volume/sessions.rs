//! Sessions of a volume: each change of one is a batch of its own under the writer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use babu_kv::{Batch, Durability};
use tokio::time::Instant;
use xtfs_protocol::Result;
use xtfs_protocol::ids::{Ino, SessionId};
use xtfs_protocol::transport::{Peer, Pusher};

use super::Volume;
use crate::error::database;
use crate::keys::{self, Table};
use crate::records::SessionRecord;
use crate::session::owner;
use crate::step;

impl Volume {
    /// A call of a session arrived. Returns the session's epoch.
    pub fn touch(
        &self,
        session: SessionId,
        peer: &Peer,
        pusher: Option<&Arc<dyn Pusher>>,
    ) -> Result<u64> {
        self.sessions.lock().touch(session, peer, pusher)
    }

    /// Opens a session under a fresh identity, for a client that may have files open from an
    /// earlier one. It is not durable yet. Returns its epoch.
    pub fn open_session(
        &self,
        id: SessionId,
        peer: &Peer,
        client: &str,
        open_files: &[Ino],
        pusher: Option<Arc<dyn Pusher>>,
    ) -> Result<u64> {
        let _writer = self.writer.lock();
        self.sessions.lock().check_room(client, open_files)?;
        let record = SessionRecord {
            epoch: 0,
            owner: owner(peer),
            client: client.to_owned(),
            lost: false,
        };
        let record = self.write_session(id, record)?;
        self.locks.lock().add(id);
        let mut sessions = self.sessions.lock();
        sessions.add(id, record);
        sessions.resume(id, peer, open_files, pusher)
    }

    /// Writes a session under a new epoch. The caller has the writer.
    fn write_session(&self, id: SessionId, record: SessionRecord) -> Result<SessionRecord> {
        let mut counters = step::counters(&self.view())?;
        counters.session_epoch += 1;
        let record = SessionRecord {
            epoch: counters.session_epoch,
            ..record
        };
        let mut batch = Batch::new();
        let settings = self.tables.index(Table::Settings)?;
        batch.put(settings, keys::SETTING_COUNTERS, &counters.encode());
        let index = self.tables.index(Table::Sessions)?;
        batch.put(index, &id.0, &record.encode());
        self.database
            .write(batch, Durability::Buffered)
            .map_err(database)?;
        Ok(record)
    }

    /// Goes on with a session. Returns its epoch, which is a new one, not durable yet, when a loss
    /// of power may have made the volume forget what the session did.
    pub fn resume_session(
        &self,
        id: SessionId,
        peer: &Peer,
        open_files: &[Ino],
        pusher: Option<Arc<dyn Pusher>>,
    ) -> Result<u64> {
        let _writer = self.writer.lock();
        let (epoch, record, limits) = {
            let mut sessions = self.sessions.lock();
            let epoch = sessions.resume(id, peer, open_files, pusher)?;
            (epoch, sessions.record(id), sessions.limits())
        };
        self.sweep_due.store(true, Ordering::Relaxed);
        match record {
            Some(record) if epoch < limits.remembered_from => {
                let epoch = self.write_session(id, record)?.epoch;
                self.sessions.lock().set_epoch(id, epoch);
                Ok(epoch)
            }
            _ => Ok(epoch),
        }
    }

    /// Ends the sessions that a client opened before it was started anew; says which.
    pub fn end_earlier_sessions(&self, peer: &Peer, client: &str) -> Result<Vec<SessionId>> {
        let _writer = self.writer.lock();
        let earlier = self.sessions.lock().earlier(peer, client);
        for id in &earlier {
            self.lose_session(*id)?;
        }
        Ok(earlier)
    }

    /// Ends a session as its client asked: it, its kept replies and its open files are forgotten.
    pub fn end_session(&self, id: SessionId) -> Result<()> {
        let _writer = self.writer.lock();
        let batch = self.removal(id)?;
        self.write_end(batch)?;
        self.locks.lock().end(id);
        self.sessions.lock().remove(id);
        self.leases.forget_session(id);
        Ok(())
    }

    /// Ends a session whose time ran out, unless it was heard of or resumed at the last moment.
    /// True when it was ended.
    pub fn end_overdue_session(&self, id: SessionId) -> Result<bool> {
        let _writer = self.writer.lock();
        if !self.sessions.lock().is_overdue(id, Instant::now()) {
            return Ok(false);
        }
        self.lose_session(id).map(|()| true)
    }

    /// Ends a session without its client's word, and remembers it as lost. The caller has the
    /// writer.
    fn lose_session(&self, id: SessionId) -> Result<()> {
        let (record, excess, mut lost_before) = {
            let sessions = self.sessions.lock();
            let lost_before = sessions.limits().lost_before;
            (sessions.record(id), sessions.excess_loss(), lost_before)
        };
        let Some(record) = record else {
            return Ok(());
        };
        let mut batch = self.removal(id)?;
        let index = self.tables.index(Table::Sessions)?;
        let lost = SessionRecord {
            lost: true,
            ..record
        };
        batch.put(index, &id.0, &lost.encode());
        if let Some((epoch, excess)) = excess {
            lost_before = epoch + 1;
            let mut counters = step::counters(&self.view())?;
            counters.lost_before = lost_before;
            let settings = self.tables.index(Table::Settings)?;
            batch.put(settings, keys::SETTING_COUNTERS, &counters.encode());
            batch.delete(index, &excess.0);
        }
        self.write_end(batch)?;
        self.locks.lock().end(id);
        let mut sessions = self.sessions.lock();
        sessions.remove(id);
        sessions.note_lost(id, lost.epoch, lost_before);
        Ok(())
    }

    /// What removes all that the database has of a session.
    fn removal(&self, id: SessionId) -> Result<Batch> {
        let mut batch = Batch::new();
        let index = self.tables.index(Table::Sessions)?;
        let end = keys::after_prefix(&id.0);
        batch.delete(index, &id.0);
        match end {
            Some(end) => batch.delete_range(index, &id.0, &end),
            None => batch.delete_range(index, &id.0, &[u8::MAX; 25]),
        }
        Ok(batch)
    }

    fn write_end(&self, batch: Batch) -> Result<()> {
        self.database
            .write(batch, Durability::Buffered)
            .map_err(database)?;
        self.sweep_due.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Forgets every session at once, because the volume goes away: when it returns, no change
    /// is under way and none will be made.
    pub fn retire(&self) {
        let _writer = self.writer.lock();
        self.sessions.lock().clear();
        self.locks.lock().clear();
    }

    /// Has no other session the volume?
    pub fn is_alone(&self, session: SessionId) -> bool {
        self.sessions.lock().is_alone(session)
    }

    /// The other sessions that have a file open, and whether they may write.
    pub fn openers(&self, ino: Ino, asking: SessionId) -> Vec<(SessionId, bool)> {
        self.sessions.lock().openers(ino, asking)
    }

    /// Every session that the volume has.
    pub fn session_ids(&self) -> Vec<SessionId> {
        self.sessions.lock().ids()
    }

    /// The sessions whose time ran out.
    pub fn overdue_sessions(&self) -> Vec<SessionId> {
        self.sessions.lock().overdue(Instant::now())
    }

    /// Lets go of the replaced files whose time is over; the next sweep reclaims them.
    pub fn end_lingering(&self) {
        if self.sessions.lock().lingering.end(Instant::now()) {
            self.sweep_due.store(true, Ordering::Relaxed);
        }
    }

    pub fn next_session_deadline(&self) -> Option<Instant> {
        self.sessions.lock().next_deadline()
    }

    pub fn pusher(&self, session: SessionId) -> Option<Arc<dyn Pusher>> {
        self.sessions.lock().pusher(session)
    }
}
