//! One volume: its database, its one writer, its sessions and leases.
//!
//! A changing operation takes the writer's mutex for the step and the buffered commit, never
//! longer: nothing waits for a disk flush or another peer under it. Reading operations run on a
//! snapshot of their own and take no mutex of the writer.
//!
//! Lock order: writer, then sessions. Leases have a lock of their own and are asked without any.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use babu_kv::{Batch, Database, Durability};
use parking_lot::Mutex;
use tokio::time::Instant;
use xtfs_protocol::ids::{Ino, ROOT_INO, SessionId, VolumeId};
use xtfs_protocol::meta::{Caller, MetaOp, MetaReply, VolumeInfo};
use xtfs_protocol::time::Time;
use xtfs_protocol::transport::{Peer, Pusher};
use xtfs_protocol::{Code, Error, Result};

use crate::database::{DatabaseView, Tables};
use crate::error::database;
use crate::inode::{Body, Directory, Inode};
use crate::keys::{self, Table};
use crate::lease::Leases;
use crate::records::{Counters, DeletedRecord, SessionRecord, Usage, VolumeRecord};
use crate::replies;
use crate::session::{Asking, Kept, Sessions, owner};
use crate::step::{self, Changes, Context, Transaction};
use crate::view::View;

/// Numbers that are passed over when the database was not closed in order: more than can have
/// been handed out since it was last made durable.
const NUMBERS_SKIPPED: u64 = 1 << 32;
/// Most files reclaimed in one batch.
const RECLAIM_BATCH: usize = 256;

/// How volumes treat their clients.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// How long a session lives without a call.
    pub session: Duration,
    /// How long a lease lasts.
    pub lease: Duration,
}

/// The root directory of a new volume.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Root {
    pub uid: u32,
    pub gid: u32,
    pub mode: u16,
    pub time: Time,
}

pub(crate) struct Volume {
    pub record: VolumeRecord,
    database: Database,
    tables: Tables,
    number_floor: u64,
    writer: Mutex<()>,
    sessions: Mutex<Sessions>,
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
}

impl Volume {
    /// Makes the database of a new volume, durably.
    pub fn create(
        dir: &Path,
        options: babu_kv::Options,
        record: VolumeRecord,
        root: Root,
        times: Times,
    ) -> Result<Self> {
        let opened = Database::open(dir, options).map_err(database)?;
        let tables = Tables::open(&opened)?;
        let inode = Inode {
            ino: ROOT_INO,
            mode: root.mode & 0o7777,
            nlink: 2,
            uid: root.uid,
            gid: root.gid,
            rdev: 0,
            size: 0,
            allocated: 0,
            atime: root.time,
            mtime: root.time,
            ctime: root.time,
            btime: root.time,
            data_version: 0,
            xattr_names: 0,
            body: Body::Directory(Directory {
                parent: ROOT_INO,
                run_next: 0,
                run_end: 0,
                run_length: 0,
            }),
        };
        let counters = Counters {
            next_number: ROOT_INO + 1,
            next_deleted: 1,
            session_epoch: 0,
            closed: true,
        };
        let usage = Usage {
            bytes: 0,
            inodes: 1,
        };
        let mut batch = Batch::new();
        let root_key = keys::number(ROOT_INO);
        batch.put(tables.index(Table::Inodes)?, &root_key, &inode.encode());
        batch.put(
            tables.index(Table::Usage)?,
            keys::USAGE_VOLUME,
            &usage.encode(),
        );
        let settings = tables.index(Table::Settings)?;
        batch.put(settings, keys::SETTING_COUNTERS, &counters.encode());
        batch.put(settings, keys::SETTING_VOLUME, &record.encode());
        opened.write(batch, Durability::Synced).map_err(database)?;
        Self::prepare(opened, tables, times)
    }

    /// Opens the database of a volume.
    pub fn open(dir: &Path, options: babu_kv::Options, times: Times) -> Result<Self> {
        let opened = Database::open(dir, options).map_err(database)?;
        let tables = Tables::open(&opened)?;
        Self::prepare(opened, tables, times)
    }

    fn prepare(opened: Database, tables: Tables, times: Times) -> Result<Self> {
        let view = DatabaseView {
            snapshot: opened.snapshot(),
            tables: &tables,
        };
        let record = view
            .get(Table::Settings, keys::SETTING_VOLUME)?
            .ok_or_else(|| Error::new(Code::Corrupt, "the volume has no settings"))?;
        let record = VolumeRecord::decode(&record)?;
        let mut counters = step::counters(&view)?;
        let sessions = restore_sessions(&view, times.session)?;
        drop(view);
        if !counters.closed {
            counters.next_number = counters.next_number.saturating_add(NUMBERS_SKIPPED);
        }
        counters.closed = false;
        let number_floor = counters.next_number;
        let volume = Self {
            record,
            database: opened,
            tables,
            number_floor,
            writer: Mutex::new(()),
            sessions: Mutex::new(sessions),
            leases: Leases::new(times.lease),
            sweep_due: AtomicBool::new(true),
        };
        volume.write_counters(&counters, Durability::Synced)?;
        Ok(volume)
    }

    fn write_counters(&self, counters: &Counters, durability: Durability) -> Result<()> {
        let mut batch = Batch::new();
        let settings = self.tables.index(Table::Settings)?;
        batch.put(settings, keys::SETTING_COUNTERS, &counters.encode());
        self.database.write(batch, durability).map_err(database)?;
        Ok(())
    }

    /// Closes the database in order; every later access fails. May wait for the disk.
    pub fn close(&self) -> Result<()> {
        let _writer = self.writer.lock();
        let mut counters = step::counters(&self.view())?;
        counters.closed = true;
        self.write_counters(&counters, Durability::Synced)?;
        self.database.clone().close().map_err(database)
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
        let context = self.context(context, &asking);
        step::step(&self.view(), op, &context).map(|(reply, _)| reply)
    }

    /// Runs a changing operation once, however often it is sent.
    pub fn change(&self, change: &Change<'_>, parts: &ContextParts<'_>) -> Result<Outcome> {
        let _writer = self.writer.lock();
        if change.sequence > 0 {
            let kept = self.sessions.lock().kept(change.session, change.sequence)?;
            if let Some(kept) = kept {
                return self.repeat(change, kept);
            }
        }
        let asking = self.asking(change.session);
        let context = self.context(parts, &asking);
        match step::step(&self.view(), change.op, &context) {
            Ok((reply, changes)) => self.commit(change, reply, changes),
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
    fn repeat(&self, change: &Change<'_>, kept: Kept) -> Result<Outcome> {
        match kept {
            Kept::Failed(error) => Err(error),
            Kept::Stored => {
                let key = keys::reply(change.session, change.sequence);
                let bytes = self.view().get(Table::Sessions, &key)?;
                let bytes = bytes.ok_or_else(|| {
                    let context = format!("kept reply {} is missing", change.sequence);
                    Error::new(Code::Corrupt, context)
                })?;
                Ok(Outcome {
                    reply: replies::decode(&bytes)?,
                    touched: Vec::new(),
                    durable: true,
                    reclaims: false,
                })
            }
        }
    }

    fn commit(&self, change: &Change<'_>, reply: MetaReply, changes: Changes) -> Result<Outcome> {
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
        })
    }

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
        open_files: &[Ino],
        pusher: Option<Arc<dyn Pusher>>,
    ) -> Result<u64> {
        let _writer = self.writer.lock();
        self.sessions.lock().check_room(open_files)?;
        let mut counters = step::counters(&self.view())?;
        counters.session_epoch += 1;
        let record = SessionRecord {
            epoch: counters.session_epoch,
            owner: owner(peer),
        };
        let mut batch = Batch::new();
        let settings = self.tables.index(Table::Settings)?;
        batch.put(settings, keys::SETTING_COUNTERS, &counters.encode());
        let index = self.tables.index(Table::Sessions)?;
        batch.put(index, &id.0, &record.encode());
        self.database
            .write(batch, Durability::Buffered)
            .map_err(database)?;
        let mut sessions = self.sessions.lock();
        sessions.add(id, record);
        sessions.resume(id, peer, open_files, pusher)
    }

    /// Goes on with a session. Returns its epoch.
    pub fn resume_session(
        &self,
        id: SessionId,
        peer: &Peer,
        open_files: &[Ino],
        pusher: Option<Arc<dyn Pusher>>,
    ) -> Result<u64> {
        let _writer = self.writer.lock();
        let epoch = self.sessions.lock().resume(id, peer, open_files, pusher)?;
        self.sweep_due.store(true, Ordering::Relaxed);
        Ok(epoch)
    }

    /// Ends a session: it, its kept replies and its open files are forgotten.
    pub fn end_session(&self, id: SessionId) -> Result<()> {
        let _writer = self.writer.lock();
        let mut batch = Batch::new();
        let index = self.tables.index(Table::Sessions)?;
        let end = keys::after_prefix(&id.0);
        batch.delete(index, &id.0);
        match end {
            Some(end) => batch.delete_range(index, &id.0, &end),
            None => batch.delete_range(index, &id.0, &[u8::MAX; 25]),
        }
        self.database
            .write(batch, Durability::Buffered)
            .map_err(database)?;
        self.sessions.lock().remove(id);
        self.sweep_due.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Every session that the volume has.
    pub fn session_ids(&self) -> Vec<SessionId> {
        self.sessions.lock().ids()
    }

    /// The sessions whose time ran out.
    pub fn overdue_sessions(&self) -> Vec<SessionId> {
        self.sessions.lock().overdue(Instant::now())
    }

    pub fn next_session_deadline(&self) -> Option<Instant> {
        self.sessions.lock().next_deadline()
    }

    pub fn pusher(&self, session: SessionId) -> Option<Arc<dyn Pusher>> {
        self.sessions.lock().pusher(session)
    }

    /// Is a look for orphans worth it?
    pub fn sweep_is_due(&self) -> bool {
        self.sweep_due.load(Ordering::Relaxed)
    }

    /// Reclaims the unlinked files that nobody has open any more. True when some were found.
    pub fn sweep_orphans(&self, time: Time) -> Result<bool> {
        self.sweep_due.store(false, Ordering::Relaxed);
        let swept = self.sweep(time);
        if swept.is_err() {
            self.sweep_due.store(true, Ordering::Relaxed);
        }
        swept
    }

    fn sweep(&self, time: Time) -> Result<bool> {
        let caller = Caller::root();
        let parts = ContextParts::of_the_mrc(&caller, time);
        let mut found = false;
        let mut after = 0;
        loop {
            let inos = self.orphans(after)?;
            let Some(last) = inos.last() else {
                return Ok(found);
            };
            after = *last;
            let _writer = self.writer.lock();
            let asking = self.asking(parts.session);
            let context = self.context(&parts, &asking);
            let view = self.view();
            let mut transaction = Transaction::new(&view, &context);
            transaction.reclaim_unheld(&inos)?;
            let changes = transaction.finish();
            if changes.changes.is_empty() {
                continue;
            }
            let mut batch = Batch::new();
            self.tables.add(&mut batch, &changes.changes)?;
            self.database
                .write(batch, Durability::Buffered)
                .map_err(database)?;
            found |= changes.reclaims;
        }
    }

    fn orphans(&self, after: Ino) -> Result<Vec<Ino>> {
        let mut inos = Vec::new();
        let from = keys::number(after);
        self.view().scan(
            Table::Orphans,
            Bound::Excluded(&from),
            Bound::Unbounded,
            &mut |key, _| {
                inos.push(keys::ino(key)?);
                Ok(inos.len() < RECLAIM_BATCH)
            },
        )?;
        Ok(inos)
    }

    /// The next contents to delete, behind a sequence.
    pub fn deletions(&self, after: u64, limit: usize) -> Result<Vec<(u64, DeletedRecord)>> {
        let mut found = Vec::new();
        let from = keys::number(after);
        self.view().scan(
            Table::Deleted,
            Bound::Excluded(&from),
            Bound::Unbounded,
            &mut |key, value| {
                found.push((keys::split(key)?.0, DeletedRecord::decode(value)?));
                Ok(found.len() < limit)
            },
        )?;
        Ok(found)
    }

    /// Takes entries out of the deletion queue whose objects are gone.
    pub fn forget_deletions(&self, sequences: &[u64]) -> Result<()> {
        self.remove_numbered(Table::Deleted, sequences)
    }

    /// Takes files out of a volume that is being deleted, when their objects are gone. The rest
    /// of the volume is not kept consistent any more.
    pub fn forget_files(&self, inos: &[Ino]) -> Result<()> {
        self.remove_numbered(Table::Inodes, inos)
    }

    fn remove_numbered(&self, table: Table, numbers: &[u64]) -> Result<()> {
        let index = self.tables.index(table)?;
        let mut batch = Batch::new();
        for number in numbers {
            batch.delete(index, &keys::number(*number));
        }
        if batch.is_empty() {
            return Ok(());
        }
        self.database
            .write(batch, Durability::Buffered)
            .map_err(database)?;
        Ok(())
    }

    const fn asking(&self, session: SessionId) -> Asking<'_> {
        Asking {
            sessions: &self.sessions,
            session,
        }
    }

    const fn context<'a>(&self, parts: &ContextParts<'a>, asking: &'a Asking<'a>) -> Context<'a> {
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
    pub placement: &'a Result<xtfs_protocol::meta::Placement>,
}

/// The placement of operations that make no file.
pub(crate) static NO_PLACEMENT: std::sync::LazyLock<Result<xtfs_protocol::meta::Placement>> =
    std::sync::LazyLock::new(|| Err(Error::new(Code::Protocol, "no placement was chosen")));

impl<'a> ContextParts<'a> {
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

fn restore_sessions(view: &dyn View, duration: Duration) -> Result<Sessions> {
    let mut records = BTreeMap::new();
    let mut kept = Vec::new();
    view.scan(
        Table::Sessions,
        Bound::Unbounded,
        Bound::Unbounded,
        &mut |key, value| {
            match keys::split_session(key)? {
                (id, None) => {
                    records.insert(id, SessionRecord::decode(value)?);
                }
                (id, Some(sequence)) => kept.push((id, sequence)),
            }
            Ok(true)
        },
    )?;
    Ok(Sessions::restored(duration, records, kept))
}

impl Volume {
    /// Identity of the volume.
    pub const fn id(&self) -> VolumeId {
        self.record.id
    }
}
