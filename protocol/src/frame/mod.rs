//! How a message looks on the wire: a header of fixed size, a body, and raw payload bytes.
//!
//! ```text
//! offset  bytes
//!      0      4  "XTFS"
//!      4      2  version of the protocol
//!      6      1  kind: 1 request, 2 reply, 3 push
//!      7      1  zero
//!      8      4  bytes of the body
//!     12      4  bytes of the payload
//!     16     16  session
//!     32      8  sequence
//!     40      8  answered
//!     48      8  trace
//!     56      4  deadline in milliseconds
//!     60      4  crc32c of the header up to here and the body
//!     64      -  body (rkyv), then payload
//! ```
//!
//! Numbers are little-endian. A message belongs to the stream it travels on, so it has no number
//! of its own. The first six bytes keep their meaning in all versions. The body of a request is a
//! [`Request`](crate::Request), of a reply a [`Result`] of [`Reply`](crate::Reply), of a push a
//! [`Push`](crate::meta::Push). Replies and pushes
//! leave the fields of the call zero, except that a reply repeats the trace.
//!
//! Lengths are checked when the header is read, before memory is taken; a body is validated before
//! it is used.

mod body;

pub use body::{
    Body, Head, body_buffer, decode_push, decode_reply, decode_request, encode_push, encode_reply,
    encode_request,
};

use crate::error::{Code, Error, Result};
use crate::ids::SessionId;
use crate::message::{BODY_BYTES_MAX, CallHeader, PAYLOAD_BYTES_MAX};

/// The version of the protocol that this program speaks.
pub const VERSION: u16 = 1;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 64;

const MAGIC: [u8; 4] = *b"XTFS";
const CHECKSUM_AT: usize = 60;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A call on its way.
    Request = 1,
    /// An answer.
    Reply = 2,
    /// Sent unasked.
    Push = 3,
}

impl Kind {
    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Request),
            2 => Some(Self::Reply),
            3 => Some(Self::Push),
            _ => None,
        }
    }
}

/// A header, its lengths within bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the message is.
    pub kind: Kind,
    /// What identifies the call.
    pub call: CallHeader,
    /// Bytes of the body, at most [`BODY_BYTES_MAX`].
    pub body_bytes: usize,
    /// Bytes of the payload, at most [`PAYLOAD_BYTES_MAX`].
    pub payload_bytes: usize,
    checksum: u32,
}

impl Header {
    /// Writes a header in front of its body and seals both with the checksum.
    ///
    /// # Errors
    /// [`Code::Protocol`] when body or payload is too long.
    fn seal(kind: Kind, call: &CallHeader, message: &mut [u8], payload: usize) -> Result<()> {
        let too_short = || Error::new(Code::Protocol, "message without room for its header");
        let (header, body) = message
            .split_first_chunk_mut::<HEADER_BYTES>()
            .ok_or_else(too_short)?;
        let body_bytes = bounded("body", body.len(), BODY_BYTES_MAX)?;
        let payload_bytes = bounded("payload", payload, PAYLOAD_BYTES_MAX)?;
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            for (to, from) in header.iter_mut().skip(at).zip(bytes) {
                *to = *from;
            }
            at += bytes.len();
        };
        put(&MAGIC);
        put(&VERSION.to_le_bytes());
        put(&[kind as u8, 0]);
        put(&body_bytes.to_le_bytes());
        put(&payload_bytes.to_le_bytes());
        put(&call.session.0);
        put(&call.sequence.to_le_bytes());
        put(&call.answered.to_le_bytes());
        put(&call.trace.to_le_bytes());
        put(&call.deadline_ms.to_le_bytes());
        let checksum = checksum(header, body);
        header[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        Ok(())
    }

    /// Reads a header. Whether it is intact shows only when [`Header::check`] has seen the body.
    ///
    /// # Errors
    /// [`Code::Version`] for another version of the protocol, [`Code::Protocol`] for what is no
    /// header or has lengths out of bounds.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self> {
        let broken = |why: &str| Error::new(Code::Protocol, format!("message header: {why}"));
        let mut fields = Fields(bytes);
        if fields.take() != MAGIC {
            return Err(broken("no xtfs message"));
        }
        let version = u16::from_le_bytes(fields.take());
        if version != VERSION {
            let context = format!("message of version {version}, this is version {VERSION}");
            return Err(Error::new(Code::Version, context));
        }
        let [kind, zero] = fields.take();
        let kind = Kind::from_byte(kind).ok_or_else(|| broken("unknown kind"))?;
        if zero != 0 {
            return Err(broken("reserved byte in use"));
        }
        let body_bytes = u32::from_le_bytes(fields.take()) as usize;
        bounded("body", body_bytes, BODY_BYTES_MAX)?;
        let payload_bytes = u32::from_le_bytes(fields.take()) as usize;
        bounded("payload", payload_bytes, PAYLOAD_BYTES_MAX)?;
        let call = CallHeader {
            session: SessionId(fields.take()),
            sequence: u64::from_le_bytes(fields.take()),
            answered: u64::from_le_bytes(fields.take()),
            trace: u64::from_le_bytes(fields.take()),
            deadline_ms: u32::from_le_bytes(fields.take()),
        };
        let checksum = u32::from_le_bytes(fields.take());
        Ok(Self {
            kind,
            call,
            body_bytes,
            payload_bytes,
            checksum,
        })
    }

    /// Are header and body what was sent?
    ///
    /// # Errors
    /// [`Code::Protocol`].
    pub fn check(&self, header: &[u8; HEADER_BYTES], body: &[u8]) -> Result<()> {
        if body.len() == self.body_bytes && checksum(header, body) == self.checksum {
            Ok(())
        } else {
            let context = "message does not match its checksum";
            Err(Error::new(Code::Protocol, context))
        }
    }
}

/// Fields of fixed size, one after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    /// The next field. The fields of a header add up to its size; behind it would be zeros.
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk() {
            Some((field, rest)) => {
                self.0 = rest;
                *field
            }
            None => [0; N],
        }
    }
}

fn checksum(header: &[u8; HEADER_BYTES], body: &[u8]) -> u32 {
    let sealed = crc32c::crc32c(&header[..CHECKSUM_AT]);
    crc32c::crc32c_append(sealed, body)
}

fn bounded(what: &str, length: usize, most: usize) -> Result<u32> {
    match u32::try_from(length) {
        Ok(short) if length <= most => Ok(short),
        _ => {
            let context = format!("{what} of {length} bytes, at most {most} are allowed");
            Err(Error::new(Code::Protocol, context))
        }
    }
}

#[cfg(test)]
mod tests;
