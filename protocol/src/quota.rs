//! Quotas: whom they bind, how much they allow, and how much is in use.

use std::fmt;

use rkyv::{Archive, Deserialize, Serialize};

/// Whose files are counted together.
#[derive(
    Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash,
)]
pub enum QuotaSubject {
    /// Everything in the volume.
    Volume,
    /// What belongs to a user.
    User(u32),
    /// What belongs to a group.
    Group(u32),
}

impl fmt::Display for QuotaSubject {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume => out.write_str("volume"),
            Self::User(uid) => write!(out, "user:{uid}"),
            Self::Group(gid) => write!(out, "group:{gid}"),
        }
    }
}

/// Amounts of what is counted: allowed ones, where `None` means any, or used ones.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuotaLimits {
    /// Sum of the sizes of files and symbolic link targets, in bytes, from which on there is a
    /// warning.
    pub bytes_soft: Option<u64>,
    /// The same, which is never exceeded.
    pub bytes_hard: Option<u64>,
    /// Inodes from which on there is a warning.
    pub inodes_soft: Option<u64>,
    /// Inodes, never exceeded.
    pub inodes_hard: Option<u64>,
}

impl QuotaLimits {
    /// Nothing is limited?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What belongs to a subject.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuotaUsage {
    /// Sum of the sizes of files and symbolic link targets, in bytes; sizes that add up to more
    /// than 64 bits count as the largest number.
    pub bytes: u64,
    /// Inodes, those of unlinked but open files too.
    pub inodes: u64,
}

impl QuotaUsage {
    /// Is a warning due?
    #[must_use]
    pub fn is_above_soft(&self, limits: &QuotaLimits) -> bool {
        let above = |used: u64, limit: Option<u64>| limit.is_some_and(|limit| used > limit);
        above(self.bytes, limits.bytes_soft) || above(self.inodes, limits.inodes_soft)
    }
}

/// One subject of a volume.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaEntry {
    /// Whom it is about.
    pub subject: QuotaSubject,
    /// What is allowed.
    pub limits: QuotaLimits,
    /// What is in use.
    pub usage: QuotaUsage,
}

/// A subject whose recorded usage is not what a count of all inodes gives.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaMismatch {
    /// Whom it is about.
    pub subject: QuotaSubject,
    /// What is recorded.
    pub recorded: QuotaUsage,
    /// What was counted.
    pub counted: QuotaUsage,
}
