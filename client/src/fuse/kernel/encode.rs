//! Answers to the kernel, as bytes.

use std::time::Duration;

use super::abi::{MAJOR, MINOR};
use super::request::Stamp;

/// Attributes as the kernel takes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileAttr {
    pub(crate) ino: u64,
    pub(crate) size: u64,
    /// Of 512 bytes.
    pub(crate) blocks: u64,
    pub(crate) atime: Stamp,
    pub(crate) mtime: Stamp,
    pub(crate) ctime: Stamp,
    /// Type and permission.
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
    pub(crate) block_bytes: u32,
}

/// How long the kernel may cache a name, and the attributes of the inode that it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ttl {
    pub(crate) name: Duration,
    pub(crate) attr: Duration,
}

impl Ttl {
    /// The same for both.
    pub(crate) const fn both(ttl: Duration) -> Self {
        Self {
            name: ttl,
            attr: ttl,
        }
    }
}

/// Room of a file system, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) blocks: u64,
    pub(crate) free: u64,
    pub(crate) files: u64,
    pub(crate) free_files: u64,
    pub(crate) block_bytes: u32,
    pub(crate) name_bytes: u32,
}

/// What is agreed on at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agreed {
    pub(crate) readahead: u32,
    pub(crate) flags: u64,
    pub(crate) background: u16,
    pub(crate) write_bytes: u32,
    pub(crate) pages: u16,
}

/// Bytes in the making.
#[derive(Debug, Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn u16s(&mut self, numbers: &[u16]) -> &mut Self {
        self.0
            .extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
        self
    }

    pub(crate) fn u32s(&mut self, numbers: &[u32]) -> &mut Self {
        self.0
            .extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
        self
    }

    pub(crate) fn u64s(&mut self, numbers: &[u64]) -> &mut Self {
        self.0
            .extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
        self
    }

    fn attr(&mut self, attr: &FileAttr) -> &mut Self {
        let secs = [attr.atime, attr.mtime, attr.ctime].map(|stamp| stamp.secs.cast_unsigned());
        let nanos = [attr.atime, attr.mtime, attr.ctime].map(|stamp| stamp.nanos);
        self.u64s(&[attr.ino, attr.size, attr.blocks])
            .u64s(&secs)
            .u32s(&nanos);
        self.u32s(&[
            attr.mode,
            attr.nlink,
            attr.uid,
            attr.gid,
            attr.rdev,
            attr.block_bytes,
            0,
        ])
    }

    /// An inode that was found by name.
    pub(crate) fn entry(&mut self, ttl: Ttl, attr: &FileAttr) -> &mut Self {
        let secs = [ttl.name.as_secs(), ttl.attr.as_secs()];
        let nanos = [ttl.name.subsec_nanos(), ttl.attr.subsec_nanos()];
        // Inode numbers are never used twice, so there is one generation.
        self.u64s(&[attr.ino, 0])
            .u64s(&secs)
            .u32s(&nanos)
            .attr(attr)
    }

    pub(crate) fn attributes(&mut self, ttl: Duration, attr: &FileAttr) -> &mut Self {
        self.u64s(&[ttl.as_secs()])
            .u32s(&[ttl.subsec_nanos(), 0])
            .attr(attr)
    }

    pub(crate) fn opened(&mut self, handle: u64, flags: u32) -> &mut Self {
        self.u64s(&[handle]).u32s(&[flags, 0])
    }

    pub(crate) fn room(&mut self, room: &Room) -> &mut Self {
        self.u64s(&[
            room.blocks,
            room.free,
            room.free,
            room.files,
            room.free_files,
        ]);
        self.u32s(&[room.block_bytes, room.name_bytes, room.block_bytes])
            .u32s(&[0; 7])
    }

    pub(crate) fn lock(&mut self, start: u64, end: u64, kind: i32, pid: u32) -> &mut Self {
        self.u64s(&[start, end]).u32s(&[kind.cast_unsigned(), pid])
    }

    pub(crate) fn agreed(&mut self, agreed: &Agreed) -> &mut Self {
        let (low, high) = (agreed.flags as u32, (agreed.flags >> 32) as u32);
        self.u32s(&[MAJOR, MINOR, agreed.readahead, low]);
        self.u16s(&[agreed.background, agreed.background / 4 * 3]);
        // Times are kept to the nanosecond.
        self.u32s(&[agreed.write_bytes, 1]).u16s(&[agreed.pages, 0]);
        self.u32s(&[high, 0]).u16s(&[0; 12])
    }

    /// Says to the kernel which version is spoken when it speaks a newer one.
    pub(crate) fn version(&mut self) -> &mut Self {
        self.u32s(&[MAJOR, MINOR]).u32s(&[0; 14])
    }

    fn name(&mut self, ino: u64, cookie: u64, kind: u32, name: &[u8]) {
        self.u64s(&[ino, cookie]).u32s(&[name.len() as u32, kind]);
        self.0.extend_from_slice(name);
        self.0.resize(self.0.len().next_multiple_of(8), 0);
    }
}

/// A part of a listing, as long as the kernel has room for it.
pub(crate) struct Listing {
    message: Message,
    room: usize,
}

/// Bytes of a name's place in a listing, and of an inode's before it.
const NAME_BYTES: usize = 24;
const ENTRY_BYTES: usize = 128;

impl Listing {
    pub(crate) fn new(room: u32) -> Self {
        let room = usize::try_from(room).unwrap_or(0);
        Self {
            message: Message::with_capacity(room.min(1 << 17)),
            room,
        }
    }

    fn fits(&self, name: &[u8], more: usize) -> bool {
        let bytes = (NAME_BYTES + name.len()).next_multiple_of(8) + more;
        self.message.0.len() + bytes <= self.room
    }

    /// Adds a name with its type; false when there is no room for it.
    pub(crate) fn add(&mut self, ino: u64, cookie: u64, mode: u32, name: &[u8]) -> bool {
        let fits = self.fits(name, 0);
        if fits {
            self.message.name(ino, cookie, mode >> 12 & 15, name);
        }
        fits
    }

    /// Adds a name with the inode that it leads to.
    pub(crate) fn add_entry(
        &mut self,
        cookie: u64,
        name: &[u8],
        ttl: Ttl,
        attr: &FileAttr,
    ) -> bool {
        let fits = self.fits(name, ENTRY_BYTES);
        if fits {
            self.message.entry(ttl, attr);
            self.message
                .name(attr.ino, cookie, attr.mode >> 12 & 15, name);
        }
        fits
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.message.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr() -> FileAttr {
        let at = |secs| Stamp { secs, nanos: 7 };
        FileAttr {
            ino: 9,
            size: 100,
            blocks: 1,
            atime: at(-1),
            mtime: at(2),
            ctime: at(3),
            mode: libc::S_IFREG | 0o644,
            nlink: 2,
            uid: 3,
            gid: 4,
            rdev: 5,
            block_bytes: 4096,
        }
    }

    fn u32_at(bytes: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    fn u64_at(bytes: &[u8], at: usize) -> u64 {
        u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn every_answer_has_the_length_that_the_kernel_expects() {
        let length = |fill: &dyn Fn(&mut Message)| {
            let mut message = Message::default();
            fill(&mut message);
            message.0.len()
        };
        let ttl = Duration::new(1, 5);
        let both = Ttl::both(ttl);
        assert_eq!(
            length(&|m| {
                m.entry(both, &attr());
            }),
            128
        );
        assert_eq!(
            length(&|m| {
                m.attributes(ttl, &attr());
            }),
            104
        );
        assert_eq!(
            length(&|m| {
                m.opened(1, 2);
            }),
            16
        );
        assert_eq!(
            length(&|m| {
                m.lock(0, 1, 2, 3);
            }),
            24
        );
        assert_eq!(
            length(&|m| {
                m.version();
            }),
            64
        );
        let room = Room {
            blocks: 1,
            free: 2,
            files: 3,
            free_files: 4,
            block_bytes: 5,
            name_bytes: 6,
        };
        assert_eq!(
            length(&|m| {
                m.room(&room);
            }),
            80
        );
        let agreed = Agreed {
            readahead: 1,
            flags: 5 << 32 | 6,
            background: 64,
            write_bytes: 8,
            pages: 9,
        };
        let mut message = Message::default();
        message.agreed(&agreed);
        let bytes = message.as_bytes();
        assert_eq!(bytes.len(), 64);
        assert_eq!((u32_at(bytes, 12), u32_at(bytes, 32)), (6, 5));
        assert_eq!((u32_at(bytes, 20), u32_at(bytes, 28)), (8, 9));
    }

    #[test]
    fn an_entry_has_its_fields_in_their_places() {
        let mut message = Message::default();
        let ttl = Ttl {
            name: Duration::new(1, 5),
            attr: Duration::new(2, 6),
        };
        message.entry(ttl, &attr());
        let bytes = message.as_bytes();
        assert_eq!(
            (u64_at(bytes, 0), u64_at(bytes, 16), u64_at(bytes, 24)),
            (9, 1, 2)
        );
        assert_eq!((u32_at(bytes, 32), u32_at(bytes, 36)), (5, 6));
        let attr = &bytes[40..];
        assert_eq!(
            (u64_at(attr, 0), u64_at(attr, 8), u64_at(attr, 16)),
            (9, 100, 1)
        );
        assert_eq!((u64_at(attr, 24), u64_at(attr, 32)), (u64::MAX, 2));
        assert_eq!(
            (u32_at(attr, 48), u32_at(attr, 60)),
            (7, libc::S_IFREG | 0o644)
        );
        let numbers: Vec<_> = (64..84).step_by(4).map(|at| u32_at(attr, at)).collect();
        assert_eq!(numbers, [2, 3, 4, 5, 4096]);
    }

    #[test]
    fn a_listing_ends_where_its_room_does() {
        let mut listing = Listing::new(100);
        assert!(listing.add(5, 1, libc::S_IFDIR, b"12345678"));
        assert!(listing.add(6, 2, libc::S_IFREG, b"1"));
        assert!(listing.add(7, 3, libc::S_IFREG, b"12"));
        assert!(!listing.add(8, 4, libc::S_IFREG, b""));
        let bytes = listing.as_bytes();
        assert_eq!(bytes.len(), 96);
        assert_eq!((u64_at(bytes, 32), u64_at(bytes, 40)), (6, 2));
        assert_eq!((u32_at(bytes, 48), u32_at(bytes, 52)), (1, 8));
        assert_eq!(u32_at(bytes, 20), 4, "a directory");
        let mut listing = Listing::new(160);
        assert!(listing.add_entry(1, b"12345678", Ttl::both(Duration::ZERO), &attr()));
        assert!(!listing.add_entry(2, b"", Ttl::both(Duration::ZERO), &attr()));
        assert_eq!(listing.as_bytes().len(), 160);
    }
}
