//! One volume: its database, its one writer, its sessions and leases.
//!
//! A changing operation takes the writer's mutex for the step and the buffered commit, never
//! longer: nothing waits for a disk flush or another peer under it. Reading operations run on a
//! snapshot of their own and take no mutex of the writer.
//!
//! Lock order: writer, then sessions or locks of files, one of the two at a time. Leases have a lock of their own and are asked without any.

mod locks;
mod open;
mod quota;
mod reclaim;
mod reserve;
mod sessions;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use babu_kv::{Batch, Database, Durability};
use parking_lot::{Mutex, RwLock};
use xtfs_protocol::ids::{Ino, SessionId, VolumeId};
use xtfs_protocol::meta::{Caller, MetaOp, MetaReply, Placement, VolumeInfo};
use xtfs_protocol::time::Time;
use xtfs_protocol::{Code, Error, Result};

use crate::database::{DatabaseView, Tables};
use crate::error::database;
use crate::keys::{self, Table};
use crate::lease::Leases;
use crate::locks::Locks;
use crate::quota::{Limits, NO_LIMITS};
use crate::records::VolumeRecord;
use crate::replies;
use crate::session::{Asking, Kept, Sessions};
use crate::step::{self, Changes, Context, Effect, Held};
use crate::view::View;

pub(crate) use open::Root;
use reserve::Disk;
pub(crate) use reserve::memtable_bytes;

/// How volumes treat their clients.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// How long a session lives without a call.
    pub session: Duration,
    /// How long a lease lasts.
    pub lease: Duration,
}

pub(crate) struct Volume {
    pub record: VolumeRecord,
    database: Database,
    disk: Disk,
    tables: Tables,
    number_floor: u64,
    writer: Mutex<()>,
    /// What subjects may use; changed under the writer.
    limits: RwLock<Arc<Limits>>,
    sessions: Mutex<Sessions>,
    locks: Mutex<Locks>,
    pub leases: Leases,
    /// Orphans may be waiting that nobody has open any more.
    sweep_due: AtomicBool,
}

/// A changing request as it arrived.
pub(crate) struct Change<'a> {
    pub op: &'a MetaOp,
    pub session: SessionId,
    pub sequence: u64,
    pub answered: u64,
}

/// What came of a changing request.
pub(crate) struct Outcome {
    pub reply: MetaReply,
    /// Inodes that other sessions may have cached.
    pub touched: Vec<Ino>,
    /// The reply may leave only when the database is durable.
    pub durable: bool,
    /// The deletion queue grew.
    pub reclaims: bool,
    /// A replaced file stays until its time is over.
    pub lingers: bool,
}

impl Outcome {
    const fn unchanged(reply: MetaReply) -> Self {
        Self {
            reply,
            touched: Vec::new(),
            durable: false,
            reclaims: false,
            lingers: false,
        }
    }
}

impl Volume {
    /// Identity of the volume.
    pub const fn id(&self) -> VolumeId {
        self.record.id
    }

    /// This moment of the volume.
    pub fn view(&self) -> DatabaseView<'_> {
        DatabaseView {
            snapshot: self.database.snapshot(),
            tables: &self.tables,
        }
    }

    /// Everything that was answered is durable when it returns. May wait for the disk.
    pub fn sync(&self) -> Result<()> {
        self.database.sync().map_err(database)
    }

    pub fn info(&self) -> Result<VolumeInfo> {
        let usage = step::usage(&self.view())?;
        Ok(VolumeInfo {
            id: self.record.id,
            name: self.record.name.clone(),
            layout: self.record.layout,
            used_bytes: u64::try_from(usage.bytes).unwrap_or(u64::MAX),
            used_inodes: usage.inodes,
        })
    }

    /// Runs a reading operation on a snapshot.
    pub fn read(&self, op: &MetaOp, context: &ContextParts<'_>) -> Result<MetaReply> {
        let asking = self.asking(context.session);
        let context = self.context(context, &asking, &NO_LIMITS);
        step::step(&self.view(), op, &context).map(|(reply, _)| reply)
    }

    /// Runs a changing operation once, however often it is sent.
    pub fn change(&self, change: &Change<'_>, parts: &ContextParts<'_>) -> Result<Outcome> {
        let _writer = self.writer.lock();
        let kept = self.known(change)?;
        if let Some(kept) = kept {
            return self.repeat(change, kept, parts.caller);
        }
        let asking = self.asking(change.session);
        let limits = self.limits.read().clone();
        let context = self.context(parts, &asking, &limits);
        match step::step(&self.view(), change.op, &context) {
            Ok((reply, changes)) => {
                self.disk.need_room(change.op, &changes)?;
                self.commit(change, reply, changes)
            }
            Err(error) => {
                // What may turn out otherwise later is not an answer for ever.
                if change.sequence > 0 && error.retry == xtfs_protocol::Retry::Never {
                    let kept = Kept::Failed(error.clone());
                    self.sessions
                        .lock()
                        .remember(change.session, change.sequence, kept);
                }
                Err(error)
            }
        }
    }

    /// The first answer again. It may have been lost before it was durable, so it is made so.
    fn repeat(&self, change: &Change<'_>, kept: Kept, caller: &Caller) -> Result<Outcome> {
        match kept {
            Kept::Failed(error) => Err(error),
            Kept::Answered(reply) => Ok(Outcome {
                durable: true,
                ..Outcome::unchanged(*reply)
            }),
            Kept::Stored | Kept::Restored => {
                let key = keys::reply(change.session, change.sequence);
                let bytes = self.view().get(Table::Sessions, &key)?;
                let bytes = bytes.ok_or_else(|| {
                    let context = format!("kept reply {} is missing", change.sequence);
                    Error::new(Code::Corrupt, context)
                })?;
                let reply = replies::decode(&bytes)?;
                if matches!(kept, Kept::Restored) {
                    self.open_again(change, caller, &reply);
                }
                Ok(Outcome {
                    reply,
                    touched: Vec::new(),
                    durable: true,
                    reclaims: false,
                    lingers: false,
                })
            }
        }
    }

    /// What a request did to the open files of its session, which resumed without knowing.
    fn open_again(&self, change: &Change<'_>, caller: &Caller, reply: &MetaReply) {
        let effect = match (change.op, reply) {
            (
                MetaOp::Create { open, .. } | MetaOp::Open { open, .. },
                MetaReply::Opened(opened),
            ) => Effect::Opened {
                ino: opened.entry.attr.ino,
                uid: caller.uid,
                held: Held {
                    read: open.read,
                    write: open.write,
                },
            },
            (MetaOp::Release { ino }, _) => Effect::Released { ino: *ino },
            _ => return,
        };
        let mut sessions = self.sessions.lock();
        sessions.remember(change.session, change.sequence, Kept::Stored);
        sessions.apply(change.session, effect);
        self.sweep_due.store(true, Ordering::Relaxed);
    }

    /// The kept reply of a request, or nothing when it is new and may run.
    fn known(&self, change: &Change<'_>) -> Result<Option<Kept>> {
        let mut sessions = self.sessions.lock();
        let kept = sessions.kept(change.session, change.sequence, change.answered)?;
        if kept.is_none() && matches!(change.op, MetaOp::Create { .. } | MetaOp::Open { .. }) {
            sessions.check_open_room(change.session)?;
        }
        Ok(kept)
    }

    fn commit(&self, change: &Change<'_>, reply: MetaReply, changes: Changes) -> Result<Outcome> {
        if changes.changes.is_empty() {
            return Ok(self.note(change, reply, &changes));
        }
        let mut batch = Batch::new();
        self.tables.add(&mut batch, &changes.changes)?;
        let forgettable = self
            .sessions
            .lock()
            .forgettable(change.session, change.answered);
        let index = self.tables.index(Table::Sessions)?;
        for sequence in &forgettable {
            batch.delete(index, &keys::reply(change.session, *sequence));
        }
        if change.sequence > 0 {
            let key = keys::reply(change.session, change.sequence);
            batch.put(index, &key, &replies::encode(&reply)?);
        }
        if !batch.is_empty() {
            self.database
                .write(batch, Durability::Buffered)
                .map_err(database)?;
        }
        let mut sessions = self.sessions.lock();
        sessions.forget(change.session, change.answered);
        if change.sequence > 0 {
            sessions.remember(change.session, change.sequence, Kept::Stored);
        }
        if let Some(effect) = changes.effect {
            sessions.apply(change.session, effect);
        }
        Ok(Outcome {
            reply,
            touched: changes.touched,
            durable: changes.durable,
            reclaims: changes.reclaims,
            lingers: matches!(changes.effect, Some(Effect::Replaced { .. })),
        })
    }

    /// A request that changes nothing in the database, such as most openings and closings, writes
    /// nothing there: it may run again after a restart.
    fn note(&self, change: &Change<'_>, reply: MetaReply, changes: &Changes) -> Outcome {
        let mut sessions = self.sessions.lock();
        if change.sequence > 0 {
            let kept = Kept::Answered(Box::new(reply.clone()));
            sessions.remember(change.session, change.sequence, kept);
        }
        if let Some(effect) = changes.effect {
            sessions.apply(change.session, effect);
        }
        Outcome {
            durable: changes.durable,
            ..Outcome::unchanged(reply)
        }
    }

    const fn asking(&self, session: SessionId) -> Asking<'_> {
        Asking {
            sessions: &self.sessions,
            session,
        }
    }

    const fn context<'a>(
        &self,
        parts: &ContextParts<'a>,
        asking: &'a Asking<'a>,
        limits: &'a Limits,
    ) -> Context<'a> {
        Context {
            caller: parts.caller,
            trusted: parts.trusted,
            time: parts.time,
            volume: self.record.id,
            session: parts.session,
            session_epoch: parts.session_epoch,
            expires: parts.expires,
            number_floor: self.number_floor,
            placement: parts.placement,
            open: asking,
            limits,
        }
    }
}

/// What a request brings to its step.
pub(crate) struct ContextParts<'a> {
    pub caller: &'a Caller,
    pub trusted: bool,
    pub time: Time,
    pub session: SessionId,
    pub session_epoch: u64,
    /// When capabilities given now run out.
    pub expires: Time,
    pub placement: &'a Result<Placement>,
}

/// The placement of operations that make no file.
pub(crate) static NO_PLACEMENT: std::sync::LazyLock<Result<Placement>> =
    std::sync::LazyLock::new(|| Err(Error::new(Code::Protocol, "no placement was chosen")));

impl<'a> ContextParts<'a> {
    /// For a look at what an untrusted caller may do.
    pub fn without_changes(caller: &'a Caller, session: SessionId, time: Time) -> Self {
        Self {
            trusted: false,
            session,
            ..Self::of_the_mrc(caller, time)
        }
    }

    /// For work that the MRC does on its own.
    fn of_the_mrc(caller: &'a Caller, time: Time) -> Self {
        Self {
            caller,
            trusted: true,
            time,
            session: SessionId([0; 16]),
            session_epoch: 0,
            expires: time,
            placement: &NO_PLACEMENT,
        }
    }
}
