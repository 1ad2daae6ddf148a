//! Entries of directories: finding, adding and removing names.

use xtfs_protocol::Result;
use xtfs_protocol::ids::Ino;
use xtfs_protocol::meta::{Caller, FileKind, MetaOp, RenameFlags};

use super::{Found, Vfs};

impl Vfs {
    /// Finds a name in a directory.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `AccessDenied`, `NameTooLong`.
    pub async fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Found> {
        let op = MetaOp::Lookup {
            parent,
            name: name.to_vec(),
        };
        let mark = self.inner.mark();
        let entry = self.inner.entry(caller, op).await?;
        Ok(self.inner.found(entry, mark))
    }

    /// Makes a file, fifo, socket or device.
    ///
    /// # Errors
    /// `Exists`, `AccessDenied` and what the MRC says.
    pub async fn mknod(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        mode: u16,
        rdev: u32,
    ) -> Result<Found> {
        let op = MetaOp::Mknod {
            parent,
            name: name.to_vec(),
            kind,
            mode,
            rdev,
        };
        self.add(caller, op).await
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// `Exists`, `AccessDenied` and what the MRC says.
    pub async fn mkdir(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        mode: u16,
    ) -> Result<Found> {
        let op = MetaOp::Mkdir {
            parent,
            name: name.to_vec(),
            mode,
        };
        self.add(caller, op).await
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// `Exists`, `AccessDenied`, `NameTooLong` and what the MRC says.
    pub async fn symlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        target: &[u8],
    ) -> Result<Found> {
        let op = MetaOp::Symlink {
            parent,
            name: name.to_vec(),
            target: target.to_vec(),
        };
        self.add(caller, op).await
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `Invalid` for another kind of inode.
    pub async fn readlink(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>> {
        self.inner.bytes(caller, MetaOp::Readlink { ino }).await
    }

    /// Gives an inode another name.
    ///
    /// # Errors
    /// `Exists`, `TooManyLinks`, `NotPermitted` for directories.
    pub async fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Found> {
        let op = MetaOp::Link {
            ino,
            parent,
            name: name.to_vec(),
        };
        self.add(caller, op).await
    }

    /// Removes a name that is not a directory's.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, `AccessDenied`, `NotPermitted`.
    pub async fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        let op = MetaOp::Unlink {
            parent,
            name: name.to_vec(),
        };
        self.remove(caller, op).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotEmpty`, `NotDirectory`, `AccessDenied`.
    pub async fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        let op = MetaOp::Rmdir {
            parent,
            name: name.to_vec(),
        };
        self.remove(caller, op).await
    }

    /// Renames, replacing what has the new name unless `flags` say otherwise.
    ///
    /// # Errors
    /// `NotFound`, `Exists`, `NotEmpty`, `Invalid` for a directory into itself.
    pub async fn rename(
        &self,
        caller: &Caller,
        (parent, name): (Ino, &[u8]),
        (new_parent, new_name): (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let op = MetaOp::Rename {
            parent,
            name: name.to_vec(),
            new_parent,
            new_name: new_name.to_vec(),
            flags,
        };
        self.remove(caller, op).await
    }

    async fn add(&self, caller: &Caller, op: MetaOp) -> Result<Found> {
        let mark = self.inner.mark();
        let entry = self.inner.entry(caller, op).await;
        self.inner.names_changed();
        Ok(self.inner.found(entry?, mark))
    }

    async fn remove(&self, caller: &Caller, op: MetaOp) -> Result<()> {
        let done = self.inner.done(caller, op).await;
        self.inner.names_changed();
        done
    }
}
