//! Unasked messages from a service to a client, each on a stream of its own.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::RwLock;
use quinn::{Connection, RecvStream};
use tokio::task::JoinSet;

use super::settings::PUSHES_MAX;
use super::stream::{self, MessageReader};
use crate::error::{Code, Error, Result};
use crate::frame::{self, Kind};
use crate::meta::Push;
use crate::transport::{PushHandler, Pusher};

/// How long a push may take to leave.
const SEND_LIMIT: Duration = Duration::from_secs(5);

/// How long a push may take to arrive, once it has begun.
const RECEIVE_LIMIT: Duration = Duration::from_secs(5);

/// The server's way to one client.
pub(super) struct QuicPusher(pub(super) Connection);

#[async_trait]
impl Pusher for QuicPusher {
    async fn push(&self, push: Push) -> Result<()> {
        let head = frame::encode_push(&push)?;
        let sent = tokio::time::timeout(SEND_LIMIT, async {
            let opened = self.0.open_uni().await;
            let mut stream = opened.map_err(|error| stream::lost(&error))?;
            stream::write(&mut stream, head, bytes::Bytes::new()).await
        });
        match sent.await {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => Err(Error::new(Code::Unreachable, "the client refused a push")),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::new(Code::Unreachable, "the client takes no pushes")),
        }
    }
}

/// Who takes pushes; empty until a client says so.
pub(super) type HandlerSlot = Arc<RwLock<Option<Arc<dyn PushHandler>>>>;

/// Takes the pushes of one connection until it ends. At most as many are handled at once as the
/// server may have open.
pub(super) async fn receive(connection: Connection, handler: HandlerSlot) {
    let mut running = JoinSet::new();
    loop {
        let room = running.len() < PUSHES_MAX as usize;
        tokio::select! {
            stream = connection.accept_uni(), if room => match stream {
                Ok(stream) => { running.spawn(handle(stream, handler.clone())); }
                Err(_) => break,
            },
            Some(_) = running.join_next() => {}
        }
    }
    while running.join_next().await.is_some() {}
}

async fn handle(stream: RecvStream, handler: HandlerSlot) {
    match tokio::time::timeout(RECEIVE_LIMIT, read(stream)).await {
        Ok(Ok(push)) => {
            let handler = handler.read().clone();
            if let Some(handler) = handler {
                handler.handle(push).await;
            }
        }
        Ok(Err(error)) => tracing::warn!(%error, "a push could not be read"),
        Err(_) => tracing::warn!("a push did not arrive whole in time"),
    }
}

async fn read(stream: RecvStream) -> Result<Push> {
    let mut reader = MessageReader::new(stream);
    let (header, bytes) = reader.header().await?;
    if header.kind != Kind::Push || header.payload_bytes != 0 {
        return Err(Error::new(Code::Protocol, "not a push"));
    }
    let body = reader.body(&header, &bytes).await?;
    reader.finish();
    frame::decode_push(&body)
}
