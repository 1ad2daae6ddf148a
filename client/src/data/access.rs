//! Operations on objects under a capability, renewed when it is refused or about to be.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::time::Instant;
use xtfs_layout::{Cut, cut};
use xtfs_protocol::ids::Ino;
use xtfs_protocol::meta::{Caller, LeaseKind, MetaOp, MetaReply, OpenMode, Opened, PendingCut};
use xtfs_protocol::object::{ObjectOp, ObjectReply};
use xtfs_protocol::{Code, Error, Result, Retry};

use crate::session::within;
use crate::vfs::inode::{Access, Inode, State, forgotten};
use crate::vfs::{Inner, Mark, unexpected};

/// Renewals that one operation tries.
const RENEWALS_MAX: u32 = 8;

/// Tries to cut at an OSD whose machine restarts in between, and cuts in a row that one operation
/// carries out.
const CUTS_MAX: u32 = 4;

/// What an operation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// To read.
    Read,
    /// To write.
    Write,
    /// To make durable what was written.
    Flush,
    /// To write, without carrying out a pending cut first.
    Cut,
}

/// What an opened file is the answer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// An open, or a renewal.
    Open,
    /// A change of the size, under the inode's exclusive turn.
    SetSize,
}

impl Inner {
    /// Asks the OSD at a position of the file's placement. `build` makes the operation from the
    /// access and says the position.
    pub(crate) async fn object(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        need: Need,
        deadline: Instant,
        payload: Bytes,
        build: impl Fn(&Access) -> (usize, ObjectOp) + Send + Sync,
    ) -> Result<(ObjectReply, Bytes)> {
        let mut renewals = 0;
        loop {
            let mut access = inode.access()?;
            if !self.suffices(&access, need) {
                access = self.renew(inode, access.serial, need, deadline).await?;
            }
            if access.cut.is_some() && need != Need::Cut {
                self.carry_cut(inode, deadline).await?;
                access = inode.access()?;
            }
            let (position, op) = build(&access);
            let osd = access.placement.osds.get(position).ok_or_else(|| {
                Error::new(
                    Code::Protocol,
                    format!("inode {}: no OSD {position}", inode.ino),
                )
            })?;
            let error = match self
                .session
                .object(*osd, op, payload.clone(), deadline)
                .await
            {
                Ok(reply) if need != Need::Write || !was_cut_since(inode, &access) => {
                    return Ok(reply);
                }
                // It may have arrived before the cut, and be gone with it.
                Ok(_) => Error::reopen(Code::Io, "the file is cut again and again"),
                Err(error) => error,
            };
            let refused = error.retry == Retry::Reopen || error.code == Code::BadCapability;
            if !refused || renewals == RENEWALS_MAX || Instant::now() >= deadline {
                return Err(error.within(format!("osd {osd}, inode {}", inode.ino)));
            }
            renewals += 1;
            // Another serial says that somebody has renewed it already.
            self.renew(inode, access.serial, need, deadline).await?;
        }
    }

    /// Carries out what has to be cut before anything else. Getting the right to do so may bring
    /// another cut.
    pub(crate) async fn carry_cut(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        deadline: Instant,
    ) -> Result<()> {
        for _ in 0..CUTS_MAX {
            let access = inode.access()?;
            let Some(pending) = access.cut else {
                return Ok(());
            };
            self.carry_one_cut(inode, &access, pending, deadline)
                .await?;
        }
        let text = format!("inode {} is cut again and again", inode.ino);
        Err(Error::new(Code::Io, text))
    }

    /// Tells every OSD of the file about a truncation, makes it durable, tells the MRC.
    fn carry_one_cut<'a>(
        self: &'a Arc<Self>,
        inode: &'a Arc<Inode>,
        access: &'a Access,
        pending: PendingCut,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let positions = 0..access.placement.osds.len();
            let what = cut(&access.layout(), pending.size);
            let deltas: Vec<i64> = stream::iter(positions)
                .map(|position| self.cut_position(inode, position, pending.epoch, what, deadline))
                .buffer_unordered(8)
                .try_collect()
                .await?;
            let op = MetaOp::TruncateDone {
                ino: inode.ino,
                epoch: pending.epoch,
            };
            self.done(&Caller::root(), op).await?;
            let mut state = inode.state.lock();
            if pending.told {
                state.pending.allocated = deltas
                    .into_iter()
                    .fold(state.pending.allocated, i64::saturating_add);
            }
            if let Some(access) = &mut state.access
                && access.cut.is_some_and(|cut| cut.epoch == pending.epoch)
            {
                access.cut = None;
            }
            Ok(())
        })
    }

    /// Tells one OSD; durable when it returns.
    async fn cut_position(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        position: usize,
        epoch: u64,
        what: Cut,
        deadline: Instant,
    ) -> Result<i64> {
        let truncate = |access: &Access| {
            let op = ObjectOp::Truncate {
                capability: access.capability.clone(),
                file: access.file(),
                epoch,
                remove_from: what.remove_from,
                shorten: what.shorten,
            };
            (position, op)
        };
        for _ in 0..CUTS_MAX {
            let (reply, _) = self
                .object(inode, Need::Cut, deadline, Bytes::new(), truncate)
                .await?;
            let ObjectReply::Written {
                allocated_delta,
                boot,
            } = reply
            else {
                return Err(unexpected_from_osd());
            };
            let flushed = self
                .flush_position(inode, position, Need::Cut, deadline)
                .await?;
            if flushed == boot {
                return Ok(allocated_delta);
            }
        }
        Err(forgotten(position))
    }

    /// Makes what one OSD acknowledged for the file durable; says on which start of its machine.
    pub(crate) async fn flush_position(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        position: usize,
        need: Need,
        deadline: Instant,
    ) -> Result<u64> {
        let flush = |access: &Access| {
            let op = ObjectOp::Flush {
                capability: access.capability.clone(),
                file: access.file(),
            };
            (position, op)
        };
        match self
            .object(inode, need, deadline, Bytes::new(), flush)
            .await?
        {
            (ObjectReply::Flushed { boot }, _) => Ok(boot),
            _ => Err(unexpected_from_osd()),
        }
    }

    /// Takes in an opened file: forgets cached bytes that are no longer right.
    pub(crate) fn install(&self, inode: &Inode, opened: Opened, mark: Mark, after: After) {
        let mut state = inode.state.lock();
        let size = opened.entry.attr.size;
        let version = opened.entry.attr.data_version;
        let file = opened.capability.file;
        let is_first = state.file.is_none();
        let kept = match after {
            After::Open => u64::MAX,
            After::SetSize => size,
        };
        note_fence(
            inode.ino,
            &mut state,
            &opened,
            (self.session.restarts(), kept),
        );
        // A recall may have overtaken this reply: then it was meant for this open file.
        state.through |=
            opened.entry.lease.kind == LeaseKind::Read || self.was_recalled_since(mark);
        if state.file.is_some_and(|known| known != file) {
            // What was learnt of the content before says nothing of this one.
            state.pending.allocated = 0;
            state.unflushed.clear();
            state.unflushed_known = false;
        }
        let keep = match after {
            After::Open => {
                self.absorb(&mut state, opened.entry, mark);
                state.version == Some(version) && state.file == Some(file)
            }
            After::SetSize => {
                state.note_told(self.session.restarts()).end = size;
                inode.forget_beyond(&mut state, &opened.placement.layout, size);
                state.pending.end = state.pending.end.min(size);
                state.pending.written_at = None;
                self.absorb_change(&mut state, opened.entry, mark);
                if let Some(attr) = &mut state.attr {
                    attr.size = size;
                }
                state.version.map(|known| known.saturating_add(1)) == Some(version)
            }
        };
        if size == 0 && (after == After::SetSize || is_first) {
            state.unflushed.clear();
            state.unflushed_known = true;
        }
        if !keep {
            state.unflushed_known &= size == 0;
            inode.evict_clean(&mut state);
            state.changes += 1;
            state.kernel_stale = true;
        }
        state.version = Some(version);
        state.file = Some(file);
        set_access(&mut state.access, opened);
    }

    fn suffices(&self, access: &Access, need: Need) -> bool {
        let capability = &access.capability;
        let right = match need {
            Need::Read => capability.read,
            Need::Write | Need::Cut => capability.write,
            Need::Flush => true,
        };
        right && capability.session == self.session.current().id
    }

    async fn renew(
        &self,
        inode: &Arc<Inode>,
        serial: u64,
        need: Need,
        deadline: Instant,
    ) -> Result<Access> {
        let _turn = within(deadline, inode.renewing.lock()).await?;
        let access = inode.access()?;
        if access.serial != serial && self.suffices(&access, need) {
            return Ok(access);
        }
        let write = matches!(need, Need::Write | Need::Cut);
        self.reopen(inode, write).await?;
        inode.access()
    }

    /// Opens the file anew at the MRC, on behalf of handles that have passed the permission check
    /// already. Called in turn (`renewing`).
    pub(crate) async fn reopen(&self, inode: &Arc<Inode>, write: bool) -> Result<()> {
        // Who could write must go on being able to: a capability with fewer rights would not
        // take the place of the one that was refused.
        let may_write = {
            let state = inode.state.lock();
            let access = state.access.as_ref();
            state.writers > 0 || access.is_some_and(|access| access.capability.write)
        };
        let mark = self.mark();
        let op = MetaOp::Open {
            ino: inode.ino,
            open: OpenMode {
                read: true,
                write: write || may_write,
                truncate: false,
            },
        };
        let MetaReply::Opened(opened) = self.session.meta(&Caller::root(), op).await? else {
            return Err(unexpected());
        };
        self.install(inode, *opened, mark, After::Open);
        Ok(())
    }
}

/// Was the file cut since this access was taken?
fn was_cut_since(inode: &Inode, access: &Access) -> bool {
    let state = inode.state.lock();
    let now = state.access.as_ref().map(|access| &access.capability);
    now.is_some_and(|now| now.truncate_epoch > access.capability.truncate_epoch)
}

/// Another session may have cut the file since this one was given access: what was sent and not
/// told yet is gone then, and must not make the file longer again. The same goes for what an MRC
/// that lost power was told and forgot, as far as it lies before `size`.
fn note_fence(ino: Ino, state: &mut State, opened: &Opened, (restarts, size): (u64, u64)) {
    let Some(known) = state.access.as_ref().map(|access| &access.capability) else {
        return;
    };
    let epoch = known.truncate_epoch;
    if epoch >= opened.capability.truncate_epoch {
        return;
    }
    let cut_at = opened.pending_cut.map_or(0, |cut| cut.size);
    let forgotten = state.told.filter(|told| told.restarts != restarts);
    let forgotten = forgotten.map_or(0, |told| told.end.min(size));
    if epoch < opened.fenced && state.pending.sent.max(forgotten) > cut_at {
        let text = format!("inode {ino}: another session took back what was not told of it");
        tracing::error!("{text}: this one was away for too long");
        state.errors.note(Error::new(Code::Io, text));
    }
    let unsent = state.unsent_end(&opened.placement.layout);
    state.pending.end = state.pending.end.min(unsent);
    state.pending.sent = 0;
    if let Some(told) = &mut state.told {
        told.end = told.end.min(unsent);
    }
}

/// The OSD answered another question than the one asked.
pub(crate) fn unexpected_from_osd() -> Error {
    Error::new(Code::Protocol, "osd: unexpected kind of answer")
}

/// Replaces the access, unless the old one allows more of the same.
fn set_access(slot: &mut Option<Access>, opened: Opened) {
    let serial = slot.as_ref().map_or(1, |old| old.serial + 1);
    if let Some(old) = slot {
        let (a, b) = (&old.capability, &opened.capability);
        let same = a.file == b.file
            && a.session == b.session
            && a.session_epoch == b.session_epoch
            && a.view == b.view
            && a.truncate_epoch == b.truncate_epoch;
        if same && a.write && !b.write {
            old.serial = serial;
            old.cut = opened.pending_cut;
            return;
        }
    }
    *slot = Some(Access {
        placement: opened.placement,
        capability: opened.capability,
        cut: opened.pending_cut,
        serial,
    });
}
