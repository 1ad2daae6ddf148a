//! The envelope: what every call carries besides its operation.

#![allow(
    missing_docs,
    reason = "rkyv derives undocumented items for enum variants; every item here has its text"
)]

use bytes::Bytes;
use rkyv::{Archive, Deserialize, Serialize};

use crate::directory::{DirectoryOp, DirectoryReply};
use crate::error::Result;
use crate::ids::SessionId;
use crate::meta::{Caller, MetaOp, MetaReply};
use crate::object::{ObjectOp, ObjectReply};

/// Longest encoded body in bytes.
pub const BODY_BYTES_MAX: usize = 8 << 20;

/// Longest payload in bytes: one object of the largest size.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;

/// What is asked.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Of an MRC, on behalf of a caller.
    Meta {
        /// On whose behalf.
        caller: Caller,
        /// What.
        op: MetaOp,
    },
    /// Of an OSD.
    Object(ObjectOp),
    /// Of the directory.
    Directory(DirectoryOp),
}

/// What is answered.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// By an MRC.
    Meta(MetaReply),
    /// By an OSD.
    Object(ObjectReply),
    /// By the directory.
    Directory(DirectoryReply),
}

/// What identifies a call.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallHeader {
    /// The session it belongs to; for an OSD, what names the client in all its sessions; all zeros
    /// where none is needed.
    pub session: SessionId,
    /// Number of the changing request within the session, counted from 1. 0: it changes nothing.
    /// The same number again gets the first answer from an MRC and has no second effect. Of writes
    /// to an OSD every attempt has a number, counted for themselves: one that a later number
    /// overtook is not carried out.
    pub sequence: u64,
    /// Every changing request of the session up to this number has been answered to the client,
    /// so its kept reply may be forgotten.
    pub answered: u64,
    /// Time left to answer, in milliseconds from the receipt.
    pub deadline_ms: u32,
    /// Ties the log lines of one operation together across processes.
    pub trace: u64,
}

/// A request on its way.
#[derive(Debug, Clone)]
pub struct Call {
    /// What identifies it.
    pub header: CallHeader,
    /// What is asked.
    pub request: Request,
    /// Raw bytes (of a write).
    pub payload: Bytes,
}

impl Call {
    /// A call without session or payload.
    #[must_use]
    pub fn new(request: Request, deadline_ms: u32) -> Self {
        Self {
            header: CallHeader {
                deadline_ms,
                ..CallHeader::default()
            },
            request,
            payload: Bytes::new(),
        }
    }
}

/// An answer on its way back.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The answer.
    pub reply: Result<Reply>,
    /// Raw bytes (of a read).
    pub payload: Bytes,
}

impl Answer {
    /// An answer without payload.
    #[must_use]
    pub fn new(reply: Result<Reply>) -> Self {
        Self {
            reply,
            payload: Bytes::new(),
        }
    }
}
