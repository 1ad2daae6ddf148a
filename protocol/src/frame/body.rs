//! Bodies: what rkyv makes of a request, a reply and a push, and back.

use rkyv::api::high::{HighDeserializer, HighSerializer, HighValidator};
use rkyv::bytecheck::CheckBytes;
use rkyv::rancor;
use rkyv::ser::allocator::ArenaHandle;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};

use super::{HEADER_BYTES, Header, Kind};
use crate::error::{Code, Error, Result};
use crate::message::{Answer, Call, CallHeader, Reply, Request};
use crate::meta::Push;

/// Header and body of a message, ready to be sent; the payload follows.
pub type Head = AlignedVec;

/// Where a body is read to: rkyv needs it aligned.
pub type Body = AlignedVec;

/// An empty buffer for a body of known length.
#[must_use]
pub fn body_buffer(bytes: usize) -> Body {
    AlignedVec::with_capacity(bytes)
}

/// Header and body of a request. The payload is only counted.
///
/// # Errors
/// [`Code::Protocol`] when body or payload is too long.
pub fn encode_request(call: &Call) -> Result<Head> {
    encode(
        Kind::Request,
        &call.header,
        &call.request,
        call.payload.len(),
    )
}

/// Header and body of an answer. The payload is only counted.
///
/// # Errors
/// [`Code::Protocol`] when body or payload is too long.
pub fn encode_reply(answer: &Answer, trace: u64) -> Result<Head> {
    let header = CallHeader {
        trace,
        ..CallHeader::default()
    };
    encode(Kind::Reply, &header, &answer.reply, answer.payload.len())
}

/// A push, whole.
///
/// # Errors
/// [`Code::Protocol`] when it is too long.
pub fn encode_push(push: &Push) -> Result<Head> {
    encode(Kind::Push, &CallHeader::default(), push, 0)
}

/// Reads the body of a request.
///
/// # Errors
/// [`Code::Protocol`] when it is no valid request.
pub fn decode_request(body: &Body) -> Result<Request> {
    decode("request", body)
}

/// Reads the body of a reply.
///
/// # Errors
/// The error that the service answered, or [`Code::Protocol`] when it is no valid reply.
pub fn decode_reply(body: &Body) -> Result<Reply> {
    decode::<Result<Reply>>("reply", body)?
}

/// Reads the body of a push.
///
/// # Errors
/// [`Code::Protocol`] when it is no valid push.
pub fn decode_push(body: &Body) -> Result<Push> {
    decode("push", body)
}

/// A typical message; longer ones grow.
const HEAD_BYTES_TYPICAL: usize = HEADER_BYTES + 320;

fn encode<T>(kind: Kind, call: &CallHeader, body: &T, payload_bytes: usize) -> Result<Head>
where
    T: for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, rancor::Error>>,
{
    let mut head = AlignedVec::with_capacity(HEAD_BYTES_TYPICAL);
    head.extend_from_slice(&[0; HEADER_BYTES]);
    let mut head = rkyv::api::high::to_bytes_in(body, head)
        .map_err(|error: rancor::Error| Error::new(Code::Protocol, error.to_string()))?;
    Header::seal(kind, call, &mut head, payload_bytes)?;
    Ok(head)
}

fn decode<T>(what: &str, body: &Body) -> Result<T>
where
    T: Archive,
    T::Archived: for<'a> CheckBytes<HighValidator<'a, rancor::Error>>
        + Deserialize<T, HighDeserializer<rancor::Error>>,
{
    rkyv::from_bytes(body).map_err(|error: rancor::Error| {
        let mut why = error.to_string().replace('\n', " ");
        why.truncate(why.floor_char_boundary(200));
        Error::new(Code::Protocol, format!("{what} cannot be read: {why}"))
    })
}
