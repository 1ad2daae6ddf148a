//! What can go wrong, as a value that crosses the wire.
//!
//! One definition lists every kind with its errno and its text; [`Code`] and [`Code::errno`] are made
//! from it.

use std::fmt;

use rkyv::{Archive, Deserialize, Serialize};

/// Result of a call.
pub type Result<T> = std::result::Result<T, Error>;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $errno:ident, $text:literal;)*) => {
        /// The kind of an error; each kind has one errno.
        #[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code { $($(#[$doc])* $name,)* }

        impl Code {
            /// Every kind.
            pub const ALL: &'static [Code] = &[$(Code::$name),*];

            /// The errno that an application sees.
            #[must_use]
            pub const fn errno(self) -> i32 {
                match self { $(Code::$name => libc::$errno,)* }
            }

            /// What the kind means, in a few words.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Code::$name => $text,)* }
            }
        }
    };
}

codes! {
    /// The name or inode does not exist.
    NotFound = ENOENT, "no such file or directory";
    /// The name exists already.
    Exists = EEXIST, "already exists";
    /// The caller's identity or the mode bits do not allow it.
    AccessDenied = EACCES, "permission denied";
    /// Only the owner or root may do it.
    NotPermitted = EPERM, "operation not permitted";
    /// A directory is needed here.
    NotDirectory = ENOTDIR, "not a directory";
    /// A directory is not accepted here.
    IsDirectory = EISDIR, "is a directory";
    /// The directory still has entries.
    NotEmpty = ENOTEMPTY, "directory not empty";
    /// Too many hard links.
    TooManyLinks = EMLINK, "too many links";
    /// A name or path is longer than allowed.
    NameTooLong = ENAMETOOLONG, "name too long";
    /// An argument is out of its bounds.
    Invalid = EINVAL, "invalid argument";
    /// A file would become larger than the largest file.
    TooLarge = EFBIG, "file too large";
    /// The two names lie in different volumes.
    CrossVolume = EXDEV, "not in the same volume";
    /// The extended attribute does not exist.
    NoAttribute = ENODATA, "no such attribute";
    /// The extended attribute's value is too long.
    AttributeTooLong = E2BIG, "attribute too long";
    /// The buffer is too small for the answer.
    Range = ERANGE, "buffer too small";
    /// No room is left.
    NoSpace = ENOSPC, "no space left";
    /// A quota is used up.
    QuotaExceeded = EDQUOT, "quota exceeded";
    /// The volume or snapshot is read-only.
    ReadOnly = EROFS, "read-only";
    /// The inode number belongs to nothing any more.
    Stale = ESTALE, "stale inode";
    /// A lock is held by another owner.
    WouldBlock = EAGAIN, "would block";
    /// Waiting would be a deadlock.
    Deadlock = EDEADLK, "deadlock";
    /// There are as many locks as are kept.
    NoLocks = ENOLCK, "no locks available";
    /// The caller interrupted the wait.
    Interrupted = EINTR, "interrupted";
    /// The operation is not offered here.
    Unsupported = EOPNOTSUPP, "operation not supported";
    /// Stored bytes do not match their checksum.
    Corrupt = EIO, "stored bytes do not match their checksum";
    /// A disk or file operation failed.
    Io = EIO, "input/output error";
    /// The peer cannot be reached.
    Unreachable = EHOSTUNREACH, "peer unreachable";
    /// The deadline passed.
    TimedOut = ETIMEDOUT, "deadline passed";
    /// The peer has too much to do; try again after the pause.
    Busy = EBUSY, "busy";
    /// The session does not exist any more.
    SessionExpired = EBADF, "session expired";
    /// The capability is forged, expired or older than the file's state.
    BadCapability = EKEYREJECTED, "capability refused";
    /// The message breaks the protocol.
    Protocol = EPROTO, "protocol error";
    /// The peer speaks another version of the protocol.
    Version = EPROTONOSUPPORT, "protocol version not supported";
    /// The service shuts down.
    ShuttingDown = ESHUTDOWN, "shutting down";
}

/// Whether asking again can help.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The answer stays the same.
    Never,
    /// The same request with the same sequence number, after a pause of this many milliseconds.
    After(u32),
    /// After fetching a new capability or opening a new session.
    Reopen,
}

/// What failed, who says so, and whether a retry can help.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Error {
    /// The kind.
    pub code: Code,
    /// What failed: operation, object, place, peer. May be empty for everyday answers such as
    /// [`Code::NotFound`].
    pub context: String,
    /// Whether asking again can help.
    pub retry: Retry,
}

impl Error {
    /// An error that no retry changes.
    #[must_use]
    pub fn new(code: Code, context: impl Into<String>) -> Self {
        Self {
            code,
            context: context.into(),
            retry: Retry::Never,
        }
    }

    /// An error after which the same request may be sent again.
    #[must_use]
    pub fn retryable(code: Code, context: impl Into<String>, pause_ms: u32) -> Self {
        Self {
            code,
            context: context.into(),
            retry: Retry::After(pause_ms),
        }
    }

    /// An error after which the caller needs a new capability or session.
    #[must_use]
    pub fn reopen(code: Code, context: impl Into<String>) -> Self {
        Self {
            code,
            context: context.into(),
            retry: Retry::Reopen,
        }
    }

    /// The errno that an application sees. Failures between the parts of a cell that no
    /// application can act on become `EIO`.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self.code {
            Code::Unreachable
            | Code::TimedOut
            | Code::Busy
            | Code::SessionExpired
            | Code::BadCapability
            | Code::Protocol
            | Code::Version
            | Code::ShuttingDown => libc::EIO,
            code => code.errno(),
        }
    }

    /// The same error with `context` put before what it says already.
    #[must_use]
    pub fn within(mut self, context: impl fmt::Display) -> Self {
        self.context = if self.context.is_empty() {
            context.to_string()
        } else {
            format!("{context}: {}", self.context)
        };
        self
    }
}

impl From<Code> for Error {
    fn from(code: Code) -> Self {
        Self::new(code, "")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.context.is_empty() {
            f.write_str(self.code.text())
        } else {
            write!(f, "{}: {}", self.context, self.code.text())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_between_the_parts_reaches_applications_as_eio() {
        for code in [Code::Unreachable, Code::BadCapability, Code::Busy] {
            assert_eq!(Error::from(code).errno(), libc::EIO);
        }
        assert_eq!(Error::from(Code::NotEmpty).errno(), libc::ENOTEMPTY);
    }

    #[test]
    fn context_is_added_outside_in() {
        let error = Error::new(Code::Corrupt, "block 3").within("osd 1");
        assert_eq!(
            error.to_string(),
            "osd 1: block 3: stored bytes do not match their checksum"
        );
    }
}
