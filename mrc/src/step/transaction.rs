//! What a step has read and changed so far. Inodes, usage and counters that were changed are seen
//! changed by the rest of the step; everything ends in one list of changes, in key order.

use std::collections::BTreeMap;
use std::ops::Bound;

use xtfs_protocol::ids::Ino;
use xtfs_protocol::meta::{Entry, Lease, LeaseKind};
use xtfs_protocol::quota::QuotaSubject;
use xtfs_protocol::{Code, Error, Result};

use super::usage::Counted;
use super::{Changes, Context, Effect};
use crate::inode::{Body, Directory, Inode};
use crate::keys::{self, Table};
use crate::records::{Counters, DeletedRecord, DirentRecord};
use crate::view::{Change, View};

/// First and longest run of inode numbers that a directory takes for its children.
const RUN_LENGTH_MIN: u32 = 64;
const RUN_LENGTH_MAX: u32 = 4096;

/// An inode that the step changed or removed.
enum Edited {
    Changed(Box<Inode>),
    Removed,
}

pub(crate) struct Transaction<'a> {
    view: &'a dyn View,
    pub(super) context: &'a Context<'a>,
    inodes: BTreeMap<Ino, Edited>,
    counters: Option<Counters>,
    pub(super) usages: BTreeMap<QuotaSubject, Counted>,
    changes: Vec<Change>,
    durable: bool,
    reclaims: bool,
    effect: Option<Effect>,
}

/// The counters of a volume.
pub(crate) fn counters(view: &dyn View) -> Result<Counters> {
    match view.get(Table::Settings, keys::SETTING_COUNTERS)? {
        Some(bytes) => Counters::decode(&bytes),
        None => Err(Error::new(Code::Corrupt, "the volume has no counters")),
    }
}

impl<'a> Transaction<'a> {
    pub fn new(view: &'a dyn View, context: &'a Context<'a>) -> Self {
        Self {
            view,
            context,
            inodes: BTreeMap::new(),
            counters: None,
            usages: BTreeMap::new(),
            changes: Vec::new(),
            durable: false,
            reclaims: false,
            effect: None,
        }
    }

    /// Everything that was changed; refused when it is more than quotas allow.
    pub fn finish(mut self) -> Result<Changes> {
        self.settle_usage()?;
        let touched = self.inodes.keys().copied().collect();
        for (ino, edited) in &self.inodes {
            let value = match edited {
                Edited::Changed(inode) => Some(inode.encode()),
                Edited::Removed => None,
            };
            self.changes.push(Change {
                table: Table::Inodes,
                key: keys::number(*ino).to_vec(),
                value,
            });
        }
        if let Some(counters) = self.counters {
            self.changes.push(Change {
                table: Table::Settings,
                key: keys::SETTING_COUNTERS.to_vec(),
                value: Some(counters.encode()),
            });
        }
        Ok(Changes {
            changes: self.changes,
            touched,
            durable: self.durable,
            reclaims: self.reclaims,
            effect: self.effect,
        })
    }

    pub(super) fn view(&self) -> &'a dyn View {
        self.view
    }

    /// The inode, or [`Code::Stale`] when there is none of this number (any more).
    pub(super) fn inode(&self, ino: Ino) -> Result<Inode> {
        self.find(ino)?.ok_or_else(|| Code::Stale.into())
    }

    pub(super) fn find(&self, ino: Ino) -> Result<Option<Inode>> {
        match self.inodes.get(&ino) {
            Some(Edited::Changed(inode)) => Ok(Some(Inode::clone(inode))),
            Some(Edited::Removed) => Ok(None),
            None => match self.view.get(Table::Inodes, &keys::number(ino))? {
                Some(bytes) => Inode::decode(ino, &bytes)
                    .map(Some)
                    .map_err(|error| error.within(format_args!("inode {ino}"))),
                None => Ok(None),
            },
        }
    }

    /// The inode, which must be a directory, with what a directory has of its own.
    pub(super) fn directory(&self, ino: Ino) -> Result<(Inode, Directory)> {
        let inode = self.inode(ino)?;
        match inode.body {
            Body::Directory(directory) => Ok((inode, directory)),
            _ => Err(Code::NotDirectory.into()),
        }
    }

    pub(super) fn put_inode(&mut self, inode: Inode) {
        self.inodes
            .insert(inode.ino, Edited::Changed(Box::new(inode)));
    }

    /// Changes an inode in place.
    pub(super) fn edit(&mut self, ino: Ino, change: impl FnOnce(&mut Inode)) -> Result<()> {
        let mut inode = self.inode(ino)?;
        change(&mut inode);
        self.put_inode(inode);
        Ok(())
    }

    pub(super) fn dirent(&self, parent: Ino, name: &[u8]) -> Result<Option<DirentRecord>> {
        match self.view.get(Table::Dirents, &keys::named(parent, name))? {
            Some(bytes) => DirentRecord::decode(&bytes).map(Some),
            None => Ok(None),
        }
    }

    pub(super) fn put_dirent(&mut self, parent: Ino, name: &[u8], record: DirentRecord) {
        self.put(
            Table::Dirents,
            keys::named(parent, name),
            Some(record.encode()),
        );
    }

    pub(super) fn remove_dirent(&mut self, parent: Ino, name: &[u8]) {
        self.put(Table::Dirents, keys::named(parent, name), None);
    }

    pub(super) fn put(&mut self, table: Table, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.changes.push(Change { table, key, value });
    }

    /// Notes that a directory's entries changed by so many names and subdirectories.
    pub(super) fn entries_changed(&mut self, ino: Ino, names: i64, dirs: i64) -> Result<()> {
        let time = self.context.time;
        self.edit(ino, |directory| {
            directory.size = directory.size.saturating_add_signed(names);
            let nlink = i64::from(directory.nlink).saturating_add(dirs);
            directory.nlink = u32::try_from(nlink.max(0)).unwrap_or(u32::MAX);
            directory.data_version += 1;
            directory.mtime = time;
            directory.ctime = time;
        })
    }

    /// A number for a new child of `parent`, from the run that belongs to it.
    pub(super) fn number_for_child(&mut self, parent: Ino) -> Result<Ino> {
        let (mut inode, mut directory) = self.directory(parent)?;
        let stale = directory.run_next < self.context.number_floor;
        if stale || directory.run_next >= directory.run_end {
            directory.run_length =
                (directory.run_length.saturating_mul(2)).clamp(RUN_LENGTH_MIN, RUN_LENGTH_MAX);
            directory.run_next = self.take_numbers(directory.run_length)?;
            directory.run_end = directory.run_next + u64::from(directory.run_length);
        }
        let number = directory.run_next;
        directory.run_next += 1;
        inode.body = Body::Directory(directory);
        self.put_inode(inode);
        Ok(number)
    }

    /// So many numbers that were never handed out; the first of them.
    pub(super) fn take_numbers(&mut self, count: u32) -> Result<u64> {
        let counters = self.counters()?;
        let first = counters.next_number;
        counters.next_number = first
            .checked_add(u64::from(count))
            .ok_or_else(|| Error::new(Code::NoSpace, "the volume's numbers are used up"))?;
        Ok(first)
    }

    fn counters(&mut self) -> Result<&mut Counters> {
        if self.counters.is_none() {
            self.counters = Some(counters(self.view)?);
        }
        self.counters
            .as_mut()
            .ok_or_else(|| Error::new(Code::Corrupt, "the volume has no counters"))
    }

    /// A name of an inode was removed: what stays of it.
    pub(super) fn drop_link(&mut self, inode: Inode) -> Result<()> {
        let open = self.context.open.is_open(inode.ino);
        self.drop_name(inode, open)
    }

    /// A name of an inode now leads to another one: what stays of it. A file stays for a moment.
    pub(super) fn drop_replaced(&mut self, inode: Inode) -> Result<()> {
        let lingers = inode.nlink <= 1 && !self.context.open.is_open(inode.ino);
        if lingers && matches!(inode.body, Body::File(_)) {
            self.effect(Effect::Replaced { ino: inode.ino });
        }
        self.drop_name(inode, true)
    }

    fn drop_name(&mut self, mut inode: Inode, stays: bool) -> Result<()> {
        inode.nlink = inode.nlink.saturating_sub(1);
        inode.ctime = self.context.time;
        if inode.nlink > 0 {
            self.put_inode(inode);
            return Ok(());
        }
        if stays && matches!(inode.body, Body::File(_)) {
            let key = keys::number(inode.ino).to_vec();
            self.put(Table::Orphans, key, Some(Vec::new()));
            self.put_inode(inode);
            return Ok(());
        }
        self.remove_inode(&inode)
    }

    /// The inode goes, with its attributes; its content is queued for deletion.
    pub(super) fn remove_inode(&mut self, inode: &Inode) -> Result<()> {
        self.count(Some(inode), None)?;
        self.remove_all_xattrs(inode)?;
        self.remove_acls(inode.ino, inode.acls);
        if let Body::File(file) = &inode.body
            && file.written
        {
            self.queue_deletion(file.data, file.placement.osds.clone())?;
        }
        self.inodes.insert(inode.ino, Edited::Removed);
        Ok(())
    }

    /// Content that the OSDs shall delete once this step is durable.
    pub(super) fn queue_deletion(
        &mut self,
        data: u64,
        osds: Vec<xtfs_protocol::ids::ServiceId>,
    ) -> Result<()> {
        let counters = self.counters()?;
        let sequence = counters.next_deleted;
        counters.next_deleted += 1;
        let record = DeletedRecord { data, osds };
        let key = keys::number(sequence).to_vec();
        self.put(Table::Deleted, key, Some(record.encode()));
        self.reclaims = true;
        Ok(())
    }

    fn remove_all_xattrs(&mut self, inode: &Inode) -> Result<()> {
        if inode.xattr_names == 0 {
            return Ok(());
        }
        let mut found = Vec::new();
        self.scan_named(Table::Xattrs, inode.ino, b"", &mut |key, _| {
            found.push(key.to_vec());
            Ok(true)
        })?;
        for key in found {
            self.put(Table::Xattrs, key, None);
        }
        Ok(())
    }

    /// Visits the keys that begin with a number, behind `after` when that is not empty.
    pub(super) fn scan_named(
        &self,
        table: Table,
        number: u64,
        after: &[u8],
        visit: crate::view::Visit<'_>,
    ) -> Result<()> {
        let from = keys::named(number, after);
        let prefix = keys::number(number);
        let end = keys::after_prefix(&prefix);
        let to = end
            .as_ref()
            .map_or(Bound::Unbounded, |end| Bound::Excluded(end.as_slice()));
        let from = if after.is_empty() {
            Bound::Included(from.as_slice())
        } else {
            Bound::Excluded(from.as_slice())
        };
        self.view.scan(table, from, to, visit)
    }

    /// The reply waits until the step is durable.
    pub(super) fn wait_durable(&mut self) {
        self.durable = true;
    }

    pub(super) fn effect(&mut self, effect: Effect) {
        self.effect = Some(effect);
    }
}

/// An inode as it is answered; the lease is granted when the reply is sent.
pub(super) const fn entry(inode: &Inode) -> Entry {
    Entry {
        attr: inode.attr(),
        lease: Lease {
            kind: LeaseKind::Read,
            duration_ms: 0,
        },
    }
}
