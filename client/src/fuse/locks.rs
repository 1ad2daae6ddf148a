//! Requests about locks.
//!
//! The kernel names the owner: for `fcntl` the process's table of descriptors, for locks of open
//! file descriptions and for `flock` the open file.

use xtfs_protocol::lock::{FileLock, LockKind, LockRange, LockSpace, LockTarget};

use super::filesystem::Adaptor;
use super::groups::caller;
use super::kernel::reply::Reply;
use super::kernel::request::{Lock, Op, Request};
use super::reply;
use crate::vfs::locks::LockAsk;

fn ask(ino: u64, lock: &Lock) -> LockAsk {
    let space = if lock.whole {
        LockSpace::Whole
    } else {
        LockSpace::Record
    };
    // The kernel counts with signs: its largest offset stands for the end of every file.
    let last = i64::MAX.unsigned_abs();
    let end = if lock.end >= last { u64::MAX } else { lock.end };
    LockAsk {
        target: LockTarget {
            ino,
            space,
            owner: lock.owner,
            pid: lock.pid,
        },
        range: LockRange {
            start: lock.start,
            end: if lock.whole { u64::MAX } else { end },
        },
        handle: lock.handle,
    }
}

/// A lock to get, or `None` to free.
fn kind(lock: &Lock) -> Option<Option<LockKind>> {
    match lock.kind {
        libc::F_RDLCK => Some(Some(LockKind::Shared)),
        libc::F_WRLCK => Some(Some(LockKind::Exclusive)),
        libc::F_UNLCK => Some(None),
        _ => None,
    }
}

fn answer(found: Option<FileLock>, reply: Reply) {
    let Some(lock) = found else {
        return reply.lock(0, 0, libc::F_UNLCK, 0);
    };
    let kind = match lock.kind {
        LockKind::Shared => libc::F_RDLCK,
        LockKind::Exclusive => libc::F_WRLCK,
    };
    let end = lock.range.end.min(i64::MAX.unsigned_abs());
    reply.lock(lock.range.start, end, kind, lock.target.pid);
}

impl Adaptor {
    pub(super) fn locks(&self, request: &Request<'_>, reply: Reply) {
        let (vfs, caller) = (self.vfs.clone(), caller(request));
        let (Op::Getlk(lock) | Op::Setlk { lock, .. }) = request.op else {
            return reply.error(libc::ENOSYS);
        };
        let Some(kind) = kind(&lock) else {
            return reply.error(libc::EINVAL);
        };
        let ask = ask(request.ino, &lock);
        match (request.op, kind) {
            (Op::Getlk(_), Some(kind)) => self.run_killable(request, reply, |reply| async move {
                match vfs.get_lock(&caller, ask, kind).await {
                    Ok(found) => answer(found, reply),
                    Err(error) => reply.error(reply::errno(&error)),
                }
            }),
            (Op::Setlk { wait: true, .. }, Some(kind)) => {
                let interruptible = self.interrupts.enter(request.unique);
                self.run(async move {
                    let interrupted = interruptible.signalled();
                    let done = vfs.wait_for_lock(&caller, ask, kind, interrupted).await;
                    drop(interruptible);
                    reply::empty(done, reply);
                });
            }
            (Op::Setlk { .. }, kind) => self.run(async move {
                reply::empty(vfs.set_lock(&caller, ask, kind).await, reply);
            }),
            _ => reply.error(libc::EINVAL),
        }
    }
}
