//! What a search for orphans found.

use std::collections::BTreeSet;

use serde::Serialize;
use xtfs_protocol::ids::{ServiceId, VolumeId};

/// Orphaned objects, grouped by the file they belonged to.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// OSDs that were asked to the end.
    pub osds: u64,
    /// Objects they store.
    pub objects: u64,
    /// Orphaned objects.
    pub orphaned_objects: u64,
    /// Stored bytes of orphaned objects.
    pub orphaned_bytes: u64,
    /// The files they belonged to, at most [`Report::FILES_MAX`].
    pub files: Vec<OrphanFile>,
    /// There are more such files than are listed and counted here.
    pub more_files: bool,
    /// OSDs that could not be asked.
    pub errors: Vec<OsdError>,
}

/// A file that the MRC does not know and that still has objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OrphanFile {
    /// Its volume.
    pub volume: VolumeId,
    /// The volume's name; none when the whole volume is unknown.
    pub volume_name: Option<String>,
    /// Number of its content.
    pub content: u64,
    /// Objects stored.
    pub objects: u64,
    /// Bytes stored.
    pub bytes: u64,
    /// OSDs that store them.
    pub osds: BTreeSet<ServiceId>,
}

/// An OSD that could not be asked.
#[derive(Debug, Clone, Serialize)]
pub struct OsdError {
    /// The OSD.
    pub osd: ServiceId,
    /// Why.
    pub error: String,
}

impl Report {
    /// Most orphaned files of one search.
    pub const FILES_MAX: usize = 1 << 20;

    /// Exit code of a command with this report: 0, or 3 when an OSD could not be asked. Orphans
    /// alone are no failure.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        if self.errors.is_empty() { 0 } else { 3 }
    }
}
