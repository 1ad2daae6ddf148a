//! What a scrub found, for people and programs.

use serde::Serialize;
use xtfs_protocol::ids::{Ino, ServiceId};
use xtfs_protocol::object::Damage;

/// What a scrub found.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Every OSD, by identity.
    pub osds: Vec<OsdReport>,
    /// Files that the MRC knows.
    pub files: u64,
    /// Where objects and files disagree.
    pub findings: Findings,
}

/// What was found on one OSD.
#[derive(Debug, Clone, Serialize)]
pub struct OsdReport {
    /// The OSD.
    pub osd: ServiceId,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// Objects verified.
    pub objects: u64,
    /// Stored bytes verified.
    pub bytes: u64,
    /// Objects that are damaged.
    pub damaged_objects: u64,
    /// The first of them, at most [`Report::FINDINGS_MAX`].
    pub damaged: Vec<DamagedObject>,
    /// Why it could not be checked to its end.
    pub error: Option<String>,
}

/// An object whose stored bytes do not match their checksums.
#[derive(Debug, Clone, Serialize)]
pub struct DamagedObject {
    /// The object, `VOLUME:CONTENT/NUMBER.SHARD`.
    pub object: String,
    /// Name of its volume, where the MRC knows it.
    pub volume: Option<String>,
    /// Inode of its file, where the MRC knows it (`find MOUNTPOINT -inum INO` finds its name).
    pub ino: Option<Ino>,
    /// The ranges that are damaged and where they lie.
    pub damage: Vec<Damage>,
    #[serde(skip)]
    pub(crate) id: xtfs_protocol::ids::ObjectId,
}

/// Where objects and files disagree: counts of each kind and the first of them.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Findings {
    /// Objects of unknown files and volumes; `xtfs cleanup` lists them.
    pub orphaned: u64,
    /// Objects that reach beyond the end of their file: a client wrote them and ended before it
    /// reported the size. Nobody can read those bytes.
    pub beyond_end: u64,
    /// Objects that lie where their file does not look for them.
    pub misplaced: u64,
    /// The first misplaced objects and those beyond an end.
    pub list: Vec<Finding>,
}

/// One disagreement between an object and its file.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// Which.
    pub kind: FindingKind,
    /// The object, `VOLUME:CONTENT/NUMBER.SHARD`.
    pub object: String,
    /// Where it lies.
    pub osd: ServiceId,
    /// What is wrong, for people.
    pub what: String,
}

/// Kinds of [`Finding`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// Its bytes are behind the end of its file.
    BeyondEnd,
    /// It lies on an OSD where its file does not look for it.
    Misplaced,
}

/// The result of a scrub in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Every object was checked and is good.
    Clean,
    /// Something is damaged or misplaced.
    Damaged,
    /// Nothing damaged was found, but not everything could be checked.
    Incomplete,
}

impl Outcome {
    /// Exit code of a command with this outcome.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Clean => 0,
            Self::Damaged => 2,
            Self::Incomplete => 3,
        }
    }
}

impl Report {
    /// Most findings of one kind that are listed one by one.
    pub const FINDINGS_MAX: usize = 10_000;

    /// The result in a word. Damage counts more than what could not be checked; orphans and bytes
    /// beyond an end are no damage.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        if self.damaged_objects() > 0 || self.findings.misplaced > 0 {
            Outcome::Damaged
        } else if self.osds.iter().any(|osd| osd.error.is_some()) {
            Outcome::Incomplete
        } else {
            Outcome::Clean
        }
    }

    /// Damaged objects on all OSDs.
    #[must_use]
    pub fn damaged_objects(&self) -> u64 {
        self.osds.iter().map(|osd| osd.damaged_objects).sum()
    }
}

impl OsdReport {
    /// An OSD of which nothing was checked yet.
    pub(crate) fn new(osd: ServiceId, addresses: Vec<String>) -> Self {
        Self {
            osd,
            addresses,
            objects: 0,
            bytes: 0,
            damaged_objects: 0,
            damaged: Vec::new(),
            error: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(damaged: u64, error: Option<&str>) -> Report {
        let mut osd = OsdReport::new(ServiceId([1; 16]), Vec::new());
        osd.damaged_objects = damaged;
        osd.error = error.map(str::to_owned);
        Report {
            osds: vec![osd],
            ..Report::default()
        }
    }

    #[test]
    fn an_osd_that_was_not_checked_never_passes_for_clean() {
        assert_eq!(report(0, None).outcome(), Outcome::Clean);
        assert_eq!(report(0, Some("gone")).outcome(), Outcome::Incomplete);
        assert_eq!(report(1, Some("gone")).outcome(), Outcome::Damaged);
    }

    #[test]
    fn orphans_and_unreported_bytes_are_no_damage() {
        let mut report = report(0, None);
        report.findings.orphaned = 3;
        report.findings.beyond_end = 3;
        assert_eq!(report.outcome().exit_code(), 0);
        report.findings.misplaced = 1;
        assert_eq!(report.outcome().exit_code(), 2);
    }
}
