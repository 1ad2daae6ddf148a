//! Advisory locks, as applications ask for them.
//!
//! Every lock is the MRC's to give. Between two clients a lock is also the moment at which they see
//! each other's bytes: what was written is sent before a lock is freed, and what is cached is
//! compared with the MRC when one was got.
//!
//! A wait keeps no request open: the MRC answers at once that somebody is in the way, and pushes
//! when the lock is given. A push can be lost, so the client also asks, every [`ASK_AGAIN`]. An open
//! request for each wait would be simpler, but would count against the requests that a client may
//! have on their way, and would have to be ended and made anew within every deadline all the same.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use xtfs_protocol::lock::{FileLock, LockKind, LockRange, LockSpace, LockState, LockTarget};
use xtfs_protocol::meta::{Caller, MetaOp, MetaReply};
use xtfs_protocol::{Code, Error, Result};

use super::{Inner, Vfs, unexpected};
use crate::session::locks::Waiting;

/// How long a wait lasts until the MRC is asked how it stands, should its push be lost.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// How long the end of a wait may take until its caller goes on without knowing.
const CANCEL_MAX: Duration = Duration::from_secs(1);
/// Operation deadlines for which the end of an owner is tried to be told.
const FREE_TRIES: u32 = 5;

/// The lock that is meant.
#[derive(Debug, Clone, Copy)]
pub struct LockAsk {
    /// On what, and for whom.
    pub target: LockTarget,
    /// Which bytes.
    pub range: LockRange,
    /// Through which open file or directory.
    pub handle: u64,
}

/// How a wait ended.
enum Ended {
    Granted,
    Interrupted,
}

impl Vfs {
    /// The lock of another owner that is in the way, if one is.
    ///
    /// # Errors
    /// The MRC does not answer.
    pub async fn get_lock(
        &self,
        caller: &Caller,
        ask: LockAsk,
        kind: LockKind,
    ) -> Result<Option<FileLock>> {
        let op = MetaOp::GetLock {
            target: ask.target,
            range: ask.range,
            kind,
        };
        match self.inner.session.meta(caller, op).await? {
            MetaReply::Conflict(lock) => Ok(lock),
            _ => Err(unexpected()),
        }
    }

    /// Locks without waiting for others, or frees with `None`.
    ///
    /// # Errors
    /// `WouldBlock` when another owner is in the way, `NoLocks` when there are as many as are kept.
    pub async fn set_lock(
        &self,
        caller: &Caller,
        ask: LockAsk,
        kind: Option<LockKind>,
    ) -> Result<()> {
        let inner = &self.inner;
        if kind.is_none() {
            inner.send_before_freeing(ask.target.ino).await;
        }
        inner.exchange(caller, ask, kind, None).await?;
        match kind {
            Some(_) => inner.locked(caller, ask).await,
            None => Ok(()),
        }
    }

    /// Locks, and waits for that as long as it takes, or until `interrupted` is ready.
    ///
    /// # Errors
    /// `Deadlock`, `Interrupted`, `NoLocks`; the MRC does not answer by the deadline.
    pub async fn wait_for_lock(
        &self,
        caller: &Caller,
        ask: LockAsk,
        kind: LockKind,
        interrupted: impl Future<Output = ()> + Send,
    ) -> Result<()> {
        let wait = Arc::new(self.inner.session.locks.wait());
        match self
            .inner
            .wait(caller, ask, kind, &wait, interrupted)
            .await?
        {
            Ended::Granted => self.inner.locked(caller, ask).await,
            Ended::Interrupted => Err(Code::Interrupted.into()),
        }
    }

    /// A process closed one of its descriptors of a file: it has no record locks of it any more.
    ///
    /// # Errors
    /// The MRC does not answer; it is told later.
    pub async fn close_owner(&self, handle: u64, owner: u64) -> Result<()> {
        let ino = self.inner.file(handle)?.inode.ino;
        let space = LockSpace::Record;
        if !self.inner.session.locks.has(ino, space, owner) {
            return Ok(());
        }
        let target = LockTarget {
            ino,
            space,
            owner,
            pid: 0,
        };
        self.inner.free_all(target, handle).await
    }

    /// Does an owner here have a lock of the file? Then every close of it has to be heard of.
    #[must_use]
    pub fn has_locks(&self, ino: u64) -> bool {
        self.inner.session.locks.has_any(ino)
    }
}

impl Inner {
    /// Frees what owners locked through a handle that is closed for good.
    pub(crate) async fn release_locks(self: &Arc<Self>, ino: u64, handle: u64) {
        for target in self.session.locks.close(ino, handle) {
            if let Err(error) = self.free_all(target, handle).await {
                tracing::warn!(ino, %error, "the MRC was not told that locks are free");
            }
        }
    }

    /// The session ran out, and another client has a lock that was held here: who writes relying on
    /// it has to know.
    pub(crate) fn lost_lock(&self, lock: &FileLock) {
        let ino = lock.target.ino;
        let text = format!(
            "a lock of process {} was lost to another client",
            lock.target.pid
        );
        tracing::error!(ino, "{text}");
        if let Some(inode) = self.inodes.get(ino) {
            inode.state.lock().errors.note(Error::new(Code::Io, text));
        }
    }

    /// Frees all of an owner's locks of a file. When the MRC does not answer, it is told later: it
    /// must not take a lock for held that nobody holds.
    async fn free_all(self: &Arc<Self>, target: LockTarget, handle: u64) -> Result<()> {
        let ask = LockAsk {
            target,
            range: LockRange::ALL,
            handle,
        };
        let caller = Caller::root();
        let freed = self.exchange(&caller, ask, None, None).await;
        if let Err(error) = &freed
            && error.code == Code::TimedOut
        {
            let inner = Arc::clone(self);
            self.tasks.spawn(async move {
                for _ in 0..FREE_TRIES {
                    let freed = inner.exchange(&caller, ask, None, None).await;
                    if !freed.is_err_and(|error| error.code == Code::TimedOut) {
                        return;
                    }
                }
                tracing::error!(
                    ino = target.ino,
                    "a lock that is free could not be given back"
                );
            });
        }
        freed.map(|_| ())
    }

    /// Asks the MRC once and keeps in mind what it answers. One exchange for a file at a time, so
    /// that answers are taken in in the order in which the MRC gave them.
    async fn exchange(
        self: &Arc<Self>,
        caller: &Caller,
        ask: LockAsk,
        kind: Option<LockKind>,
        wait: Option<u64>,
    ) -> Result<LockState> {
        let inode = self.pin(ask.target.ino);
        let _turn = inode.locking.lock().await;
        let op = MetaOp::SetLock {
            target: ask.target,
            range: ask.range,
            kind,
            wait,
        };
        let MetaReply::Lock(state) = self.session.meta(caller, op).await? else {
            return Err(unexpected());
        };
        if state == LockState::Held {
            let locks = &self.session.locks;
            locks.note(&ask.target, ask.range, kind, ask.handle);
        }
        Ok(state)
    }

    async fn wait(
        self: &Arc<Self>,
        caller: &Caller,
        ask: LockAsk,
        kind: LockKind,
        wait: &Arc<Waiting>,
        interrupted: impl Future<Output = ()> + Send,
    ) -> Result<Ended> {
        let mut interrupted = std::pin::pin!(interrupted);
        loop {
            let asking = {
                let (inner, caller) = (Arc::clone(self), caller.clone());
                let number = wait.number;
                async move { inner.exchange(&caller, ask, Some(kind), Some(number)).await }
            };
            let mut asking = Box::pin(asking);
            let state = tokio::select! {
                state = &mut asking => state?,
                () = &mut interrupted => {
                    // The MRC may give the lock yet: it is given back when it has answered.
                    let (inner, wait) = (Arc::clone(self), Arc::clone(wait));
                    let caller = caller.clone();
                    self.tasks.spawn(async move {
                        let asked = asking.await;
                        inner.take_back(&caller, ask, kind, &wait, asked).await;
                    });
                    return Ok(Ended::Interrupted);
                }
            };
            if state == LockState::Held {
                return Ok(Ended::Granted);
            }
            tokio::select! {
                () = wait.told.notified() => {}
                () = tokio::time::sleep(ASK_AGAIN) => {}
                () = &mut interrupted => return self.cancel(caller, ask, kind, wait).await,
            }
        }
    }

    /// Ends a wait, unless the lock was given meanwhile.
    async fn cancel(
        self: &Arc<Self>,
        caller: &Caller,
        ask: LockAsk,
        kind: LockKind,
        wait: &Arc<Waiting>,
    ) -> Result<Ended> {
        let (inner, caller) = (Arc::clone(self), caller.clone());
        let number = wait.number;
        let (tell, mut told) = tokio::sync::oneshot::channel();
        let kept = Arc::clone(wait);
        // On its own: whoever is interrupted is not kept waiting for an MRC that does not answer.
        self.tasks.spawn(async move {
            let _kept = kept;
            let turn = inner.pin(ask.target.ino);
            let _turn = turn.locking.lock().await;
            let op = MetaOp::CancelLock { wait: number };
            let answer = inner.session.meta(&caller, op).await;
            let held = matches!(answer, Ok(MetaReply::Lock(LockState::Held)));
            if held {
                let locks = &inner.session.locks;
                locks.note(&ask.target, ask.range, Some(kind), ask.handle);
            }
            if let Err(error) = &answer {
                tracing::warn!(%error, "the MRC was not told of the end of a wait");
            }
            if tell.send(held).is_err() && held {
                drop(_turn);
                let freed = inner.exchange(&caller, ask, None, None).await;
                if let Err(error) = freed {
                    tracing::warn!(%error, "a lock that nobody waits for was not given back");
                }
            }
        });
        let held = match tokio::time::timeout(CANCEL_MAX, &mut told).await {
            Ok(held) => held.unwrap_or(false),
            Err(_) => {
                told.close();
                told.try_recv().unwrap_or(false)
            }
        };
        Ok(if held {
            Ended::Granted
        } else {
            Ended::Interrupted
        })
    }

    /// Gives back what the MRC answered to a wait that was interrupted.
    async fn take_back(
        self: &Arc<Self>,
        caller: &Caller,
        ask: LockAsk,
        kind: LockKind,
        wait: &Arc<Waiting>,
        asked: Result<LockState>,
    ) {
        let held = match asked {
            Ok(LockState::Held) => true,
            Ok(_) => matches!(
                self.cancel(caller, ask, kind, wait).await,
                Ok(Ended::Granted)
            ),
            Err(_) => false,
        };
        if held && let Err(error) = self.exchange(caller, ask, None, None).await {
            tracing::warn!(%error, "a lock that nobody waits for was not given back");
        }
    }

    /// What was written under a lock is sent before others get it. Errors are noted for every
    /// handle.
    async fn send_before_freeing(self: &Arc<Self>, ino: u64) {
        if let Some(inode) = self.inodes.get(ino)
            && let Err(error) = self.flush_inode(&inode).await
        {
            tracing::warn!(ino, %error, "not everything was sent before a lock was freed");
        }
    }

    /// What others wrote under their locks is seen under ours.
    async fn locked(self: &Arc<Self>, caller: &Caller, ask: LockAsk) -> Result<()> {
        let ino = ask.target.ino;
        let Err(error) = self.refresh(ino).await else {
            return Ok(());
        };
        if matches!(error.code, Code::NotFound | Code::Stale) {
            return Ok(());
        }
        self.exchange(caller, ask, None, None).await?;
        Err(error)
    }

    async fn refresh(self: &Arc<Self>, ino: u64) -> Result<()> {
        let inode = self.pin(ino);
        {
            let deadline = self.session.deadline();
            let _turn = crate::session::within(deadline, inode.renewing.lock()).await?;
            let is_open = inode.state.lock().access.is_some();
            if !is_open {
                return Ok(());
            }
            self.reopen(&inode, false).await?;
        }
        let content = std::mem::take(&mut inode.state.lock().kernel_stale);
        let invalidate = self.invalidate.read().clone();
        if let Some(invalidate) = invalidate {
            let work = self.session.env.blocking(move || {
                if content {
                    invalidate.inode(ino);
                } else {
                    invalidate.attributes(ino);
                }
            });
            work.await
                .ok_or_else(|| Error::new(Code::Io, "the kernel could not be told of a change"))?;
        }
        Ok(())
    }
}
