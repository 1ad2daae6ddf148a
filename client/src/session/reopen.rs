//! Opening the session: at first, after a restart of the MRC, and when it ran out.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use xtfs_protocol::ids::SessionId;
use xtfs_protocol::meta::{Caller, MetaOp, MetaReply, SessionInfo};
use xtfs_protocol::{Error, Reply, Request, Result};

use super::retry::{self, Step};
use super::{Current, Session, answer_to_another_question, within};

impl Session {
    /// Opens the session anew, unless somebody did so since `old` was current.
    pub(super) async fn reopen(&self, old: SessionId, deadline: Instant) -> Result<()> {
        let _turn = within(deadline, self.reopening.lock()).await?;
        if self.current().id != old {
            return Ok(());
        }
        let mut resume = (old != SessionId::default()).then_some(old);
        loop {
            let info = self.open_session(resume, deadline).await?;
            self.note_boot(info.boot);
            // A resumed session gets no new locks before it has told its old ones, even if none.
            if resume.is_none() || self.reclaim_locks(info.id, deadline).await? {
                *self.current.lock() = Current {
                    id: info.id,
                    volume: info.volume.id,
                    duration: Duration::from_millis(u64::from(info.duration_ms)),
                };
                return Ok(());
            }
            resume = Some(info.id);
        }
    }

    async fn open_session(
        &self,
        resume: Option<SessionId>,
        deadline: Instant,
    ) -> Result<SessionInfo> {
        let op = MetaOp::OpenSession {
            volume: self.volume.clone(),
            client: self.client.clone(),
            resume,
            open_files: self.open_files.lock().keys().copied().collect(),
        };
        let named = |error: Error| error.within(format!("volume {:?}", self.volume));
        match self
            .insist(SessionId::default(), 0, op, deadline)
            .await
            .map_err(named)?
        {
            Some(MetaReply::Session(info)) => Ok(info),
            _ => Err(named(answer_to_another_question())),
        }
    }

    /// Tells the locks that are held. False when the session ended meanwhile.
    async fn reclaim_locks(&self, session: SessionId, deadline: Instant) -> Result<bool> {
        let locks = self.locks.all();
        let mut parts = locks.chunks(MetaOp::LOCKS_MAX).peekable();
        loop {
            let part = parts.next().unwrap_or(&[]);
            let end = parts.peek().is_none();
            let op = MetaOp::ReclaimLocks {
                locks: part.to_vec(),
                end,
            };
            let number = self.numbers.next();
            match self.insist(session, number.value(), op, deadline).await? {
                Some(MetaReply::LostLocks(lost)) => {
                    for lock in &lost {
                        self.locks.lost(lock);
                        if let Some(tell) = self.lost_lock.get() {
                            tell(lock);
                        }
                    }
                }
                Some(_) => return Err(answer_to_another_question()),
                None => return Ok(false),
            }
            if end {
                return Ok(true);
            }
        }
    }

    /// Asks the MRC until it answers or the deadline passes; `None` when the session ended.
    async fn insist(
        &self,
        session: SessionId,
        sequence: u64,
        op: MetaOp,
        deadline: Instant,
    ) -> Result<Option<MetaReply>> {
        let mut attempt = 0;
        loop {
            let request = Request::Meta {
                caller: Caller::root(),
                op: op.clone(),
            };
            let payload = Bytes::new();
            let answer = self
                .attempt(&self.mrc, session, sequence, request, payload, deadline)
                .await;
            let error = match answer.reply {
                Ok(Reply::Meta(reply)) => return Ok(Some(reply)),
                Ok(_) => answer_to_another_question(),
                Err(error) => error,
            };
            match retry::decide(&error, attempt) {
                Step::Again(pause) => self.wait(pause, deadline, "mrc", error).await?,
                Step::NewSession => return Ok(None),
                Step::Fail => return Err(error),
            }
            attempt += 1;
        }
    }
}
