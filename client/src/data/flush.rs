//! From the cache to the OSDs, then size and times to the MRC.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use xtfs_protocol::ids::{Ino, ObjectId};
use xtfs_protocol::meta::{Caller, FileUpdate, MetaOp};
use xtfs_protocol::object::{ObjectOp, ObjectReply, Stability};
use xtfs_protocol::{Code, Error, Result, Retry};

use super::access::{Need, unexpected_from_osd};
use crate::cache::object::ObjectBuffer;
use crate::session::within;
use crate::vfs::Inner;
use crate::vfs::inode::{Access, Inode, Pending, Told, forgotten};

/// Objects, pieces or OSDs of one file that are served at a time.
const PARALLEL: usize = 8;

/// Files that are flushed at a time: those that wait for an OSD that is gone must not hold up
/// the others.
const FILES_PARALLEL: usize = 128;

/// How often an fsync tells the MRC the same when its machine restarts.
const TELLINGS_MAX: u32 = 4;

/// How long those that are being flushed may still take at the end.
const LAST_FLUSHES_MAX: Duration = Duration::from_secs(2);

/// Sends what has grown old, or everything when memory runs short, until told to stop. What is on
/// its way then for too long is dirty again.
pub(crate) async fn run(inner: Arc<Inner>, mut stop: watch::Receiver<bool>) {
    let pause = (inner.options.dirty_age_max / 5).max(Duration::from_millis(10));
    let mut rounds = tokio::time::interval(pause);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut due: VecDeque<Arc<Inode>> = VecDeque::new();
    let mut running = JoinSet::new();
    let mut busy: HashMap<tokio::task::Id, Ino> = HashMap::new();
    loop {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            Some(ended) = running.join_next_with_id() => {
                match ended {
                    Ok((task, ())) => busy.remove(&task),
                    Err(error) => busy.remove(&error.id()),
                };
            }
            _ = rounds.tick() => due = inner.due_inodes(inner.budget.is_pressed()),
            // A writer that waits for room kicks.
            () = inner.kick.notified() => if due.is_empty() {
                due = inner.due_inodes(true);
            },
        }
        while busy.len() < FILES_PARALLEL
            && let Some(inode) = due.pop_front()
        {
            if busy.values().any(|ino| *ino == inode.ino) {
                continue;
            }
            let (ino, inner) = (inode.ino, Arc::clone(&inner));
            let flush = async move {
                if let Err(error) = inner.flush_inode(&inode).await {
                    tracing::warn!(ino, %error, "sending in the background failed");
                }
            };
            busy.insert(running.spawn(flush).id(), ino);
        }
    }
    let ended = async { while running.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST_FLUSHES_MAX, ended).await.is_err() {
        running.shutdown().await;
    }
}

impl Inner {
    /// Puts an inode on the list of those with something to send.
    pub(crate) fn note_dirty(&self, inode: &Arc<Inode>) {
        self.dirty
            .lock()
            .entry(inode.ino)
            .or_insert_with(|| Arc::clone(inode));
    }

    pub(crate) fn dirty_inodes(&self) -> Vec<Arc<Inode>> {
        self.dirty.lock().values().cloned().collect()
    }

    /// Those that have been dirty for long enough to be sent unasked, or all.
    fn due_inodes(&self, all: bool) -> VecDeque<Arc<Inode>> {
        let now = Instant::now();
        let is_due = |inode: &Arc<Inode>| {
            let since = inode.state.lock().dirty_since;
            let age = since.map(|since| now.saturating_duration_since(since));
            all || age.is_some_and(|age| age >= self.options.dirty_age_max)
        };
        self.dirty_inodes().into_iter().filter(is_due).collect()
    }

    /// Sends and tells everything of every inode.
    pub(crate) async fn flush_all(self: &Arc<Self>) -> Result<()> {
        stream::iter(self.dirty_inodes())
            .map(|inode| async move { self.flush_inode(&inode).await })
            .buffer_unordered(FILES_PARALLEL)
            .fold(Ok(()), |outcome, flushed| async { outcome.and(flushed) })
            .await
    }

    /// Sends every byte that is dirty now, then tells the MRC. Errors are noted for every handle
    /// as well.
    pub(crate) async fn flush_inode(self: &Arc<Self>, inode: &Arc<Inode>) -> Result<()> {
        if !inode.state.lock().is_dirty() {
            self.forget_clean(inode);
            return Ok(());
        }
        let deadline = self.session.deadline();
        let sent = self.flush_data(inode, deadline).await;
        let told = self.update(inode, deadline).await;
        self.forget_clean(inode);
        sent.and(told)
    }

    /// The same, and durable on the OSDs and at the MRC.
    pub(crate) async fn sync_inode(self: &Arc<Self>, inode: &Arc<Inode>) -> Result<()> {
        let deadline = self.session.deadline();
        self.flush_data(inode, deadline).await?;
        self.flush_osds(inode, deadline).await?;
        self.update(inode, deadline).await?;
        self.forget_clean(inode);
        for _ in 0..TELLINGS_MAX {
            let told = inode.state.lock().told;
            self.session.sync().await?;
            match told {
                Some(told) if told.restarts != self.session.restarts() => {
                    self.tell_again(inode, told, deadline).await?;
                }
                _ => {
                    let mut state = inode.state.lock();
                    if state.told == told {
                        state.told = None;
                    }
                    return Ok(());
                }
            }
        }
        Err(Error::new(
            Code::Io,
            "the MRC's machine restarts again and again",
        ))
    }

    /// The MRC's machine lost power before it had made durable what it was told of a file.
    async fn tell_again(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        told: Told,
        deadline: Instant,
    ) -> Result<()> {
        let file = inode.access()?.file();
        let reopened = {
            let _turn = within(deadline, inode.renewing.lock()).await?;
            self.reopen(inode, false).await
        };
        let outcome = reopened.and_then(|()| {
            if inode.access()?.file() == file {
                return Ok(());
            }
            // A truncation was forgotten, and what was written behind it with it.
            let text = format!("the MRC forgot the content of inode {}", inode.ino);
            Err(Error::new(Code::Io, text))
        });
        {
            let mut state = inode.state.lock();
            // Less of it may count by now.
            let told = state.told.take().unwrap_or(told);
            if let Err(error) = outcome {
                tracing::error!(ino = inode.ino, %error, "the MRC lost power and the file with it");
                state.errors.note(error.clone());
                return Err(error);
            }
            state.pending.end = state.pending.end.max(told.end);
            state.pending.written_at = state.pending.written_at.or(told.written_at);
            state.note_told(self.session.restarts());
        }
        self.note_dirty(inode);
        self.update(inode, deadline).await?;
        self.forget_clean(inode);
        Ok(())
    }

    /// Makes durable what the OSDs acknowledged. An OSD whose machine was started anew in between
    /// may have forgotten some of it.
    async fn flush_osds(self: &Arc<Self>, inode: &Arc<Inode>, deadline: Instant) -> Result<()> {
        let _sync = within(deadline, inode.syncing.lock()).await?;
        let osds = inode.access()?.placement.osds.len();
        let positions: Vec<(usize, Option<u64>)> = {
            let mut state = inode.state.lock();
            let written = std::mem::take(&mut state.unflushed);
            // Not known again before all have answered.
            if std::mem::replace(&mut state.unflushed_known, false) {
                let with_boot = |(position, boot)| (position, Some(boot));
                written.into_iter().map(with_boot).collect()
            } else {
                (0..osds)
                    .map(|position| (position, written.get(&position).copied()))
                    .collect()
            }
        };
        let flushed: Vec<Result<()>> = stream::iter(positions)
            .map(|(position, written_on)| async move {
                let boot = self
                    .flush_position(inode, position, Need::Flush, deadline)
                    .await?;
                match written_on {
                    Some(written_on) if written_on != boot => Err(forgotten(position)),
                    _ => Ok(()),
                }
            })
            .buffer_unordered(PARALLEL)
            .collect()
            .await;
        let outcome: Result<()> = flushed.into_iter().collect();
        let mut state = inode.state.lock();
        match &outcome {
            Ok(()) => state.unflushed_known = true,
            Err(error) => state.errors.note(error.clone()),
        }
        outcome
    }

    /// Sends every byte that is dirty now.
    pub(crate) async fn flush_data(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        deadline: Instant,
    ) -> Result<()> {
        let objects: Vec<u64> = {
            let state = inode.state.lock();
            let unsent = |(_, buffer): &(&u64, &ObjectBuffer)| buffer.unsent() > 0;
            state
                .objects
                .iter()
                .filter(unsent)
                .map(|(&object, _)| object)
                .collect()
        };
        let results: Vec<Result<()>> = stream::iter(objects)
            .map(|object| self.send(inode, object, deadline))
            .buffer_unordered(PARALLEL)
            .collect()
            .await;
        results.into_iter().collect()
    }

    /// Starts sending one object; the file's flush waits for it.
    pub(crate) fn send_in_background(self: &Arc<Self>, inode: &Arc<Inode>, object: u64) {
        let (inner, inode) = (Arc::clone(self), Arc::clone(inode));
        self.tasks.spawn(async move {
            let deadline = inner.session.deadline();
            let Ok(Ok(_place)) = within(deadline, inner.senders.acquire()).await else {
                return;
            };
            if let Err(error) = inner.send(&inode, object, deadline).await {
                tracing::warn!(ino = inode.ino, object, %error, "could not send an object");
            }
        });
    }

    /// Sends one object's dirty bytes, after those that are on their way already.
    async fn send(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        object: u64,
        deadline: Instant,
    ) -> Result<()> {
        let _turn = within(deadline, inode.turn.read()).await?;
        let pieces = loop {
            let told = inode.settled.notified();
            tokio::pin!(told);
            told.as_mut().enable();
            {
                let mut state = inode.state.lock();
                match state.objects.get(&object) {
                    Some(buffer) if buffer.is_departing() => {}
                    Some(buffer) if buffer.is_dirty() => {
                        break inode.edit(&mut state, object, |buffer| buffer.depart());
                    }
                    _ => return Ok(()),
                }
            }
            within(deadline, told).await?;
        };
        let mut departure = Departure {
            inode,
            object,
            end: ObjectBuffer::returned,
        };
        let end = pieces
            .iter()
            .map(|(at, bytes)| u64::from(*at) + bytes.len() as u64);
        let end = end.max().unwrap_or(0);
        let sent: Result<Vec<(usize, i64, u64)>> = stream::iter(pieces)
            .map(|(offset, bytes)| self.send_piece(inode, object, offset, bytes, deadline))
            .buffer_unordered(PARALLEL)
            .try_collect()
            .await;
        match sent {
            Ok(deltas) => {
                let mut state = inode.state.lock();
                for (position, delta, boot) in deltas {
                    state.arrived(position, delta, boot);
                }
                if let Some(access) = &state.access {
                    let object_size = u64::from(access.layout().object_size);
                    state.arrived_up_to(object.saturating_mul(object_size) + end);
                }
                drop(state);
                departure.end = ObjectBuffer::arrived;
                Ok(())
            }
            Err(error) => {
                departure.end = ObjectBuffer::lost;
                tracing::error!(ino = inode.ino, object, %error, "written bytes are lost");
                inode.state.lock().errors.note(error.clone());
                Err(error)
            }
        }
    }

    async fn send_piece(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        object: u64,
        offset: u32,
        bytes: Bytes,
        deadline: Instant,
    ) -> Result<(usize, i64, u64)> {
        let position = inode.access()?.layout().position(object, 0);
        let build = |access: &Access| {
            let op = ObjectOp::Write {
                capability: access.capability.clone(),
                object: ObjectId {
                    file: access.file(),
                    object,
                    shard: 0,
                },
                offset,
                stability: Stability::Written,
            };
            (position, op)
        };
        let (reply, _) = self
            .object(inode, Need::Write, deadline, bytes, build)
            .await?;
        match reply {
            ObjectReply::Written {
                allocated_delta,
                boot,
            } => Ok((position, allocated_delta, boot)),
            _ => Err(unexpected_from_osd()),
        }
    }

    /// Tells the MRC size and times of what arrived. Where it refuses for good, what was written
    /// behind the end is taken back: it must not show when the file is made longer later.
    pub(crate) async fn update(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        deadline: Instant,
    ) -> Result<()> {
        let told = self.tell(inode, deadline).await;
        if let Err(error) = &told
            && is_final(error)
            && let Err(error) = self.take_back_refused(inode, deadline).await
        {
            tracing::warn!(ino = inode.ino, %error, "refused bytes could not be taken back");
        }
        told
    }

    async fn tell(self: &Arc<Self>, inode: &Arc<Inode>, deadline: Instant) -> Result<()> {
        let _flush = within(deadline, inode.flushing.lock()).await?;
        let _turn = within(deadline, inode.turn.read()).await?;
        let (pending, epoch) = {
            let mut state = inode.state.lock();
            let Some(access) = &state.access else {
                return Ok(());
            };
            let epoch = access.capability.truncate_epoch;
            let pending = std::mem::take(&mut state.pending);
            if !pending.is_due() && pending.read_at.is_none() {
                return Ok(());
            }
            // Until the MRC has answered, applications go on seeing what they wrote.
            state.pending.end = pending.end;
            state.pending.sent = pending.sent;
            state.pending.written_at = pending.written_at;
            (pending, epoch)
        };
        let restarts = self.session.restarts();
        let mark = self.mark();
        let op = MetaOp::Update {
            ino: inode.ino,
            update: FileUpdate {
                appended: 0,
                size_at_least: pending.end,
                truncate_epoch: epoch,
                allocated_delta: pending.allocated,
                written_at: pending.written_at,
                read_at: pending.read_at,
            },
        };
        let result = self.entry(&Caller::root(), op).await;
        let mut state = inode.state.lock();
        match result {
            Ok(entry) => {
                settle(&mut state.pending, &pending);
                let told = state.note_told(restarts);
                told.end = told.end.max(pending.end);
                told.written_at = pending.written_at.or(told.written_at);
                // Any other version means that somebody else wrote, too: the next open sees that.
                let grew = state.attr.is_some_and(|attr| pending.end > attr.size);
                let step = u64::from(grew || pending.written_at.is_some());
                let expected = state.version.map(|known| known.saturating_add(step));
                if expected == Some(entry.attr.data_version) {
                    state.version = expected;
                }
                self.absorb_change(&mut state, entry, mark);
                if let Some(attr) = &mut state.attr {
                    // Where somebody else cut the file, what was written before is gone.
                    attr.size = entry.attr.size;
                }
                Ok(())
            }
            Err(error) => {
                state.pending.allocated = state.pending.allocated.saturating_add(pending.allocated);
                if is_final(&error) {
                    inode.forget_pending(&mut state);
                }
                state.errors.note(error.clone());
                Err(error)
            }
        }
    }

    /// Takes an inode off the list when nothing is left to send. A writer makes the inode dirty
    /// first and puts it on the list then, so it is never dirty and off the list for good.
    fn forget_clean(&self, inode: &Arc<Inode>) {
        let mut dirty = self.dirty.lock();
        let mut state = inode.state.lock();
        if state.is_dirty() {
            state.dirty_since = Some(Instant::now());
        } else {
            state.dirty_since = None;
            dirty.remove(&inode.ino);
        }
    }
}

/// Will it not be accepted later either?
fn is_final(error: &Error) -> bool {
    error.retry == Retry::Never && error.code != Code::TimedOut
}

/// Takes what was told from what is pending.
fn settle(pending: &mut Pending, told: &Pending) {
    if pending.end == told.end {
        pending.end = 0;
    }
    if pending.sent == told.sent {
        pending.sent = 0;
    }
    if pending.written_at == told.written_at {
        pending.written_at = None;
    }
}

/// Bytes on their way: whatever happens, they do not stay so. Where the sending is given up
/// midway, they are dirty again.
struct Departure<'a> {
    inode: &'a Arc<Inode>,
    object: u64,
    end: fn(&mut ObjectBuffer),
}

impl Drop for Departure<'_> {
    fn drop(&mut self) {
        let mut state = self.inode.state.lock();
        self.inode.edit(&mut state, self.object, self.end);
        drop(state);
        self.inode.settled.notify_waiters();
    }
}
