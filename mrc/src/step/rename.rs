//! Renaming, replacing and exchanging, with Linux's order of errors.

use xtfs_protocol::ids::Ino;
use xtfs_protocol::meta::{MetaReply, RenameFlags};
use xtfs_protocol::{Code, Error, Result};

use super::permission::{EXECUTE, WRITE};
use super::transaction::Transaction;
use crate::inode::{Body, Inode};
use crate::records::DirentRecord;

/// A name in a directory.
type Place<'a> = (Ino, &'a [u8]);

impl Transaction<'_> {
    pub(super) fn rename(
        &mut self,
        from: (Ino, &Vec<u8>),
        to: (Ino, &Vec<u8>),
        flags: RenameFlags,
    ) -> Result<MetaReply> {
        if flags.no_replace && flags.exchange {
            return Err(Error::new(Code::Invalid, "no_replace with exchange"));
        }
        let (from, to): (Place<'_>, Place<'_>) = ((from.0, from.1), (to.0, to.1));
        let (from_directory, source) = self.resolve(from.0, from.1)?;
        let (to_directory, target) = self.resolve(to.0, to.1)?;
        let source = source.ok_or(Code::NotFound)?;
        if target.is_some() && flags.no_replace {
            return Err(Code::Exists.into());
        }
        if target.is_none() && flags.exchange {
            return Err(Code::NotFound.into());
        }
        self.need_no_ring(from.0, &source, to.0, target.as_ref(), flags.exchange)?;
        if target
            .as_ref()
            .is_some_and(|target| target.ino == source.ino)
        {
            return Ok(MetaReply::Done);
        }
        self.need_removal(&from_directory, &source)?;
        match &target {
            Some(target) => self.need_replaceable(&to_directory, &source, target, flags)?,
            None => self.need(&to_directory, WRITE | EXECUTE)?,
        }
        let moves = from.0 != to.0;
        if moves {
            self.need_movable(&source)?;
            if let (Some(target), true) = (&target, flags.exchange) {
                self.need_movable(target)?;
            }
        }
        match target {
            Some(target) if flags.exchange => self.exchange(from, to, source, target)?,
            target => self.replace(from, to, source, target)?,
        }
        Ok(MetaReply::Done)
    }

    /// Nothing moves below itself, and nothing replaces a directory above it.
    fn need_no_ring(
        &self,
        from: Ino,
        source: &Inode,
        to: Ino,
        target: Option<&Inode>,
        exchange: bool,
    ) -> Result<()> {
        if from == to {
            return Ok(());
        }
        if source.is_directory() && self.is_at_or_above(source.ino, to)? {
            return Err(Code::Invalid.into());
        }
        if let Some(target) = target
            && target.is_directory()
            && self.is_at_or_above(target.ino, from)?
        {
            let code = if exchange {
                Code::Invalid
            } else {
                Code::NotEmpty
            };
            return Err(code.into());
        }
        Ok(())
    }

    fn need_replaceable(
        &self,
        directory: &Inode,
        source: &Inode,
        target: &Inode,
        flags: RenameFlags,
    ) -> Result<()> {
        self.need_removal(directory, target)?;
        if flags.exchange {
            return Ok(());
        }
        match (source.is_directory(), target.is_directory()) {
            (true, false) => Err(Code::NotDirectory.into()),
            (false, true) => Err(Code::IsDirectory.into()),
            _ => Ok(()),
        }
    }

    /// A directory that gets another parent is itself changed (its `..`).
    fn need_movable(&self, inode: &Inode) -> Result<()> {
        if inode.is_directory() {
            self.need(inode, WRITE)?;
        }
        Ok(())
    }

    fn replace(
        &mut self,
        from: Place<'_>,
        to: Place<'_>,
        source: Inode,
        target: Option<Inode>,
    ) -> Result<()> {
        if let Some(target) = &target
            && target.is_directory()
            && target.size > 0
        {
            return Err(Code::NotEmpty.into());
        }
        let dirs = i64::from(source.is_directory());
        self.remove_dirent(from.0, from.1);
        self.entries_changed(from.0, -1, -dirs)?;
        self.put_dirent(to.0, to.1, record(&source));
        self.entries_changed(to.0, 1, dirs)?;
        if let Some(target) = target {
            self.entries_changed(to.0, -1, -i64::from(target.is_directory()))?;
            if target.is_directory() {
                self.remove_inode(&target)?;
            } else {
                self.drop_replaced(target)?;
            }
        }
        self.moved(source, to.0);
        Ok(())
    }

    fn exchange(
        &mut self,
        from: Place<'_>,
        to: Place<'_>,
        source: Inode,
        target: Inode,
    ) -> Result<()> {
        let gain = i64::from(target.is_directory()) - i64::from(source.is_directory());
        self.put_dirent(from.0, from.1, record(&target));
        self.put_dirent(to.0, to.1, record(&source));
        self.entries_changed(from.0, 0, gain)?;
        self.entries_changed(to.0, 0, -gain)?;
        self.moved(source, to.0);
        self.moved(target, from.0);
        Ok(())
    }

    /// The inode has a new name, in `parent`.
    fn moved(&mut self, mut inode: Inode, parent: Ino) {
        inode.ctime = self.context.time;
        if let Body::Directory(directory) = &mut inode.body {
            directory.parent = parent;
        }
        self.put_inode(inode);
    }
}

const fn record(inode: &Inode) -> DirentRecord {
    DirentRecord {
        ino: inode.ino,
        kind: inode.kind(),
    }
}
