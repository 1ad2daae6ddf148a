//! An inode as it is stored.
//!
//! ```text
//! version 3 | kind u8 | mode u16 | nlink u32 | uid u32 | gid u32 | rdev u32 | size u64 | allocated u64
//! | atime, mtime, ctime, btime: seconds i64, nanoseconds u32 | data version u64 | bytes of attribute names u32
//! | ACLs u8 (1 access, 2 default; from version 2)
//! file:      data u64 | truncate epoch u64 | data epoch u64 | flags u8 (1 written, 2 pending cut,
//!            4 what is cut was never told, 8 fenced) [| cut epoch u64 | cut size u64] [| fenced u64]
//!            | last writer u64 (from version 3) | mtime settled at, atime settled at: time
//!            | layout 7 bytes | view u32 | OSD count u8 | OSD ids 16 bytes each
//! directory: parent u64 | next of run u64 | end of run u64 | length of run u32
//! symlink:   target: length u32, bytes
//! ```

use xtfs_protocol::Result;
use xtfs_protocol::ids::Ino;
use xtfs_protocol::meta::{Attr, FileKind, PendingCut, Placement};
use xtfs_protocol::time::Time;

use crate::acl::AclKind;
use crate::codec::{Reader, Writer};
use crate::records::{
    decode_kind, decode_layout, decode_osds, encode_kind, encode_layout, encode_osds,
};

const VERSION: u8 = 3;
const VERSION_BEFORE_ACLS: u8 = 1;
const VERSION_BEFORE_WRITERS: u8 = 2;
const FLAG_ACCESS_ACL: u8 = 1;
const FLAG_DEFAULT_ACL: u8 = 2;
const FLAG_WRITTEN: u8 = 1;
const FLAG_PENDING_CUT: u8 = 2;
const FLAG_UNTOLD_CUT: u8 = 4;
const FLAG_FENCED: u8 = 8;

/// In the place of the last writer: more than one session may have left something behind.
pub(crate) const SEVERAL_WRITERS: u64 = u64::MAX;

/// An inode: what every kind has, and what its kind has besides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inode {
    pub ino: Ino,
    pub mode: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    /// Bytes of a file or link target; entries of a directory.
    pub size: u64,
    pub allocated: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    pub btime: Time,
    pub data_version: u64,
    /// Bytes that the names of its extended attributes take in a listing.
    pub xattr_names: u32,
    /// Which access control lists it has.
    pub acls: Acls,
    pub body: Body,
}

/// Which access control lists an inode has; those without are looked up nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Acls {
    pub access: bool,
    pub default: bool,
}

impl Acls {
    pub const fn has(self, kind: AclKind) -> bool {
        match kind {
            AclKind::Access => self.access,
            AclKind::Default => self.default,
        }
    }

    pub const fn set(&mut self, kind: AclKind, has: bool) {
        match kind {
            AclKind::Access => self.access = has,
            AclKind::Default => self.default = has,
        }
    }

    pub const fn any(self) -> bool {
        self.access || self.default
    }

    fn encode(self) -> u8 {
        let flag = |has: bool, flag: u8| if has { flag } else { 0 };
        flag(self.access, FLAG_ACCESS_ACL) | flag(self.default, FLAG_DEFAULT_ACL)
    }

    const fn decode(flags: u8) -> Self {
        Self {
            access: flags & FLAG_ACCESS_ACL != 0,
            default: flags & FLAG_DEFAULT_ACL != 0,
        }
    }
}

/// What a kind of inode has of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body {
    File(Box<File>),
    Directory(Directory),
    Symlink(Vec<u8>),
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

/// The content of a regular file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct File {
    /// Number of the content.
    pub data: u64,
    /// Raised by every truncation.
    pub epoch: u64,
    /// The truncate epoch in which this content was begun.
    pub data_epoch: u64,
    /// Somebody was given the right to write this content, so OSDs may hold objects of it.
    pub written: bool,
    /// A truncation that OSDs may not have heard of.
    pub pending_cut: Option<PendingCut>,
    /// Epoch of the last session that was given the right to write, or [`SEVERAL_WRITERS`].
    pub last_writer: u64,
    /// Truncate epoch of the last cut that took back what lost writers had not told; 0 for none.
    pub fenced: u64,
    /// Writes up to this time are already reflected in mtime, or an explicit time came after them.
    pub mtime_settled: Time,
    /// The same for reads and atime.
    pub atime_settled: Time,
    pub placement: Placement,
}

/// What a directory has of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Directory {
    pub parent: Ino,
    /// Inode numbers `run_next .. run_end` are handed to the next children.
    pub run_next: u64,
    pub run_end: u64,
    /// Length of the last run; the next one is twice as long, up to a bound.
    pub run_length: u32,
}

impl Inode {
    pub const fn kind(&self) -> FileKind {
        match self.body {
            Body::File(_) => FileKind::File,
            Body::Directory(_) => FileKind::Directory,
            Body::Symlink(_) => FileKind::Symlink,
            Body::Fifo => FileKind::Fifo,
            Body::Socket => FileKind::Socket,
            Body::CharDevice => FileKind::CharDevice,
            Body::BlockDevice => FileKind::BlockDevice,
        }
    }

    pub const fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory(_))
    }

    /// The bytes that it counts for in the volume's usage.
    pub fn counted_bytes(&self) -> u128 {
        match self.body {
            Body::File(_) | Body::Symlink(_) => u128::from(self.size),
            _ => 0,
        }
    }

    pub const fn attr(&self) -> Attr {
        Attr {
            ino: self.ino,
            kind: self.kind(),
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: self.size,
            allocated: self.allocated,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            data_version: self.data_version,
            has_acl: self.acls.any(),
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::versioned(VERSION);
        writer
            .u8(encode_kind(self.kind()))
            .u16(self.mode)
            .u32(self.nlink)
            .u32(self.uid)
            .u32(self.gid)
            .u32(self.rdev)
            .u64(self.size)
            .u64(self.allocated)
            .time(self.atime)
            .time(self.mtime)
            .time(self.ctime)
            .time(self.btime)
            .u64(self.data_version)
            .u32(self.xattr_names)
            .u8(self.acls.encode());
        match &self.body {
            Body::File(file) => file.encode(&mut writer),
            Body::Directory(directory) => {
                writer
                    .u64(directory.parent)
                    .u64(directory.run_next)
                    .u64(directory.run_end)
                    .u32(directory.run_length);
            }
            Body::Symlink(target) => {
                writer.bytes(target);
            }
            Body::Fifo | Body::Socket | Body::CharDevice | Body::BlockDevice => {}
        }
        writer.finish()
    }

    pub fn decode(ino: Ino, bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::versioned("inode", bytes, VERSION)?;
        let kind = decode_kind(&mut reader)?;
        let mut inode = Self {
            ino,
            mode: reader.u16()?,
            nlink: reader.u32()?,
            uid: reader.u32()?,
            gid: reader.u32()?,
            rdev: reader.u32()?,
            size: reader.u64()?,
            allocated: reader.u64()?,
            atime: reader.time()?,
            mtime: reader.time()?,
            ctime: reader.time()?,
            btime: reader.time()?,
            data_version: reader.u64()?,
            xattr_names: reader.u32()?,
            acls: Acls::default(),
            body: Body::Fifo,
        };
        if reader.version() > VERSION_BEFORE_ACLS {
            inode.acls = Acls::decode(reader.u8()?);
        }
        inode.body = match kind {
            FileKind::File => Body::File(Box::new(File::decode(&mut reader)?)),
            FileKind::Directory => Body::Directory(Directory {
                parent: reader.u64()?,
                run_next: reader.u64()?,
                run_end: reader.u64()?,
                run_length: reader.u32()?,
            }),
            FileKind::Symlink => Body::Symlink(reader.bytes()?.to_vec()),
            FileKind::Fifo => Body::Fifo,
            FileKind::Socket => Body::Socket,
            FileKind::CharDevice => Body::CharDevice,
            FileKind::BlockDevice => Body::BlockDevice,
        };
        reader.end().map(|()| inode)
    }
}

impl File {
    fn encode(&self, writer: &mut Writer) {
        let mut flags = 0;
        if self.written {
            flags |= FLAG_WRITTEN;
        }
        if let Some(cut) = self.pending_cut {
            flags |= FLAG_PENDING_CUT;
            if !cut.told {
                flags |= FLAG_UNTOLD_CUT;
            }
        }
        if self.fenced > 0 {
            flags |= FLAG_FENCED;
        }
        writer
            .u64(self.data)
            .u64(self.epoch)
            .u64(self.data_epoch)
            .u8(flags);
        if let Some(cut) = self.pending_cut {
            writer.u64(cut.epoch).u64(cut.size);
        }
        if self.fenced > 0 {
            writer.u64(self.fenced);
        }
        writer.u64(self.last_writer);
        writer.time(self.mtime_settled).time(self.atime_settled);
        encode_layout(writer, &self.placement.layout);
        writer.u32(self.placement.view);
        encode_osds(writer, &self.placement.osds);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let data = reader.u64()?;
        let epoch = reader.u64()?;
        let data_epoch = reader.u64()?;
        let flags = reader.u8()?;
        let pending_cut = if flags & FLAG_PENDING_CUT == 0 {
            None
        } else {
            Some(PendingCut {
                epoch: reader.u64()?,
                size: reader.u64()?,
                told: flags & FLAG_UNTOLD_CUT == 0,
            })
        };
        let fenced = if flags & FLAG_FENCED == 0 {
            0
        } else {
            reader.u64()?
        };
        let last_writer = if reader.version() > VERSION_BEFORE_WRITERS {
            reader.u64()?
        } else {
            SEVERAL_WRITERS
        };
        Ok(Self {
            data,
            epoch,
            data_epoch,
            written: flags & FLAG_WRITTEN != 0,
            pending_cut,
            last_writer,
            fenced,
            mtime_settled: reader.time()?,
            atime_settled: reader.time()?,
            placement: Placement {
                layout: decode_layout(reader)?,
                view: reader.u32()?,
                osds: decode_osds(reader)?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use xtfs_layout::Layout;
    use xtfs_protocol::ids::ServiceId;

    use super::*;

    fn bodies() -> Vec<Body> {
        let file = File {
            data: 9,
            epoch: 4,
            data_epoch: 2,
            written: true,
            pending_cut: Some(PendingCut {
                epoch: 4,
                size: 10,
                told: false,
            }),
            last_writer: 17,
            fenced: 3,
            mtime_settled: Time { secs: -5, nanos: 6 },
            atime_settled: Time::default(),
            placement: Placement {
                layout: Layout::striped(2),
                view: 3,
                osds: vec![ServiceId([1; 16]), ServiceId([2; 16])],
            },
        };
        vec![
            Body::File(Box::new(File {
                pending_cut: None,
                last_writer: SEVERAL_WRITERS,
                fenced: 0,
                ..file.clone()
            })),
            Body::File(Box::new(file)),
            Body::Directory(Directory {
                parent: 1,
                run_next: 64,
                run_end: 128,
                run_length: 64,
            }),
            Body::Symlink(b"../target".to_vec()),
            Body::Fifo,
            Body::Socket,
            Body::CharDevice,
            Body::BlockDevice,
        ]
    }

    fn inode(body: Body) -> Inode {
        let at = |secs| Time { secs, nanos: 7 };
        Inode {
            ino: 12,
            mode: 0o6751,
            nlink: 2,
            uid: 3,
            gid: 4,
            rdev: 5,
            size: 6,
            allocated: 7,
            atime: at(8),
            mtime: at(9),
            ctime: at(10),
            btime: at(11),
            data_version: 12,
            xattr_names: 13,
            acls: Acls {
                access: true,
                default: false,
            },
            body,
        }
    }

    #[test]
    fn every_kind_of_inode_reads_back() {
        for body in bodies() {
            let inode = inode(body);
            assert_eq!(Inode::decode(12, &inode.encode()).unwrap(), inode);
        }
    }

    #[test]
    fn an_inode_cut_anywhere_is_an_error() {
        for body in bodies() {
            let bytes = inode(body).encode();
            for length in 0..bytes.len() {
                assert!(Inode::decode(12, &bytes[..length]).is_err());
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Inode::decode(1, &bytes);
        }
    }
}
