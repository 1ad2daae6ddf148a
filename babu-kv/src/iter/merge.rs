//! Merges cursors into one order. Of several entries for a key the one of the newest source counts.

use super::Cursor;
use crate::{
    error::Result,
    keys::{Kind, Range},
    slice::Value,
    tombstones::Tombstones,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Back,
}

/// The newest entry of a key.
pub(crate) struct Newest {
    pub sequence: u64,
    pub kind: Kind,
    pub value: Value,
}

pub(crate) struct Merge {
    /// From new to old.
    cursors: Vec<Box<dyn Cursor>>,
    tombstones: Tombstones,
    direction: Direction,
    key: Vec<u8>,
}

impl Merge {
    /// Starts at the near end of `range`. The caller ends it at the far end.
    pub(crate) fn new(
        mut cursors: Vec<Box<dyn Cursor>>,
        tombstones: Tombstones,
        range: &Range,
        direction: Direction,
    ) -> Result<Merge> {
        for cursor in &mut cursors {
            match direction {
                Direction::Forward => cursor.seek(&range.from)?,
                Direction::Back => cursor.seek_back(range.to.as_deref())?,
            }
        }
        Ok(Merge {
            cursors,
            tombstones,
            direction,
            key: Vec::new(),
        })
    }

    /// The key that was given last.
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// The newest entry of the next key, also when it deletes or is deleted by a range tombstone.
    pub(crate) fn next_newest(&mut self) -> Result<Option<Newest>> {
        let mut best: Option<(usize, super::Entry<'_>)> = None;
        for (n, cursor) in self.cursors.iter().enumerate() {
            let Some(entry) = cursor.entry() else {
                continue;
            };
            let better = best.as_ref().is_none_or(|(_, b)| match self.direction {
                Direction::Forward => entry.key < b.key,
                Direction::Back => entry.key > b.key,
            });
            if better {
                best = Some((n, entry));
            }
        }
        let Some((n, entry)) = best else {
            return Ok(None);
        };
        let (sequence, kind) = (entry.sequence, entry.kind);
        self.key.clear();
        self.key.extend_from_slice(entry.key);
        let value = self.cursors[n].value();
        // Those before `n` are newer and do not have the key.
        for cursor in &mut self.cursors[n..] {
            if cursor.entry().is_some_and(|e| e.key == self.key.as_slice()) {
                match self.direction {
                    Direction::Forward => cursor.next()?,
                    Direction::Back => cursor.prev()?,
                }
            }
        }
        Ok(Some(Newest {
            sequence,
            kind,
            value,
        }))
    }

    /// Whether a range tombstone deletes the key that was given last, written at `sequence`.
    pub(crate) fn is_covered(&self, sequence: u64) -> bool {
        !self.tombstones.is_empty() && self.tombstones.covering(&self.key, u64::MAX) > sequence
    }

    /// The value of the next key inside `range` that has one.
    pub(crate) fn next_live(&mut self, range: &Range) -> Result<Option<Value>> {
        while let Some(newest) = self.next_newest()? {
            if !range.contains(&self.key) {
                return Ok(None);
            }
            if newest.kind == Kind::Put && !self.is_covered(newest.sequence) {
                return Ok(Some(newest.value));
            }
        }
        Ok(None)
    }
}
