//! What can be asked of an OSD. Bytes travel as raw payload beside these messages.

#![allow(
    missing_docs,
    reason = "rkyv derives undocumented items for enum variants; every item here has its text"
)]

use rkyv::{Archive, Deserialize, Serialize};

use crate::capability::Capability;
use crate::ids::{FileId, ObjectId, VolumeId};

/// How long what was written must last when the answer comes.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stability {
    /// It survives the end of the process.
    Written,
    /// It survives loss of power.
    Durable,
}

/// A piece of an object that holds data; what lies between pieces is a hole and reads as zeros.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataRange {
    /// First byte within the object.
    pub offset: u32,
    /// Bytes.
    pub length: u32,
}

/// An operation of the OSD.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub enum ObjectOp {
    /// Writes the payload into an object, all of it or nothing. Answer: [`ObjectReply::Written`].
    Write {
        /// What allows it.
        capability: Capability,
        /// The object.
        object: ObjectId,
        /// First byte within the object. Offset plus payload length is at most the object size.
        offset: u32,
        /// When to answer.
        stability: Stability,
    },
    /// Reads from an object. Answer: [`ObjectReply::Data`] with the pieces in the payload, one
    /// after the other.
    Read {
        /// What allows it.
        capability: Capability,
        /// The object.
        object: ObjectId,
        /// First byte within the object.
        offset: u32,
        /// Bytes wanted.
        length: u32,
    },
    /// Makes a byte range of an object a hole. Answer: [`ObjectReply::Written`].
    PunchHole {
        /// What allows it.
        capability: Capability,
        /// The object.
        object: ObjectId,
        /// First byte within the object.
        offset: u32,
        /// Bytes.
        length: u32,
    },
    /// Removes what lies behind a new end of the file. Does nothing when the file's stored
    /// truncate epoch is this one or newer. Answer: [`ObjectReply::Written`].
    Truncate {
        /// What allows it.
        capability: Capability,
        /// The file.
        file: FileId,
        /// Truncate epoch of the cut.
        epoch: u64,
        /// Objects from this number on are removed.
        remove_from: u64,
        /// The last object that stays but is shortened, with the bytes that stay.
        shorten: Option<(u64, u32)>,
    },
    /// Everything acknowledged for the file is durable when it is answered.
    /// Answer: [`ObjectReply::Flushed`].
    Flush {
        /// What allows it.
        capability: Capability,
        /// The file.
        file: FileId,
    },
    /// Removes every object of a file. Only from an MRC or an administrator.
    /// Answer: [`ObjectReply::Done`].
    Delete {
        /// The file.
        file: FileId,
    },
    /// Room and counts. Answer: [`ObjectReply::Statfs`].
    Statfs,
    /// The objects stored here, in order. Only from an MRC or an administrator.
    /// Answer: [`ObjectReply::Objects`].
    List {
        /// Continue behind this object; none starts.
        after: Option<ObjectId>,
        /// Most objects wanted, 1 to [`ObjectOp::PAGE_OBJECTS_MAX`].
        limit: u32,
    },
    /// Checks the stored bytes of the next objects: checksums and fingerprints. Only from an MRC
    /// or an administrator. Answer: [`ObjectReply::Verified`].
    Verify {
        /// Continue behind this object; none starts.
        after: Option<ObjectId>,
        /// Most objects to check, 1 to [`ObjectOp::PAGE_OBJECTS_MAX`].
        limit: u32,
    },
    /// The volumes that objects stored here belong to. Answer: [`ObjectReply::Volumes`].
    ListVolumes,
}

impl ObjectOp {
    /// Most objects of one page.
    pub const PAGE_OBJECTS_MAX: u32 = 4096;
}

/// An object as listed.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectSummary {
    /// The object.
    pub object: ObjectId,
    /// End of its last byte.
    pub length: u32,
    /// Bytes stored, holes left out.
    pub stored_bytes: u32,
}

/// A piece of an object that does not check.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// First byte within the object.
    pub offset: u32,
    /// Bytes that cannot be trusted.
    pub length: u32,
    /// Where it lies on the OSD: file and offset.
    pub place: String,
    /// What is wrong.
    pub what: String,
}

/// The outcome of checking one object that is damaged.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct DamagedObject {
    /// The object.
    pub object: ObjectId,
    /// Its damage.
    pub damage: Vec<Damage>,
}

/// Room and counts of an OSD.
#[derive(
    Archive, Serialize, Deserialize, serde::Serialize, Debug, Clone, Copy, PartialEq, Eq, Default,
)]
pub struct OsdSpace {
    /// Bytes of its file system.
    pub total_bytes: u64,
    /// Bytes that new data may still take.
    pub free_bytes: u64,
    /// Bytes of the segments.
    pub segment_bytes: u64,
    /// Bytes of live blocks.
    pub live_bytes: u64,
    /// Objects.
    pub objects: u64,
    /// Damaged blocks found since the start.
    pub damaged_blocks: u64,
}

/// Answer of an OSD.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub enum ObjectReply {
    /// Done.
    Done,
    /// Changed; stored bytes gained or lost.
    Written {
        /// Stored bytes gained (positive) or freed.
        allocated_delta: i64,
        /// Which start of its machine the OSD runs on. What is flushed on another one may have
        /// lost this change.
        boot: u64,
    },
    /// What was acknowledged on this start of the machine, and is not gone since, is durable.
    Flushed {
        /// The start of the machine.
        boot: u64,
    },
    /// Data in the payload.
    Data {
        /// The pieces, in order, within the range asked for; the payload is their concatenation.
        ranges: Vec<DataRange>,
    },
    /// Room.
    Statfs(OsdSpace),
    /// Objects.
    Objects {
        /// The objects.
        objects: Vec<ObjectSummary>,
        /// Nothing follows.
        end: bool,
    },
    /// Outcome of a check.
    Verified {
        /// The last object checked; continue behind it.
        last: Option<ObjectId>,
        /// Objects checked.
        objects: u64,
        /// Stored bytes checked.
        bytes: u64,
        /// What is damaged.
        damaged: Vec<DamagedObject>,
        /// Nothing follows.
        end: bool,
    },
    /// Volumes.
    Volumes(Vec<VolumeId>),
}
