//! Locks of a volume: each operation has one effect, however often it is sent.
//!
//! They take the writer like changes of the namespace, for as long as it takes to look at a table
//! in memory, so that the end of a session comes before or after them and never in between.

use std::sync::Arc;

use xtfs_protocol::ids::SessionId;
use xtfs_protocol::meta::MetaReply;
use xtfs_protocol::transport::Pusher;
use xtfs_protocol::{Code, Error, Result, Retry};

use super::{Change, Volume};
use crate::session::Kept;

impl Volume {
    /// Carries out an operation on locks.
    pub fn change_locks(&self, change: &Change<'_>) -> Result<MetaReply> {
        let _writer = self.writer.lock();
        match self.known(change)? {
            None => {}
            Some(Kept::Answered(reply)) => return Ok(*reply),
            Some(Kept::Failed(error)) => return Err(error),
            Some(Kept::Stored | Kept::Restored) => {
                let context = format!("request {} was another one", change.sequence);
                return Err(Error::new(Code::Protocol, context));
            }
        }
        let answer = self.locks.lock().answer(change.session, change.op);
        let kept = match &answer {
            Ok(reply) => Kept::Answered(Box::new(reply.clone())),
            Err(error) if error.retry == Retry::Never => Kept::Failed(error.clone()),
            Err(_) => return answer,
        };
        if change.sequence > 0 {
            let mut sessions = self.sessions.lock();
            sessions.remember(change.session, change.sequence, kept);
        }
        answer
    }

    /// Waits that ended well since it was asked last, and how their clients are reached.
    pub fn take_given_locks(&self) -> Vec<(Arc<dyn Pusher>, u64)> {
        let given: Vec<(SessionId, u64)> = self.locks.lock().take_given();
        let reached = given.into_iter().filter_map(|(session, wait)| {
            // Who cannot be reached asks again.
            Some((self.pusher(session)?, wait))
        });
        reached.collect()
    }
}
