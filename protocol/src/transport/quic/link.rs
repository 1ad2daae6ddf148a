//! The way to one peer: a connection that is kept open, made when it is first needed and made anew
//! when it broke.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::Shared;
use parking_lot::Mutex;
use quinn::Connection as QuicConnection;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::dial::Dialer;
use super::push::{self, HandlerSlot};
use super::stream::{self, MessageReader};
use crate::env::Env;
use crate::error::{Code, Error, Result, Retry};
use crate::frame::{self, Kind};
use crate::message::{Answer, Call};
use crate::transport::{Connection, timed_out};

/// Pause after the first try that failed; doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// Longest pause between tries.
const PAUSE_MAX: Duration = Duration::from_secs(3);

/// What the links of one connector share.
pub(super) struct Common {
    pub(super) env: Env,
    pub(super) handler: HandlerSlot,
    /// Tasks that take pushes, one for each connection; `None` once the connector is shut down.
    pub(super) tasks: Mutex<Option<JoinSet<()>>>,
}

impl Common {
    /// Takes the pushes of a new connection from now on.
    fn receive_pushes(&self, connection: &QuicConnection) {
        if let Some(tasks) = self.tasks.lock().as_mut() {
            while tasks.try_join_next().is_some() {}
            tasks.spawn(push::receive(connection.clone(), self.handler.clone()));
        }
    }
}

/// All callers that need a connection wait for the same try.
type Attempt = Shared<Pin<Box<dyn Future<Output = Result<QuicConnection>> + Send>>>;

/// A way to one peer.
pub(super) struct Link {
    dialer: Arc<Dialer>,
    common: Arc<Common>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connection: Option<QuicConnection>,
    attempt: Option<Attempt>,
    /// Tries that failed since the last that did not.
    failures: u32,
    /// No try before this, and why the last one failed.
    pause: Option<(Instant, Error)>,
}

enum Next {
    Connected(QuicConnection),
    Wait(Attempt),
}

impl Link {
    pub(super) fn new(dialer: Dialer, common: Arc<Common>) -> Self {
        Self {
            dialer: Arc::new(dialer),
            common,
            state: Mutex::default(),
        }
    }

    /// The connection, as it is or made anew.
    async fn connection(&self) -> Result<QuicConnection> {
        match self.next()? {
            Next::Connected(connection) => Ok(connection),
            Next::Wait(attempt) => {
                let outcome = attempt.clone().await;
                self.settle(&attempt, &outcome);
                outcome
            }
        }
    }

    fn next(&self) -> Result<Next> {
        let mut state = self.state.lock();
        if let Some(connection) = &state.connection {
            if connection.close_reason().is_none() {
                return Ok(Next::Connected(connection.clone()));
            }
            state.connection = None;
        }
        if let Some(attempt) = &state.attempt {
            return Ok(Next::Wait(attempt.clone()));
        }
        if let Some((until, error)) = &state.pause {
            let left = until.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                let mut error = error.clone();
                if let Retry::After(pause_ms) = &mut error.retry {
                    *pause_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1);
                }
                return Err(error);
            }
        }
        let dialer = self.dialer.clone();
        let attempt = async move { dialer.dial().await }.boxed().shared();
        state.attempt = Some(attempt.clone());
        Ok(Next::Wait(attempt))
    }

    /// The first caller whose attempt it was takes note of how it ended.
    fn settle(&self, attempt: &Attempt, outcome: &Result<QuicConnection>) {
        let mut state = self.state.lock();
        if !state.attempt.as_ref().is_some_and(|a| a.ptr_eq(attempt)) {
            return;
        }
        state.attempt = None;
        match outcome {
            Ok(connection) => {
                state.connection = Some(connection.clone());
                state.failures = 0;
                state.pause = None;
                drop(state);
                self.common.receive_pushes(connection);
            }
            Err(error) => {
                let pause = pause(state.failures, &self.common.env);
                state.failures = state.failures.saturating_add(1);
                state.pause = Some((Instant::now() + pause, error.clone()));
            }
        }
    }

    async fn exchange(&self, mut call: Call, deadline: Instant) -> Result<Answer> {
        let connection = self.connection().await?;
        let about = |error: Error| error.within(self.dialer.who());
        let opened = connection.open_bi().await;
        let (mut send, recv) = opened.map_err(|error| about(stream::lost(&error)))?;
        let left = deadline.saturating_duration_since(Instant::now());
        call.header.deadline_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
        let head = frame::encode_request(&call)?;
        stream::write(&mut send, head, call.payload)
            .await
            .map_err(about)?;
        let mut reader = MessageReader::new(recv);
        read_answer(&mut reader).await.map_err(about).inspect(|_| {
            reader.finish();
        })
    }
}

/// Waits between tries: longer each time, and different for each client.
fn pause(failures: u32, env: &Env) -> Duration {
    let factor = 2_u32.saturating_pow(failures);
    let pause = PAUSE_MIN.saturating_mul(factor).min(PAUSE_MAX);
    let percent = u32::try_from(env.random_u64() % 50).unwrap_or_default();
    pause.saturating_mul(75 + percent) / 100
}

/// An error of the way, not of the service, when it is an error.
async fn read_answer(reader: &mut MessageReader) -> Result<Answer> {
    let (header, bytes) = reader.header().await?;
    if header.kind != Kind::Reply {
        return Err(Error::new(Code::Protocol, "not a reply"));
    }
    let body = reader.body(&header, &bytes).await?;
    let reply = frame::decode_reply(&body);
    let payload = reader.payload(header.payload_bytes).await?;
    Ok(Answer { reply, payload })
}

#[async_trait]
impl Connection for Link {
    async fn call(&self, call: Call) -> Answer {
        let deadline_ms = call.header.deadline_ms;
        let deadline = Instant::now() + Duration::from_millis(u64::from(deadline_ms));
        match timeout_at(deadline, self.exchange(call, deadline)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Answer::new(Err(error)),
            Err(_) => {
                let error = timed_out(deadline_ms).within(self.dialer.who());
                Answer::new(Err(error))
            }
        }
    }
}
