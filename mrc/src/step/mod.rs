//! The pure step: one namespace operation as a function of a view of the volume, who asks, and
//! the time. No I/O, no clock, no randomness: the same arguments give the same reply and changes.
//!
//! - [`transaction`] — what a step has read and changed so far;
//! - [`permission`], [`acls`] — who may do what;
//! - [`namespace`], [`rename`] — names;
//! - [`attributes`], [`xattrs`] — what inodes carry;
//! - [`files`] — opening, truncating, updating and reclaiming regular files;
//! - [`tails`] — what lost writers left behind the end of a file;
//! - [`usage`] — what is counted, and for whom;
//! - [`listing`] — pages of directories and of the volume.

mod acls;
mod attributes;
mod files;
mod listing;
mod namespace;
mod permission;
mod rename;
mod tails;
#[cfg(test)]
pub(crate) mod tests;
mod transaction;
mod usage;
mod xattrs;

use xtfs_protocol::ids::{Ino, SessionId, VolumeId};
use xtfs_protocol::meta::{Caller, MetaOp, MetaReply, Placement};
use xtfs_protocol::time::Time;
use xtfs_protocol::{Code, Error, Result};

use crate::quota::Limits;
use crate::view::{Change, View};

pub(crate) use listing::list_files;
pub(crate) use transaction::{Transaction, counters};
pub(crate) use usage::{Usages, all, recount, usage};

/// Most hard links of a file.
pub(crate) const LINKS_MAX: u32 = 65_000;

/// Who asks, when, and what the step cannot know from the volume itself.
pub(crate) struct Context<'a> {
    pub caller: &'a Caller,
    /// The peer is a host or service of the cell: what its kernel checked is believed.
    pub trusted: bool,
    pub time: Time,
    pub volume: VolumeId,
    pub session: SessionId,
    pub session_epoch: u64,
    /// When capabilities given now run out.
    pub expires: Time,
    /// Numbers below it were in runs of an earlier opening of the volume: a loss of power may
    /// have made the volume forget which of them are taken.
    pub number_floor: u64,
    /// Where a new file would go.
    pub placement: &'a Result<Placement>,
    pub open: &'a dyn OpenFiles,
    pub limits: &'a Limits,
}

/// What is known about files that sessions hold open.
pub(crate) trait OpenFiles {
    /// May anyone have it open?
    fn is_open(&self, ino: Ino) -> bool;
    /// May anyone but the asking session have it open?
    fn is_open_elsewhere(&self, ino: Ino) -> bool;
    /// How the asking session has it open for a user.
    fn held(&self, ino: Ino, uid: u32) -> Held;
    /// Does the asking session have it open for writing?
    fn is_written_here(&self, ino: Ino) -> bool;
    /// May another session have it open for writing?
    fn is_written_elsewhere(&self, ino: Ino) -> bool;
    /// Was everything told that a session of this epoch wrote to files that it has closed?
    fn has_told(&self, epoch: u64) -> bool;
    /// May a loss of power have made the volume forget what the asking session told?
    fn may_have_told_more(&self) -> bool;
}

/// How a file is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Held {
    pub read: bool,
    pub write: bool,
}

/// What happens to the session's open files when the changes are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Opened {
        ino: Ino,
        uid: u32,
        held: Held,
    },
    Released {
        ino: Ino,
    },
    /// A rename took the last name of a file that nobody has open.
    Replaced {
        ino: Ino,
    },
}

/// What a step wants done.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// For one atomic batch.
    pub changes: Vec<Change>,
    /// Inodes whose cached state elsewhere is no longer right, in order.
    pub touched: Vec<Ino>,
    /// The reply may be sent only when the batch is durable.
    pub durable: bool,
    /// The deletion queue grew.
    pub reclaims: bool,
    pub effect: Option<Effect>,
}

/// Does the operation go through the volume's writer?
pub(crate) const fn is_change(op: &MetaOp) -> bool {
    matches!(
        op,
        MetaOp::Setattr { .. }
            | MetaOp::TruncateDone { .. }
            | MetaOp::Mknod { .. }
            | MetaOp::Mkdir { .. }
            | MetaOp::Symlink { .. }
            | MetaOp::Link { .. }
            | MetaOp::Unlink { .. }
            | MetaOp::Rmdir { .. }
            | MetaOp::Rename { .. }
            | MetaOp::Create { .. }
            | MetaOp::Open { .. }
            | MetaOp::Release { .. }
            | MetaOp::Update { .. }
            | MetaOp::TakeBack { .. }
            | MetaOp::Setxattr { .. }
            | MetaOp::Removexattr { .. }
    )
}

/// Carries one operation out on paper.
///
/// Leases in the reply have no duration and capabilities no code: both are added when the reply
/// is sent, also when a kept reply is sent again.
pub(crate) fn step(
    view: &dyn View,
    op: &MetaOp,
    context: &Context<'_>,
) -> Result<(MetaReply, Changes)> {
    let mut transaction = Transaction::new(view, context);
    let reply = transaction.run(op)?;
    transaction.finish().map(|changes| (reply, changes))
}

impl Transaction<'_> {
    fn run(&mut self, op: &MetaOp) -> Result<MetaReply> {
        match op {
            MetaOp::Lookup { parent, name } => self.lookup(*parent, name),
            MetaOp::Getattr { ino } => self.getattr(*ino),
            MetaOp::Setattr {
                ino,
                set,
                by_handle,
            } => self.setattr(*ino, set, *by_handle),
            MetaOp::TruncateDone { ino, epoch } => self.truncate_done(*ino, *epoch),
            MetaOp::Mknod {
                parent,
                name,
                kind,
                mode,
                rdev,
            } => self.mknod(*parent, name, *kind, *mode, *rdev),
            MetaOp::Mkdir { parent, name, mode } => self.mkdir(*parent, name, *mode),
            MetaOp::Symlink {
                parent,
                name,
                target,
            } => self.symlink(*parent, name, target),
            MetaOp::Readlink { ino } => self.readlink(*ino),
            MetaOp::Link { ino, parent, name } => self.link(*ino, *parent, name),
            MetaOp::Unlink { parent, name } => self.unlink(*parent, name),
            MetaOp::Rmdir { parent, name } => self.rmdir(*parent, name),
            MetaOp::Rename {
                parent,
                name,
                new_parent,
                new_name,
                flags,
            } => self.rename((*parent, name), (*new_parent, new_name), *flags),
            MetaOp::Create {
                parent,
                name,
                mode,
                exclusive,
                open,
            } => self.create(*parent, name, *mode, *exclusive, *open),
            MetaOp::Open { ino, open } => self.open(*ino, *open),
            MetaOp::Release { ino } => self.release(*ino),
            MetaOp::Update { ino, update } => self.update(*ino, update),
            MetaOp::TakeBack { ino } => self.take_back(*ino),
            MetaOp::Readdir {
                ino,
                after,
                limit,
                with_attr,
            } => self.readdir(*ino, after, *limit, *with_attr),
            MetaOp::Getxattr { ino, name } => self.getxattr(*ino, name),
            MetaOp::Listxattr { ino } => self.listxattr(*ino),
            MetaOp::Setxattr {
                ino,
                name,
                value,
                mode,
            } => self.setxattr(*ino, name, value, *mode),
            MetaOp::Removexattr { ino, name } => self.removexattr(*ino, name),
            MetaOp::Access { ino, mask } => self.access(*ino, *mask),
            MetaOp::CreateVolume { .. }
            | MetaOp::DeleteVolume { .. }
            | MetaOp::ListVolumes
            | MetaOp::OpenSession { .. }
            | MetaOp::RenewSession
            | MetaOp::CloseSession
            | MetaOp::Statfs
            | MetaOp::Sync
            | MetaOp::ReturnLease { .. }
            | MetaOp::SetLock { .. }
            | MetaOp::CancelLock { .. }
            | MetaOp::GetLock { .. }
            | MetaOp::ReclaimLocks { .. }
            | MetaOp::SetQuota { .. }
            | MetaOp::ListQuotas { .. }
            | MetaOp::CheckQuotas { .. }
            | MetaOp::ListFiles { .. } => Err(Error::new(
                Code::Protocol,
                "not an operation on the namespace",
            )),
        }
    }
}
