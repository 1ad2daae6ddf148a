//! Extended attributes and the rules of their namespaces.
//!
//! `user.` needs the file's read or write permission and exists on files and directories only;
//! `trusted.` is root's; `security.` is read by all and written by root. The attributes
//! `system.posix_acl_*` are the inode's access control lists in another shape.

use xtfs_protocol::ids::{Ino, NAME_BYTES_MAX};
use xtfs_protocol::meta::{MetaOp, MetaReply, XattrMode};
use xtfs_protocol::{Code, Error, Result};

use super::acls;
use super::permission::{READ, STICKY, WRITE, is_root};
use super::transaction::Transaction;
use crate::acl::Acl;
use crate::inode::{Body, Inode};
use crate::keys::{self, Table};

/// Most bytes of one inode's attribute names, each with its NUL, as Linux lists them.
const NAMES_BYTES_MAX: u32 = 65_536;
const CAPABILITY: &[u8] = b"security.capability";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Namespace {
    User,
    Trusted,
    Security,
}

fn namespace(name: &[u8]) -> Result<Namespace> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Code::Range.into());
    }
    if name.contains(&0) {
        return Err(Error::new(Code::Invalid, "attribute name with NUL"));
    }
    let known: [(&[u8], Namespace); 3] = [
        (b"user.", Namespace::User),
        (b"trusted.", Namespace::Trusted),
        (b"security.", Namespace::Security),
    ];
    for (prefix, namespace) in known {
        match name.strip_prefix(prefix) {
            Some(b"") => return Err(Error::new(Code::Invalid, "attribute without a name")),
            Some(_) => return Ok(namespace),
            None => {}
        }
    }
    Err(Code::Unsupported.into())
}

const fn has_user_attributes(inode: &Inode) -> bool {
    matches!(inode.body, Body::File(_) | Body::Directory(_))
}

impl Transaction<'_> {
    pub(super) fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<MetaReply> {
        let inode = self.inode(ino)?;
        if let Some(kind) = acls::kind_of_attribute(name) {
            if matches!(inode.body, Body::Symlink(_)) {
                return Err(Code::Unsupported.into());
            }
            let acl = self.acl(&inode, kind)?.ok_or(Code::NoAttribute)?;
            return Ok(MetaReply::Bytes(acl.encode()));
        }
        match namespace(name)? {
            Namespace::User if !has_user_attributes(&inode) => {
                return Err(Code::NoAttribute.into());
            }
            Namespace::User => self.need(&inode, READ)?,
            Namespace::Trusted if !is_root(self.caller()) => return Err(Code::NoAttribute.into()),
            Namespace::Trusted | Namespace::Security => {}
        }
        match self.xattr(&inode, name)? {
            Some(value) => Ok(MetaReply::Bytes(value)),
            None => Err(Code::NoAttribute.into()),
        }
    }

    pub(super) fn listxattr(&self, ino: Ino) -> Result<MetaReply> {
        let inode = self.inode(ino)?;
        let mut names = Vec::new();
        for name in acls::attributes(inode.acls) {
            names.extend_from_slice(name);
            names.push(0);
        }
        if inode.xattr_names > 0 {
            let root = is_root(self.caller());
            self.scan_named(Table::Xattrs, ino, b"", &mut |key, _| {
                let (_, name) = keys::split(key)?;
                if root || !name.starts_with(b"trusted.") {
                    names.extend_from_slice(name);
                    names.push(0);
                }
                Ok(true)
            })?;
        }
        Ok(MetaReply::Bytes(names))
    }

    pub(super) fn setxattr(
        &mut self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<MetaReply> {
        let mut inode = self.inode(ino)?;
        if let Some(kind) = acls::kind_of_attribute(name) {
            need_mode(mode, inode.acls.has(kind))?;
            // An attribute without a value asks for the removal of the list.
            let acl = match value {
                [] => None,
                value => Acl::decode(value)?,
            };
            self.set_acl(inode, kind, acl)?;
            return Ok(MetaReply::Done);
        }
        self.need_xattr_change(&inode, name)?;
        if value.len() > MetaOp::XATTR_BYTES_MAX {
            return Err(Code::AttributeTooLong.into());
        }
        let exists = self.xattr(&inode, name)?.is_some();
        need_mode(mode, exists)?;
        if !exists {
            inode.xattr_names += listed_bytes(name);
            if inode.xattr_names > NAMES_BYTES_MAX {
                return Err(Error::new(Code::NoSpace, "too many attributes"));
            }
        }
        inode.ctime = self.context.time;
        self.put(Table::Xattrs, keys::named(ino, name), Some(value.to_vec()));
        self.put_inode(inode);
        Ok(MetaReply::Done)
    }

    pub(super) fn removexattr(&mut self, ino: Ino, name: &[u8]) -> Result<MetaReply> {
        let mut inode = self.inode(ino)?;
        if let Some(kind) = acls::kind_of_attribute(name) {
            // As in Linux, removing a list that is not there is no error.
            self.set_acl(inode, kind, None)?;
            return Ok(MetaReply::Done);
        }
        self.need_xattr_change(&inode, name)?;
        if self.xattr(&inode, name)?.is_none() {
            return Err(Code::NoAttribute.into());
        }
        self.remove_xattr(&mut inode, name);
        inode.ctime = self.context.time;
        self.put_inode(inode);
        Ok(MetaReply::Done)
    }

    fn need_xattr_change(&self, inode: &Inode, name: &[u8]) -> Result<()> {
        match namespace(name)? {
            Namespace::User if !has_user_attributes(inode) => Err(Code::NotPermitted.into()),
            Namespace::User => {
                let sticky = inode.is_directory() && inode.mode & STICKY != 0;
                if sticky && !self.owns(inode) {
                    return Err(Code::NotPermitted.into());
                }
                self.need(inode, WRITE)
            }
            Namespace::Trusted | Namespace::Security if is_root(self.caller()) => Ok(()),
            Namespace::Trusted | Namespace::Security => Err(Code::NotPermitted.into()),
        }
    }

    fn xattr(&self, inode: &Inode, name: &[u8]) -> Result<Option<Vec<u8>>> {
        if inode.xattr_names == 0 {
            return Ok(None);
        }
        self.view()
            .get(Table::Xattrs, &keys::named(inode.ino, name))
    }

    fn remove_xattr(&mut self, inode: &mut Inode, name: &[u8]) {
        inode.xattr_names = inode.xattr_names.saturating_sub(listed_bytes(name));
        self.put(Table::Xattrs, keys::named(inode.ino, name), None);
    }

    /// The rights that a program file carries end when its content or owner changes.
    pub(super) fn drop_file_capabilities(&mut self, inode: &mut Inode) -> Result<()> {
        if self.xattr(inode, CAPABILITY)?.is_some() {
            self.remove_xattr(inode, CAPABILITY);
        }
        Ok(())
    }
}

fn need_mode(mode: XattrMode, exists: bool) -> Result<()> {
    match mode {
        XattrMode::Create if exists => Err(Code::Exists.into()),
        XattrMode::Replace if !exists => Err(Code::NoAttribute.into()),
        _ => Ok(()),
    }
}

/// Bytes of a name in a listing.
const fn listed_bytes(name: &[u8]) -> u32 {
    name.len() as u32 + 1
}
