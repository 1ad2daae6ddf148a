//! Regular files: creating, opening, truncating, updating after writes, closing and reclaiming.
//!
//! Truncation to nothing gives a file fresh content under a new number and queues the old content
//! for deletion in the same batch. Truncation to something shorter is remembered as a *pending
//! cut*: whoever opens the file next carries it out on the OSDs. It is durable before anybody
//! hears of it, so that no OSD cuts what a loss of power would bring back.

use xtfs_protocol::capability::Capability;
use xtfs_protocol::ids::{FileId, Ino};
use xtfs_protocol::meta::{FileUpdate, MetaReply, OpenMode, Opened, PendingCut};
use xtfs_protocol::{Code, Error, Result};

use super::attributes::{later, need_time};
use super::permission::{self, EXECUTE, READ, WRITE, is_root};
use super::tails::Untold;
use super::transaction::{Transaction, entry};
use super::{Effect, Held};
use crate::inode::{Body, File, Inode};
use crate::keys::{self, Table};

impl Transaction<'_> {
    pub(super) fn create(
        &mut self,
        parent: Ino,
        name: &[u8],
        mode: u16,
        exclusive: bool,
        open: OpenMode,
    ) -> Result<MetaReply> {
        let (directory, found) = self.resolve(parent, name)?;
        if let Some(found) = found {
            return match found.body {
                _ if exclusive => Err(Code::Exists.into()),
                Body::File(_) => self.open(found.ino, open),
                Body::Directory(_) => Err(Code::IsDirectory.into()),
                // Whoever looked it up saw something else: look again.
                _ => Err(Code::Stale.into()),
            };
        }
        self.need(&directory, WRITE | EXECUTE)?;
        let number = self.number_for_child(parent)?;
        let body = self.empty_file(number)?;
        let mut inode = self.new_inode(parent, number, mode, body)?;
        if open.write {
            self.become_writer(&mut inode, Untold::Nothing { end: 0 })?;
        }
        self.enter(parent, name, &inode)?;
        let held = Held {
            read: open.read,
            write: open.write,
        };
        let opened = self.opened(&mut inode, held)?;
        self.note_opened(&inode, held);
        self.put_inode(inode);
        Ok(MetaReply::Opened(Box::new(opened)))
    }

    pub(super) fn open(&mut self, ino: Ino, open: OpenMode) -> Result<MetaReply> {
        let before = self.inode(ino)?;
        let mut inode = before.clone();
        match inode.body {
            Body::File(_) => {}
            Body::Directory(_) => return Err(Code::IsDirectory.into()),
            _ => return Err(Error::new(Code::Invalid, "only regular files are opened")),
        }
        self.need_open(&inode, open)?;
        if open.truncate {
            self.truncate(&mut inode, 0)?;
            inode.ctime = self.context.time;
        }
        if open.write && !open.truncate {
            self.become_writer(&mut inode, Untold::WhileOpen)?;
        }
        let held = Held {
            read: open.read,
            write: open.write,
        };
        let opened = self.opened(&mut inode, held)?;
        self.note_opened(&inode, held);
        self.note_first_write(&before, &inode);
        if inode != before {
            self.count(Some(&before), Some(&inode))?;
            self.put_inode(inode);
        }
        Ok(MetaReply::Opened(Box::new(opened)))
    }

    fn need_open(&self, inode: &Inode, open: OpenMode) -> Result<()> {
        let held = self.held(inode);
        // A host's kernel reads programs that may only be executed; it has checked that itself.
        let executes = self.context.trusted && self.allows(inode, EXECUTE)?;
        if open.read && !(held.read || executes || self.allows(inode, READ)?) {
            return Err(Code::AccessDenied.into());
        }
        let opened_for_writing = held.write && !open.truncate;
        if (open.write || open.truncate) && !(opened_for_writing || self.allows(inode, WRITE)?) {
            return Err(Code::AccessDenied.into());
        }
        Ok(())
    }

    /// Power loss must not forget that OSDs may hold objects of a content that it does not forget.
    pub(super) fn note_first_write(&mut self, before: &Inode, after: &Inode) {
        if let (Body::File(before), Body::File(after)) = (&before.body, &after.body)
            && before.data == after.data
            && !before.written
            && after.written
        {
            self.wait_durable();
        }
    }

    /// How the session has the inode open for this caller.
    pub(super) fn held(&self, inode: &Inode) -> Held {
        self.context.open.held(inode.ino, self.caller().uid)
    }

    fn note_opened(&mut self, inode: &Inode, held: Held) {
        let uid = self.caller().uid;
        self.effect(Effect::Opened {
            ino: inode.ino,
            uid,
            held,
        });
    }

    /// What the holder of an open file gets. Notes on the inode that its content may be written.
    fn opened(&mut self, inode: &mut Inode, held: Held) -> Result<Opened> {
        let file = file_mut(inode)?;
        file.written |= held.write;
        if file.pending_cut.is_some() {
            self.wait_durable();
        }
        let capability = Capability {
            file: FileId {
                volume: self.context.volume,
                data: file.data,
            },
            read: held.read,
            write: held.write,
            session: self.context.session,
            session_epoch: self.context.session_epoch,
            view: file.placement.view,
            truncate_epoch: file.epoch,
            expires: self.context.expires,
            key_id: 0,
            mac: [0; 32],
        };
        let placement = file.placement.clone();
        let (pending_cut, fenced) = (file.pending_cut, file.fenced);
        Ok(Opened {
            entry: entry(inode),
            placement,
            capability,
            pending_cut,
            fenced,
        })
    }

    /// What the caller of a truncation gets to carry it out.
    pub(super) fn opened_for_cut(&mut self, inode: &mut Inode) -> Result<Opened> {
        let read = self.may_read(inode)?;
        self.opened(inode, Held { read, write: true })
    }

    /// Sets the size of a file whose caller may do so and becomes a writer of it. Does not count.
    pub(super) fn truncate(&mut self, inode: &mut Inode, size: u64) -> Result<()> {
        if size > 0 {
            self.become_writer(inode, Untold::Nothing { end: size })?;
        }
        let time = self.context.time;
        let old_size = inode.size;
        if !is_root(self.caller()) {
            inode.mode = permission::without_set_ids(self.caller(), inode);
        }
        self.drop_file_capabilities(inode)?;
        let file = file_mut(inode)?;
        if size == 0 && (old_size > 0 || file.written) {
            if file.written {
                let fresh = self.take_numbers(1)?;
                self.queue_deletion(file.data, file.placement.osds.clone())?;
                file.data = fresh;
                file.written = false;
            }
            file.epoch += 1;
            file.data_epoch = file.epoch;
            file.pending_cut = None;
            inode.allocated = 0;
        } else if size < old_size {
            file.epoch += 1;
            let size = file.pending_cut.map_or(size, |cut| cut.size.min(size));
            file.pending_cut = Some(PendingCut {
                epoch: file.epoch,
                size,
                told: true,
            });
        }
        if size == 0 {
            self.become_writer(inode, Untold::Nothing { end: 0 })?;
        }
        let file = file_mut(inode)?;
        file.mtime_settled = later(file.mtime_settled, time);
        inode.size = size;
        inode.mtime = time;
        inode.ctime = time;
        inode.data_version += 1;
        Ok(())
    }

    pub(super) fn truncate_done(&mut self, ino: Ino, epoch: u64) -> Result<MetaReply> {
        let Some(mut inode) = self.find(ino)? else {
            return Ok(MetaReply::Done);
        };
        self.need_writer(&inode)?;
        let file = file_mut(&mut inode)?;
        if file.pending_cut.is_some_and(|cut| cut.epoch <= epoch) {
            file.pending_cut = None;
            self.put_inode(inode);
        }
        Ok(MetaReply::Done)
    }

    /// What a writer learnt. Late news of an earlier content changes nothing but times.
    pub(super) fn update(&mut self, ino: Ino, update: &FileUpdate) -> Result<MetaReply> {
        if i64::try_from(update.size_at_least).is_err() {
            return Err(Code::TooLarge.into());
        }
        for time in [update.written_at, update.read_at].into_iter().flatten() {
            need_time(time)?;
        }
        let before = self.inode(ino)?;
        let mut inode = before.clone();
        let reads_only = update.written_at.is_none()
            && update.allocated_delta == 0
            && update.size_at_least <= inode.size
            && update.appended == 0;
        if !(reads_only && self.may_read(&inode)?) {
            self.need_writer(&inode)?;
        }
        let file = file_mut(&mut inode)?;
        let wrote = update.written_at.is_some() || update.size_at_least > 0 || update.appended > 0;
        if wrote && update.truncate_epoch < file.fenced {
            let context = "the session was lost, and another one took back what it had not told";
            return Err(Error::new(Code::Io, context));
        }
        let (epoch, data_epoch) = (file.epoch, file.data_epoch);
        let mut changed = update.written_at.is_some();
        if let Some(at) = update.written_at
            && at > file.mtime_settled
        {
            file.mtime_settled = at;
            inode.mtime = at;
            inode.ctime = later(inode.ctime, at);
        }
        let file = file_mut(&mut inode)?;
        if let Some(at) = update.read_at
            && at > file.atime_settled
        {
            file.atime_settled = at;
            inode.atime = later(inode.atime, at);
        }
        if update.truncate_epoch == epoch && update.size_at_least > inode.size {
            inode.size = update.size_at_least;
            changed = true;
        }
        if update.appended > 0 {
            let grown = inode.size.checked_add(update.appended);
            let grown = grown.filter(|size| i64::try_from(*size).is_ok());
            inode.size = grown.ok_or(Code::TooLarge)?;
            changed = true;
        }
        if update.truncate_epoch >= data_epoch {
            inode.allocated = inode
                .allocated
                .saturating_add_signed(update.allocated_delta);
        }
        if changed {
            inode.data_version += 1;
            if !is_root(self.caller()) {
                inode.mode = permission::without_set_ids(self.caller(), &inode);
            }
            self.drop_file_capabilities(&mut inode)?;
        }
        self.count(Some(&before), Some(&inode))?;
        let reply = MetaReply::Entry(entry(&inode));
        if inode != before {
            self.put_inode(inode);
        }
        Ok(reply)
    }

    /// Only who has the file open for writing, or might open it so, reports about its content.
    /// A host is believed about what its kernel has open.
    pub(super) fn need_writer(&self, inode: &Inode) -> Result<()> {
        if self.context.trusted || self.held(inode).write {
            return Ok(());
        }
        self.need(inode, WRITE)
    }

    pub(super) fn release(&mut self, ino: Ino) -> Result<MetaReply> {
        self.effect(Effect::Released { ino });
        if let Some(inode) = self.find(ino)?
            && inode.nlink == 0
            && !self.context.open.is_open_elsewhere(ino)
        {
            self.reclaim(&inode)?;
        }
        Ok(MetaReply::Done)
    }

    /// An unlinked file that nobody has open any more goes for good.
    pub fn reclaim(&mut self, inode: &Inode) -> Result<()> {
        let key = keys::number(inode.ino).to_vec();
        self.put(Table::Orphans, key, None);
        self.remove_inode(inode)
    }

    /// Reclaims those of `inos` that are unlinked and that nobody has open.
    pub fn reclaim_unheld(&mut self, inos: &[Ino]) -> Result<()> {
        for ino in inos {
            if self.context.open.is_open(*ino) {
                continue;
            }
            match self.find(*ino)? {
                Some(inode) if inode.nlink == 0 => self.reclaim(&inode)?,
                Some(_) => {}
                None => self.put(Table::Orphans, keys::number(*ino).to_vec(), None),
            }
        }
        Ok(())
    }
}

pub(super) fn file_mut(inode: &mut Inode) -> Result<&mut File> {
    match &mut inode.body {
        Body::File(file) => Ok(file),
        Body::Directory(_) => Err(Code::IsDirectory.into()),
        _ => Err(Error::new(Code::Invalid, "not a regular file")),
    }
}
