//! Requests of the kernel, from bytes.

use std::ops::Range;

use super::abi::{IN_HEADER_BYTES, flag, opcode, setattr};
use super::request::{Attributes, Lock, Op, Part, Request, SetStamp, Stamp};

/// Why bytes are no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// Not even its number could be read.
    NoHeader,
    /// This one is shorter than it has to be, or a name in it has no end.
    Body { unique: u64 },
}

/// Takes bytes from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    fn u16(&mut self) -> Option<u16> {
        self.bytes(2)?.try_into().ok().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes(4)?.try_into().ok().map(u32::from_ne_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.bytes(4)?.try_into().ok().map(i32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes(8)?.try_into().ok().map(u64::from_ne_bytes)
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.bytes(count).map(|_| ())
    }

    /// Bytes up to a NUL, which is taken as well.
    fn name(&mut self) -> Option<&'a [u8]> {
        let length = self.0.iter().position(|byte| *byte == 0)?;
        let name = self.bytes(length)?;
        self.skip(1)?;
        Some(name)
    }

    fn part(&mut self) -> Option<Part> {
        Some(Part {
            handle: self.u64()?,
            offset: self.u64()?,
            size: self.u32()?,
        })
    }

    fn lock(&mut self) -> Option<Lock> {
        let (handle, owner) = (self.u64()?, self.u64()?);
        let (start, end) = (self.u64()?, self.u64()?);
        let (kind, pid) = (self.i32()?, self.u32()?);
        let whole = self.u32()? & flag::LOCK_FLOCK != 0;
        Some(Lock {
            handle,
            owner,
            start,
            end,
            kind,
            pid,
            whole,
        })
    }

    fn attributes(&mut self) -> Option<Attributes> {
        let valid = self.u32()?;
        self.skip(4)?;
        let (handle, size) = (self.u64()?, self.u64()?);
        self.skip(8)?;
        let secs = [self.u64()?, self.u64()?, self.u64()?];
        let nanos = [self.u32()?, self.u32()?, self.u32()?];
        let mode = self.u32()?;
        self.skip(4)?;
        let (uid, gid) = (self.u32()?, self.u32()?);
        let given = |bit: u32| valid & bit != 0;
        let stamp = |bit: u32, now: u32, which: usize| {
            if given(now) {
                return Some(SetStamp::Now);
            }
            let (secs, nanos) = (*secs.get(which)?, *nanos.get(which)?);
            given(bit).then_some(SetStamp::At(Stamp {
                secs: secs.cast_signed(),
                nanos,
            }))
        };
        Some(Attributes {
            mode: given(setattr::MODE).then_some(mode),
            uid: given(setattr::UID).then_some(uid),
            gid: given(setattr::GID).then_some(gid),
            size: given(setattr::SIZE).then_some(size),
            atime: stamp(setattr::ATIME, setattr::ATIME_NOW, 0),
            mtime: stamp(setattr::MTIME, setattr::MTIME_NOW, 1),
            handle: given(setattr::HANDLE).then_some(handle),
        })
    }

    fn init(&mut self) -> Option<Op<'a>> {
        let (major, minor) = (self.u32()?, self.u32()?);
        let (readahead, flags) = (self.u32()?, self.u32()?);
        // Older kernels end here.
        let more = self.u32().unwrap_or(0);
        let flags = u64::from(flags) | u64::from(more) << 32;
        Some(Op::Init {
            major,
            minor,
            readahead,
            flags,
        })
    }

    fn names_op(&mut self, code: u32) -> Option<Op<'a>> {
        Some(match code {
            opcode::LOOKUP => Op::Lookup { name: self.name()? },
            opcode::UNLINK => Op::Unlink { name: self.name()? },
            opcode::RMDIR => Op::Rmdir { name: self.name()? },
            opcode::SYMLINK => Op::Symlink {
                name: self.name()?,
                target: self.name()?,
            },
            opcode::MKNOD => {
                let (mode, rdev, umask) = (self.u32()?, self.u32()?, self.u32()?);
                self.skip(4)?;
                Op::Mknod {
                    name: self.name()?,
                    mode,
                    rdev,
                    umask,
                }
            }
            opcode::MKDIR => {
                let (mode, umask) = (self.u32()?, self.u32()?);
                Op::Mkdir {
                    name: self.name()?,
                    mode,
                    umask,
                }
            }
            opcode::RENAME | opcode::RENAME2 => {
                let new_parent = self.u64()?;
                let flags = if code == opcode::RENAME2 {
                    self.u32()?
                } else {
                    0
                };
                self.skip(if code == opcode::RENAME2 { 4 } else { 0 })?;
                Op::Rename {
                    name: self.name()?,
                    new_parent,
                    new_name: self.name()?,
                    flags,
                }
            }
            opcode::LINK => Op::Link {
                ino: self.u64()?,
                name: self.name()?,
            },
            opcode::CREATE => {
                let (flags, mode, umask) = (self.i32()?, self.u32()?, self.u32()?);
                self.skip(4)?;
                Op::Create {
                    name: self.name()?,
                    flags,
                    mode,
                    umask,
                }
            }
            opcode::SETXATTR => {
                let (size, flags) = (self.u32()?, self.i32()?);
                let name = self.name()?;
                Op::Setxattr {
                    name,
                    value: self.bytes(usize::try_from(size).ok()?)?,
                    flags,
                }
            }
            opcode::GETXATTR => {
                let size = self.u32()?;
                self.skip(4)?;
                Op::Getxattr {
                    name: self.name()?,
                    size,
                }
            }
            opcode::REMOVEXATTR => Op::Removexattr { name: self.name()? },
            _ => return self.handle_op(code),
        })
    }

    fn handle_op(&mut self, code: u32) -> Option<Op<'a>> {
        Some(match code {
            opcode::OPEN => Op::Open { flags: self.i32()? },
            opcode::READ => Op::Read(self.part()?),
            opcode::WRITE => {
                let Part {
                    handle,
                    offset,
                    size,
                } = self.part()?;
                let flags = self.u32()?;
                self.skip(16)?;
                let data = self.bytes(usize::try_from(size).ok()?)?;
                Op::Write {
                    handle,
                    offset,
                    flags,
                    data,
                }
            }
            opcode::RELEASE => Op::Release {
                handle: self.u64()?,
            },
            opcode::FSYNC => Op::Fsync {
                handle: self.u64()?,
            },
            opcode::FLUSH => {
                let handle = self.u64()?;
                self.skip(8)?;
                Op::Flush {
                    handle,
                    owner: self.u64()?,
                }
            }
            opcode::READDIR => Op::Readdir(self.part()?),
            opcode::READDIRPLUS => Op::Readdirplus(self.part()?),
            opcode::RELEASEDIR => Op::Releasedir {
                handle: self.u64()?,
            },
            opcode::GETLK => Op::Getlk(self.lock()?),
            opcode::SETLK | opcode::SETLKW => Op::Setlk {
                lock: self.lock()?,
                wait: code == opcode::SETLKW,
            },
            opcode::FALLOCATE => Op::Fallocate {
                handle: self.u64()?,
                offset: self.u64()?,
                length: self.u64()?,
                mode: self.i32()?,
            },
            opcode::LSEEK => Op::Lseek {
                handle: self.u64()?,
                offset: self.u64()?,
                whence: self.i32()?,
            },
            opcode::COPY_FILE_RANGE => {
                let (handle, offset) = (self.u64()?, self.u64()?);
                self.skip(8)?;
                let (to_handle, to_offset) = (self.u64()?, self.u64()?);
                Op::CopyFileRange {
                    handle,
                    offset,
                    to_handle,
                    to_offset,
                    length: self.u64()?,
                }
            }
            _ => return self.plain_op(code),
        })
    }

    fn plain_op(&mut self, code: u32) -> Option<Op<'a>> {
        Some(match code {
            opcode::INIT => self.init()?,
            opcode::DESTROY => Op::Destroy,
            opcode::INTERRUPT => Op::Interrupt {
                unique: self.u64()?,
            },
            opcode::FORGET => Op::Forget { count: self.u64()? },
            opcode::BATCH_FORGET => {
                let count = usize::try_from(self.u32()?).ok()?;
                self.skip(4)?;
                Op::BatchForget {
                    pairs: self.bytes(count.checked_mul(16)?)?,
                }
            }
            opcode::GETATTR => Op::Getattr,
            opcode::SETATTR => Op::Setattr(self.attributes()?),
            opcode::READLINK => Op::Readlink,
            opcode::STATFS => Op::Statfs,
            opcode::LISTXATTR => Op::Listxattr { size: self.u32()? },
            opcode::OPENDIR => Op::Opendir,
            opcode::FSYNCDIR => Op::Fsyncdir,
            opcode::ACCESS => Op::Access { mask: self.u32()? },
            opcode::IOCTL => Op::Ioctl,
            _ => Op::Other,
        })
    }
}

/// Reads a request.
pub(crate) fn decode(bytes: &[u8]) -> Result<Request<'_>, Malformed> {
    let mut reader = Reader(bytes);
    let mut header = || {
        let (length, code) = (reader.u32()?, reader.u32()?);
        let (unique, ino) = (reader.u64()?, reader.u64()?);
        let (uid, gid, pid) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let extension = usize::from(reader.u16()?).checked_mul(8)?;
        reader.skip(2)?;
        // Extensions lie at the end; none was asked for.
        let end = usize::try_from(length).ok()?.checked_sub(extension)?;
        Some((code, unique, ino, (uid, gid, pid), end))
    };
    let (code, unique, ino, (uid, gid, pid), end) = header().ok_or(Malformed::NoHeader)?;
    let body = bytes.get(Range {
        start: IN_HEADER_BYTES,
        end,
    });
    let op = body.and_then(|body| Reader(body).names_op(code));
    let op = op.ok_or(Malformed::Body { unique })?;
    Ok(Request {
        unique,
        ino,
        uid,
        gid,
        pid,
        op,
    })
}

/// The inodes of a [`Op::BatchForget`] and how often each is forgotten.
pub(crate) fn pairs(bytes: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    bytes.chunks_exact(16).filter_map(|pair| {
        let mut reader = Reader(pair);
        Some((reader.u64()?, reader.u64()?))
    })
}

#[cfg(test)]
mod tests;
