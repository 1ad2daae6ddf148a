//! What the kernel can ask.

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request<'a> {
    /// Names it to the answer and to an interrupt.
    pub(crate) unique: u64,
    /// The inode that it is about.
    pub(crate) ino: u64,
    /// User, primary group and thread that it comes from.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
    pub(crate) op: Op<'a>,
}

/// A point in time as the kernel counts: nanoseconds forwards, also before 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) secs: i64,
    pub(crate) nanos: u32,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetStamp {
    Now,
    At(Stamp),
}

/// Attributes to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Attributes {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<SetStamp>,
    pub(crate) mtime: Option<SetStamp>,
    pub(crate) handle: Option<u64>,
}

/// A part of a file or listing to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) size: u32,
}

/// A lock, asked for or tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lock {
    pub(crate) handle: u64,
    pub(crate) owner: u64,
    pub(crate) start: u64,
    /// The last byte.
    pub(crate) end: u64,
    /// As `fcntl` names it.
    pub(crate) kind: i32,
    pub(crate) pid: u32,
    /// Of the whole file, by `flock`.
    pub(crate) whole: bool,
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op<'a> {
    Init {
        major: u32,
        minor: u32,
        readahead: u32,
        flags: u64,
    },
    Destroy,
    Interrupt {
        unique: u64,
    },
    Forget {
        count: u64,
    },
    /// Pairs of inode and count, 16 bytes each.
    BatchForget {
        pairs: &'a [u8],
    },
    Lookup {
        name: &'a [u8],
    },
    Getattr,
    Setattr(Attributes),
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        name: &'a [u8],
        mode: u32,
        rdev: u32,
        umask: u32,
    },
    Mkdir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    Link {
        ino: u64,
        name: &'a [u8],
    },
    Open {
        flags: i32,
    },
    Create {
        name: &'a [u8],
        flags: i32,
        mode: u32,
        umask: u32,
    },
    Read(Part),
    Write {
        handle: u64,
        offset: u64,
        flags: u32,
        data: &'a [u8],
    },
    Statfs,
    Release {
        handle: u64,
    },
    Fsync {
        handle: u64,
    },
    Flush {
        handle: u64,
        owner: u64,
    },
    Setxattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: i32,
    },
    Getxattr {
        name: &'a [u8],
        size: u32,
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a [u8],
    },
    Opendir,
    Readdir(Part),
    Readdirplus(Part),
    Releasedir {
        handle: u64,
    },
    Fsyncdir,
    Getlk(Lock),
    Setlk {
        lock: Lock,
        wait: bool,
    },
    Access {
        mask: u32,
    },
    Fallocate {
        handle: u64,
        offset: u64,
        length: u64,
        mode: i32,
    },
    Lseek {
        handle: u64,
        offset: u64,
        whence: i32,
    },
    CopyFileRange {
        handle: u64,
        offset: u64,
        to_handle: u64,
        to_offset: u64,
        length: u64,
    },
    Ioctl,
    /// One that is not served.
    Other,
}
