//! Numbers of the kernel's interface, version 7.41.

/// Major version that is spoken.
pub(crate) const MAJOR: u32 = 7;
/// Minor version.
pub(crate) const MINOR: u32 = 41;
/// Bytes in front of every request, and of every answer.
pub(crate) const IN_HEADER_BYTES: usize = 40;
pub(crate) const OUT_HEADER_BYTES: usize = 16;
/// Room for a request beside the bytes that it writes.
pub(crate) const REQUEST_ROOM: usize = 4096;

macro_rules! numbers {
    ($(#[$doc:meta])* $module:ident: $type:ty { $($name:ident = $value:expr,)* }) => {
        $(#[$doc])*
        pub(crate) mod $module {
            $(pub(crate) const $name: $type = $value;)*
        }
    };
}

numbers! {
    /// Operations.
    opcode: u32 {
        LOOKUP = 1, FORGET = 2, GETATTR = 3, SETATTR = 4, READLINK = 5, SYMLINK = 6, MKNOD = 8,
        MKDIR = 9, UNLINK = 10, RMDIR = 11, RENAME = 12, LINK = 13, OPEN = 14, READ = 15,
        WRITE = 16, STATFS = 17, RELEASE = 18, FSYNC = 20, SETXATTR = 21, GETXATTR = 22,
        LISTXATTR = 23, REMOVEXATTR = 24, FLUSH = 25, INIT = 26, OPENDIR = 27, READDIR = 28,
        RELEASEDIR = 29, FSYNCDIR = 30, GETLK = 31, SETLK = 32, SETLKW = 33, ACCESS = 34,
        CREATE = 35, INTERRUPT = 36, DESTROY = 38, IOCTL = 39, BATCH_FORGET = 42, FALLOCATE = 43,
        READDIRPLUS = 44, RENAME2 = 45, LSEEK = 46, COPY_FILE_RANGE = 47,
    }
}

numbers! {
    /// What both sides agree on at the start.
    init: u64 {
        ASYNC_READ = 1 << 0, POSIX_LOCKS = 1 << 1, EXPORT_SUPPORT = 1 << 4, BIG_WRITES = 1 << 5,
        DONT_MASK = 1 << 6, FLOCK_LOCKS = 1 << 10, ATOMIC_O_TRUNC = 1 << 3,
        DO_READDIRPLUS = 1 << 13, READDIRPLUS_AUTO = 1 << 14, ASYNC_DIO = 1 << 15,
        PARALLEL_DIROPS = 1 << 18, POSIX_ACL = 1 << 20, MAX_PAGES = 1 << 22,
        CACHE_SYMLINKS = 1 << 23, HANDLE_KILLPRIV_V2 = 1 << 28, INIT_EXT = 1 << 30,
        DIRECT_IO_ALLOW_MMAP = 1 << 36,
    }
}

numbers! {
    /// Which attributes are set.
    setattr: u32 {
        MODE = 1 << 0, UID = 1 << 1, GID = 1 << 2, SIZE = 1 << 3, ATIME = 1 << 4, MTIME = 1 << 5,
        HANDLE = 1 << 6, ATIME_NOW = 1 << 7, MTIME_NOW = 1 << 8,
    }
}

numbers! {
    /// How an open file is treated.
    open: u32 {
        DIRECT_IO = 1 << 0, KEEP_CACHE = 1 << 1, NO_FLUSH = 1 << 5,
    }
}

numbers! {
    /// Flags of single operations.
    flag: u32 {
        /* of a write */ WRITE_CACHE = 1 << 0, WRITE_KILL_SUIDGID = 1 << 2,
        /* of a lock */ LOCK_FLOCK = 1 << 0,
    }
}

/// Says that attributes, and perhaps content, of an inode are no longer right.
pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;
