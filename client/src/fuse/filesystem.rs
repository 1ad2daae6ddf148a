//! One method a request of the kernel.

use std::ffi::OsStr;
use std::future::Future;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use tokio::runtime::Handle;
use xtfs_protocol::meta::{self, Caller, SetAttr, XattrMode};

use super::groups::{caller, holder, maker};
use super::reply;
use crate::background::Tasks;
use crate::data::write::Write;
use crate::vfs::Vfs;
use crate::vfs::open::{OpenOptions, OpenedFile};
use crate::vfs::space::{Allocate, Seek};

/// Largest write that the kernel sends at once, in bytes.
const WRITE_MAX: u32 = 1 << 20;
/// Reads and writes in the background that the kernel keeps going at a time.
const BACKGROUND_MAX: u16 = 64;
/// Open flag of the kernel: the file is opened to be executed.
const EXECUTE: i32 = 0x20;
/// Bytes that an entry of a listing takes at least.
const DIRENT_BYTES_MIN: usize = 32;

/// The kernel's side of a mounted volume.
pub(crate) struct Adaptor {
    pub(crate) vfs: Vfs,
    pub(crate) runtime: Handle,
    pub(crate) tasks: Arc<Tasks>,
}

impl Adaptor {
    /// Runs an operation here as far as it needs no waiting; the rest runs as a task. The kernel
    /// bounds how many requests are open.
    fn run(&self, operation: impl Future<Output = ()> + Send + 'static) {
        let mut operation = Box::pin(operation);
        let ready = {
            let _runtime = self.runtime.enter();
            let mut context = Context::from_waker(Waker::noop());
            operation.as_mut().poll(&mut context).is_ready()
        };
        if !ready {
            self.tasks.spawn(operation);
        }
    }
}

fn open_options(flags: i32) -> OpenOptions {
    let access = flags & libc::O_ACCMODE;
    OpenOptions {
        read: access != libc::O_WRONLY,
        write: access != libc::O_RDONLY,
        truncate: flags & libc::O_TRUNC != 0,
        append: flags & libc::O_APPEND != 0,
        direct: flags & libc::O_DIRECT != 0,
    }
}

fn open_flags(options: OpenOptions, opened: &OpenedFile) -> FopenFlags {
    let mut flags = FopenFlags::empty();
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, opened.keep_cache);
    // Who only reads has nothing to send at close.
    flags.set(FopenFlags::FOPEN_NOFLUSH, !options.write);
    flags
}

impl Filesystem for Adaptor {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Not FUSE_ATOMIC_O_TRUNC: with it the kernel asks to truncate before it has looked whether
        // the file is a running program, when it is opened with O_RDONLY | O_TRUNC.
        for wanted in [
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_EXPORT_SUPPORT,
            // Lists are kept, inherited and enforced by the MRC, which needs the umask to itself.
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_DONT_MASK,
        ] {
            if config.add_capabilities(wanted).is_err() {
                tracing::debug!(?wanted, "the kernel does not offer it");
            }
        }
        // Too large a value is answered with the largest possible one.
        if let Err(largest) = config.set_max_write(WRITE_MAX) {
            let _ = config.set_max_write(largest);
        }
        if let Err(largest) = config.set_max_readahead(WRITE_MAX) {
            let _ = config.set_max_readahead(largest);
        }
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (vfs, caller, name) = (self.vfs.clone(), caller(req), name.as_bytes().to_vec());
        self.run(async move {
            let found = vfs.lookup(&caller, parent.0, &name).await;
            reply::entry(&vfs, found, reply);
        });
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.vfs.forget(ino.0, nlookup);
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let (vfs, caller) = (self.vfs.clone(), holder(req));
        self.run(async move {
            reply::attributes(vfs.getattr(&caller, ino.0).await, reply);
        });
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = SetAttr {
            mode: mode.map(reply::permission),
            uid,
            gid,
            size,
            atime: atime.map(reply::set_time),
            mtime: mtime.map(reply::set_time),
        };
        let (vfs, caller) = (self.vfs.clone(), caller(req));
        self.run(async move {
            let found = vfs.setattr(&caller, ino.0, set, fh.is_some()).await;
            reply::attributes(found, reply);
        });
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        let (vfs, caller) = (self.vfs.clone(), holder(req));
        self.run(async move {
            match vfs.readlink(&caller, ino.0).await {
                Ok(target) => reply.data(&target),
                Err(error) => reply.error(reply::errno(&error)),
            }
        });
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let Some(kind) = reply::kind_of_mode(mode) else {
            return reply.error(Errno::EINVAL);
        };
        let (vfs, caller) = (self.vfs.clone(), maker(req, umask));
        let (mode, name) = (reply::permission(mode), name.as_bytes().to_vec());
        self.run(async move {
            let found = vfs.mknod(&caller, parent.0, &name, kind, mode, rdev).await;
            reply::entry(&vfs, found, reply);
        });
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let (vfs, caller) = (self.vfs.clone(), maker(req, umask));
        let (mode, name) = (reply::permission(mode), name.as_bytes().to_vec());
        self.run(async move {
            let found = vfs.mkdir(&caller, parent.0, &name, mode).await;
            reply::entry(&vfs, found, reply);
        });
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (vfs, caller, name) = (self.vfs.clone(), caller(req), name.as_bytes().to_vec());
        self.run(async move {
            reply::empty(vfs.unlink(&caller, parent.0, &name).await, reply);
        });
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (vfs, caller, name) = (self.vfs.clone(), caller(req), name.as_bytes().to_vec());
        self.run(async move {
            reply::empty(vfs.rmdir(&caller, parent.0, &name).await, reply);
        });
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (vfs, caller, name) = (self.vfs.clone(), caller(req), link_name.as_bytes().to_vec());
        let target = target.as_os_str().as_bytes().to_vec();
        self.run(async move {
            let found = vfs.symlink(&caller, parent.0, &name, &target).await;
            reply::entry(&vfs, found, reply);
        });
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if flags.contains(RenameFlags::RENAME_WHITEOUT) {
            return reply.error(Errno::EINVAL);
        }
        let flags = meta::RenameFlags {
            no_replace: flags.contains(RenameFlags::RENAME_NOREPLACE),
            exchange: flags.contains(RenameFlags::RENAME_EXCHANGE),
        };
        let (vfs, caller) = (self.vfs.clone(), caller(req));
        let (old, new) = (name.as_bytes().to_vec(), newname.as_bytes().to_vec());
        self.run(async move {
            let done = vfs
                .rename(&caller, (parent.0, &old), (newparent.0, &new), flags)
                .await;
            reply::empty(done, reply);
        });
    }

    fn link(
        &self,
        req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let (vfs, caller, name) = (self.vfs.clone(), caller(req), newname.as_bytes().to_vec());
        self.run(async move {
            let found = vfs.link(&caller, ino.0, newparent.0, &name).await;
            reply::entry(&vfs, found, reply);
        });
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let options = open_options(flags.0);
        // A file may be executed by who may not read it; the kernel checked that.
        let caller = if flags.0 & EXECUTE != 0 {
            Caller::root()
        } else {
            caller(req)
        };
        let vfs = self.vfs.clone();
        self.run(async move {
            match vfs.open_file(&caller, ino.0, options).await {
                Ok(opened) => {
                    reply.opened(FileHandle(opened.handle), open_flags(options, &opened));
                }
                Err(error) => reply.error(reply::errno(&error)),
            }
        });
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let vfs = self.vfs.clone();
        self.run(async move {
            match vfs.read(fh.0, offset, size).await {
                Ok(bytes) => reply.data(&bytes),
                Err(error) => reply.error(reply::errno(&error)),
            }
        });
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let exact = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let kill_set_id = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let write = Write {
            offset,
            exact,
            data,
            kill_set_id,
        };
        let now = {
            let _runtime = self.runtime.enter();
            self.vfs.write_now(fh.0, write)
        };
        match now {
            Some(Ok(written)) => reply.written(written),
            Some(Err(error)) => reply.error(reply::errno(&error)),
            None => {
                let (vfs, data) = (self.vfs.clone(), data.to_vec());
                self.run(async move {
                    let write = Write {
                        offset,
                        exact,
                        data: &data,
                        kill_set_id,
                    };
                    match vfs.write(fh.0, write).await {
                        Ok(written) => reply.written(written),
                        Err(error) => reply.error(reply::errno(&error)),
                    }
                });
            }
        }
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let vfs = self.vfs.clone();
        self.run(async move { reply::empty(vfs.flush(fh.0).await, reply) });
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let vfs = self.vfs.clone();
        self.run(async move { reply::empty(vfs.release(fh.0).await, reply) });
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let vfs = self.vfs.clone();
        self.run(async move { reply::empty(vfs.fsync(fh.0).await, reply) });
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.vfs.opendir(ino.0) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(error) => reply.error(reply::errno(&error)),
        }
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        // The kernel checked at opendir that the caller may list.
        let (vfs, caller) = (self.vfs.clone(), Caller::root());
        self.run(async move {
            let limit = LISTING_BYTES / DIRENT_BYTES_MIN;
            let from = offset.saturating_sub(2);
            let listing = match vfs.readdir(&caller, fh.0, from, limit, false).await {
                Ok(listing) => listing,
                Err(error) => return reply.error(reply::errno(&error)),
            };
            for (cookie, name, ino) in dots(offset, ino, &listing) {
                if reply.add(ino, cookie, fuser::FileType::Directory, OsStr::new(name)) {
                    return reply.ok();
                }
            }
            for (cookie, entry) in (listing.first + 3..).zip(&listing.entries) {
                let name = OsStr::from_bytes(&entry.name);
                if reply.add(INodeNo(entry.ino), cookie, reply::kind(entry.kind), name) {
                    break;
                }
            }
            reply.ok();
        });
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        // The kernel checked at opendir that the caller may list.
        let (vfs, caller) = (self.vfs.clone(), Caller::root());
        self.run(async move {
            let limit = LISTING_BYTES / DIRENT_BYTES_MIN;
            let from = offset.saturating_sub(2);
            let listing = match vfs.readdir(&caller, fh.0, from, limit, true).await {
                Ok(listing) => listing,
                Err(error) => return reply.error(reply::errno(&error)),
            };
            for (cookie, name, ino) in dots(offset, ino, &listing) {
                // The kernel takes nothing but name and number of these two, and forgets neither.
                let attr = reply::directory_stub(ino);
                let ttl = std::time::Duration::ZERO;
                if reply.add(
                    ino,
                    cookie,
                    OsStr::new(name),
                    &ttl,
                    &attr,
                    reply::GENERATION,
                ) {
                    return reply.ok();
                }
            }
            for (cookie, entry) in (listing.first + 3..).zip(&listing.entries) {
                let Some(found) = vfs.listed(&listing, entry) else {
                    return reply.error(Errno::EIO);
                };
                let name = OsStr::from_bytes(&entry.name);
                let attr = reply::attr(&found.attr);
                let number = INodeNo(entry.ino);
                // One time for both the name and the attributes.
                let ttl = found.ttl.min(found.name_ttl);
                if reply.add(number, cookie, name, &ttl, &attr, reply::GENERATION) {
                    break;
                }
                vfs.remember(&found);
            }
            reply.ok();
        });
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.vfs.releasedir(fh.0);
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
        let vfs = self.vfs.clone();
        self.run(async move { reply::empty(vfs.sync().await, reply) });
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let vfs = self.vfs.clone();
        self.run(async move {
            match vfs.statfs().await {
                Ok(space) => reply::space(&space, reply),
                Err(error) => reply.error(reply::errno(&error)),
            }
        });
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            0 => XattrMode::Set,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return reply.error(Errno::EINVAL),
        };
        let (vfs, caller, name) = (self.vfs.clone(), caller(req), name.as_bytes().to_vec());
        let value = value.to_vec();
        self.run(async move {
            let done = vfs.setxattr(&caller, ino.0, &name, &value, mode).await;
            reply::empty(done, reply);
        });
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let (vfs, caller, name) = (self.vfs.clone(), caller(req), name.as_bytes().to_vec());
        self.run(async move {
            let value = vfs.getxattr(&caller, ino.0, &name).await;
            reply::xattr(value, size, reply);
        });
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let (vfs, caller) = (self.vfs.clone(), caller(req));
        self.run(async move {
            reply::xattr(vfs.listxattr(&caller, ino.0).await, size, reply);
        });
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (vfs, caller, name) = (self.vfs.clone(), caller(req), name.as_bytes().to_vec());
        self.run(async move {
            reply::empty(vfs.removexattr(&caller, ino.0, &name).await, reply);
        });
    }

    fn access(&self, req: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let (vfs, caller) = (self.vfs.clone(), caller(req));
        let mask = (mask.bits() & 7) as u8;
        self.run(async move {
            reply::empty(vfs.access(&caller, ino.0, mask).await, reply);
        });
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (vfs, caller) = (self.vfs.clone(), maker(req, umask));
        let (mode, name) = (reply::permission(mode), name.as_bytes().to_vec());
        let options = open_options(flags);
        let exclusive = flags & libc::O_EXCL != 0;
        self.run(async move {
            let created = vfs
                .create(&caller, (parent.0, &name), mode, exclusive, options)
                .await;
            match created {
                Ok(opened) => {
                    vfs.remember(&opened.found);
                    let found = &opened.found;
                    reply.created(
                        &found.ttl.min(found.name_ttl),
                        &reply::attr(&opened.found.attr),
                        reply::GENERATION,
                        FileHandle(opened.handle),
                        open_flags(options, &opened),
                    );
                }
                Err(error) => reply.error(reply::errno(&error)),
            }
        });
    }

    fn fallocate(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let what = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Allocate::Extend { keep_size },
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => Allocate::PunchHole,
            libc::FALLOC_FL_ZERO_RANGE => Allocate::ZeroRange { keep_size },
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        let (vfs, kill) = (self.vfs.clone(), req.uid() != 0);
        self.run(async move {
            let done = vfs.fallocate(fh.0, offset, length, what, kill).await;
            reply::empty(done, reply);
        });
    }

    fn lseek(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let what = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(Errno::ENXIO);
        };
        let vfs = self.vfs.clone();
        self.run(async move {
            match vfs.seek(fh.0, offset, what).await {
                Ok(Some(at)) => reply.offset(i64::try_from(at).unwrap_or(i64::MAX)),
                Ok(None) => reply.error(Errno::ENXIO),
                Err(error) => reply.error(reply::errno(&error)),
            }
        });
    }

    fn copy_file_range(
        &self,
        req: &Request,
        _ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let (vfs, kill) = (self.vfs.clone(), req.uid() != 0);
        self.run(async move {
            let copied = vfs
                .copy_file_range((fh_in.0, offset_in), (fh_out.0, offset_out), len, kill)
                .await;
            match copied {
                Ok(copied) => reply.written(u32::try_from(copied).unwrap_or(u32::MAX)),
                Err(error) => reply.error(reply::errno(&error)),
            }
        });
    }
}

/// Bytes of listing that one answer holds at most.
const LISTING_BYTES: usize = 128 << 10;

/// `.` and `..`, as far as they lie behind the position.
fn dots(
    offset: u64,
    ino: INodeNo,
    listing: &crate::vfs::directory::Entries,
) -> impl Iterator<Item = (u64, &'static str, INodeNo)> + use<> {
    let parent = INodeNo(listing.parent);
    [(1, ".", ino), (2, "..", parent)]
        .into_iter()
        .filter(move |(cookie, ..)| *cookie > offset)
}
