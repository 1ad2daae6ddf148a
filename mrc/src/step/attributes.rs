//! Attributes: reading, chmod, chown, times and access checks.

use xtfs_protocol::ids::Ino;
use xtfs_protocol::meta::{MetaReply, SetAttr, SetTime};
use xtfs_protocol::time::Time;
use xtfs_protocol::{Code, Error, Result};

use super::permission::{self, READ, SET_GID, WRITE, in_group, is_root};
use super::transaction::{Transaction, entry};
use crate::inode::{Body, Inode};

impl Transaction<'_> {
    pub(super) fn getattr(&self, ino: Ino) -> Result<MetaReply> {
        Ok(MetaReply::Entry(entry(&self.inode(ino)?)))
    }

    pub(super) fn access(&self, ino: Ino, mask: u8) -> Result<MetaReply> {
        if mask > 7 {
            return Err(Error::new(Code::Invalid, format!("access mask {mask}")));
        }
        self.need(&self.inode(ino)?, mask)?;
        Ok(MetaReply::Done)
    }

    /// Checks everything first, in Linux's order, and changes then: all or nothing.
    pub(super) fn setattr(
        &mut self,
        ino: Ino,
        set: &SetAttr,
        by_handle: bool,
    ) -> Result<MetaReply> {
        let before = self.inode(ino)?;
        if let Some(size) = set.size {
            self.need_truncatable(&before, size, by_handle)?;
        }
        self.need_owner_change(&before, set)?;
        if set.mode.is_some() {
            if matches!(before.body, Body::Symlink(_)) {
                return Err(Code::Unsupported.into());
            }
            self.need_owner(&before)?;
        }
        self.need_times(&before, set)?;

        let mut inode = before.clone();
        if let Some(size) = set.size {
            self.truncate(&mut inode, size)?;
        }
        self.change_owner(&mut inode, set)?;
        if let Some(mode) = set.mode {
            inode.mode = mode & 0o7777;
            if !is_root(self.caller()) && !in_group(self.caller(), inode.gid) {
                inode.mode &= !SET_GID;
            }
        }
        self.change_times(&mut inode, set)?;
        inode.ctime = self.context.time;
        self.count(Some(&before), Some(&inode))?;
        let reply = match set.size {
            Some(_) => {
                let opened = self.opened_for_cut(&mut inode)?;
                self.note_first_write(&before, &inode);
                MetaReply::Truncated(Box::new(opened))
            }
            None => MetaReply::Entry(entry(&inode)),
        };
        self.put_inode(inode);
        Ok(reply)
    }

    fn need_truncatable(&self, inode: &Inode, size: u64, by_handle: bool) -> Result<()> {
        match inode.body {
            Body::File(_) => {}
            Body::Directory(_) => return Err(Code::IsDirectory.into()),
            _ => return Err(Code::Invalid.into()),
        }
        if i64::try_from(size).is_err() {
            return Err(Code::TooLarge.into());
        }
        let open = self.context.trusted || self.held(inode).write;
        if by_handle && open {
            return Ok(());
        }
        self.need(inode, WRITE)
    }

    fn need_owner(&self, inode: &Inode) -> Result<()> {
        if self.owns(inode) {
            Ok(())
        } else {
            Err(Code::NotPermitted.into())
        }
    }

    /// Root gives files away; an owner may only choose among their own groups.
    fn need_owner_change(&self, inode: &Inode, set: &SetAttr) -> Result<()> {
        let caller = self.caller();
        if is_root(caller) {
            return Ok(());
        }
        let owner = caller.uid == inode.uid;
        if let Some(uid) = set.uid
            && !(owner && uid == inode.uid)
        {
            return Err(Code::NotPermitted.into());
        }
        if let Some(gid) = set.gid
            && !(owner && (gid == inode.gid || in_group(caller, gid)))
        {
            return Err(Code::NotPermitted.into());
        }
        Ok(())
    }

    fn change_owner(&mut self, inode: &mut Inode, set: &SetAttr) -> Result<()> {
        if set.uid.is_none() && set.gid.is_none() {
            return Ok(());
        }
        if !inode.is_directory() {
            inode.mode = permission::without_set_ids(self.caller(), inode);
            self.drop_file_capabilities(inode)?;
        }
        inode.uid = set.uid.unwrap_or(inode.uid);
        inode.gid = set.gid.unwrap_or(inode.gid);
        Ok(())
    }

    /// Explicit times are the owner's; the current time is for everyone who may write.
    fn need_times(&self, inode: &Inode, set: &SetAttr) -> Result<()> {
        for time in [set.atime, set.mtime].into_iter().flatten() {
            match time {
                SetTime::At(time) => {
                    need_time(time)?;
                    self.need_owner(inode)?;
                }
                // A truncation carries the current time with it and was checked on its own.
                SetTime::Now if set.size.is_some() || self.owns(inode) => {}
                SetTime::Now => self.need(inode, WRITE)?,
            }
        }
        Ok(())
    }

    fn change_times(&self, inode: &mut Inode, set: &SetAttr) -> Result<()> {
        let now = self.context.time;
        let value = |time| match time {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        if let Some(time) = set.atime {
            inode.atime = value(time);
        }
        if let Some(time) = set.mtime {
            inode.mtime = value(time);
        }
        if let Body::File(file) = &mut inode.body {
            if set.atime.is_some() {
                file.atime_settled = later(file.atime_settled, now);
            }
            if set.mtime.is_some() {
                file.mtime_settled = later(file.mtime_settled, now);
            }
        }
        Ok(())
    }

    /// May the caller read the inode, by its mode or because they have it open?
    pub(super) fn may_read(&self, inode: &Inode) -> Result<bool> {
        Ok(self.held(inode).read || self.allows(inode, READ)?)
    }
}

/// Accepts times with less than a second of nanoseconds.
pub(super) fn need_time(time: Time) -> Result<()> {
    if time.nanos >= 1_000_000_000 {
        return Err(Error::new(Code::Invalid, "nanoseconds of a time"));
    }
    Ok(())
}

pub(super) fn later(one: Time, other: Time) -> Time {
    one.max(other)
}
