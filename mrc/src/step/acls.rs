//! POSIX access control lists of inodes: asked for, set, inherited and gone with their inode.
//!
//! What the mode says too (owner, mask or group, others) is taken from the mode when a list is
//! read, so that a change of the mode need not touch the list. A list that says no more than the
//! mode is not kept.

use xtfs_protocol::ids::Ino;
use xtfs_protocol::{Code, Result};

use super::permission::{SET_GID, in_group, is_root};
use super::transaction::Transaction;
use crate::acl::{Acl, AclKind};
use crate::inode::{Acls, Body, Inode};
use crate::keys::{self, Table};

const KINDS: [(&[u8], AclKind); 2] = [
    (b"system.posix_acl_access", AclKind::Access),
    (b"system.posix_acl_default", AclKind::Default),
];

/// The list that an extended attribute of this name stands for.
pub(super) fn kind_of_attribute(name: &[u8]) -> Option<AclKind> {
    let mut kinds = KINDS.into_iter();
    kinds
        .find(|(known, _)| *known == name)
        .map(|(_, kind)| kind)
}

/// The names of the attributes that stand for the lists that an inode has.
pub(super) fn attributes(acls: Acls) -> impl Iterator<Item = &'static [u8]> {
    let has = KINDS.into_iter().filter(move |(_, kind)| acls.has(*kind));
    has.map(|(name, _)| name)
}

impl Transaction<'_> {
    /// A list as it holds now.
    pub(super) fn acl(&self, inode: &Inode, kind: AclKind) -> Result<Option<Acl>> {
        if !inode.acls.has(kind) {
            return Ok(None);
        }
        let missing = || {
            let what = format!("inode {} has no {kind:?} ACL where it says so", inode.ino);
            xtfs_protocol::Error::new(Code::Corrupt, what)
        };
        let bytes = self.view().get(Table::Acls, &keys::acl(inode.ino, kind))?;
        let acl = Acl::decode(&bytes.ok_or_else(missing)?)?.ok_or_else(missing)?;
        Ok(Some(match kind {
            AclKind::Access => acl.with_mode(inode.mode),
            AclKind::Default => acl,
        }))
    }

    fn put_acl(&mut self, inode: &mut Inode, kind: AclKind, acl: Option<&Acl>) {
        if acl.is_some() || inode.acls.has(kind) {
            let key = keys::acl(inode.ino, kind).to_vec();
            self.put(Table::Acls, key, acl.map(Acl::encode));
        }
        inode.acls.set(kind, acl.is_some());
    }

    /// Sets a list, and the mode with an access list; without a list it is removed.
    pub(super) fn set_acl(
        &mut self,
        mut inode: Inode,
        kind: AclKind,
        acl: Option<Acl>,
    ) -> Result<()> {
        if matches!(inode.body, Body::Symlink(_)) {
            return Err(Code::Unsupported.into());
        }
        if kind == AclKind::Default && acl.is_some() && !inode.is_directory() {
            return Err(Code::AccessDenied.into());
        }
        if !self.owns(&inode) {
            return Err(Code::NotPermitted.into());
        }
        if let (AclKind::Access, Some(acl)) = (kind, &acl) {
            inode.mode = inode.mode & 0o7000 | acl.mode();
            if !is_root(self.caller()) && !in_group(self.caller(), inode.gid) {
                inode.mode &= !SET_GID;
            }
        }
        let says_more = |acl: &Acl| kind == AclKind::Default || acl.is_extended();
        self.put_acl(&mut inode, kind, acl.filter(says_more).as_ref());
        inode.ctime = self.context.time;
        self.put_inode(inode);
        Ok(())
    }

    /// Gives a new inode the lists and the mode that its directory has for it, or takes away what
    /// the umask says.
    pub(super) fn inherit_acls(&mut self, directory: &Inode, inode: &mut Inode) -> Result<()> {
        if matches!(inode.body, Body::Symlink(_)) {
            return Ok(());
        }
        let Some(default) = self.acl(directory, AclKind::Default)? else {
            inode.mode &= !(self.caller().umask & 0o777);
            return Ok(());
        };
        let access = default.clone().inherited(inode.mode);
        inode.mode = inode.mode & 0o7000 | access.mode();
        if access.is_extended() {
            self.put_acl(inode, AclKind::Access, Some(&access));
        }
        if inode.is_directory() {
            self.put_acl(inode, AclKind::Default, Some(&default));
        }
        Ok(())
    }

    /// The lists go with their inode.
    pub(super) fn remove_acls(&mut self, ino: Ino, acls: Acls) {
        for (_, kind) in KINDS.into_iter().filter(|(_, kind)| acls.has(*kind)) {
            self.put(Table::Acls, keys::acl(ino, kind).to_vec(), None);
        }
    }
}
