//! Messages on streams.

use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt;
use quinn::{ConnectionError, ReadError, RecvStream, SendStream, VarInt, WriteError};

use crate::error::{Code, Error, Result};
use crate::frame::{self, Body, HEADER_BYTES, Head, Header};

/// Why streams and connections are ended early. Of no consequence to the peer.
pub(super) const DONE: VarInt = VarInt::from_u32(0);

/// How long a client should pause when its connection broke.
const PAUSE_MS: u32 = 50;

/// Chunks that are taken from a stream at once.
const CHUNKS: usize = 32;

/// Reads one message from a stream.
pub(super) struct MessageReader {
    stream: RecvStream,
    /// What was read and not yet used.
    rest: Bytes,
}

impl MessageReader {
    pub(super) fn new(stream: RecvStream) -> Self {
        Self {
            stream,
            rest: Bytes::new(),
        }
    }

    /// The header, with its bytes for the check of the checksum.
    pub(super) async fn header(&mut self) -> Result<(Header, [u8; HEADER_BYTES])> {
        let mut bytes = [0; HEADER_BYTES];
        let mut room = &mut bytes[..];
        while !room.is_empty() {
            let piece = self.piece(room.len()).await?;
            let (filled, left) = room.split_at_mut(piece.len());
            filled.copy_from_slice(&piece);
            room = left;
        }
        Ok((Header::decode(&bytes)?, bytes))
    }

    /// The body, checked.
    pub(super) async fn body(
        &mut self,
        header: &Header,
        bytes: &[u8; HEADER_BYTES],
    ) -> Result<Body> {
        let mut body = frame::body_buffer(header.body_bytes);
        while body.len() < header.body_bytes {
            let piece = self.piece(header.body_bytes - body.len()).await?;
            body.extend_from_slice(&piece);
        }
        header.check(bytes, &body)?;
        Ok(body)
    }

    /// The payload in one piece. It is copied once, also when it is small: pieces of what the
    /// network delivered would keep far larger buffers alive.
    pub(super) async fn payload(&mut self, bytes: usize) -> Result<Bytes> {
        if bytes == 0 {
            return Ok(Bytes::new());
        }
        let mut payload = BytesMut::with_capacity(bytes);
        let first = self.rest.split_to(self.rest.len().min(bytes));
        payload.extend_from_slice(&first);
        let mut chunks: [Bytes; CHUNKS] = std::array::from_fn(|_| Bytes::new());
        while payload.len() < bytes {
            let count = self
                .stream
                .read_chunks(&mut chunks)
                .await
                .map_err(|error| read_failed(&error))?
                .ok_or_else(ended_early)?;
            for chunk in chunks.iter_mut().take(count) {
                let wanted = chunk.len().min(bytes - payload.len());
                payload.extend_from_slice(&chunk[..wanted]);
                chunk.clear();
            }
        }
        Ok(payload.freeze())
    }

    /// Ends the reading. When the end of the stream is here already, as it mostly is, the sender
    /// need not be told; else it is told to stop.
    pub(super) fn finish(mut self) {
        let _ = self.stream.read_chunk(1, true).now_or_never();
    }

    /// At most `most` bytes, at least one.
    async fn piece(&mut self, most: usize) -> Result<Bytes> {
        if self.rest.is_empty() {
            let chunk = self.stream.read_chunk(usize::MAX, true).await;
            let chunk = chunk.map_err(|error| read_failed(&error))?;
            self.rest = chunk.ok_or_else(ended_early)?.bytes;
        }
        let piece = self.rest.slice(..most.min(self.rest.len()));
        self.rest.advance(piece.len());
        Ok(piece)
    }
}

/// Sends a message and ends the stream. `false`: the peer does not want to read it all.
pub(super) async fn write(stream: &mut SendStream, head: Head, payload: Bytes) -> Result<bool> {
    let mut parts = [Bytes::from_owner(head), payload];
    match stream.write_all_chunks(&mut parts).await {
        Ok(()) => {
            let _ = stream.finish();
            Ok(true)
        }
        Err(WriteError::Stopped(_)) => Ok(false),
        Err(WriteError::ConnectionLost(error)) => Err(lost(&error)),
        Err(error) => Err(broken(&error)),
    }
}

/// The error of a connection that broke or did not come about.
pub(super) fn lost(error: &ConnectionError) -> Error {
    /// TLS alerts are errors of QUIC from here on.
    const ALERTS: u64 = 0x100;
    const NO_COMMON_APPLICATION: u64 = ALERTS + 120;
    let code = match error {
        ConnectionError::TransportError(error) => u64::from(error.code),
        ConnectionError::ConnectionClosed(close) => u64::from(close.error_code),
        ConnectionError::VersionMismatch => {
            return Error::new(Code::Version, error.to_string());
        }
        _ => 0,
    };
    match code {
        NO_COMMON_APPLICATION => Error::new(Code::Version, error.to_string()),
        ALERTS..0x200 => {
            let context = format!("not accepted as members of one cell: {error}");
            Error::new(Code::AccessDenied, context)
        }
        _ => broken(error),
    }
}

fn read_failed(error: &ReadError) -> Error {
    match error {
        ReadError::ConnectionLost(error) => lost(error),
        error => broken(error),
    }
}

fn broken(error: &dyn std::fmt::Display) -> Error {
    Error::retryable(Code::Unreachable, error.to_string(), PAUSE_MS)
}

fn ended_early() -> Error {
    Error::retryable(Code::Protocol, "the message ended before its end", PAUSE_MS)
}
