//! Protocol types to kernel types and back.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileType, Generation, INodeNo, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyStatfs,
    ReplyXattr, TimeOrNow,
};
use xtfs_protocol::ids::NAME_BYTES_MAX;
use xtfs_protocol::meta::{Attr, FileKind, SetTime, Space};
use xtfs_protocol::time::Time;
use xtfs_protocol::{Error, Result};

use crate::vfs::{Found, Vfs};

/// Block size that applications are told.
const BLOCK_BYTES: u32 = 4096;

/// Inode numbers are never used twice, so there is one generation.
pub(crate) const GENERATION: Generation = Generation(0);

pub(crate) fn errno(error: &Error) -> Errno {
    let errno = error.errno();
    if errno == libc::EIO {
        tracing::error!(%error, "an operation failed");
    }
    Errno::from_i32(errno)
}

pub(crate) fn kind(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
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
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: attr.allocated.div_ceil(512),
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.btime),
        kind: kind(attr.kind),
        perm: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

fn system_time(time: Time) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(time.nanos));
    let whole = Duration::from_secs(time.secs.unsigned_abs());
    let second = if time.secs >= 0 {
        UNIX_EPOCH.checked_add(whole)
    } else {
        UNIX_EPOCH.checked_sub(whole)
    };
    second
        .and_then(|second| second.checked_add(nanos))
        .unwrap_or(UNIX_EPOCH)
}

/// A time that the kernel asks to be set.
pub(crate) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Time::since_epoch(after),
            // fuser takes both the seconds and the nanoseconds of a time before 1970 from the
            // epoch, though the kernel counts its nanoseconds forwards.
            Err(before) => Time {
                secs: i64::try_from(before.duration().as_secs()).map_or(i64::MIN, |secs| -secs),
                nanos: before.duration().subsec_nanos(),
            },
        }),
    }
}

/// What listings with attributes say of `.` and `..`.
pub(crate) fn directory_stub(ino: INodeNo) -> FileAttr {
    FileAttr {
        ino,
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::Directory,
        perm: 0o755,
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// Room, in blocks. Inodes are bounded by nothing but room, or by a quota.
pub(crate) fn space(space: &Space, reply: ReplyStatfs) {
    let blocks = |bytes: u64| bytes / u64::from(BLOCK_BYTES);
    let allowed = space.inodes_max.unwrap_or(u64::MAX);
    let free_inodes = allowed
        .saturating_sub(space.used_inodes)
        .min(blocks(space.free_bytes));
    reply.statfs(
        blocks(space.total_bytes),
        blocks(space.free_bytes),
        blocks(space.free_bytes),
        space.used_inodes.saturating_add(free_inodes),
        free_inodes,
        BLOCK_BYTES,
        NAME_BYTES_MAX as u32,
        BLOCK_BYTES,
    );
}

/// Gives the kernel an inode, which it will forget.
pub(crate) fn entry(vfs: &Vfs, found: Result<Found>, reply: ReplyEntry) {
    match found {
        Ok(found) => {
            vfs.remember(&found);
            reply.entry_with_ttls(&found.ttl, &found.name_ttl, &attr(&found.attr), GENERATION);
        }
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn attributes(found: Result<Found>, reply: ReplyAttr) {
    match found {
        Ok(found) => reply.attr(&found.ttl, &attr(&found.attr)),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn empty(done: Result<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

/// An attribute's value or its length, as the size of the caller's buffer asks for.
pub(crate) fn xattr(value: Result<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match value {
        Ok(value) if size == 0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        Ok(value) if value.len() <= size as usize => reply.data(&value),
        Ok(_) => reply.error(Errno::ERANGE),
        Err(error) => reply.error(errno(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_count_their_nanoseconds_forwards() {
        let time = Time {
            secs: -1,
            nanos: 250_000_000,
        };
        let before = UNIX_EPOCH.duration_since(system_time(time));
        assert_eq!(before.ok(), Some(Duration::from_millis(750)));
    }

    #[test]
    fn directories_are_not_made_by_mknod() {
        assert_eq!(kind_of_mode(libc::S_IFDIR | 0o755), None);
        assert_eq!(kind_of_mode(0o644), Some(FileKind::File));
        assert_eq!(kind_of_mode(libc::S_IFIFO), Some(FileKind::Fifo));
    }
}
