//! How a call reaches its service: narrow traits with several implementations.
//!
//! - [`local`] — within one process, as values;
//! - [`quic`] — between machines;
//! - [`fault`] — a decorator that delays, loses and repeats calls on purpose.

pub mod fault;
pub mod local;
pub mod quic;

use std::sync::Arc;

use async_trait::async_trait;

pub use fault::{FaultPlan, Faults, FaultyConnector, Target};
pub use local::LocalConnector;
pub use quic::{QuicConnector, QuicServer};

use crate::error::{Code, Error, Result};
use crate::ids::ServiceId;
use crate::message::{Answer, Call};
use crate::meta::Push;

/// Who is at the other end, as its certificate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// A service of the cell.
    Service(ServiceId),
    /// A host that may act for any of its users and administer the cell.
    Host(String),
    /// One user, who may act only as themself.
    User {
        /// The uid.
        uid: u32,
        /// The user's groups.
        gids: Vec<u32>,
    },
}

impl Peer {
    /// May it use the operations between services and of administrators?
    #[must_use]
    pub const fn is_trusted(&self) -> bool {
        matches!(self, Self::Service(_) | Self::Host(_))
    }
}

/// Sends unasked messages to one client. Given to a service with the client's calls.
#[async_trait]
pub trait Pusher: Send + Sync {
    /// Sends; an error means that the client is gone.
    async fn push(&self, push: Push) -> Result<()>;
}

/// Takes what a service sends unasked.
#[async_trait]
pub trait PushHandler: Send + Sync {
    /// Handles one message.
    async fn handle(&self, push: Push);
}

/// The two ends of a call, as a service sees them.
#[derive(Clone)]
pub struct Origin {
    /// Who calls.
    pub peer: Peer,
    /// The way back for unasked messages, while the connection lives.
    pub pusher: Option<Arc<dyn Pusher>>,
}

/// Something that answers calls: an MRC, an OSD.
///
/// A call that has not ended at its deadline is dropped where it waits; within one process also when
/// its caller is dropped. So what must not be torn apart is done between two waits, or as blocking
/// work, which ends by itself. A client that is gone does not end its calls.
#[async_trait]
pub trait Service: Send + Sync + 'static {
    /// Answers one call. Never panics, whatever it is asked.
    async fn call(&self, origin: Origin, call: Call) -> Answer;
}

/// A way to one service, kept open and made anew when it breaks.
#[async_trait]
pub trait Connection: Send + Sync + 'static {
    /// Sends a call and waits for its answer, at most until its deadline. Errors of the way
    /// itself come back as errors of the answer: [`Unreachable`](crate::Code::Unreachable) or
    /// [`TimedOut`](crate::Code::TimedOut), with whether a retry can help.
    async fn call(&self, call: Call) -> Answer;
}

/// Finds services by identity or address.
#[async_trait]
pub trait Connector: Send + Sync + 'static {
    /// The way to the MRC that hosts the directory.
    fn mrc(&self) -> Arc<dyn Connection>;
    /// The way to an OSD, looked up in the directory on first use.
    async fn osd(&self, id: ServiceId) -> Result<Arc<dyn Connection>>;
    /// Says who takes what services send unasked. Later calls replace earlier ones. The connector
    /// keeps the handler alive, so a handler holds the owner of its connector weakly.
    fn set_push_handler(&self, handler: Arc<dyn PushHandler>);
}

/// The error of a call whose answer did not come in time. The same request may be sent again.
fn timed_out(deadline_ms: u32) -> Error {
    let context = format!("no answer within {deadline_ms} ms");
    Error::retryable(Code::TimedOut, context, 0)
}
