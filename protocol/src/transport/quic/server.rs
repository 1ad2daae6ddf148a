//! Takes connections and answers their calls.
//!
//! Tasks and who owns them: the server owns the accepting task, that one owns a task for each
//! connection, and that one a task for each request. Stopping goes down the same way: no new
//! connections, no new requests, the running ones are answered, and what is left at the limit is
//! dropped from the top.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::{Connection, Endpoint, Incoming, RecvStream, SendStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::Instrument;

use super::limits::{Gate, Limits, Pass, ServiceGate, large_answer};
use super::push::QuicPusher;
use super::socket::DatagramSocket;
use super::stream::{self, DONE, MessageReader};
use super::{settings, tls};
use crate::cell::Identity;
use crate::env::Env;
use crate::error::{Code, Error, Result};
use crate::frame::{self, HEADER_BYTES, Header, Kind};
use crate::message::{Answer, Call};
use crate::transport::{Origin, Service, timed_out};

/// How long a handshake may take.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// How long a header may take to arrive, once its stream is open.
const HEADER_LIMIT: Duration = Duration::from_secs(10);

/// How long an answer may take to leave.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Longest time to answer that a request may ask for.
const DEADLINE_MAX: Duration = Duration::from_secs(600);

/// How long goodbyes may take to reach the clients.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);

/// A service on a UDP port. Dropping it ends it at once; [`QuicServer::shutdown`] ends it in
/// order.
pub struct QuicServer {
    endpoint: Endpoint,
    local_addr: SocketAddr,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl QuicServer {
    /// Starts to serve on an address of this machine; port 0 takes a free one. Needs a tokio
    /// runtime.
    ///
    /// # Errors
    /// [`Code::Io`] when the address cannot be used, [`Code::Invalid`] for an identity that is not
    /// a service's.
    pub fn bind(
        addr: SocketAddr,
        identity: &Identity,
        service: Arc<dyn Service>,
        env: &Env,
    ) -> Result<Self> {
        let socket = DatagramSocket::bind(addr)?;
        Self::with_socket(socket, identity, service, env, Limits::default())
    }

    /// Starts to serve on a socket, within limits.
    ///
    /// # Errors
    /// As [`QuicServer::bind`].
    pub fn with_socket(
        socket: DatagramSocket,
        identity: &Identity,
        service: Arc<dyn Service>,
        env: &Env,
        limits: Limits,
    ) -> Result<Self> {
        if !matches!(identity.peer(), crate::transport::Peer::Service(_)) {
            let context = "only the identity of a service can serve";
            return Err(Error::new(Code::Invalid, context));
        }
        let endpoint = settings::server_endpoint(socket, identity, &limits, env)?;
        let local_addr = endpoint
            .local_addr()
            .map_err(|error| Error::new(Code::Io, format!("local address: {error}")))?;
        let (stop, stopped) = watch::channel(false);
        let acceptor = Acceptor {
            endpoint: endpoint.clone(),
            service,
            gate: ServiceGate::new(limits),
            connections_max: limits.connections as usize,
            stopped,
        };
        let accepting = tokio::spawn(acceptor.run());
        Ok(Self {
            endpoint,
            local_addr,
            stop,
            accepting,
        })
    }

    /// Where it serves.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Takes nothing new, answers what is running for at most `limit`, and ends. When it returns,
    /// none of its tasks runs any more. `false`: some calls were cut off.
    pub async fn shutdown(mut self, limit: Duration) -> bool {
        self.stop.send_replace(true);
        let in_order = timeout(limit, &mut self.accepting).await.is_ok();
        if !in_order {
            self.accepting.abort();
            let _ = (&mut self.accepting).await;
        }
        self.endpoint.close(DONE, b"shutting down");
        let _ = timeout(GOODBYE_LIMIT, self.endpoint.wait_idle()).await;
        in_order
    }
}

impl Drop for QuicServer {
    fn drop(&mut self) {
        self.accepting.abort();
        self.endpoint.close(DONE, b"ended");
    }
}

/// Takes connections.
struct Acceptor {
    endpoint: Endpoint,
    service: Arc<dyn Service>,
    gate: ServiceGate,
    connections_max: usize,
    stopped: watch::Receiver<bool>,
}

impl Acceptor {
    async fn run(self) {
        let mut connections = JoinSet::new();
        let mut stopped = self.stopped.clone();
        loop {
            tokio::select! {
                incoming = self.endpoint.accept() => match incoming {
                    Some(incoming) if connections.len() < self.connections_max => {
                        connections.spawn(serve(
                            incoming,
                            self.service.clone(),
                            self.gate.connection(),
                            self.stopped.clone(),
                        ));
                    }
                    Some(incoming) => incoming.refuse(),
                    None => break,
                },
                Some(ended) = connections.join_next() => note_panic(&ended),
                _ = stopped.wait_for(|stop| *stop) => break,
            }
        }
        while let Some(ended) = connections.join_next().await {
            note_panic(&ended);
        }
    }
}

/// Serves one connection until it ends or the server stops.
async fn serve(
    incoming: Incoming,
    service: Arc<dyn Service>,
    gate: Gate,
    mut stopped: watch::Receiver<bool>,
) {
    let address = incoming.remote_address();
    let handshake = async {
        let connection = incoming.await.map_err(|error| stream::lost(&error))?;
        let peer = tls::peer(&connection)?;
        Ok::<_, Error>((connection, peer))
    };
    let (connection, peer) = match timeout(HANDSHAKE_LIMIT, handshake).await {
        Ok(Ok(accepted)) => accepted,
        Ok(Err(error)) => {
            tracing::info!(%address, %error, "a connection was refused");
            return;
        }
        Err(_) => return,
    };
    tracing::debug!(%address, ?peer, "connected");
    let pusher = Arc::new(QuicPusher(connection.clone()));
    let answering = Arc::new(Answering {
        origin: Origin {
            peer,
            pusher: Some(pusher),
        },
        service,
        gate,
    });
    let mut requests = JoinSet::new();
    let mut open = true;
    while open {
        tokio::select! {
            stream = accept(&connection) => match stream {
                Some((send, recv)) => { requests.spawn(answering.clone().stream(send, recv)); }
                None => open = false,
            },
            Some(ended) = requests.join_next() => note_panic(&ended),
            _ = stopped.wait_for(|stop| *stop) => open = false,
        }
    }
    while let Some(ended) = requests.join_next().await {
        note_panic(&ended);
    }
    connection.close(DONE, b"shutting down");
}

async fn accept(connection: &Connection) -> Option<(SendStream, RecvStream)> {
    match connection.accept_bi().await {
        Ok(streams) => Some(streams),
        Err(error) => {
            tracing::debug!(address = %connection.remote_address(), %error, "disconnected");
            None
        }
    }
}

fn note_panic(ended: &std::result::Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a task of the server broke down");
    }
}

/// Answers the calls of one connection.
struct Answering {
    origin: Origin,
    service: Arc<dyn Service>,
    gate: Gate,
}

impl Answering {
    /// One request and its answer.
    async fn stream(self: Arc<Self>, mut send: SendStream, recv: RecvStream) {
        let mut reader = MessageReader::new(recv);
        // Room stays taken until the answer has left.
        let mut room = Vec::new();
        let (trace, answer) = self.answer(&mut reader, &mut room).await;
        reader.finish();
        let (head, payload) = match frame::encode_reply(&answer, trace) {
            Ok(head) => (head, answer.payload),
            Err(error) => match frame::encode_reply(&Answer::new(Err(error)), trace) {
                Ok(head) => (head, bytes::Bytes::new()),
                Err(_) => return,
            },
        };
        match timeout(ANSWER_LIMIT, stream::write(&mut send, head, payload)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(%error, trace, "an answer was not delivered"),
            Err(_) => {
                let _ = send.reset(DONE);
            }
        }
    }

    /// The trace of the call with its answer.
    async fn answer(&self, reader: &mut MessageReader, room: &mut Vec<Pass>) -> (u64, Answer) {
        match self.gate.request() {
            Ok(pass) => room.push(pass),
            Err(busy) => return (0, Answer::new(Err(busy))),
        }
        let (header, bytes) = match timeout(HEADER_LIMIT, reader.header()).await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => return (0, Answer::new(Err(error))),
            Err(_) => {
                let error = Error::new(Code::TimedOut, "no request came on this stream");
                return (0, Answer::new(Err(error)));
            }
        };
        let trace = header.call.trace;
        let limit = Duration::from_millis(u64::from(header.call.deadline_ms)).min(DEADLINE_MAX);
        let called = self.call(reader, header, bytes, room);
        let answer = match timeout_at(Instant::now() + limit, called).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Answer::new(Err(error)),
            Err(_) => Answer::new(Err(timed_out(header.call.deadline_ms))),
        };
        (trace, answer)
    }

    async fn call(
        &self,
        reader: &mut MessageReader,
        header: Header,
        bytes: [u8; HEADER_BYTES],
        room: &mut Vec<Pass>,
    ) -> Result<Answer> {
        if header.kind != Kind::Request {
            return Err(Error::new(Code::Protocol, "not a request"));
        }
        room.push(
            self.gate
                .bytes(header.body_bytes + header.payload_bytes)
                .await?,
        );
        let body = reader.body(&header, &bytes).await?;
        let request = frame::decode_request(&body)?;
        drop(body);
        if let Some(bytes) = large_answer(&request) {
            room.push(self.gate.bytes(bytes).await?);
        }
        let call = Call {
            header: header.call,
            request,
            payload: reader.payload(header.payload_bytes).await?,
        };
        let span = tracing::debug_span!("call", trace = header.call.trace);
        let answer = self.service.call(self.origin.clone(), call);
        Ok(answer.instrument(span).await)
    }
}
