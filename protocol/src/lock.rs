//! Advisory locks of files: what is locked, by whom, and how the ranges of one owner join and split.
//!
//! Two kinds of lock do not see each other, as on a local file system: those of byte ranges
//! (`fcntl`, of processes and of open file descriptions) and those of whole files (`flock`). An
//! owner never conflicts with itself: what it asks for last replaces what it had there.

#![allow(
    missing_docs,
    reason = "rkyv derives undocumented items for enum variants; every item here has its text"
)]

use rkyv::{Archive, Deserialize, Serialize};

use crate::ids::Ino;

/// Which locks see each other.
#[derive(
    Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash,
)]
pub enum LockSpace {
    /// Locks of byte ranges: `fcntl`.
    Record,
    /// Locks of whole files and directories: `flock`.
    Whole,
}

/// How much a lock keeps others away.
#[derive(
    Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash,
)]
pub enum LockKind {
    /// From exclusive locks only.
    Shared,
    /// From every other lock.
    Exclusive,
}

/// Bytes of a file.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRange {
    /// The first byte.
    pub start: u64,
    /// The last byte, which belongs to it; [`u64::MAX`] is the end of every file.
    pub end: u64,
}

impl LockRange {
    /// Everything.
    pub const ALL: Self = Self {
        start: 0,
        end: u64::MAX,
    };
}

/// What a lock is on and whose it is. Owners are numbered by each client; the same number of two
/// sessions is two owners.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockTarget {
    /// The file or directory.
    pub ino: Ino,
    /// Which locks it sees.
    pub space: LockSpace,
    /// The owner.
    pub owner: u64,
    /// Its process, for those who ask who is in the way.
    pub pid: u32,
}

/// A lock that is held.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLock {
    /// On what, and whose.
    pub target: LockTarget,
    /// Which bytes.
    pub range: LockRange,
    /// How much it keeps others away.
    pub kind: LockKind,
}

/// What came of asking for a lock, or of ending the wait for one.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockState {
    /// It is held (or, of an unlock: given up).
    Held,
    /// Another owner is in the way; a push tells when that is over.
    Waiting,
    /// Nobody waits for it any more, and it is not held.
    Cancelled,
}

/// A range that an owner holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldRange {
    /// Which bytes.
    pub range: LockRange,
    /// How much it keeps others away.
    pub kind: LockKind,
    /// The process that asked.
    pub pid: u32,
}

/// The ranges that one owner holds of one file: in order, without overlaps, neighbours of one kind
/// joined.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges {
    held: Vec<HeldRange>,
}

impl Ranges {
    /// Most ranges that one change adds: a hole in the middle of one makes two of it, and the hole
    /// may be filled with another kind.
    pub const GROWTH_MAX: usize = 2;

    /// The ranges, in order.
    #[must_use]
    pub fn as_slice(&self) -> &[HeldRange] {
        &self.held
    }

    /// Locks a range, or frees it with `None`, whatever was held there.
    pub fn set(&mut self, range: LockRange, kind: Option<LockKind>, pid: u32) {
        let (first, end) = self.overlapping(range);
        // The neighbours as well: they may have to be joined.
        let (first, end) = (first.saturating_sub(1), (end + 1).min(self.held.len()));
        let before = |held: &HeldRange| {
            let rest = LockRange {
                end: range.start.checked_sub(1)?.min(held.range.end),
                ..held.range
            };
            (rest.start <= rest.end).then_some(HeldRange {
                range: rest,
                ..*held
            })
        };
        let behind = |held: &HeldRange| {
            let rest = LockRange {
                start: range.end.checked_add(1)?.max(held.range.start),
                ..held.range
            };
            (rest.start <= rest.end).then_some(HeldRange {
                range: rest,
                ..*held
            })
        };
        let window = self.held.get(first..end).unwrap_or(&[]);
        let new = kind.map(|kind| HeldRange { range, kind, pid });
        let pieces = window.iter().filter_map(before);
        let pieces = pieces.chain(new).chain(window.iter().filter_map(behind));
        let mut joined: Vec<HeldRange> = Vec::with_capacity(window.len() + Self::GROWTH_MAX);
        for piece in pieces {
            match joined.last_mut() {
                Some(last)
                    if last.kind == piece.kind
                        && last.range.end.checked_add(1) == Some(piece.range.start) =>
                {
                    last.range.end = piece.range.end;
                }
                _ => joined.push(piece),
            }
        }
        self.held.splice(first..end, joined);
    }

    /// The first range that keeps another owner from a lock.
    #[must_use]
    pub fn conflict(&self, range: LockRange, kind: LockKind) -> Option<HeldRange> {
        let (first, end) = self.overlapping(range);
        let mut held = self.held.get(first..end).unwrap_or(&[]).iter();
        held.find(|held| kind == LockKind::Exclusive || held.kind == LockKind::Exclusive)
            .copied()
    }

    /// Is every byte of the range held, in this kind or a stronger one?
    #[must_use]
    pub fn covers(&self, range: LockRange, kind: LockKind) -> bool {
        let (first, end) = self.overlapping(range);
        let mut next = Some(range.start);
        for held in self.held.get(first..end).unwrap_or(&[]) {
            if held.kind < kind || next.is_none_or(|next| held.range.start > next) {
                return false;
            }
            next = held.range.end.checked_add(1);
        }
        next.is_none_or(|next| next > range.end)
    }

    /// Where in the list the ranges lie that share a byte with `range`.
    fn overlapping(&self, range: LockRange) -> (usize, usize) {
        let first = self
            .held
            .partition_point(|held| held.range.end < range.start);
        let end = self
            .held
            .partition_point(|held| held.range.start <= range.end);
        (first, end.max(first))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(start: u64, end: u64) -> LockRange {
        LockRange { start, end }
    }

    #[test]
    fn the_ends_of_a_file_are_no_limits() {
        let mut ranges = Ranges::default();
        ranges.set(LockRange::ALL, Some(LockKind::Exclusive), 1);
        ranges.set(range(10, 19), None, 1);
        ranges.set(range(10, 19), Some(LockKind::Shared), 1);
        assert_eq!(ranges.as_slice().len(), 3);
        ranges.set(LockRange::ALL, Some(LockKind::Shared), 1);
        assert_eq!(ranges.as_slice().len(), 1);
        ranges.set(LockRange::ALL, None, 1);
        assert!(ranges.as_slice().is_empty());
    }

    const BYTES: u64 = 24;

    fn byte(ranges: &Ranges, at: u64) -> Option<LockKind> {
        let held = ranges.conflict(range(at, at), LockKind::Exclusive);
        held.map(|held| held.kind)
    }

    proptest! {
        #[test]
        fn ranges_are_what_one_would_get_by_locking_byte_by_byte(
            changes in prop::collection::vec((0..BYTES, 0..BYTES, 0u8..3), 1..40),
            asked in (0..BYTES, 0..BYTES),
        ) {
            let mut ranges = Ranges::default();
            let mut bytes = [None; BYTES as usize];
            for (one, two, kind) in changes {
                let kind = [None, Some(LockKind::Shared), Some(LockKind::Exclusive)][kind as usize];
                let (start, end) = (one.min(two), one.max(two));
                let before = ranges.as_slice().len();
                ranges.set(range(start, end), kind, 7);
                prop_assert!(ranges.as_slice().len() <= before + Ranges::GROWTH_MAX);
                bytes[start as usize..=end as usize].fill(kind);
                for (at, kind) in bytes.iter().enumerate() {
                    prop_assert_eq!(byte(&ranges, at as u64), *kind, "byte {}", at);
                }
                // Joined wherever they can be.
                for pair in ranges.as_slice().windows(2) {
                    let touch = pair[0].range.end + 1 >= pair[1].range.start;
                    prop_assert!(!touch || pair[0].kind != pair[1].kind);
                }
            }
            let (start, end) = (asked.0.min(asked.1), asked.0.max(asked.1));
            let part = &bytes[start as usize..=end as usize];
            let at = range(start, end);
            prop_assert_eq!(
                ranges.conflict(at, LockKind::Shared).is_some(),
                part.contains(&Some(LockKind::Exclusive))
            );
            prop_assert_eq!(
                ranges.covers(at, LockKind::Shared),
                part.iter().all(Option::is_some)
            );
            prop_assert_eq!(
                ranges.covers(at, LockKind::Exclusive),
                part.iter().all(|kind| *kind == Some(LockKind::Exclusive))
            );
        }
    }
}
