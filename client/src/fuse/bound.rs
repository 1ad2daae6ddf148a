//! The empty file system: names in memory, written bytes dropped, reads give zeros.
//!
//! It is the bound of every measurement: what is left of it is the kernel and the way to it.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use parking_lot::Mutex;
use xtfs_protocol::Result;

use super::kernel::abi::{init, open};
use super::kernel::encode::{FileAttr, Listing, Room, Ttl};
use super::kernel::interrupts::Interrupts;
use super::kernel::reply::Reply;
use super::kernel::request::{Attributes, Op, Part, Request, SetStamp, Stamp};
use super::kernel::session::{Serve, TRANSFER_MAX};
use super::mount::{MountOptions, Mounted, mount_filesystem};
use super::reply::directory_stub;

/// How long the kernel may cache what it was told.
const TTL: Duration = Duration::from_secs(1);
static ZEROS: [u8; TRANSFER_MAX as usize] = [0; TRANSFER_MAX as usize];

/// Mounts an empty file system at an existing directory.
///
/// # Errors
/// As [`mount`](super::mount()).
pub fn mount(mountpoint: &Path) -> Result<Mounted> {
    let options = MountOptions::new(mountpoint, "empty");
    mount_filesystem(Empty::default(), &options, |_| (), || ())
}

/// What an operation answers, or the number of its error.
type Answer<T> = std::result::Result<T, i32>;

struct Empty {
    names: Mutex<Names>,
}

struct Names {
    last: u64,
    inodes: HashMap<u64, FileAttr>,
    entries: HashMap<u64, BTreeMap<Vec<u8>, u64>>,
}

impl Default for Empty {
    fn default() -> Self {
        let root = directory_stub(1);
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
    fn find(&self, parent: u64, name: &[u8]) -> Option<FileAttr> {
        let ino = self.entries.get(&parent)?.get(name)?;
        self.inodes.get(ino).copied()
    }

    fn add(&mut self, parent: u64, name: &[u8], mode: u32) -> Answer<FileAttr> {
        let entries = self.entries.get_mut(&parent).ok_or(libc::ENOENT)?;
        if entries.contains_key(name) {
            return Err(libc::EEXIST);
        }
        self.last += 1;
        entries.insert(name.to_vec(), self.last);
        let attr = FileAttr {
            mode,
            nlink: 1,
            ..directory_stub(self.last)
        };
        self.inodes.insert(self.last, attr);
        if mode & libc::S_IFMT == libc::S_IFDIR {
            self.entries.insert(self.last, BTreeMap::new());
        }
        Ok(attr)
    }

    fn remove(&mut self, parent: u64, name: &[u8]) -> Answer<()> {
        let entries = self.entries.get_mut(&parent).ok_or(libc::ENOENT)?;
        let ino = entries.remove(name).ok_or(libc::ENOENT)?;
        self.inodes.remove(&ino);
        self.entries.remove(&ino);
        Ok(())
    }

    fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8])) -> Answer<()> {
        let source = self.entries.get_mut(&from.0).ok_or(libc::ENOENT)?;
        let ino = source.remove(from.1).ok_or(libc::ENOENT)?;
        let target = self.entries.get_mut(&to.0).ok_or(libc::ENOENT)?;
        if let Some(replaced) = target.insert(to.1.to_owned(), ino) {
            self.inodes.remove(&replaced);
            self.entries.remove(&replaced);
        }
        Ok(())
    }

    /// Entries behind a position: `.`, `..`, then the names in order.
    fn list(&self, ino: u64, offset: u64) -> Vec<(u64, Vec<u8>, FileAttr)> {
        let dots = [&b"."[..], b".."].map(|name| (name.to_vec(), directory_stub(ino)));
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

fn done(outcome: Answer<()>, reply: Reply) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn entry(found: Answer<FileAttr>, reply: Reply) {
    match found {
        Ok(attr) => reply.entry(Ttl::both(TTL), &attr),
        Err(errno) => reply.error(errno),
    }
}

fn attributes(found: Option<&FileAttr>, reply: Reply) {
    match found {
        Some(attr) => reply.attributes(TTL, attr),
        None => reply.error(libc::ESTALE),
    }
}

fn stamp(time: SetStamp) -> Stamp {
    match time {
        SetStamp::At(stamp) => stamp,
        SetStamp::Now => Stamp { secs: 0, nanos: 0 },
    }
}

fn set(attr: &mut FileAttr, wanted: &Attributes) {
    let mode = wanted.mode.map(|mode| mode & 0o7777);
    attr.mode = mode.map_or(attr.mode, |mode| attr.mode & libc::S_IFMT | mode);
    attr.uid = wanted.uid.unwrap_or(attr.uid);
    attr.gid = wanted.gid.unwrap_or(attr.gid);
    attr.size = wanted.size.unwrap_or(attr.size);
    attr.atime = wanted.atime.map_or(attr.atime, stamp);
    attr.mtime = wanted.mtime.map_or(attr.mtime, stamp);
}

impl Empty {
    fn read(&self, ino: u64, part: Part, reply: Reply) {
        let end = self
            .names
            .lock()
            .inodes
            .get(&ino)
            .map_or(0, |attr| attr.size);
        let length = end.saturating_sub(part.offset).min(u64::from(part.size));
        let length = usize::try_from(length).unwrap_or(0);
        reply.data(ZEROS.get(..length).unwrap_or(&ZEROS));
    }

    fn list(&self, ino: u64, part: Part, with_attr: bool, reply: Reply) {
        let mut page = Listing::new(part.size);
        for (cookie, name, attr) in self.names.lock().list(ino, part.offset) {
            let added = if with_attr {
                page.add_entry(cookie, &name, Ttl::both(TTL), &attr)
            } else {
                page.add(attr.ino, cookie, attr.mode, &name)
            };
            if !added {
                break;
            }
        }
        reply.listing(&page);
    }
}

impl Serve for Empty {
    fn wanted(&self) -> u64 {
        init::ATOMIC_O_TRUNC
            | init::DO_READDIRPLUS
            | init::READDIRPLUS_AUTO
            | init::PARALLEL_DIROPS
            | init::HANDLE_KILLPRIV_V2
    }

    fn serve(&self, request: Request<'_>, reply: Reply) {
        let ino = request.ino;
        let mut names = self.names.lock();
        match request.op {
            Op::Lookup { name } => entry(names.find(ino, name).ok_or(libc::ENOENT), reply),
            Op::Getattr => attributes(names.inodes.get(&ino), reply),
            Op::Setattr(wanted) => {
                let attr = names.inodes.get_mut(&ino);
                let attr = attr.map(|attr| {
                    set(attr, &wanted);
                    &*attr
                });
                attributes(attr, reply);
            }
            Op::Mkdir { name, mode, .. } => {
                let mode = libc::S_IFDIR | mode & 0o7777;
                entry(names.add(ino, name, mode), reply);
            }
            Op::Unlink { name } | Op::Rmdir { name } => done(names.remove(ino, name), reply),
            Op::Rename {
                name,
                new_parent,
                new_name,
                ..
            } => done(names.rename((ino, name), (new_parent, new_name)), reply),
            Op::Open { .. } => reply.opened(0, open::KEEP_CACHE),
            Op::Create { name, mode, .. } => {
                match names.add(ino, name, libc::S_IFREG | mode & 0o7777) {
                    Ok(attr) => reply.created(Ttl::both(TTL), &attr, 0, 0),
                    Err(errno) => reply.error(errno),
                }
            }
            Op::Write { offset, data, .. } => {
                if let Some(attr) = names.inodes.get_mut(&ino) {
                    attr.size = attr.size.max(offset.saturating_add(data.len() as u64));
                }
                reply.written(data.len() as u32);
            }
            Op::Read(part) => {
                drop(names);
                self.read(ino, part, reply);
            }
            Op::Readdir(part) | Op::Readdirplus(part) => {
                drop(names);
                let with_attr = matches!(request.op, Op::Readdirplus(_));
                self.list(ino, part, with_attr, reply);
            }
            Op::Opendir => reply.opened(0, 0),
            Op::Flush { .. }
            | Op::Fsync { .. }
            | Op::Fsyncdir
            | Op::Release { .. }
            | Op::Releasedir { .. } => reply.ok(),
            Op::Statfs => reply.room(&Room {
                blocks: 1 << 30,
                free: 1 << 30,
                files: 1 << 30,
                free_files: 1 << 30,
                block_bytes: 4096,
                name_bytes: 255,
            }),
            Op::Getxattr { .. } => reply.error(libc::ENODATA),
            _ => reply.error(libc::ENOSYS),
        }
    }

    fn forget(&self, _ino: u64, _count: u64) {}

    fn interrupts(&self) -> Option<&Interrupts> {
        None
    }
}
