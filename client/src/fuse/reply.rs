//! Protocol types to kernel types and back.

use xtfs_protocol::ids::NAME_BYTES_MAX;
use xtfs_protocol::meta::{Attr, FileKind, SetTime, Space};
use xtfs_protocol::time::Time;
use xtfs_protocol::{Error, Result};

use super::kernel::encode::{FileAttr, Room, Ttl};
use super::kernel::reply::Reply;
use super::kernel::request::{SetStamp, Stamp};
use crate::vfs::{Found, Vfs};

/// Block size that applications are told.
const BLOCK_BYTES: u32 = 4096;

pub(crate) fn errno(error: &Error) -> i32 {
    let errno = error.errno();
    if errno == libc::EIO {
        tracing::error!(%error, "an operation failed");
    }
    errno
}

/// Type bits of a mode.
pub(crate) fn kind(kind: FileKind) -> u32 {
    match kind {
        FileKind::File => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
    }
}

/// Kind of a file to make, from the type bits of a mode.
pub(crate) fn kind_of_mode(mode: u32) -> Option<FileKind> {
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Some(FileKind::File),
        libc::S_IFIFO => Some(FileKind::Fifo),
        libc::S_IFSOCK => Some(FileKind::Socket),
        libc::S_IFCHR => Some(FileKind::CharDevice),
        libc::S_IFBLK => Some(FileKind::BlockDevice),
        _ => None,
    }
}

/// Permission, set-id and sticky bits of a mode.
pub(crate) fn permission(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

pub(crate) fn attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: attr.ino,
        size: attr.size,
        blocks: attr.allocated.div_ceil(512),
        atime: stamp(attr.atime),
        mtime: stamp(attr.mtime),
        ctime: stamp(attr.ctime),
        mode: kind(attr.kind) | u32::from(attr.mode),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        block_bytes: BLOCK_BYTES,
    }
}

fn stamp(time: Time) -> Stamp {
    Stamp {
        secs: time.secs,
        nanos: time.nanos,
    }
}

/// A time that the kernel asks to be set.
pub(crate) fn set_time(time: SetStamp) -> SetTime {
    match time {
        SetStamp::Now => SetTime::Now,
        SetStamp::At(stamp) => SetTime::At(Time {
            secs: stamp.secs,
            nanos: stamp.nanos,
        }),
    }
}

/// What listings with attributes say of `.` and `..`.
pub(crate) fn directory_stub(ino: u64) -> FileAttr {
    let epoch = Stamp { secs: 0, nanos: 0 };
    FileAttr {
        ino,
        size: 0,
        blocks: 0,
        atime: epoch,
        mtime: epoch,
        ctime: epoch,
        mode: libc::S_IFDIR | 0o755,
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: 0,
        block_bytes: BLOCK_BYTES,
    }
}

/// Room, in blocks. Inodes are bounded by nothing but room, or by a quota.
pub(crate) fn room(space: &Space) -> Room {
    let blocks = |bytes: u64| bytes / u64::from(BLOCK_BYTES);
    let allowed = space.inodes_max.unwrap_or(u64::MAX);
    let free_files = allowed
        .saturating_sub(space.used_inodes)
        .min(blocks(space.free_bytes));
    Room {
        blocks: blocks(space.total_bytes),
        free: blocks(space.free_bytes),
        files: space.used_inodes.saturating_add(free_files),
        free_files,
        block_bytes: BLOCK_BYTES,
        name_bytes: NAME_BYTES_MAX as u32,
    }
}

/// How long what was found may be cached.
pub(crate) fn ttl(found: &Found) -> Ttl {
    Ttl {
        name: found.name_ttl,
        attr: found.ttl,
    }
}

/// Gives the kernel an inode, which it will forget.
pub(crate) fn entry(vfs: &Vfs, found: Result<Found>, reply: Reply) {
    match found {
        Ok(found) => {
            vfs.remember(&found);
            reply.entry(ttl(&found), &attr(&found.attr));
        }
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn attributes(found: Result<Found>, reply: Reply) {
    match found {
        Ok(found) => reply.attributes(found.ttl, &attr(&found.attr)),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn empty(done: Result<()>, reply: Reply) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn bytes(bytes: Result<Vec<u8>>, reply: Reply) {
    match bytes {
        Ok(bytes) => reply.data(&bytes),
        Err(error) => reply.error(errno(&error)),
    }
}

/// How much was done.
pub(crate) fn count(count: Result<u32>, reply: Reply) {
    match count {
        Ok(count) => reply.written(count),
        Err(error) => reply.error(errno(&error)),
    }
}

/// An attribute's value or its length, as the size of the caller's buffer asks for.
pub(crate) fn xattr(value: Result<Vec<u8>>, size: u32, reply: Reply) {
    match value {
        Ok(value) if size == 0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        Ok(value) if value.len() <= size as usize => reply.data(&value),
        Ok(_) => reply.error(libc::ERANGE),
        Err(error) => reply.error(errno(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_not_made_by_mknod() {
        assert_eq!(kind_of_mode(libc::S_IFDIR | 0o755), None);
        assert_eq!(kind_of_mode(0o644), Some(FileKind::File));
        assert_eq!(kind_of_mode(libc::S_IFIFO), Some(FileKind::Fifo));
    }
}
