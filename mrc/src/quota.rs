//! What is counted for whom, and how much is allowed.
//!
//! ```text
//! in `usage`  'v' | 'u' uid u32 BE | 'g' gid u32 BE     Usage
//!             'V' | 'U' uid u32 BE | 'G' gid u32 BE     Limits
//! Limits      version 1 | bytes soft, bytes hard, inodes soft, inodes hard: u64 each, 2^64-1 for any
//! ```
//!
//! Usage changes in the batch that changes what it counts, so it is right after every step and
//! every crash.

use std::collections::BTreeMap;

use xtfs_protocol::quota::{QuotaLimits, QuotaSubject, QuotaUsage};
use xtfs_protocol::{Code, Error, Result};

use crate::codec::{Reader, Writer};
use crate::inode::Inode;
use crate::records::Usage;

const VERSION: u8 = 1;
/// Any amount, in records.
const ANY: u64 = u64::MAX;

/// What subjects of a volume may use.
pub(crate) type Limits = BTreeMap<QuotaSubject, QuotaLimits>;

/// Limits of a volume without quotas.
pub(crate) static NO_LIMITS: Limits = Limits::new();

/// Key of a subject's usage.
pub(crate) fn usage_key(subject: QuotaSubject) -> Vec<u8> {
    key(subject, b"vug")
}

/// Key of a subject's limits.
pub(crate) fn limits_key(subject: QuotaSubject) -> Vec<u8> {
    key(subject, b"VUG")
}

fn key(subject: QuotaSubject, [volume, user, group]: &[u8; 3]) -> Vec<u8> {
    let (kind, number) = match subject {
        QuotaSubject::Volume => return vec![*volume],
        QuotaSubject::User(uid) => (user, uid),
        QuotaSubject::Group(gid) => (group, gid),
    };
    let mut key = vec![*kind];
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// What a key is about; true when it is of limits.
pub(crate) fn split_key(key: &[u8]) -> Result<(QuotaSubject, bool)> {
    let damaged = || Error::new(Code::Corrupt, format!("usage key of {} bytes", key.len()));
    let (kind, number) = key.split_first().ok_or_else(damaged)?;
    let subject = match (kind.to_ascii_lowercase(), <[u8; 4]>::try_from(number)) {
        (b'v', Err(_)) if number.is_empty() => QuotaSubject::Volume,
        (b'u', Ok(uid)) => QuotaSubject::User(u32::from_be_bytes(uid)),
        (b'g', Ok(gid)) => QuotaSubject::Group(u32::from_be_bytes(gid)),
        _ => return Err(damaged()),
    };
    Ok((subject, kind.is_ascii_uppercase()))
}

pub(crate) fn encode_limits(limits: &QuotaLimits) -> Vec<u8> {
    let mut writer = Writer::versioned(VERSION);
    writer
        .u64(limits.bytes_soft.unwrap_or(ANY))
        .u64(limits.bytes_hard.unwrap_or(ANY))
        .u64(limits.inodes_soft.unwrap_or(ANY))
        .u64(limits.inodes_hard.unwrap_or(ANY));
    writer.finish()
}

pub(crate) fn decode_limits(bytes: &[u8]) -> Result<QuotaLimits> {
    let mut reader = Reader::versioned("limits", bytes, VERSION)?;
    let mut next = || reader.u64().map(|limit| (limit != ANY).then_some(limit));
    let limits = QuotaLimits {
        bytes_soft: next()?,
        bytes_hard: next()?,
        inodes_soft: next()?,
        inodes_hard: next()?,
    };
    reader.end().map(|()| limits)
}

/// Whom an inode is counted for.
pub(crate) const fn subjects(inode: &Inode) -> [QuotaSubject; 3] {
    [
        QuotaSubject::Volume,
        QuotaSubject::User(inode.uid),
        QuotaSubject::Group(inode.gid),
    ]
}

/// What one inode is counted as.
pub(crate) fn share(inode: &Inode) -> Usage {
    Usage {
        bytes: inode.counted_bytes(),
        inodes: 1,
    }
}

/// Usage as it is answered.
pub(crate) fn answer(usage: &Usage) -> QuotaUsage {
    QuotaUsage {
        bytes: u64::try_from(usage.bytes).unwrap_or(u64::MAX),
        inodes: usage.inodes,
    }
}

/// Refuses what takes a subject further above its limits. What takes less than before is always
/// allowed, also where limits were lowered meanwhile.
pub(crate) fn check(
    limits: &Limits,
    subject: QuotaSubject,
    before: &Usage,
    after: &Usage,
) -> Result<()> {
    let Some(limits) = limits.get(&subject) else {
        return Ok(());
    };
    let above = |limit: Option<u64>, before: u128, after: u128| {
        limit.is_some_and(|limit| after > before && after > u128::from(limit))
    };
    let exceeded = if above(limits.bytes_hard, before.bytes, after.bytes) {
        "bytes"
    } else if above(
        limits.inodes_hard,
        before.inodes.into(),
        after.inodes.into(),
    ) {
        "inodes"
    } else {
        let warned = answer(before).is_above_soft(limits);
        if !warned && answer(after).is_above_soft(limits) {
            tracing::warn!(%subject, bytes = %after.bytes, inodes = after.inodes, "above the soft limit of its quota");
        }
        return Ok(());
    };
    let context = format!("{subject} has used up its {exceeded}");
    Err(Error::new(Code::QuotaExceeded, context))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_limits_read_back() {
        for subject in [
            QuotaSubject::Volume,
            QuotaSubject::User(0),
            QuotaSubject::Group(u32::MAX),
        ] {
            assert_eq!(split_key(&usage_key(subject)).unwrap(), (subject, false));
            assert_eq!(split_key(&limits_key(subject)).unwrap(), (subject, true));
        }
        for key in [&b""[..], b"x", b"u", b"v1", b"g12345"] {
            assert!(split_key(key).is_err(), "{key:?}");
        }
        let limits = QuotaLimits {
            bytes_hard: Some(0),
            inodes_soft: Some(7),
            ..QuotaLimits::default()
        };
        let bytes = encode_limits(&limits);
        assert_eq!(decode_limits(&bytes).unwrap(), limits);
        assert!(decode_limits(&bytes[..9]).is_err());
    }
}
