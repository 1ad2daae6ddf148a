//! One session at the MRC, and the ways to the OSDs.
//!
//! What always holds: a change has one sequence number however often it is sent; every request
//! ends by its deadline; at most [`IN_FLIGHT_MAX`] requests are on their way to the MRC and
//! [`OSD_IN_FLIGHT_MAX`] to each OSD, so that one that is silent holds up nobody else.
//!
//! - [`numbers`] — sequence numbers;
//! - [`locks`] — the locks that are held, to be told again;
//! - [`retry`] — what to do about an error;
//! - [`renew`] — keeps the session alive;
//! - `reopen` — opens it, first and again.

pub(crate) mod locks;
pub(crate) mod numbers;
pub(crate) mod renew;
mod reopen;
pub(crate) mod retry;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use xtfs_protocol::env::Env;
use xtfs_protocol::ids::{Ino, ServiceId, SessionId, VolumeId};
use xtfs_protocol::lock::FileLock;
use xtfs_protocol::meta::{Caller, MetaOp, MetaReply};
use xtfs_protocol::object::{ObjectOp, ObjectReply};
use xtfs_protocol::transport::{Connection, Connector};
use xtfs_protocol::{Answer, Call, CallHeader, Code, Error, Reply, Request, Result};

use crate::options::ClientOptions;
use locks::Locks;
use numbers::Numbers;
use retry::Step;

/// Most requests on their way to the MRC at a time.
const IN_FLIGHT_MAX: usize = 512;
/// Most requests on their way to one OSD at a time.
const OSD_IN_FLIGHT_MAX: usize = 128;

/// Nobody knows any more what became of a request: the session that it belonged to is over.
const OUTCOME_UNKNOWN: &str =
    "the session ended before the MRC answered: what became of the request is not known";

/// A server and the requests that it may still be sent.
#[derive(Clone)]
struct Way {
    connection: Arc<dyn Connection>,
    in_flight: Arc<Semaphore>,
}

impl Way {
    fn new(connection: Arc<dyn Connection>, in_flight_max: usize) -> Self {
        Self {
            connection,
            in_flight: Arc::new(Semaphore::new(in_flight_max)),
        }
    }
}

/// The session as it stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Current {
    /// Identity.
    pub(crate) id: SessionId,
    /// The volume.
    pub(crate) volume: VolumeId,
    /// How long it lives without renewal.
    pub(crate) duration: Duration,
}

/// A client's session.
pub(crate) struct Session {
    pub(crate) env: Env,
    connector: Arc<dyn Connector>,
    mrc: Way,
    volume: String,
    client: String,
    limit: Duration,
    attempt_limit: Duration,
    current: Mutex<Current>,
    reopening: tokio::sync::Mutex<()>,
    numbers: Numbers,
    open_files: Mutex<BTreeMap<Ino, u32>>,
    pub(crate) locks: Arc<Locks>,
    lost_lock: OnceLock<Box<LostLock>>,
    osds: Mutex<BTreeMap<ServiceId, Way>>,
    trace: AtomicU64,
    object_changes: AtomicU64,
    /// Names this client to the OSDs, which put its writes in order; the same in every session.
    writer: SessionId,
    closed: AtomicBool,
    boot: Mutex<Boot>,
}

/// What is to be done about a lock that another client has by now.
type LostLock = dyn Fn(&FileLock) + Send + Sync;

/// On which start of its machine the MRC was met last, and how often that changed.
#[derive(Debug, Default)]
struct Boot {
    known: Option<u64>,
    changes: u64,
}

impl Session {
    /// Opens a session on a volume.
    pub(crate) async fn open(
        connector: Arc<dyn Connector>,
        options: &ClientOptions,
    ) -> Result<Self> {
        let limit = options.op_deadline;
        let none = Current {
            id: SessionId::default(),
            volume: VolumeId::default(),
            duration: limit,
        };
        let session = Self {
            trace: AtomicU64::new(options.env.random_u64() >> 16),
            env: options.env.clone(),
            mrc: Way::new(connector.mrc(), IN_FLIGHT_MAX),
            connector,
            volume: options.volume.clone(),
            client: options.client.clone(),
            limit,
            attempt_limit: options.attempt_deadline,
            current: Mutex::new(none),
            reopening: tokio::sync::Mutex::new(()),
            numbers: Numbers::default(),
            open_files: Mutex::new(BTreeMap::new()),
            locks: Arc::default(),
            lost_lock: OnceLock::new(),
            osds: Mutex::new(BTreeMap::new()),
            object_changes: AtomicU64::new(0),
            writer: SessionId::from_random(options.env.random()),
            closed: AtomicBool::new(false),
            boot: Mutex::default(),
        };
        session
            .reopen(SessionId::default(), session.deadline())
            .await?;
        Ok(session)
    }

    /// The session as it stands.
    pub(crate) fn current(&self) -> Current {
        *self.current.lock()
    }

    /// When an operation that starts now has to end.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.limit
    }

    /// Says what is to be done about locks that are lost with an old session. To be called once.
    pub(crate) fn on_lost_lock(&self, lost: Box<LostLock>) {
        // The first one stays.
        let _ = self.lost_lock.set(lost);
    }

    /// Remembers that a file was opened once more, for a session that is resumed.
    pub(crate) fn note_open(&self, ino: Ino) {
        *self.open_files.lock().entry(ino).or_default() += 1;
    }

    /// A file was closed once.
    pub(crate) fn note_release(&self, ino: Ino) {
        let mut files = self.open_files.lock();
        if let Some(count) = files.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                files.remove(&ino);
            }
        }
    }

    /// Asks the MRC on behalf of a caller; retries until the deadline.
    pub(crate) async fn meta(&self, caller: &Caller, op: MetaOp) -> Result<MetaReply> {
        if self.closed.load(Ordering::Acquire) && !matches!(op, MetaOp::CloseSession) {
            return Err(Error::new(Code::ShuttingDown, "this client was closed"));
        }
        let deadline = self.deadline();
        let number = is_change(&op).then(|| self.numbers.next());
        let sequence = number.as_ref().map_or(0, numbers::Number::value);
        let mut attempt = 0;
        // An attempt without an answer may have been carried out.
        let mut uncertain = false;
        loop {
            let session = self.current().id;
            let request = Request::Meta {
                caller: caller.clone(),
                op: op.clone(),
            };
            let answer = self
                .attempt(
                    &self.mrc,
                    session,
                    sequence,
                    request,
                    Bytes::new(),
                    deadline,
                )
                .await;
            let error = match answer.reply {
                Ok(Reply::Meta(reply)) => return Ok(reply),
                Ok(_) => answer_to_another_question(),
                Err(error) => error,
            };
            match retry::decide(&error, attempt) {
                Step::Fail => return Err(error),
                Step::NewSession if matches!(op, MetaOp::CloseSession) => return Err(error),
                Step::NewSession => {
                    self.reopen(session, deadline).await?;
                    if uncertain && has_one_effect(&op) && self.current().id != session {
                        return Err(Error::new(Code::Io, OUTCOME_UNKNOWN));
                    }
                }
                Step::Again(pause) => {
                    uncertain |= matches!(error.code, Code::TimedOut | Code::Unreachable);
                    self.wait(pause, deadline, "mrc", error).await?;
                }
            }
            attempt += 1;
        }
    }

    /// Asks an OSD; retries until the deadline. Errors about the capability are the caller's.
    pub(crate) async fn object(
        &self,
        osd: ServiceId,
        op: ObjectOp,
        payload: Bytes,
        deadline: Instant,
    ) -> Result<(ObjectReply, Bytes)> {
        let mut attempt = 0;
        loop {
            let outcome = self
                .object_once(osd, op.clone(), payload.clone(), deadline)
                .await;
            let error = match outcome {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            match retry::decide(&error, attempt) {
                Step::Again(pause) => {
                    self.wait(pause, deadline, &format!("osd {osd}"), error)
                        .await?;
                }
                _ => return Err(error),
            }
            attempt += 1;
        }
    }

    /// Makes every change of this session so far durable at the MRC.
    pub(crate) async fn sync(&self) -> Result<()> {
        if let Some(last) = self.numbers.undurable() {
            let MetaReply::Synced { boot } = self.meta(&Caller::root(), MetaOp::Sync).await? else {
                return Err(Error::new(Code::Protocol, "mrc: unexpected kind of answer"));
            };
            self.note_boot(boot);
            self.numbers.made_durable(last);
        }
        Ok(())
    }

    /// Counts the restarts of the MRC's machine as far as they are known. When the number differs
    /// between a change and the sync behind it, the change may be lost.
    pub(crate) fn restarts(&self) -> u64 {
        self.boot.lock().changes
    }

    fn note_boot(&self, boot: u64) {
        let mut state = self.boot.lock();
        let known = state.known.replace(boot);
        state.changes += u64::from(known.is_some_and(|known| known != boot));
    }

    /// Ends the session.
    pub(crate) async fn close(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.meta(&Caller::root(), MetaOp::CloseSession)
            .await
            .map(|_| ())
    }

    async fn object_once(
        &self,
        osd: ServiceId,
        op: ObjectOp,
        payload: Bytes,
        deadline: Instant,
    ) -> Result<(ObjectReply, Bytes)> {
        let known = self.osds.lock().get(&osd).cloned();
        let way = match known {
            Some(way) => way,
            None => {
                let connection = within(deadline, self.connector.osd(osd)).await??;
                let way = || Way::new(connection, OSD_IN_FLIGHT_MAX);
                self.osds.lock().entry(osd).or_insert_with(way).clone()
            }
        };
        // A new number for each attempt: one that comes late must not undo what was sent after it,
        // also not after a change of the session.
        let sequence = match op {
            ObjectOp::Write { .. } | ObjectOp::PunchHole { .. } => {
                self.object_changes.fetch_add(1, Ordering::Relaxed) + 1
            }
            _ => 0,
        };
        let answer = self
            .attempt(
                &way,
                self.writer,
                sequence,
                Request::Object(op),
                payload,
                deadline,
            )
            .await;
        match answer.reply? {
            Reply::Object(reply) => Ok((reply, answer.payload)),
            _ => Err(Error::new(
                Code::Protocol,
                format!("osd {osd}: answer to another question"),
            )),
        }
    }

    async fn attempt(
        &self,
        way: &Way,
        session: SessionId,
        sequence: u64,
        request: Request,
        payload: Bytes,
        deadline: Instant,
    ) -> Answer {
        let limit = self
            .attempt_limit
            .min(deadline.saturating_duration_since(Instant::now()));
        let header = CallHeader {
            session,
            sequence,
            answered: self.numbers.answered(),
            deadline_ms: u32::try_from(limit.as_millis()).unwrap_or(u32::MAX).max(1),
            trace: self.trace.fetch_add(1, Ordering::Relaxed),
        };
        let call = Call {
            header,
            request,
            payload,
        };
        let work = async {
            let Ok(_place) = way.in_flight.acquire().await else {
                return Answer::new(Err(Code::ShuttingDown.into()));
            };
            way.connection.call(call).await
        };
        tokio::time::timeout(limit, work)
            .await
            .unwrap_or_else(|_| Answer::new(Err(Code::TimedOut.into())))
    }

    /// Waits before the next attempt, or gives up with a log line that names the peer.
    async fn wait(
        &self,
        pause: Duration,
        deadline: Instant,
        peer: &str,
        error: Error,
    ) -> Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let error = error.within(format!("{peer}: no answer within {:?}", self.limit));
            tracing::error!(peer, %error, "gave up");
            return Err(Error {
                code: Code::TimedOut,
                ..error
            });
        }
        tracing::debug!(peer, %error, ?pause, "asking again");
        tokio::time::sleep(pause.min(left)).await;
        Ok(())
    }
}

fn answer_to_another_question() -> Error {
    Error::new(Code::Protocol, "mrc: answer to another question")
}

/// Waits for `work`, at most until the deadline.
pub(crate) async fn within<T>(deadline: Instant, work: impl Future<Output = T>) -> Result<T> {
    tokio::time::timeout_at(deadline, work)
        .await
        .map_err(|_| Error::new(Code::TimedOut, "waiting for another operation"))
}

/// Must the operation not be done a second time in a session that knows nothing of the first? What
/// a client tells of its own files may.
fn has_one_effect(op: &MetaOp) -> bool {
    let may_repeat = matches!(
        op,
        MetaOp::Update { .. }
            | MetaOp::Release { .. }
            | MetaOp::TruncateDone { .. }
            | MetaOp::TakeBack { .. }
    );
    is_change(op) && !may_repeat
}

/// Does the operation change something that must not be done twice?
fn is_change(op: &MetaOp) -> bool {
    match op {
        MetaOp::Setattr { .. }
        | MetaOp::TruncateDone { .. }
        | MetaOp::Mknod { .. }
        | MetaOp::Mkdir { .. }
        | MetaOp::Symlink { .. }
        | MetaOp::Link { .. }
        | MetaOp::Unlink { .. }
        | MetaOp::Rmdir { .. }
        | MetaOp::Rename { .. }
        | MetaOp::Create { .. }
        | MetaOp::Release { .. }
        | MetaOp::Update { .. }
        | MetaOp::TakeBack { .. }
        | MetaOp::Setxattr { .. }
        | MetaOp::Removexattr { .. }
        | MetaOp::SetLock { .. }
        | MetaOp::CancelLock { .. } => true,
        MetaOp::Open { open, .. } => open.truncate,
        _ => false,
    }
}
