//! Names: finding, making, linking and removing them.
//!
//! Errors come in Linux's order: search permission on the directory, then what the name is, then
//! write permission on the directory, then the rest.

use xtfs_protocol::ids::{Ino, NAME_BYTES_MAX, ROOT_INO, TARGET_BYTES_MAX};
use xtfs_protocol::meta::{FileKind, MetaReply};
use xtfs_protocol::{Code, Error, Result};

use super::LINKS_MAX;
use super::permission::{EXECUTE, GROUP_EXECUTE, SET_GID, WRITE, in_group, is_root};
use super::transaction::{Transaction, entry};
use crate::inode::{Acls, Body, Directory, File, Inode};
use crate::records::DirentRecord;

/// Accepts 1 to 255 bytes without NUL and slash that are not `.` or `..`.
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Code::NameTooLong.into());
    }
    let wrong = name.is_empty() || name == b"." || name == b"..";
    if wrong || name.contains(&0) || name.contains(&b'/') {
        return Err(Error::new(
            Code::Invalid,
            format!("name \"{}\"", name.escape_ascii()),
        ));
    }
    Ok(())
}

impl Transaction<'_> {
    pub(super) fn lookup(&self, parent: Ino, name: &[u8]) -> Result<MetaReply> {
        let (inode, directory) = self.directory(parent)?;
        self.need(&inode, EXECUTE)?;
        let found = match name {
            b"." => inode,
            b".." => self.inode(directory.parent)?,
            name => {
                check_name(name)?;
                let record = self.dirent(parent, name)?.ok_or(Code::NotFound)?;
                self.inode(record.ino)?
            }
        };
        Ok(MetaReply::Entry(entry(&found)))
    }

    /// The inode behind a name, with the directory, when the caller may search it.
    pub(super) fn resolve(&self, parent: Ino, name: &[u8]) -> Result<(Inode, Option<Inode>)> {
        check_name(name)?;
        let (inode, _) = self.directory(parent)?;
        self.need(&inode, EXECUTE)?;
        let found = match self.dirent(parent, name)? {
            Some(record) => Some(self.inode(record.ino)?),
            None => None,
        };
        Ok((inode, found))
    }

    pub(super) fn mknod(
        &mut self,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        mode: u16,
        rdev: u32,
    ) -> Result<MetaReply> {
        self.need_free_name(parent, name)?;
        let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        if device && !is_root(self.caller()) {
            return Err(Code::NotPermitted.into());
        }
        let number = self.number_for_child(parent)?;
        let body = match kind {
            FileKind::File => self.empty_file(number)?,
            FileKind::Fifo => Body::Fifo,
            FileKind::Socket => Body::Socket,
            FileKind::CharDevice => Body::CharDevice,
            FileKind::BlockDevice => Body::BlockDevice,
            FileKind::Directory | FileKind::Symlink => {
                return Err(Error::new(Code::Invalid, "mknod of a directory or link"));
            }
        };
        let mut inode = self.new_inode(parent, number, mode, body)?;
        inode.rdev = if device { rdev } else { 0 };
        self.enter(parent, name, &inode)?;
        let reply = MetaReply::Entry(entry(&inode));
        self.put_inode(inode);
        Ok(reply)
    }

    pub(super) fn mkdir(&mut self, parent: Ino, name: &[u8], mode: u16) -> Result<MetaReply> {
        let directory = self.need_free_name(parent, name)?;
        if directory.nlink == u32::MAX {
            return Err(Code::TooManyLinks.into());
        }
        let number = self.number_for_child(parent)?;
        let body = Body::Directory(Directory {
            parent,
            run_next: 0,
            run_end: 0,
            run_length: 0,
        });
        // Set-id bits of a directory are inherited, not asked for.
        let mut inode = self.new_inode(parent, number, mode & 0o1777, body)?;
        inode.nlink = 2;
        inode.mode |= directory.mode & SET_GID;
        self.enter(parent, name, &inode)?;
        let reply = MetaReply::Entry(entry(&inode));
        self.put_inode(inode);
        Ok(reply)
    }

    pub(super) fn symlink(&mut self, parent: Ino, name: &[u8], target: &[u8]) -> Result<MetaReply> {
        if target.len() > TARGET_BYTES_MAX {
            return Err(Code::NameTooLong.into());
        }
        if target.is_empty() || target.contains(&0) {
            return Err(Error::new(Code::Invalid, "link target"));
        }
        self.need_free_name(parent, name)?;
        let number = self.number_for_child(parent)?;
        let mut inode = self.new_inode(parent, number, 0o777, Body::Symlink(target.to_vec()))?;
        inode.size = target.len() as u64;
        self.count(None, Some(&inode))?;
        self.enter_uncounted(parent, name, &inode)?;
        let reply = MetaReply::Entry(entry(&inode));
        self.put_inode(inode);
        Ok(reply)
    }

    pub(super) fn readlink(&self, ino: Ino) -> Result<MetaReply> {
        match self.inode(ino)?.body {
            Body::Symlink(target) => Ok(MetaReply::Bytes(target)),
            _ => Err(Code::Invalid.into()),
        }
    }

    pub(super) fn link(&mut self, ino: Ino, parent: Ino, name: &[u8]) -> Result<MetaReply> {
        self.need_free_name(parent, name)?;
        let mut inode = self.inode(ino)?;
        if inode.is_directory() {
            return Err(Code::NotPermitted.into());
        }
        if inode.nlink == 0 {
            return Err(Code::NotFound.into());
        }
        if inode.nlink >= LINKS_MAX {
            return Err(Code::TooManyLinks.into());
        }
        inode.nlink += 1;
        inode.ctime = self.context.time;
        self.enter_uncounted(parent, name, &inode)?;
        let reply = MetaReply::Entry(entry(&inode));
        self.put_inode(inode);
        Ok(reply)
    }

    pub(super) fn unlink(&mut self, parent: Ino, name: &[u8]) -> Result<MetaReply> {
        let (directory, victim) = self.resolve(parent, name)?;
        let victim = victim.ok_or(Code::NotFound)?;
        self.need_removal(&directory, &victim)?;
        if victim.is_directory() {
            return Err(Code::IsDirectory.into());
        }
        self.remove_dirent(parent, name);
        self.entries_changed(parent, -1, 0)?;
        self.drop_link(victim)?;
        Ok(MetaReply::Done)
    }

    pub(super) fn rmdir(&mut self, parent: Ino, name: &[u8]) -> Result<MetaReply> {
        let (directory, victim) = self.resolve(parent, name)?;
        let victim = victim.ok_or(Code::NotFound)?;
        self.need_removal(&directory, &victim)?;
        if !victim.is_directory() {
            return Err(Code::NotDirectory.into());
        }
        if victim.size > 0 {
            return Err(Code::NotEmpty.into());
        }
        self.remove_dirent(parent, name);
        self.entries_changed(parent, -1, -1)?;
        self.remove_inode(&victim)?;
        Ok(MetaReply::Done)
    }

    /// The directory, when the name is free in it and the caller may make it.
    pub(super) fn need_free_name(&self, parent: Ino, name: &[u8]) -> Result<Inode> {
        let (directory, found) = self.resolve(parent, name)?;
        if found.is_some() {
            return Err(Code::Exists.into());
        }
        self.need(&directory, WRITE | EXECUTE)?;
        Ok(directory)
    }

    /// A new inode that belongs to the caller, with set-group-id and access control lists inherited
    /// from the directory.
    pub(super) fn new_inode(
        &mut self,
        parent: Ino,
        number: Ino,
        mode: u16,
        body: Body,
    ) -> Result<Inode> {
        let (directory, _) = self.directory(parent)?;
        let caller = self.caller();
        let mut mode = mode & 0o7777;
        let mut gid = caller.gid;
        if directory.mode & SET_GID != 0 {
            gid = directory.gid;
            let runs_as_group = mode & (SET_GID | GROUP_EXECUTE) == SET_GID | GROUP_EXECUTE;
            let is_directory = matches!(body, Body::Directory(_));
            if runs_as_group && !is_directory && !is_root(caller) && !in_group(caller, gid) {
                mode &= !SET_GID;
            }
        }
        let time = self.context.time;
        let mut inode = Inode {
            ino: number,
            mode,
            nlink: 1,
            uid: caller.uid,
            gid,
            rdev: 0,
            size: 0,
            allocated: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            data_version: 0,
            xattr_names: 0,
            acls: Acls::default(),
            body,
        };
        self.inherit_acls(&directory, &mut inode)?;
        Ok(inode)
    }

    /// The content of a new file.
    pub(super) fn empty_file(&self, number: Ino) -> Result<Body> {
        let placement = self.context.placement.clone()?;
        Ok(Body::File(Box::new(File {
            data: number,
            epoch: 0,
            data_epoch: 0,
            written: false,
            pending_cut: None,
            last_writer: 0,
            fenced: 0,
            mtime_settled: self.context.time,
            atime_settled: self.context.time,
            placement,
        })))
    }

    /// Enters a new inode into a directory and the usage.
    pub(super) fn enter(&mut self, parent: Ino, name: &[u8], inode: &Inode) -> Result<()> {
        self.count(None, Some(inode))?;
        self.enter_uncounted(parent, name, inode)
    }

    pub(super) fn enter_uncounted(
        &mut self,
        parent: Ino,
        name: &[u8],
        inode: &Inode,
    ) -> Result<()> {
        let record = DirentRecord {
            ino: inode.ino,
            kind: inode.kind(),
        };
        self.put_dirent(parent, name, record);
        self.entries_changed(parent, 1, i64::from(inode.is_directory()))
    }

    /// Is `ancestor` the directory `ino` or above it?
    pub(super) fn is_at_or_above(&self, ancestor: Ino, ino: Ino) -> Result<bool> {
        /// No path reaches so deep; a longer way up is a ring, which is damage.
        const DEPTH_MAX: u32 = 1 << 20;
        let mut at = ino;
        for _ in 0..DEPTH_MAX {
            if at == ancestor {
                return Ok(true);
            }
            if at == ROOT_INO {
                return Ok(false);
            }
            at = self.directory(at)?.1.parent;
        }
        Err(Error::new(
            Code::Corrupt,
            format!("directory {ino} does not lead up to the root"),
        ))
    }
}
