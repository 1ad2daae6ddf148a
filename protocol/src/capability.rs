//! What an MRC signs and an OSD verifies, so that an OSD never has to ask.

use rkyv::{Archive, Deserialize, Serialize};

use crate::ids::{FileId, SessionId};
use crate::time::Time;

/// The right of one session to read or write one file, until it expires.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// The file.
    pub file: FileId,
    /// Reading is allowed.
    pub read: bool,
    /// Writing and truncating are allowed.
    pub write: bool,
    /// The session it was given to.
    pub session: SessionId,
    /// The session's epoch.
    pub session_epoch: u64,
    /// View number of the placement.
    pub view: u32,
    /// Truncate epoch of the file: OSDs refuse writes under an older one.
    pub truncate_epoch: u64,
    /// After this time (by the OSD's clock) it is refused.
    pub expires: Time,
    /// Which key made the code.
    pub key_id: u32,
    /// HMAC-SHA256 over every other field.
    pub mac: [u8; 32],
}
