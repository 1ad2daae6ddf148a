//! Who may do what: mode bits with supplementary groups, access control lists, and the rules for
//! root, owners and sticky directories.

use xtfs_protocol::meta::Caller;
use xtfs_protocol::{Code, Result};

use super::transaction::Transaction;
use crate::acl::AclKind;
use crate::inode::Inode;

pub(super) const READ: u8 = 4;
pub(super) const WRITE: u8 = 2;
pub(super) const EXECUTE: u8 = 1;

pub(super) const SET_UID: u16 = 0o4000;
pub(super) const SET_GID: u16 = 0o2000;
pub(super) const STICKY: u16 = 0o1000;
pub(super) const GROUP_EXECUTE: u16 = 0o010;
const ANY_EXECUTE: u16 = 0o111;
const GROUP_ALL: u16 = 0o070;

pub(super) const fn is_root(caller: &Caller) -> bool {
    caller.uid == 0
}

pub(super) fn in_group(caller: &Caller, gid: u32) -> bool {
    caller.gid == gid || caller.groups.contains(&gid)
}

/// Do the mode bits allow everything in `mask`?
fn mode_allows(caller: &Caller, inode: &Inode, mask: u8) -> bool {
    let shift = if caller.uid == inode.uid {
        6
    } else if in_group(caller, inode.gid) {
        3
    } else {
        0
    };
    let bits = (inode.mode >> shift) & 7;
    bits & u16::from(mask) == u16::from(mask)
}

/// The mode without the bits that a change by someone without privilege takes away: set-user-id,
/// and set-group-id where it means execution under the group or the caller is not in the group.
pub(super) fn without_set_ids(caller: &Caller, inode: &Inode) -> u16 {
    let mut mode = inode.mode & !SET_UID;
    let outside = !is_root(caller) && !in_group(caller, inode.gid);
    if mode & GROUP_EXECUTE != 0 || outside {
        mode &= !SET_GID;
    }
    mode
}

impl Transaction<'_> {
    pub(super) fn caller(&self) -> &Caller {
        self.context.caller
    }

    /// Does being root, or the access control list, or the mode allow everything in `mask`?
    ///
    /// As in Linux, a list does not count while the group bits of the mode (its mask) are empty.
    pub(super) fn allows(&self, inode: &Inode, mask: u8) -> Result<bool> {
        let caller = self.caller();
        if is_root(caller) {
            let executable = inode.is_directory() || inode.mode & ANY_EXECUTE != 0;
            return Ok(mask & EXECUTE == 0 || executable);
        }
        if caller.uid != inode.uid
            && inode.mode & GROUP_ALL != 0
            && let Some(acl) = self.acl(inode, AclKind::Access)?
        {
            return Ok(acl.allows(caller, inode.gid, inode.mode, mask));
        }
        Ok(mode_allows(caller, inode, mask))
    }

    pub(super) fn need(&self, inode: &Inode, mask: u8) -> Result<()> {
        if self.allows(inode, mask)? {
            Ok(())
        } else {
            Err(Code::AccessDenied.into())
        }
    }

    /// Owner or root.
    pub(super) fn owns(&self, inode: &Inode) -> bool {
        is_root(self.caller()) || self.caller().uid == inode.uid
    }

    /// May the caller take the name of `victim` out of `directory`?
    pub(super) fn need_removal(&self, directory: &Inode, victim: &Inode) -> Result<()> {
        self.need(directory, WRITE | EXECUTE)?;
        let sticky = directory.mode & STICKY != 0;
        if sticky && !self.owns(directory) && !self.owns(victim) {
            return Err(Code::NotPermitted.into());
        }
        Ok(())
    }
}
