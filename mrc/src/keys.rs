//! The indices of a volume's database and the bytes of their keys.
//!
//! ```text
//! index     key                                           value
//! dirents   parent inode u64 BE | name bytes              DirentRecord
//! inodes    inode u64 BE                                  Inode
//! xattrs    inode u64 BE | attribute name bytes           the value, raw
//! acls      inode u64 BE | 0 access, 1 default            Acl
//! orphans   inode u64 BE                                  empty
//! deleted   sequence u64 BE                               DeletedRecord
//! sessions  session 16 bytes                              SessionRecord
//!           session 16 bytes | sequence u64 BE            kept reply (rkyv, behind a version byte)
//! usage     see `quota`                                   Usage, limits
//! settings  "volume" | "counters"                         VolumeRecord | Counters
//! ```
//!
//! Numbers in keys are big-endian, so that the order of the bytes is the order of the numbers.

use xtfs_protocol::ids::{Ino, SessionId};
use xtfs_protocol::{Code, Error, Result};

use crate::acl::AclKind;

/// An index of a volume's database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Table {
    Dirents,
    Inodes,
    Xattrs,
    Acls,
    Orphans,
    Deleted,
    Sessions,
    Usage,
    Settings,
}

impl Table {
    /// Every index with its name in the database.
    pub const ALL: [(Table, &'static str); 9] = [
        (Table::Dirents, "dirents"),
        (Table::Inodes, "inodes"),
        (Table::Xattrs, "xattrs"),
        (Table::Acls, "acls"),
        (Table::Orphans, "orphans"),
        (Table::Deleted, "deleted"),
        (Table::Sessions, "sessions"),
        (Table::Usage, "usage"),
        (Table::Settings, "settings"),
    ];
}

impl Table {
    /// Bytes at the beginning of a key that stand for what is listed as one: a directory's entries,
    /// an inode's attributes.
    pub const fn listed_bytes(self) -> u8 {
        match self {
            Table::Dirents | Table::Xattrs => 8,
            _ => 0,
        }
    }
}

/// Key of the volume's identity and defaults.
pub(crate) const SETTING_VOLUME: &[u8] = b"volume";
/// Key of the volume's counters.
pub(crate) const SETTING_COUNTERS: &[u8] = b"counters";

/// A number as a key or the beginning of one.
pub(crate) fn number(value: u64) -> [u8; 8] {
    value.to_be_bytes()
}

/// A number followed by a name.
pub(crate) fn named(value: u64, name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(8 + name.len());
    key.extend_from_slice(&number(value));
    key.extend_from_slice(name);
    key
}

/// Key of an access control list.
pub(crate) fn acl(ino: Ino, kind: AclKind) -> [u8; 9] {
    let mut key = [kind as u8; 9];
    key[..8].copy_from_slice(&number(ino));
    key
}

/// The number at the beginning of a key and the name behind it.
pub(crate) fn split(key: &[u8]) -> Result<(u64, &[u8])> {
    key.split_first_chunk::<8>()
        .map(|(head, name)| (u64::from_be_bytes(*head), name))
        .ok_or_else(|| Error::new(Code::Corrupt, format!("key of {} bytes", key.len())))
}

/// The inode that a key of `inodes` or `orphans` names.
pub(crate) fn ino(key: &[u8]) -> Result<Ino> {
    split(key).map(|(ino, _)| ino)
}

/// Key of a kept reply.
pub(crate) fn reply(session: SessionId, sequence: u64) -> Vec<u8> {
    let mut key = session.0.to_vec();
    key.extend_from_slice(&number(sequence));
    key
}

/// What a key of `sessions` names: a session, or one of its kept replies.
pub(crate) fn split_session(key: &[u8]) -> Result<(SessionId, Option<u64>)> {
    let damaged = || Error::new(Code::Corrupt, format!("session key of {} bytes", key.len()));
    let (id, rest) = key.split_first_chunk::<16>().ok_or_else(damaged)?;
    match rest {
        [] => Ok((SessionId(*id), None)),
        _ => <[u8; 8]>::try_from(rest)
            .map(|sequence| (SessionId(*id), Some(u64::from_be_bytes(sequence))))
            .map_err(|_| damaged()),
    }
}

/// The first key behind every key that starts with `prefix`; `None` when there is none.
pub(crate) fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.last_mut() {
        if *last < u8::MAX {
            *last += 1;
            return Some(end);
        }
        end.pop();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_as_their_numbers_and_then_their_names() {
        let mut keys = [
            named(256, b"a"),
            named(1, b"b"),
            named(1, b"a"),
            named(2, b""),
        ];
        keys.sort();
        let read: Vec<_> = keys.iter().map(|key| split(key).unwrap()).collect();
        assert_eq!(
            read,
            [
                (1, &b"a"[..]),
                (1, &b"b"[..]),
                (2, &b""[..]),
                (256, &b"a"[..])
            ]
        );
    }

    #[test]
    fn a_session_sorts_before_its_replies_and_both_read_back() {
        let id = SessionId([9; 16]);
        let kept = reply(id, 7);
        assert!(id.0.as_slice() < kept.as_slice());
        assert_eq!(split_session(&id.0).unwrap(), (id, None));
        assert_eq!(split_session(&kept).unwrap(), (id, Some(7)));
        assert!(split_session(&kept[..20]).is_err());
    }

    #[test]
    fn the_end_of_a_prefix_is_behind_all_it_begins() {
        assert_eq!(after_prefix(&[1, 255]), Some(vec![2]));
        assert_eq!(after_prefix(&[255, 255]), None);
    }
}
