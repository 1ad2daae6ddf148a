//! What lost writers left behind the end of a file.
//!
//! A client sends bytes to the OSDs first and tells the new size then. When it dies in between,
//! OSDs hold bytes behind the end that nobody ever saw. They would come to light where zeros
//! belong as soon as somebody makes the file longer, so they go before anyone may: whoever becomes
//! a writer after a lost one gets a cut at the current size to carry out first. The truncate epoch
//! that it raises also keeps out what the lost writer may still have on its way, and tells it,
//! should it come back, that it lost something.
//!
//! The same happens when a session is not allowed to tell what it has sent, because of a quota.
//!
//! Every file carries the epoch of the session that became its writer last. It costs nothing when a
//! session opens its own files again or those of a session that ended in order.

use xtfs_protocol::Result;
use xtfs_protocol::ids::Ino;
use xtfs_protocol::meta::{MetaReply, PendingCut};

use super::files::file_mut;
use super::transaction::Transaction;
use crate::inode::{Inode, SEVERAL_WRITERS};

/// What the asking session may have written to a file without telling it yet.
#[derive(Debug, Clone, Copy)]
pub(super) enum Untold {
    /// Nothing: it has just told everything. From now on the file ends here.
    Nothing { end: u64 },
    /// Something, if it has the file open for writing.
    WhileOpen,
}

impl Transaction<'_> {
    /// The asking session gets the right to write a file.
    pub(super) fn become_writer(&mut self, inode: &mut Inode, untold: Untold) -> Result<()> {
        let open = self.context.open;
        let session = self.context.session_epoch;
        let (ino, size) = (inode.ino, inode.size);
        let file = file_mut(inode)?;
        let last = file.last_writer;
        if !file.written {
            // No OSD can hold anything of this content.
            file.last_writer = session;
        } else if open.is_written_elsewhere(ino) {
            // They go on telling what they write; but one of them may be lost before it does.
            if last != session {
                file.last_writer = SEVERAL_WRITERS;
            }
        } else if last != SEVERAL_WRITERS && open.has_told(last) {
            file.last_writer = session;
        } else {
            let end = match untold {
                Untold::WhileOpen if open.is_written_here(ino) => return Ok(()),
                // How far it told that it wrote may be forgotten.
                Untold::Nothing { end }
                    if open.is_written_here(ino) && open.may_have_told_more() =>
                {
                    end
                }
                _ => size,
            };
            self.cut_tail(inode, end)?;
        }
        Ok(())
    }

    /// The asking session was not allowed to tell what it wrote behind the end of a file.
    pub(super) fn take_back(&mut self, ino: Ino) -> Result<MetaReply> {
        let mut inode = self.inode(ino)?;
        self.need_writer(&inode)?;
        let open = self.context.open;
        if open.is_written_elsewhere(ino) || open.may_have_told_more() {
            file_mut(&mut inode)?.last_writer = SEVERAL_WRITERS;
        } else {
            let end = inode.size;
            self.cut_tail(&mut inode, end)?;
        }
        let opened = self.opened_for_cut(&mut inode)?;
        self.put_inode(inode);
        Ok(MetaReply::Truncated(Box::new(opened)))
    }

    fn cut_tail(&mut self, inode: &mut Inode, end: u64) -> Result<()> {
        let file = file_mut(inode)?;
        file.epoch += 1;
        file.fenced = file.epoch;
        file.last_writer = self.context.session_epoch;
        let pending = file.pending_cut;
        file.pending_cut = Some(PendingCut {
            epoch: file.epoch,
            size: pending.map_or(end, |cut| cut.size.min(end)),
            told: pending.is_some_and(|cut| cut.told),
        });
        // Whose bytes go may have them cached.
        inode.data_version += 1;
        Ok(())
    }
}
