//! What can be asked of an MRC: volumes, sessions and the namespace.
//!
//! Every namespace operation names its volume (in the [`CallHeader`](crate::CallHeader)'s session
//! or here), its caller and its arguments; the MRC checks permission whatever the client's kernel
//! said. Operations that change something carry the session and a sequence number in the header
//! and are applied once.

#![allow(
    missing_docs,
    reason = "rkyv derives undocumented items for enum variants; every item here has its text"
)]

use rkyv::{Archive, Deserialize, Serialize};
use xtfs_layout::Layout;

use crate::capability::Capability;
use crate::ids::{Ino, ServiceId, SessionId, VolumeId};
use crate::lock::{FileLock, LockKind, LockRange, LockState, LockTarget};
use crate::quota::{QuotaEntry, QuotaLimits, QuotaMismatch, QuotaSubject};
use crate::time::Time;

/// Name of a directory entry: 1 to 255 bytes, no NUL, no slash, not `.` or `..`.
pub type Name = Vec<u8>;

/// On whose behalf an operation runs.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups, at most [`Caller::GROUPS_MAX`].
    pub groups: Vec<u32>,
    /// Permission bits that its process takes from the mode of what it makes, except in a directory with a default ACL.
    pub umask: u16,
}

impl Caller {
    /// Most supplementary groups that are accepted.
    pub const GROUPS_MAX: usize = 65_536;

    /// The superuser.
    #[must_use]
    pub const fn root() -> Self {
        Self {
            uid: 0,
            gid: 0,
            groups: Vec::new(),
            umask: 0,
        }
    }
}

/// What an inode is.
#[derive(
    Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord,
)]
pub enum FileKind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

/// The attributes of an inode.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// What it is.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits (`0o7777`).
    pub mode: u16,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of device files.
    pub rdev: u32,
    /// Bytes.
    pub size: u64,
    /// Bytes that are stored, holes left out.
    pub allocated: u64,
    /// Last read.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of content or attributes.
    pub ctime: Time,
    /// Creation.
    pub btime: Time,
    /// Counts the changes of the content; equal numbers mean equal content.
    pub data_version: u64,
    /// It has a POSIX ACL, access or default.
    pub has_acl: bool,
}

/// A time to set.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The MRC's current time (allowed to everyone who may write).
    Now,
    /// An explicit time (allowed to the owner).
    At(Time),
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// New mode bits (`0o7777`).
    pub mode: Option<u16>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New size: truncates or extends with a hole.
    pub size: Option<u64>,
    /// New access time.
    pub atime: Option<SetTime>,
    /// New modification time.
    pub mtime: Option<SetTime>,
}

/// What a client's cache may rely on.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// What the holder may do.
    pub kind: LeaseKind,
    /// How long from the sending of the reply, in milliseconds; 0 is no lease.
    pub duration_ms: u32,
}

/// The two kinds of lease.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseKind {
    /// Many holders may cache attributes, entries and data.
    Read,
    /// One holder may also delay its own changes. Of an opened file: nobody else has it open, so
    /// what is written may be sent later.
    Write,
    /// Nobody else has the volume: it may also be cached which name leads where.
    Alone,
}

/// An inode as found by name.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Its attributes.
    pub attr: Attr,
    /// How long they may be cached.
    pub lease: Lease,
}

/// A truncation that the OSDs of a file may not have heard of yet. Whoever holds it applies it
/// (idempotently) before it reads or writes, then reports [`MetaOp::TruncateDone`].
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingCut {
    /// Truncate epoch that the cut belongs to.
    pub epoch: u64,
    /// The smallest size that the file had since the OSDs were last told.
    pub size: u64,
    /// The MRC was told of the bytes that it removes, and has to hear that they are gone.
    pub told: bool,
}

/// Where the objects of a file are.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// How the file is cut.
    pub layout: Layout,
    /// View number of the list.
    pub view: u32,
    /// The OSDs by position; `layout.width` of them.
    pub osds: Vec<ServiceId>,
}

/// A regular file made ready for reading and writing.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// Attributes at the moment of opening.
    pub entry: Entry,
    /// Where its bytes are.
    pub placement: Placement,
    /// What lets the holder talk to the OSDs.
    pub capability: Capability,
    /// A truncation to carry out first.
    pub pending_cut: Option<PendingCut>,
    /// Truncate epoch of the last cut that took back what a lost writer had not told. Who wrote
    /// under an older epoch and has not told it has lost it.
    pub fenced: u64,
}

/// How a file is to be opened.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenMode {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// Truncated to nothing first.
    pub truncate: bool,
}

/// A name in a directory with what it leads to.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name.
    pub name: Name,
    /// Inode number.
    pub ino: Ino,
    /// What it is.
    pub kind: FileKind,
    /// Attributes, when they were asked for.
    pub attr: Option<Attr>,
}

/// A volume as listed.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Debug, Clone, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Identity.
    pub id: VolumeId,
    /// Name, unique in the cell.
    pub name: String,
    /// Layout of new files.
    pub layout: Layout,
    /// Bytes in all its files.
    pub used_bytes: u64,
    /// Inodes in use.
    pub used_inodes: u64,
}

/// A session that was opened.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct SessionInfo {
    /// Its identity.
    pub id: SessionId,
    /// Its epoch, larger than every earlier one of the volume's.
    pub epoch: u64,
    /// How long it lives without renewal, in milliseconds.
    pub duration_ms: u32,
    /// Which start of its machine the MRC runs on.
    pub boot: u64,
    /// The volume it is for.
    pub volume: VolumeInfo,
}

/// Flags of a rename.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RenameFlags {
    /// Fail when the new name exists.
    pub no_replace: bool,
    /// Swap the two names.
    pub exchange: bool,
}

/// How `setxattr` treats a value that exists or does not.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    Set,
    /// Fail when it exists.
    Create,
    /// Fail when it does not.
    Replace,
}

/// What a writer learnt about a file: sent at flush, fsync and close.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileUpdate {
    /// Bytes that are to be appended: the file grows by so many, wherever its end is, and they go
    /// before the new end, which the answer tells. 0 for none.
    pub appended: u64,
    /// The end of the furthest byte written; the MRC's size becomes the larger of both. Ignored
    /// when the truncate epoch is no longer the file's.
    pub size_at_least: u64,
    /// Truncate epoch under which the bytes were written.
    pub truncate_epoch: u64,
    /// Stored bytes gained or lost on the OSDs.
    pub allocated_delta: i64,
    /// Time of the last write; the MRC sets mtime and ctime from it, unless an explicit time was
    /// set after it.
    pub written_at: Option<Time>,
    /// Time of the last read, for the access time.
    pub read_at: Option<Time>,
}

/// An operation of the MRC.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub enum MetaOp {
    /// Makes a volume with its root directory. Answer: [`MetaReply::Volume`].
    CreateVolume {
        /// Unique name: 1 to 64 of `A-Za-z0-9._-`.
        name: String,
        /// Layout of its files.
        layout: Layout,
        /// Owner of the root directory.
        uid: u32,
        /// Group of the root directory.
        gid: u32,
        /// Mode of the root directory.
        mode: u16,
    },
    /// Removes a volume; its objects follow in the background. Answer: [`MetaReply::Done`].
    DeleteVolume {
        /// Its name.
        name: String,
    },
    /// All volumes by name. Answer: [`MetaReply::Volumes`].
    ListVolumes,
    /// Opens a session on a volume. Answer: [`MetaReply::Session`].
    OpenSession {
        /// The volume's name.
        volume: String,
        /// Names the client across its own restarts: sessions that the same peer opened under this
        /// name, without going on with one, are over. Empty: it has no such name.
        client: String,
        /// The session to go on with after a restart of the MRC or a lost connection.
        resume: Option<SessionId>,
        /// Files that the client holds open, when it resumes.
        open_files: Vec<Ino>,
    },
    /// Keeps the header's session alive. Answer: [`MetaReply::Done`].
    RenewSession,
    /// Ends the header's session. Answer: [`MetaReply::Done`].
    CloseSession,

    /// Finds a name. `..` and `.` are accepted here only. Answer: [`MetaReply::Entry`].
    Lookup {
        /// Directory.
        parent: Ino,
        /// Name.
        name: Name,
    },
    /// Attributes. Answer: [`MetaReply::Entry`].
    Getattr {
        /// Inode.
        ino: Ino,
    },
    /// Changes attributes. Answer: [`MetaReply::Truncated`] when `size` is given, else
    /// [`MetaReply::Entry`].
    Setattr {
        /// Inode.
        ino: Ino,
        /// What to change.
        set: SetAttr,
        /// The caller has the file open for writing, so `size` needs no write permission now.
        by_handle: bool,
    },
    /// The OSDs carried out, and made durable, every truncation up to this epoch. Answer: [`MetaReply::Done`].
    TruncateDone {
        /// Inode.
        ino: Ino,
        /// Epoch of the cut that was carried out.
        epoch: u64,
    },
    /// Makes a file, fifo, socket or device. Answer: [`MetaReply::Entry`].
    Mknod {
        /// Directory.
        parent: Ino,
        /// Name.
        name: Name,
        /// What to make; not a directory or symlink.
        kind: FileKind,
        /// Mode, the caller's umask not applied.
        mode: u16,
        /// Device number of device files.
        rdev: u32,
    },
    /// Makes a directory. Answer: [`MetaReply::Entry`].
    Mkdir {
        /// Directory.
        parent: Ino,
        /// Name.
        name: Name,
        /// Mode, the caller's umask not applied.
        mode: u16,
    },
    /// Makes a symbolic link. Answer: [`MetaReply::Entry`].
    Symlink {
        /// Directory.
        parent: Ino,
        /// Name.
        name: Name,
        /// 1 to 4095 bytes without NUL.
        target: Vec<u8>,
    },
    /// The target of a symbolic link. Answer: [`MetaReply::Bytes`].
    Readlink {
        /// Inode.
        ino: Ino,
    },
    /// Another name for an inode. Answer: [`MetaReply::Entry`].
    Link {
        /// Inode; not a directory.
        ino: Ino,
        /// Directory.
        parent: Ino,
        /// Name.
        name: Name,
    },
    /// Removes a name that is not a directory's. Answer: [`MetaReply::Done`].
    Unlink {
        /// Directory.
        parent: Ino,
        /// Name.
        name: Name,
    },
    /// Removes an empty directory. Answer: [`MetaReply::Done`].
    Rmdir {
        /// Directory.
        parent: Ino,
        /// Name.
        name: Name,
    },
    /// Renames. Answer: [`MetaReply::Done`].
    Rename {
        /// Old directory.
        parent: Ino,
        /// Old name.
        name: Name,
        /// New directory.
        new_parent: Ino,
        /// New name.
        new_name: Name,
        /// Flags.
        flags: RenameFlags,
    },
    /// Makes and opens a regular file; opens it when it exists and `exclusive` is not set.
    /// Answer: [`MetaReply::Opened`].
    Create {
        /// Directory.
        parent: Ino,
        /// Name.
        name: Name,
        /// Mode, the caller's umask not applied.
        mode: u16,
        /// Fail when the name exists.
        exclusive: bool,
        /// How to open it.
        open: OpenMode,
    },
    /// Opens a regular file, or renews the capability of one that is open. Counts as one open of
    /// the session however often it is called. Answer: [`MetaReply::Opened`].
    Open {
        /// Inode.
        ino: Ino,
        /// How.
        open: OpenMode,
    },
    /// The session has the file open no longer. Answer: [`MetaReply::Done`].
    Release {
        /// Inode.
        ino: Ino,
    },
    /// Size and times after writing and reading. Answer: [`MetaReply::Entry`].
    Update {
        /// Inode.
        ino: Ino,
        /// What the client learnt.
        update: FileUpdate,
    },
    /// A page of a directory, in the order of the names' bytes. Answer: [`MetaReply::Page`].
    Readdir {
        /// Directory.
        ino: Ino,
        /// Continue behind this name; empty starts.
        after: Name,
        /// Most entries wanted, 1 to [`MetaOp::PAGE_ENTRIES_MAX`].
        limit: u32,
        /// Attributes too.
        with_attr: bool,
    },
    /// Value of an extended attribute. Answer: [`MetaReply::Bytes`].
    Getxattr {
        /// Inode.
        ino: Ino,
        /// Full name with its namespace.
        name: Name,
    },
    /// Names of the extended attributes, each ended by NUL. Answer: [`MetaReply::Bytes`].
    Listxattr {
        /// Inode.
        ino: Ino,
    },
    /// Sets an extended attribute. Answer: [`MetaReply::Done`].
    Setxattr {
        /// Inode.
        ino: Ino,
        /// Full name with its namespace.
        name: Name,
        /// Value, at most [`MetaOp::XATTR_BYTES_MAX`] bytes.
        value: Vec<u8>,
        /// What an existing or missing value means.
        mode: XattrMode,
    },
    /// Removes an extended attribute. Answer: [`MetaReply::Done`].
    Removexattr {
        /// Inode.
        ino: Ino,
        /// Full name with its namespace.
        name: Name,
    },
    /// May the caller do this? Answer: [`MetaReply::Done`] or [`Code::AccessDenied`](crate::Code).
    Access {
        /// Inode.
        ino: Ino,
        /// Read 4, write 2, execute 1.
        mask: u8,
    },
    /// Room and inodes of the volume. Answer: [`MetaReply::Statfs`].
    Statfs,
    /// All changes of this session so far are durable when it is answered.
    /// Answer: [`MetaReply::Done`].
    Sync,
    /// Gives a lease back, after a recall or before its time. Answer: [`MetaReply::Done`].
    ReturnLease {
        /// Inode.
        ino: Ino,
    },
    /// Locks a range, or frees it. Where another owner is in the way: [`Code::WouldBlock`](crate::Code),
    /// unless it is to be waited for. Answer: [`MetaReply::Lock`].
    SetLock {
        /// On what, and for whom.
        target: LockTarget,
        /// Which bytes.
        range: LockRange,
        /// How; `None` frees them.
        kind: Option<LockKind>,
        /// Wait under this number, which the session uses for one wait only. The answer comes at
        /// once all the same: [`LockState::Waiting`], and a [`Push::LockHeld`] when it is held.
        /// Asking again under the same number tells how it stands.
        wait: Option<u64>,
    },
    /// Ends a wait. It may be too late for that. Answer: [`MetaReply::Lock`], held or cancelled.
    CancelLock {
        /// Number of the wait.
        wait: u64,
    },
    /// The lock that keeps an owner from a range, if one does. Answer: [`MetaReply::Conflict`].
    GetLock {
        /// On what, and for whom.
        target: LockTarget,
        /// Which bytes.
        range: LockRange,
        /// How they would be locked.
        kind: LockKind,
    },
    /// The locks that a session held when it was resumed. Until all are told it gets no new ones.
    /// Answer: [`MetaReply::LostLocks`].
    ReclaimLocks {
        /// A part of them, at most [`MetaOp::LOCKS_MAX`].
        locks: Vec<FileLock>,
        /// These are the last ones.
        end: bool,
    },
    /// Takes back what the session wrote behind the end of a file and was not allowed to tell.
    /// Answer: [`MetaReply::Truncated`].
    TakeBack {
        /// Inode.
        ino: Ino,
    },
    /// Sets what a subject may use; empty limits remove them. Answer: [`MetaReply::Done`].
    SetQuota {
        /// The volume's name.
        volume: String,
        /// Whom they bind.
        subject: QuotaSubject,
        /// What is allowed.
        limits: QuotaLimits,
    },
    /// Limits and usage by subject. Answer: [`MetaReply::Quotas`].
    ListQuotas {
        /// The volume's name.
        volume: String,
        /// Continue behind this subject; none starts.
        after: Option<QuotaSubject>,
        /// Most subjects wanted, 1 to [`MetaOp::PAGE_ENTRIES_MAX`].
        limit: u32,
    },
    /// Counts every inode of the volume, at one moment, and compares. Takes about a second for a
    /// million of them. Answer: [`MetaReply::QuotasChecked`].
    CheckQuotas {
        /// The volume's name.
        volume: String,
    },
    /// The files that exist, in order of inode number, for scrub and cleanup.
    /// Answer: [`MetaReply::Files`].
    ListFiles {
        /// The volume.
        volume: VolumeId,
        /// Continue behind this inode; 0 starts.
        after: Ino,
        /// Most files wanted, 1 to [`MetaOp::PAGE_ENTRIES_MAX`].
        limit: u32,
    },
}

impl MetaOp {
    /// Most entries of one page.
    pub const PAGE_ENTRIES_MAX: u32 = 4096;
    /// Most locks of one [`MetaOp::ReclaimLocks`].
    pub const LOCKS_MAX: usize = 4096;
    /// Longest value of an extended attribute.
    pub const XATTR_BYTES_MAX: usize = 65_536;
}

/// A regular file as scrub and cleanup see it.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct FileSummary {
    /// Inode.
    pub ino: Ino,
    /// Number of its content (see [`FileId`](crate::ids::FileId)).
    pub data: u64,
    /// Bytes.
    pub size: u64,
    /// Where its objects are.
    pub placement: Placement,
}

/// Room in a volume.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// All bytes on the OSDs' disks.
    pub total_bytes: u64,
    /// Bytes still free.
    pub free_bytes: u64,
    /// Inodes in use.
    pub used_inodes: u64,
    /// Most inodes that a quota of the volume allows.
    pub inodes_max: Option<u64>,
}

/// Answer of an MRC.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub enum MetaReply {
    /// Done; nothing more to say.
    Done,
    /// The changes of the session that were made on this start of the MRC's machine are durable;
    /// of earlier ones those that were not yet durable are gone.
    Synced {
        /// The start of the machine.
        boot: u64,
    },
    /// An inode.
    Entry(Entry),
    /// An inode whose size was set: its OSDs may have to be told.
    Truncated(Box<Opened>),
    /// A file that is open.
    Opened(Box<Opened>),
    /// A page of a directory.
    Page {
        /// Entries.
        entries: Vec<DirEntry>,
        /// Nothing follows.
        end: bool,
        /// The directory's parent, for `..`.
        parent: Ino,
    },
    /// Bytes: link target, attribute value, attribute names.
    Bytes(Vec<u8>),
    /// Room.
    Statfs(Space),
    /// A volume.
    Volume(VolumeInfo),
    /// Volumes.
    Volumes(Vec<VolumeInfo>),
    /// A session.
    Session(SessionInfo),
    /// How a lock stands.
    Lock(LockState),
    /// The lock in the way.
    Conflict(Option<FileLock>),
    /// Those of the reclaimed locks that another owner has by now.
    LostLocks(Vec<FileLock>),
    /// Files.
    Files {
        /// The files.
        files: Vec<FileSummary>,
        /// Nothing follows.
        end: bool,
    },
    /// Limits and usage.
    Quotas {
        /// By subject, in order.
        entries: Vec<QuotaEntry>,
        /// Nothing follows.
        end: bool,
    },
    /// What a count of all inodes gave.
    QuotasChecked {
        /// Inodes counted.
        inodes: u64,
        /// What is recorded wrongly, at most [`MetaOp::PAGE_ENTRIES_MAX`] of it.
        wrong: Vec<QuotaMismatch>,
    },
}

/// What an MRC sends to a client unasked.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Push {
    /// Return the lease on this inode (with [`MetaOp::ReturnLease`]) and forget what is cached.
    Recall {
        /// The volume.
        volume: VolumeId,
        /// The inode.
        ino: Ino,
    },
    /// A lock that was waited for is held.
    LockHeld {
        /// The volume.
        volume: VolumeId,
        /// Number of the wait.
        wait: u64,
    },
}
