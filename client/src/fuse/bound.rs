//! The empty file system: names in memory, written bytes dropped, reads give zeros.
//!
//! It is the bound of every measurement: what is left of it is the kernel and the way to it.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;
use xtfs_protocol::Result;

use super::mount::{MountOptions, Mounted, mount_filesystem};
use super::reply::{GENERATION, directory_stub, permission};

/// How long the kernel may cache what it was told.
const TTL: Duration = Duration::from_secs(1);
/// Largest read or write in bytes.
const TRANSFER_MAX: u32 = 1 << 20;
static ZEROS: [u8; TRANSFER_MAX as usize] = [0; TRANSFER_MAX as usize];

/// Mounts an empty file system at an existing directory.
///
/// # Errors
/// As [`mount`](super::mount()).
pub fn mount(mountpoint: &Path) -> Result<Mounted> {
    let options = MountOptions::new(mountpoint, "empty");
    mount_filesystem(Empty::default(), &options, |_| (), || ())
}

struct Empty {
    names: Mutex<Names>,
}

struct Names {
    last: u64,
    inodes: HashMap<u64, FileAttr>,
    entries: HashMap<u64, BTreeMap<OsString, u64>>,
}

impl Default for Empty {
    fn default() -> Self {
        let root = directory_stub(INodeNo::ROOT);
        Self {
            names: Mutex::new(Names {
                last: 1,
                inodes: HashMap::from([(1, root)]),
                entries: HashMap::from([(1, BTreeMap::new())]),
            }),
        }
    }
}

impl Names {
    fn find(&self, parent: u64, name: &OsStr) -> Option<FileAttr> {
        let ino = self.entries.get(&parent)?.get(name)?;
        self.inodes.get(ino).copied()
    }

    fn add(
        &mut self,
        parent: u64,
        name: &OsStr,
        kind: FileType,
        perm: u16,
    ) -> std::result::Result<FileAttr, Errno> {
        let entries = self.entries.get_mut(&parent).ok_or(Errno::ENOENT)?;
        if entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        self.last += 1;
        entries.insert(name.to_owned(), self.last);
        let attr = FileAttr {
            kind,
            perm,
            nlink: 1,
            ..directory_stub(INodeNo(self.last))
        };
        self.inodes.insert(self.last, attr);
        if kind == FileType::Directory {
            self.entries.insert(self.last, BTreeMap::new());
        }
        Ok(attr)
    }

    fn remove(&mut self, parent: u64, name: &OsStr) -> std::result::Result<(), Errno> {
        let entries = self.entries.get_mut(&parent).ok_or(Errno::ENOENT)?;
        let ino = entries.remove(name).ok_or(Errno::ENOENT)?;
        self.inodes.remove(&ino);
        self.entries.remove(&ino);
        Ok(())
    }

    fn rename(&mut self, from: (u64, &OsStr), to: (u64, &OsStr)) -> std::result::Result<(), Errno> {
        let source = self.entries.get_mut(&from.0).ok_or(Errno::ENOENT)?;
        let ino = source.remove(from.1).ok_or(Errno::ENOENT)?;
        let target = self.entries.get_mut(&to.0).ok_or(Errno::ENOENT)?;
        if let Some(replaced) = target.insert(to.1.to_owned(), ino) {
            self.inodes.remove(&replaced);
            self.entries.remove(&replaced);
        }
        Ok(())
    }

    /// Entries behind a position: `.`, `..`, then the names in order.
    fn list(&self, ino: u64, offset: u64) -> Vec<(u64, OsString, FileAttr)> {
        let dots = [".", ".."].map(|name| (OsString::from(name), directory_stub(INodeNo(ino))));
        let entries = self.entries.get(&ino).into_iter().flatten();
        let named = entries.filter_map(|(name, ino)| Some((name.clone(), *self.inodes.get(ino)?)));
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        let all = dots.into_iter().chain(named).skip(skip).take(4096);
        (offset + 1..)
            .zip(all)
            .map(|(cookie, (name, attr))| (cookie, name, attr))
            .collect()
    }
}

fn done(outcome: std::result::Result<(), Errno>, reply: ReplyEmpty) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn time(time: TimeOrNow, now: SystemTime) -> SystemTime {
    match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => now,
    }
}

impl Filesystem for Empty {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        for wanted in [
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ] {
            // What the kernel does not offer is measured without.
            let _ = config.add_capabilities(wanted);
        }
        let _ = config.set_max_write(TRANSFER_MAX);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.names.lock().find(parent.0, name) {
            Some(attr) => reply.entry(&TTL, &attr, GENERATION),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.names.lock().inodes.get(&ino.0) {
            Some(attr) => reply.attr(&TTL, attr),
            None => reply.error(Errno::ESTALE),
        }
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut names = self.names.lock();
        let Some(attr) = names.inodes.get_mut(&ino.0) else {
            return reply.error(Errno::ESTALE);
        };
        attr.perm = mode.map_or(attr.perm, permission);
        attr.uid = uid.unwrap_or(attr.uid);
        attr.gid = gid.unwrap_or(attr.gid);
        attr.size = size.unwrap_or(attr.size);
        attr.atime = atime.map_or(attr.atime, |to| time(to, UNIX_EPOCH));
        attr.mtime = mtime.map_or(attr.mtime, |to| time(to, UNIX_EPOCH));
        reply.attr(&TTL, attr);
    }

    fn mkdir(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let mode = permission(mode);
        match self
            .names
            .lock()
            .add(parent.0, name, FileType::Directory, mode)
        {
            Ok(attr) => reply.entry(&TTL, &attr, GENERATION),
            Err(errno) => reply.error(errno),
        }
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.names.lock().remove(parent.0, name), reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.names.lock().remove(parent.0, name), reply);
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let outcome = self
            .names
            .lock()
            .rename((parent.0, name), (newparent.0, newname));
        done(outcome, reply);
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn create(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let mode = permission(mode);
        let mut names = self.names.lock();
        match names.add(parent.0, name, FileType::RegularFile, mode) {
            Ok(attr) => reply.created(&TTL, &attr, GENERATION, FileHandle(0), FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let end = self
            .names
            .lock()
            .inodes
            .get(&ino.0)
            .map_or(0, |attr| attr.size);
        let length = end.saturating_sub(offset).min(u64::from(size));
        let length = usize::try_from(length).unwrap_or(0);
        reply.data(ZEROS.get(..length).unwrap_or(&ZEROS));
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if let Some(attr) = self.names.lock().inodes.get_mut(&ino.0) {
            attr.size = attr.size.max(offset.saturating_add(data.len() as u64));
        }
        reply.written(data.len() as u32);
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        for (cookie, name, attr) in self.names.lock().list(ino.0, offset) {
            if reply.add(attr.ino, cookie, attr.kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        for (cookie, name, attr) in self.names.lock().list(ino.0, offset) {
            if reply.add(attr.ino, cookie, name, &TTL, &attr, GENERATION) {
                break;
            }
        }
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        reply.statfs(1 << 30, 1 << 30, 1 << 30, 1 << 30, 1 << 30, 4096, 255, 4096);
    }

    fn getxattr(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _name: &OsStr,
        _size: u32,
        reply: ReplyXattr,
    ) {
        reply.error(Errno::ENODATA);
    }
}
