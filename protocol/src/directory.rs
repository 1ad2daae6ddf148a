//! The directory of services, which an MRC hosts: who is in the cell and how to reach them.

#![allow(
    missing_docs,
    reason = "rkyv derives undocumented items for enum variants; every item here has its text"
)]

use rkyv::{Archive, Deserialize, Serialize};

use crate::ids::ServiceId;
use crate::object::OsdSpace;
use crate::time::Time;

/// What a service is.
#[derive(
    Archive, Serialize, Deserialize, serde::Serialize, Debug, Clone, Copy, PartialEq, Eq, Hash,
)]
#[serde(rename_all = "lowercase")]
pub enum ServiceKind {
    /// Metadata and replica catalog.
    Mrc,
    /// Object storage daemon.
    Osd,
}

/// Whether a service takes new work.
#[derive(
    Archive, Serialize, Deserialize, serde::Serialize, Debug, Clone, Copy, PartialEq, Eq, Hash,
)]
#[serde(rename_all = "lowercase")]
pub enum ServiceState {
    /// It answers.
    Online,
    /// It has not been heard of for longer than it may be silent.
    Silent,
}

/// A service of the cell.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct ServiceInfo {
    /// Identity.
    pub id: ServiceId,
    /// What it is.
    pub kind: ServiceKind,
    /// Addresses, `HOST:PORT`, best first.
    pub addresses: Vec<String>,
    /// Whether it takes new work.
    pub state: ServiceState,
    /// Room, for OSDs.
    pub space: OsdSpace,
    /// Last heartbeat, by the clock of the MRC.
    pub heard_at: Time,
    /// Version of its program.
    pub version: String,
}

/// An operation of the directory.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub enum DirectoryOp {
    /// Registers a service or says that it is still there. The service's certificate must carry
    /// the same identity. Answer: [`DirectoryReply::Registered`].
    Heartbeat {
        /// Identity.
        id: ServiceId,
        /// A random number drawn at each start: the same identity started twice is refused.
        incarnation: u64,
        /// What it is.
        kind: ServiceKind,
        /// Addresses, `HOST:PORT`, best first; at most 16.
        addresses: Vec<String>,
        /// Room, for OSDs.
        space: OsdSpace,
        /// Version of its program.
        version: String,
    },
    /// All services. Answer: [`DirectoryReply::Services`].
    List,
    /// One service. Answer: [`DirectoryReply::Services`] with one element.
    Resolve {
        /// Identity.
        id: ServiceId,
    },
}

/// Answer of the directory.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub enum DirectoryReply {
    /// Heard.
    Registered {
        /// Time to the next heartbeat in milliseconds.
        interval_ms: u32,
        /// Keys with which capabilities are verified: id and 32 bytes. Only for OSDs.
        capability_keys: Vec<(u32, [u8; 32])>,
    },
    /// Services.
    Services(Vec<ServiceInfo>),
}
