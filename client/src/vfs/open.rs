//! Opening, creating and releasing files.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;
use xtfs_protocol::ids::Ino;
use xtfs_protocol::meta::{Attr, Caller, MetaOp, MetaReply, OpenMode, Opened};
use xtfs_protocol::time::Time;
use xtfs_protocol::{Code, Error, Result};

use super::inode::Pending;
use super::table::Pinned;
use super::{Found, Inner, Mark, Vfs, unexpected};
use crate::data::access::After;
use crate::data::ahead::Ahead;
use crate::session::within;

/// How a file is to be opened here.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenOptions {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// Truncated to nothing first.
    pub truncate: bool,
    /// Every write goes to the end.
    pub append: bool,
    /// Past the caches of this library.
    pub direct: bool,
}

impl OpenOptions {
    fn mode(self) -> OpenMode {
        OpenMode {
            read: self.read,
            write: self.write || self.truncate,
            truncate: self.truncate,
        }
    }
}

/// A file that was opened.
#[derive(Debug, Clone, Copy)]
pub struct OpenedFile {
    /// What later operations name it by.
    pub handle: u64,
    /// The inode.
    pub found: Found,
    /// Content cached since an earlier open is still right.
    pub keep_cache: bool,
    /// Others have the file open, too: reads and writes should come here each time.
    pub through: bool,
}

/// An open file.
pub(crate) struct File {
    pub(crate) inode: Pinned,
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) append: bool,
    pub(crate) direct: bool,
    errors_seen: Mutex<u64>,
    ahead: Mutex<Ahead>,
}

impl File {
    /// The error of background work that this handle has not reported yet.
    pub(crate) fn take_error(&self) -> Result<()> {
        let mut seen = self.errors_seen.lock();
        match self.inode.state.lock().errors.take(&mut seen) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Notes a read; says up to where to fetch.
    pub(crate) fn note_read(&self, offset: u64, length: u64, window_max: u64) -> u64 {
        self.ahead.lock().note(offset, length, window_max)
    }
}

impl Vfs {
    /// Opens a regular file.
    ///
    /// # Errors
    /// `Stale` when the inode is gone, `AccessDenied`, `IsDirectory`.
    pub async fn open_file(
        &self,
        caller: &Caller,
        ino: Ino,
        options: OpenOptions,
    ) -> Result<OpenedFile> {
        let inner = &self.inner;
        let deadline = inner.session.deadline();
        let inode = inner.pin(ino);
        let locked = Arc::clone(&inode);
        let turn = if options.truncate {
            Some(within(deadline, locked.turn.write()).await?)
        } else {
            None
        };
        let opening = within(deadline, locked.renewing.lock()).await?;
        let mark = inner.mark();
        let op = MetaOp::Open {
            ino,
            open: options.mode(),
        };
        let opened = match inner.session.meta(caller, op).await {
            Ok(MetaReply::Opened(opened)) => *opened,
            Ok(_) => return Err(unexpected()),
            // The name is there but leads elsewhere by now: the kernel looks it up again.
            Err(error) if error.code == Code::NotFound => return Err(Code::Stale.into()),
            Err(error) => return Err(error),
        };
        let handle = inner.register(inode, opened, mark, options);
        drop((opening, turn));
        inner.ready(handle, deadline).await
    }

    /// Makes and opens a regular file; opens it when it exists and `exclusive` is not set.
    ///
    /// # Errors
    /// `Exists`, `AccessDenied` and what the MRC says.
    pub async fn create(
        &self,
        caller: &Caller,
        (parent, name): (Ino, &[u8]),
        mode: u16,
        exclusive: bool,
        options: OpenOptions,
    ) -> Result<OpenedFile> {
        let inner = &self.inner;
        let deadline = inner.session.deadline();
        let mark = inner.mark();
        let op = MetaOp::Create {
            parent,
            name: name.to_vec(),
            mode,
            exclusive,
            open: options.mode(),
        };
        let reply = inner.session.meta(caller, op).await;
        inner.names_changed();
        let MetaReply::Opened(opened) = reply? else {
            return Err(unexpected());
        };
        let inode = inner.pin(opened.entry.attr.ino);
        let overtaken = inode.state.lock().released_mark > mark.clock;
        inode.state.lock().note_told(inner.session.restarts());
        let handle = inner.register(inode, *opened, mark, options);
        if overtaken {
            // The last handle of the file was released at the same time: the MRC may have heard
            // of the release after the open.
            let file = inner.file(handle)?;
            let _turn = within(deadline, file.inode.renewing.lock()).await?;
            inner.reopen(&file.inode, options.write).await?;
        }
        inner.ready(handle, deadline).await
    }

    /// Closes a handle. What is unsent is sent; the MRC is told when it was the last one.
    ///
    /// # Errors
    /// What could not be sent; the handle is closed all the same.
    pub async fn release(&self, handle: u64) -> Result<()> {
        self.inner.release(handle).await
    }
}

impl Inner {
    fn register(&self, inode: Pinned, opened: Opened, mark: Mark, options: OpenOptions) -> u64 {
        let start = {
            let mut state = inode.state.lock();
            state.handles += 1;
            state.writers += u32::from(options.write);
            state.errors.start()
        };
        let after = if options.truncate {
            After::SetSize
        } else {
            After::Open
        };
        self.install(&inode, opened, mark, after);
        self.session.note_open(inode.ino);
        self.files.insert(File {
            inode,
            read: options.read,
            write: options.write,
            append: options.append,
            direct: options.direct,
            errors_seen: Mutex::new(start),
            ahead: Mutex::default(),
        })
    }

    /// Carries out what has to come before the first use of a new handle.
    async fn ready(self: &Arc<Self>, handle: u64, deadline: Instant) -> Result<OpenedFile> {
        let file = self.file(handle)?;
        if let Err(error) = self.carry_cut(&file.inode, deadline).await {
            drop(file);
            if let Err(error) = self.release(handle).await {
                tracing::warn!(%error, "could not release a file that could not be opened");
            }
            return Err(error);
        }
        let mut state = file.inode.state.lock();
        let attr = state.attr.ok_or_else(unexpected)?;
        let keep_cache = !std::mem::take(&mut state.kernel_stale);
        Ok(OpenedFile {
            handle,
            found: self.seen(&state, attr),
            keep_cache,
            through: state.through,
        })
    }

    pub(crate) async fn release(self: &Arc<Self>, handle: u64) -> Result<()> {
        let file = self
            .files
            .remove(handle)
            .ok_or_else(|| Error::new(Code::Invalid, format!("no open file {handle}")))?;
        let inode = &*file.inode;
        let deadline = self.session.deadline();
        let sent = self.flush_inode(inode).await;
        self.release_locks(inode.ino, handle).await;
        if inode.state.lock().pending.read_at.is_some()
            && let Err(error) = self.update(inode, deadline).await
        {
            tracing::debug!(ino = inode.ino, %error, "the access time was not told");
        }
        self.session.note_release(inode.ino);
        let turn = within(deadline, inode.renewing.lock()).await;
        let last = {
            let mut state = inode.state.lock();
            state.handles -= 1;
            state.writers -= u32::from(file.write);
            if state.handles == 0 {
                state.access = None;
                state.through = false;
                // What could not be told by now was noted as an error.
                state.pending = Pending::default();
                state.released_mark = self.advance();
            }
            state.handles == 0
        };
        let mut told = turn.as_ref().map(|_| ()).map_err(Clone::clone);
        if last {
            let op = MetaOp::Release { ino: inode.ino };
            told = self.done(&Caller::root(), op).await;
        }
        sent.and(told)
    }
}

/// Is a read at `now` worth telling? Like relatime: when the content or the inode changed since
/// the last one, or a day has passed.
pub(crate) fn is_read_worth_telling(attr: &Attr, now: Time) -> bool {
    const DAY_SECS: i64 = 24 * 60 * 60;
    attr.atime <= attr.mtime
        || attr.atime <= attr.ctime
        || now.secs.saturating_sub(attr.atime.secs) >= DAY_SECS
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtfs_protocol::meta::FileKind;

    #[test]
    fn a_second_read_of_unchanged_content_is_not_told() {
        let at = |secs| Time { secs, nanos: 0 };
        let mut attr = Attr {
            ino: 2,
            kind: FileKind::File,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            allocated: 0,
            atime: at(100),
            mtime: at(100),
            ctime: at(100),
            btime: at(100),
            data_version: 0,
            has_acl: false,
        };
        assert!(is_read_worth_telling(&attr, at(150)));
        attr.atime = at(150);
        assert!(!is_read_worth_telling(&attr, at(151)));
        assert!(is_read_worth_telling(&attr, at(150 + 86_400)));
    }
}
