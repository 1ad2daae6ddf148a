//! Requests about open files and directories.

use std::time::Duration;

use xtfs_protocol::meta::Caller;

use super::filesystem::Adaptor;
use super::groups::{caller, maker};
use super::kernel::abi::{flag, open};
use super::kernel::encode::{Listing, Ttl};
use super::kernel::reply::Reply;
use super::kernel::request::{Op, Part, Request};
use super::reply;
use crate::data::write::Write;
use crate::vfs::directory::Entries;
use crate::vfs::open::{OpenOptions, OpenedFile};
use crate::vfs::space::{Allocate, Seek};

/// Open flag of the kernel: the file is opened to be executed.
const EXECUTE: i32 = 0x20;
/// Bytes that an entry of a listing takes at least, and of listing that is looked up at a time.
const DIRENT_BYTES_MIN: usize = 32;
const LISTING_BYTES: usize = 128 << 10;

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

/// `.` and `..`, as far as they lie behind the position.
fn dots(
    offset: u64,
    ino: u64,
    listing: &Entries,
) -> impl Iterator<Item = (u64, &'static [u8], u64)> + use<> {
    [(1, &b"."[..], ino), (2, &b".."[..], listing.parent)]
        .into_iter()
        .filter(move |(cookie, ..)| *cookie > offset)
}

impl Adaptor {
    fn open_flags(&self, options: OpenOptions, opened: &OpenedFile) -> u32 {
        let keep = if opened.keep_cache {
            open::KEEP_CACHE
        } else {
            0
        };
        // Who only reads has nothing to send at close. Where files are locked every close counts,
        // because it frees the locks of its process.
        let silent = !options.write && !self.vfs.has_locks(opened.found.attr.ino);
        let direct = if opened.through { open::DIRECT_IO } else { 0 };
        keep | direct | if silent { open::NO_FLUSH } else { 0 }
    }

    pub(super) fn files(&self, request: &Request<'_>, reply: Reply) {
        let (vfs, ino) = (self.vfs.clone(), request.ino);
        match request.op {
            Op::Open { flags } => self.open(request, flags, reply),
            Op::Create { .. } => self.create(request, reply),
            Op::Read(part) => self.run_killable(request, reply, |reply| async move {
                let bytes = vfs.read(part.handle, part.offset, part.size).await;
                reply::bytes(bytes, reply);
            }),
            Op::Write {
                handle,
                offset,
                flags,
                data,
            } => self.write(handle, offset, flags, data, reply),
            Op::Flush { handle, owner } => self.run(async move {
                let sent = vfs.flush(handle).await;
                // The locks end also when not everything could be sent.
                let freed = vfs.close_owner(handle, owner).await;
                reply::empty(sent.and(freed), reply);
            }),
            Op::Release { handle } => self.run(async move {
                reply::empty(vfs.release(handle).await, reply);
            }),
            Op::Fsync { handle } => self.run_killable(request, reply, |reply| async move {
                reply::empty(vfs.fsync(handle).await, reply);
            }),
            Op::Fsyncdir => self.run_killable(request, reply, |reply| async move {
                reply::empty(vfs.sync().await, reply);
            }),
            Op::Opendir => match vfs.opendir(ino) {
                Ok(handle) => reply.opened(handle, 0),
                Err(error) => reply.error(reply::errno(&error)),
            },
            Op::Releasedir { handle } => {
                vfs.releasedir(handle);
                reply.ok();
            }
            Op::Readdir(part) => self.readdir(request, part, false, reply),
            Op::Readdirplus(part) => self.readdir(request, part, true, reply),
            _ => self.space(request, reply),
        }
    }

    fn open(&self, request: &Request<'_>, flags: i32, reply: Reply) {
        let options = open_options(flags);
        // A file may be executed by who may not read it; the kernel checked that.
        let caller = if flags & EXECUTE != 0 {
            Caller::root()
        } else {
            caller(request)
        };
        let (adaptor, ino) = (self.clone(), request.ino);
        self.run(async move {
            match adaptor.vfs.open_file(&caller, ino, options).await {
                Ok(opened) => reply.opened(opened.handle, adaptor.open_flags(options, &opened)),
                Err(error) => reply.error(reply::errno(&error)),
            }
        });
    }

    fn create(&self, request: &Request<'_>, reply: Reply) {
        let Op::Create {
            name,
            flags,
            mode,
            umask,
        } = request.op
        else {
            return reply.error(libc::ENOSYS);
        };
        let (adaptor, parent) = (self.clone(), request.ino);
        let (caller, name) = (maker(request, umask), name.to_vec());
        let (mode, options) = (reply::permission(mode), open_options(flags));
        let exclusive = flags & libc::O_EXCL != 0;
        self.run(async move {
            let vfs = &adaptor.vfs;
            let created = vfs
                .create(&caller, (parent, &name), mode, exclusive, options)
                .await;
            match created {
                Ok(opened) => {
                    vfs.remember(&opened.found);
                    let flags = adaptor.open_flags(options, &opened);
                    let attr = reply::attr(&opened.found.attr);
                    reply.created(reply::ttl(&opened.found), &attr, opened.handle, flags);
                }
                Err(error) => reply.error(reply::errno(&error)),
            }
        });
    }

    fn write(&self, handle: u64, offset: u64, flags: u32, data: &[u8], reply: Reply) {
        let exact = flags & flag::WRITE_CACHE != 0;
        let kill_set_id = flags & flag::WRITE_KILL_SUIDGID != 0;
        let write = Write {
            offset,
            exact,
            data,
            kill_set_id,
        };
        let now = {
            let _runtime = self.runtime.enter();
            self.vfs.write_now(handle, write)
        };
        if let Some(written) = now {
            return reply::count(written, reply);
        }
        let (vfs, data) = (self.vfs.clone(), data.to_vec());
        self.run(async move {
            let write = Write {
                offset,
                exact,
                data: &data,
                kill_set_id,
            };
            reply::count(vfs.write(handle, write).await, reply);
        });
    }

    fn readdir(&self, request: &Request<'_>, part: Part, with_attr: bool, reply: Reply) {
        let (vfs, ino) = (self.vfs.clone(), request.ino);
        self.run_killable(request, reply, move |reply| async move {
            // The kernel checked at opendir that the caller may list.
            let caller = Caller::root();
            let limit = LISTING_BYTES / DIRENT_BYTES_MIN;
            let from = part.offset.saturating_sub(2);
            let read = vfs
                .readdir(&caller, part.handle, from, limit, with_attr)
                .await;
            let listing = match read {
                Ok(listing) => listing,
                Err(error) => return reply.error(reply::errno(&error)),
            };
            let mut page = Listing::new(part.size);
            for (cookie, name, ino) in dots(part.offset, ino, &listing) {
                let added = if with_attr {
                    // The kernel takes nothing but name and number of these two, and forgets neither.
                    let attr = reply::directory_stub(ino);
                    page.add_entry(cookie, name, Ttl::both(Duration::ZERO), &attr)
                } else {
                    page.add(ino, cookie, libc::S_IFDIR, name)
                };
                if !added {
                    return reply.listing(&page);
                }
            }
            for (cookie, entry) in (listing.first + 3..).zip(&listing.entries) {
                if !with_attr {
                    if !page.add(entry.ino, cookie, reply::kind(entry.kind), &entry.name) {
                        break;
                    }
                    continue;
                }
                let Some(found) = vfs.listed(&listing, entry) else {
                    return reply.error(libc::EIO);
                };
                let attr = reply::attr(&found.attr);
                if !page.add_entry(cookie, &entry.name, reply::ttl(&found), &attr) {
                    break;
                }
                vfs.remember(&found);
            }
            reply.listing(&page);
        });
    }

    fn space(&self, request: &Request<'_>, reply: Reply) {
        let vfs = self.vfs.clone();
        let kill = request.uid != 0;
        match request.op {
            Op::Fallocate {
                handle,
                offset,
                length,
                mode,
            } => {
                let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
                let what = match mode & !libc::FALLOC_FL_KEEP_SIZE {
                    0 => Allocate::Extend { keep_size },
                    libc::FALLOC_FL_PUNCH_HOLE if keep_size => Allocate::PunchHole,
                    libc::FALLOC_FL_ZERO_RANGE => Allocate::ZeroRange { keep_size },
                    _ => return reply.error(libc::EOPNOTSUPP),
                };
                self.run(async move {
                    let done = vfs.fallocate(handle, offset, length, what, kill).await;
                    reply::empty(done, reply);
                });
            }
            Op::Lseek {
                handle,
                offset,
                whence,
            } => {
                let what = match whence {
                    libc::SEEK_DATA => Seek::Data,
                    libc::SEEK_HOLE => Seek::Hole,
                    _ => return reply.error(libc::EINVAL),
                };
                if i64::try_from(offset).is_err() {
                    return reply.error(libc::ENXIO);
                }
                self.run(async move {
                    match vfs.seek(handle, offset, what).await {
                        Ok(Some(at)) => reply.offset(at.min(i64::MAX.unsigned_abs())),
                        Ok(None) => reply.error(libc::ENXIO),
                        Err(error) => reply.error(reply::errno(&error)),
                    }
                });
            }
            Op::CopyFileRange {
                handle,
                offset,
                to_handle,
                to_offset,
                length,
            } => self.run(async move {
                let copied = vfs
                    .copy_file_range((handle, offset), (to_handle, to_offset), length, kill)
                    .await;
                let copied = copied.map(|copied| u32::try_from(copied).unwrap_or(u32::MAX));
                reply::count(copied, reply);
            }),
            _ => reply.error(libc::ENOSYS),
        }
    }
}
