//! How much a server takes on at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{Code, Error, Result};
use crate::message::{BODY_BYTES_MAX, PAYLOAD_BYTES_MAX, Request};
use crate::meta::MetaOp;
use crate::object::ObjectOp;

/// Bounds of a server. More requests than these are answered with [`Code::Busy`]; bytes first wait
/// a while for their turn, which holds the sender back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections. Each takes some hundred KiB when it is idle.
    pub connections: u32,
    /// Requests in flight of one connection.
    pub requests_per_connection: u32,
    /// Requests in flight of all connections.
    pub requests: u32,
    /// Bytes of requests and answers in flight of one connection.
    pub bytes_per_connection: u32,
    /// Bytes of requests and answers in flight of all connections: doubling it doubles the memory
    /// that a busy server uses at most.
    pub bytes: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            requests_per_connection: 256,
            requests: 4096,
            bytes_per_connection: 128 << 20,
            bytes: 512 << 20,
        }
    }
}

/// Largest message: a connection has room for one at least.
const MESSAGE_BYTES_MAX: usize = BODY_BYTES_MAX + PAYLOAD_BYTES_MAX;

/// How long bytes wait for room.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(2);

/// How long a client that was turned away should pause.
const PAUSE_MS: u32 = 20;

/// One pair of bounds.
#[derive(Clone)]
struct Bounds {
    requests: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

impl Bounds {
    fn new(requests: u32, bytes: u32) -> Self {
        let bytes = (bytes as usize).max(MESSAGE_BYTES_MAX);
        Self {
            requests: Arc::new(Semaphore::new(requests.max(1) as usize)),
            bytes: Arc::new(Semaphore::new(bytes)),
        }
    }
}

/// What all connections of a server share.
#[derive(Clone)]
pub(super) struct ServiceGate {
    limits: Limits,
    service: Bounds,
}

impl ServiceGate {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            service: Bounds::new(limits.requests, limits.bytes),
        }
    }

    /// The gate of a new connection.
    pub(super) fn connection(&self) -> Gate {
        let connection = Bounds::new(
            self.limits.requests_per_connection,
            self.limits.bytes_per_connection,
        );
        Gate([connection, self.service.clone()])
    }
}

/// Lets the requests of one connection in: first by the connection's bounds, then by the service's.
pub(super) struct Gate([Bounds; 2]);

/// Room that was given; dropping it gives it back.
pub(super) type Pass = [OwnedSemaphorePermit; 2];

impl Gate {
    /// Lets a request in, or says that there are too many.
    pub(super) fn request(&self) -> Result<Pass> {
        let [connection, service] = &self.0;
        match (
            connection.requests.clone().try_acquire_owned(),
            service.requests.clone().try_acquire_owned(),
        ) {
            (Ok(connection), Ok(service)) => Ok([connection, service]),
            _ => Err(busy("too many requests at once")),
        }
    }

    /// Waits a while for room for bytes.
    pub(super) async fn bytes(&self, bytes: usize) -> Result<Pass> {
        let bytes = u32::try_from(bytes.min(MESSAGE_BYTES_MAX)).unwrap_or(u32::MAX);
        let [connection, service] = &self.0;
        let both = async {
            let connection = connection.bytes.clone().acquire_many_owned(bytes).await;
            let service = service.bytes.clone().acquire_many_owned(bytes).await;
            connection.ok().zip(service.ok())
        };
        match tokio::time::timeout(ROOM_WAIT_MAX, both).await {
            Ok(Some((connection, service))) => Ok([connection, service]),
            _ => Err(busy("too many bytes at once")),
        }
    }
}

fn busy(why: &str) -> Error {
    Error::retryable(Code::Busy, why, PAUSE_MS)
}

/// About how many bytes the answer to a request may take, where that is worth counting. Requests
/// with large payloads have small answers: they never hold room while they wait for more.
pub(super) fn large_answer(request: &Request) -> Option<usize> {
    let page = |entries: u32, most: u32, each: usize| entries.min(most) as usize * each;
    match request {
        Request::Object(ObjectOp::Read { length, .. }) => {
            Some((*length as usize).min(PAYLOAD_BYTES_MAX))
        }
        Request::Object(ObjectOp::List { limit, .. } | ObjectOp::Verify { limit, .. }) => {
            Some(page(*limit, ObjectOp::PAGE_OBJECTS_MAX, 64))
        }
        Request::Meta {
            op: MetaOp::Readdir { limit, .. } | MetaOp::ListFiles { limit, .. },
            ..
        } => Some(page(*limit, MetaOp::PAGE_ENTRIES_MAX, 512)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_does_not_fit_is_turned_away_and_fits_again_later() {
        let gate = ServiceGate::new(Limits {
            requests_per_connection: 2,
            requests: 3,
            ..Limits::default()
        });
        let (one, two) = (gate.connection(), gate.connection());
        let first = one.request().unwrap();
        let _second = one.request().unwrap();
        let third = two.request().unwrap();
        assert_eq!(one.request().err().unwrap().code, Code::Busy);
        assert_eq!(two.request().err().unwrap().code, Code::Busy);
        drop(third);
        assert!(one.request().is_err(), "the connection's own bound");
        assert!(two.request().is_ok());
        drop(first);
        assert!(one.request().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_wait_for_room_but_not_for_ever() {
        let gate = ServiceGate::new(Limits {
            bytes: 0,
            ..Limits::default()
        })
        .connection();
        let all = gate.bytes(usize::MAX).await.unwrap();
        assert_eq!(gate.bytes(1).await.err().unwrap().code, Code::Busy);
        let (granted, ()) = tokio::join!(gate.bytes(1), async { drop(all) });
        assert!(granted.is_ok());
    }
}
