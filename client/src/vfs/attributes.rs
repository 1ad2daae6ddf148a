//! Attributes, extended attributes, permission, room.

use xtfs_protocol::ids::Ino;
use xtfs_protocol::meta::{Caller, MetaOp, MetaReply, SetAttr, Space, XattrMode};
use xtfs_protocol::{Code, Result};

use super::{Found, Vfs, unexpected};

/// How the names of the attributes begin that stand for access control lists.
const ACL_ATTRIBUTES: &[u8] = b"system.posix_acl_";

impl Vfs {
    /// Attributes, own unsent writes included; from the cache while a lease allows it.
    ///
    /// # Errors
    /// `Stale` or `NotFound` when the inode is gone.
    pub async fn getattr(&self, caller: &Caller, ino: Ino) -> Result<Found> {
        if let Some(found) = self.inner.cached(ino) {
            return Ok(found);
        }
        let mark = self.inner.mark();
        let entry = self.inner.entry(caller, MetaOp::Getattr { ino }).await?;
        Ok(self.inner.found(entry, mark))
    }

    /// Changes attributes. `by_handle`: the caller has the file open for writing.
    ///
    /// # Errors
    /// `NotPermitted`, `AccessDenied`, `TooLarge`; what has to be sent before a truncation and
    /// could not be.
    pub async fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        set: SetAttr,
        by_handle: bool,
    ) -> Result<Found> {
        let inner = &self.inner;
        let inode = inner.pin(ino);
        if set.size.is_some() {
            return inner.set_size(caller, &inode, set, by_handle).await;
        }
        // An explicit time beats the time of the write before it, which is told later.
        let written_at = if set.mtime.is_some() {
            inode.state.lock().pending.written_at.take()
        } else {
            None
        };
        let mark = inner.mark();
        let op = MetaOp::Setattr {
            ino,
            set,
            by_handle,
        };
        let result = inner.entry(caller, op).await;
        let mut state = inode.state.lock();
        match result {
            Ok(entry) => Ok(inner.absorb_change(&mut state, entry, mark)),
            Err(error) => {
                if state.pending.written_at.is_none() {
                    state.pending.written_at = written_at;
                }
                Err(error)
            }
        }
    }

    /// May the caller do this? Read 4, write 2, execute 1.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub async fn access(&self, caller: &Caller, ino: Ino, mask: u8) -> Result<()> {
        self.inner.done(caller, MetaOp::Access { ino, mask }).await
    }

    /// Room and inodes of the volume.
    ///
    /// # Errors
    /// The MRC does not answer.
    pub async fn statfs(&self) -> Result<Space> {
        match self
            .inner
            .session
            .meta(&Caller::root(), MetaOp::Statfs)
            .await?
        {
            MetaReply::Statfs(space) => Ok(space),
            _ => Err(unexpected()),
        }
    }

    /// Value of an extended attribute.
    ///
    /// The kernel asks for the access control list of every inode that it checks; that there is
    /// none is known from the attributes.
    ///
    /// # Errors
    /// `NoAttribute`, `Unsupported`, `AccessDenied`.
    pub async fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        if name.starts_with(ACL_ATTRIBUTES)
            && let Some(found) = self.inner.cached(ino)
            && !found.attr.has_acl
        {
            return Err(Code::NoAttribute.into());
        }
        let op = MetaOp::Getxattr {
            ino,
            name: name.to_vec(),
        };
        self.inner.bytes(caller, op).await
    }

    /// Names of the extended attributes, each ended by NUL.
    ///
    /// # Errors
    /// The inode is gone.
    pub async fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>> {
        self.inner.bytes(caller, MetaOp::Listxattr { ino }).await
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// `Exists`, `NoAttribute` as `mode` says; `AttributeTooLong`, `Unsupported`, `NotPermitted`.
    pub async fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let op = MetaOp::Setxattr {
            ino,
            name: name.to_vec(),
            value: value.to_vec(),
            mode,
        };
        let done = self.inner.done(caller, op).await;
        self.inner.names_changed();
        done
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NoAttribute`, `Unsupported`, `NotPermitted`.
    pub async fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        let op = MetaOp::Removexattr {
            ino,
            name: name.to_vec(),
        };
        let done = self.inner.done(caller, op).await;
        self.inner.names_changed();
        done
    }
}
