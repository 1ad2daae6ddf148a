//! The step on a volume in memory, by area.

mod acls;
mod attributes;
mod files;
mod model;
mod names;
mod permissions;
mod quotas;
mod rename;
mod tails;
mod xattrs;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use xtfs_layout::Layout;
use xtfs_protocol::ids::{Ino, ROOT_INO, ServiceId, SessionId, VolumeId};
use xtfs_protocol::meta::{
    Attr, Caller, FileKind, MetaOp, MetaReply, OpenMode, Opened, Placement, SetAttr,
};
use xtfs_protocol::time::Time;
use xtfs_protocol::{Code, Result};

use super::{Changes, Context, Effect, Held, OpenFiles, Transaction, step};
use crate::inode::{Acls, Body, Directory, Inode};
use crate::keys::{self, Table};
use crate::quota::{self, Limits};
use crate::records::{Counters, DirentRecord, Usage};
use crate::view::View;
use crate::view::memory::MemoryView;

pub(super) const ALICE: u32 = 1000;
pub(super) const BOB: u32 = 1001;
pub(super) const STAFF: u32 = 50;

/// Open files of the one session of the tests, and those that another one has open.
#[derive(Default)]
pub(super) struct Open {
    pub own: BTreeMap<Ino, Held>,
    pub elsewhere: BTreeSet<Ino>,
    /// Replaced by a rename a moment ago.
    pub replaced: BTreeSet<Ino>,
    /// Epochs of sessions that were lost.
    pub lost: BTreeSet<u64>,
    /// What the session told may be forgotten.
    pub told_more: bool,
}

impl OpenFiles for RefCell<Open> {
    fn is_open(&self, ino: Ino) -> bool {
        let open = self.borrow();
        open.own.contains_key(&ino) || open.elsewhere.contains(&ino) || open.replaced.contains(&ino)
    }

    fn is_open_elsewhere(&self, ino: Ino) -> bool {
        self.borrow().elsewhere.contains(&ino) || self.borrow().replaced.contains(&ino)
    }

    fn held(&self, ino: Ino, _uid: u32) -> Held {
        self.borrow().own.get(&ino).copied().unwrap_or_default()
    }

    fn is_written_here(&self, ino: Ino) -> bool {
        self.held(ino, 0).write
    }

    fn is_written_elsewhere(&self, ino: Ino) -> bool {
        self.borrow().elsewhere.contains(&ino)
    }

    fn has_told(&self, epoch: u64) -> bool {
        !self.borrow().lost.contains(&epoch)
    }

    fn may_have_told_more(&self) -> bool {
        self.borrow().told_more
    }
}

/// A volume with a clock that moves on by a second with every operation.
pub(super) struct World {
    pub view: MemoryView,
    pub open: RefCell<Open>,
    pub limits: Limits,
    pub now: i64,
    pub caller: Caller,
    pub trusted: bool,
    pub number_floor: u64,
    /// Of the session that asks.
    pub session_epoch: u64,
    pub placement: Result<Placement>,
    pub last: Changes,
}

impl World {
    /// An empty volume whose root directory everybody may change; the caller is root.
    pub fn new() -> Self {
        let time = Time::default();
        let root = Inode {
            ino: ROOT_INO,
            mode: 0o777,
            nlink: 2,
            uid: 0,
            gid: 0,
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
            body: Body::Directory(Directory {
                parent: ROOT_INO,
                run_next: 0,
                run_end: 0,
                run_length: 0,
            }),
        };
        let counters = Counters {
            next_number: 2,
            next_deleted: 1,
            session_epoch: 0,
            closed: false,
            boot: 0,
            remembered_from: 0,
            lost_before: 0,
        };
        let one = Usage {
            bytes: 0,
            inodes: 1,
        };
        let mut view = MemoryView::default();
        let mut put = |table, key: &[u8], value| view.0.insert((table, key.to_vec()), value);
        put(Table::Inodes, &keys::number(ROOT_INO), root.encode());
        put(Table::Settings, keys::SETTING_COUNTERS, counters.encode());
        for subject in quota::subjects(&root) {
            put(Table::Usage, &quota::usage_key(subject), one.encode());
        }
        Self {
            view,
            open: RefCell::default(),
            limits: Limits::new(),
            now: 1000,
            caller: Caller::root(),
            trusted: false,
            number_floor: 0,
            session_epoch: 1,
            placement: Ok(Placement {
                layout: Layout::striped(1),
                view: 1,
                osds: vec![ServiceId([1; 16])],
            }),
            last: Changes::default(),
        }
    }

    /// From now on this user asks.
    pub fn act_as(&mut self, uid: u32) -> &mut Self {
        self.caller = Caller {
            uid,
            gid: uid,
            ..Caller::default()
        };
        self
    }

    /// The time of the operation that ran last.
    pub fn time(&self) -> Time {
        Time {
            secs: self.now,
            nanos: 0,
        }
    }

    pub fn run(&mut self, op: &MetaOp) -> Result<MetaReply> {
        self.now += 1;
        let time = self.time();
        let context = Context {
            caller: &self.caller,
            trusted: self.trusted,
            time,
            volume: VolumeId([1; 16]),
            session: SessionId([2; 16]),
            session_epoch: self.session_epoch,
            expires: time,
            number_floor: self.number_floor,
            placement: &self.placement,
            open: &self.open,
            limits: &self.limits,
        };
        let (reply, changes) = step(&self.view, op, &context)?;
        self.view.apply(&changes.changes);
        match changes.effect {
            Some(Effect::Opened { ino, held, .. }) => {
                let mut open = self.open.borrow_mut();
                let known = open.own.entry(ino).or_default();
                known.read |= held.read;
                known.write |= held.write;
            }
            Some(Effect::Released { ino }) => {
                self.open.borrow_mut().own.remove(&ino);
            }
            Some(Effect::Replaced { ino }) => {
                self.open.borrow_mut().replaced.insert(ino);
            }
            None => {}
        }
        self.last = changes;
        self.check();
        Ok(reply)
    }

    /// The replaced files' time is over: those that nobody opened meanwhile are reclaimed.
    pub fn end_lingering(&mut self) {
        let replaced = std::mem::take(&mut self.open.borrow_mut().replaced);
        let time = self.time();
        let context = Context {
            caller: &Caller::root(),
            trusted: true,
            time,
            volume: VolumeId([1; 16]),
            session: SessionId([0; 16]),
            session_epoch: 0,
            expires: time,
            number_floor: self.number_floor,
            placement: &self.placement,
            open: &self.open,
            limits: &self.limits,
        };
        let inos: Vec<_> = replaced.into_iter().collect();
        let mut transaction = Transaction::new(&self.view, &context);
        transaction.reclaim_unheld(&inos).unwrap();
        let changes = transaction.finish().unwrap();
        self.view.apply(&changes.changes);
        self.check();
    }

    /// The code that an operation fails with.
    pub fn refused(&mut self, op: &MetaOp) -> Code {
        let before = self.view.0.clone();
        let code = self.run(op).unwrap_err().code;
        assert_eq!(self.view.0, before, "a refused operation changed something");
        code
    }

    pub fn check(&self) {
        check_volume(&self.view);
    }

    pub fn attr(&mut self, ino: Ino) -> Attr {
        attr(&self.run(&MetaOp::Getattr { ino }).unwrap())
    }

    pub fn mkdir(&mut self, parent: Ino, name: &str, mode: u16) -> Ino {
        let op = MetaOp::Mkdir {
            parent,
            name: name.into(),
            mode,
        };
        attr(&self.run(&op).unwrap()).ino
    }

    /// Makes a file without opening it.
    pub fn file(&mut self, parent: Ino, name: &str, mode: u16) -> Ino {
        let op = mknod(parent, name, FileKind::File, mode);
        attr(&self.run(&op).unwrap()).ino
    }

    /// Makes or opens a file for reading and writing.
    pub fn create(&mut self, parent: Ino, name: &str) -> Opened {
        let open = OpenMode {
            read: true,
            write: true,
            truncate: false,
        };
        opened(self.run(&create(parent, name, open)).unwrap())
    }

    pub fn set(&mut self, ino: Ino, set: SetAttr) -> Result<MetaReply> {
        self.run(&MetaOp::Setattr {
            ino,
            set,
            by_handle: false,
        })
    }

    pub fn chmod(&mut self, ino: Ino, mode: u16) -> Result<MetaReply> {
        let set = SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        };
        self.set(ino, set)
    }

    pub fn chown(&mut self, ino: Ino, uid: Option<u32>, gid: Option<u32>) -> Result<MetaReply> {
        let set = SetAttr {
            uid,
            gid,
            ..SetAttr::default()
        };
        self.set(ino, set)
    }

    pub fn truncate(&mut self, ino: Ino, size: u64) -> Result<MetaReply> {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.set(ino, set)
    }
}

pub(super) fn attr(reply: &MetaReply) -> Attr {
    match reply {
        MetaReply::Entry(entry) => entry.attr,
        MetaReply::Opened(opened) | MetaReply::Truncated(opened) => opened.entry.attr,
        other => panic!("{other:?}"),
    }
}

pub(super) fn opened(reply: MetaReply) -> Opened {
    match reply {
        MetaReply::Opened(opened) | MetaReply::Truncated(opened) => *opened,
        other => panic!("{other:?}"),
    }
}

pub(super) fn lookup(parent: Ino, name: &str) -> MetaOp {
    MetaOp::Lookup {
        parent,
        name: name.into(),
    }
}

pub(super) fn mknod(parent: Ino, name: &str, kind: FileKind, mode: u16) -> MetaOp {
    MetaOp::Mknod {
        parent,
        name: name.into(),
        kind,
        mode,
        rdev: 7,
    }
}

pub(super) fn create(parent: Ino, name: &str, open: OpenMode) -> MetaOp {
    MetaOp::Create {
        parent,
        name: name.into(),
        mode: 0o644,
        exclusive: false,
        open,
    }
}

pub(super) fn unlink(parent: Ino, name: &str) -> MetaOp {
    MetaOp::Unlink {
        parent,
        name: name.into(),
    }
}

pub(super) fn rmdir(parent: Ino, name: &str) -> MetaOp {
    MetaOp::Rmdir {
        parent,
        name: name.into(),
    }
}

pub(super) fn link(ino: Ino, parent: Ino, name: &str) -> MetaOp {
    MetaOp::Link {
        ino,
        parent,
        name: name.into(),
    }
}

pub(super) fn rename(from: (Ino, &str), to: (Ino, &str)) -> MetaOp {
    MetaOp::Rename {
        parent: from.0,
        name: from.1.into(),
        new_parent: to.0,
        new_name: to.1.into(),
        flags: Default::default(),
    }
}

/// Nothing drifted: usage, entries and link counts are what a count of everything gives.
pub(crate) fn check_volume(view: &dyn View) {
    let mut children: BTreeMap<Ino, (u64, u32)> = BTreeMap::new();
    let mut names: BTreeMap<Ino, u32> = BTreeMap::new();
    let all = (Bound::Unbounded, Bound::Unbounded);
    let mut dirent = |key: &[u8], value: &[u8]| {
        let (parent, _) = keys::split(key)?;
        let record = DirentRecord::decode(value)?;
        let counts = children.entry(parent).or_default();
        counts.0 += 1;
        counts.1 += u32::from(record.kind == FileKind::Directory);
        *names.entry(record.ino).or_default() += 1;
        Ok(true)
    };
    let scanned = view.scan(Table::Dirents, all.0, all.1, &mut dirent);
    scanned.unwrap();
    let mut inode = |key: &[u8], value: &[u8]| {
        let inode = Inode::decode(keys::ino(key)?, value)?;
        let linked = names.remove(&inode.ino).unwrap_or(0);
        if inode.is_directory() {
            let (entries, dirs) = children.remove(&inode.ino).unwrap_or_default();
            assert_eq!(inode.size, entries, "entries of directory {}", inode.ino);
            assert_eq!(inode.nlink, 2 + dirs, "links of directory {}", inode.ino);
        } else {
            assert_eq!(inode.nlink, linked, "links of inode {}", inode.ino);
        }
        let orphan = view.get(Table::Orphans, key)?.is_some();
        assert_eq!(orphan, inode.nlink == 0, "orphan {}", inode.ino);
        Ok(true)
    };
    let scanned = view.scan(Table::Inodes, all.0, all.1, &mut inode);
    scanned.unwrap();
    let (recorded, _) = super::all(view).unwrap();
    assert_eq!(recorded, super::recount(view).unwrap());
    assert!(names.is_empty(), "names without inode: {names:?}");
    assert!(children.is_empty(), "names without directory");
}
