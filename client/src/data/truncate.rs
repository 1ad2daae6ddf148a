//! Shorter and longer: the MRC decides, the OSDs follow.

use std::sync::Arc;

use tokio::sync::RwLockWriteGuard;
use tokio::time::Instant;
use xtfs_protocol::meta::{Caller, MetaOp, MetaReply, SetAttr};
use xtfs_protocol::{Code, Error, Result};

use super::access::After;
use crate::session::within;
use crate::vfs::inode::Inode;
use crate::vfs::{Found, Inner, unexpected};

impl Inner {
    /// Sets the size (and whatever else `set` says) of a regular file.
    pub(crate) async fn set_size(
        self: &Arc<Self>,
        caller: &Caller,
        inode: &Arc<Inode>,
        set: SetAttr,
        by_handle: bool,
    ) -> Result<Found> {
        let deadline = self.session.deadline();
        let _turn = self.tell_all(inode, deadline).await?;
        let mark = self.mark();
        let op = MetaOp::Setattr {
            ino: inode.ino,
            set,
            by_handle,
        };
        let MetaReply::Truncated(opened) = self.session.meta(caller, op).await? else {
            return Err(unexpected());
        };
        let is_open = inode.state.lock().handles > 0;
        let entry = opened.entry;
        self.install(inode, *opened, mark, After::SetSize);
        self.carry_cut(inode, deadline).await?;
        if !is_open {
            self.settle_closed(inode).await?;
        }
        let state = inode.state.lock();
        Ok(self.seen(&state, entry.attr))
    }

    /// Sends and tells everything that was written, and keeps others from writing more. Bytes that
    /// a refused truncation leaves in place must not be dropped before it; and the MRC takes what
    /// lies behind the end that it knows for what a lost writer left.
    async fn tell_all<'a>(
        self: &Arc<Self>,
        inode: &'a Arc<Inode>,
        deadline: Instant,
    ) -> Result<RwLockWriteGuard<'a, ()>> {
        while Instant::now() < deadline {
            self.flush_inode(inode).await?;
            let turn = within(deadline, inode.turn.write()).await?;
            if !inode.state.lock().is_dirty() {
                return Ok(turn);
            }
        }
        let text = format!("inode {} is written to all the time", inode.ino);
        Err(Error::new(Code::TimedOut, text))
    }

    /// Drops what was written behind the end that the MRC knows, here and on the OSDs.
    pub(super) async fn take_back_refused(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        deadline: Instant,
    ) -> Result<()> {
        let _turn = within(deadline, inode.turn.write()).await?;
        let mark = self.mark();
        let op = MetaOp::TakeBack { ino: inode.ino };
        let reply = self.session.meta(&Caller::root(), op).await?;
        let MetaReply::Truncated(opened) = reply else {
            return Err(unexpected());
        };
        self.install(inode, *opened, mark, After::SetSize);
        self.carry_cut(inode, deadline).await
    }

    /// Tells what a truncation of a file that is not open changed, and lets its capability go.
    async fn settle_closed(self: &Arc<Self>, inode: &Arc<Inode>) -> Result<()> {
        let deadline = self.session.deadline();
        // Not while somebody opens the file, whose handle is not counted yet.
        let _turn = within(deadline, inode.renewing.lock()).await?;
        let told = {
            let mut state = inode.state.lock();
            if state.handles > 0 {
                return Ok(());
            }
            let allocated = std::mem::take(&mut state.pending.allocated);
            state
                .access
                .take()
                .map(|access| (allocated, access.capability.truncate_epoch, access.serial))
        };
        let Some((allocated_delta, truncate_epoch, serial)) = told else {
            return Ok(());
        };
        if serial > 1 {
            // The capability had to be renewed on the way, which counts as an open.
            inode.state.lock().released_mark = self.advance();
            let op = MetaOp::Release { ino: inode.ino };
            self.done(&Caller::root(), op).await?;
        }
        if allocated_delta == 0 {
            return Ok(());
        }
        let op = MetaOp::Update {
            ino: inode.ino,
            update: xtfs_protocol::meta::FileUpdate {
                appended: 0,
                size_at_least: 0,
                truncate_epoch,
                allocated_delta,
                written_at: None,
                read_at: None,
            },
        };
        self.done(&Caller::root(), op).await
    }
}
