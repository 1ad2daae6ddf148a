//! Iteration: cursors over memtables and tables, merged, and the [`Iter`] that users see.

pub(crate) mod level;
pub(crate) mod merge;

use crate::{
    error::Result,
    keys::{Kind, Range, user_key},
    slice::{Key, Value},
    state::State,
};
use merge::{Direction, Merge};
use std::sync::Arc;

/// An entry under a cursor. The key is a full key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    pub key: &'a [u8],
    pub sequence: u64,
    pub kind: Kind,
}

/// Walks one source, which shows each key once. After `seek` only `next` may be called, after
/// `seek_back` only `prev`.
pub(crate) trait Cursor: Send {
    /// Goes to the first key that is not before `key`.
    fn seek(&mut self, key: &[u8]) -> Result<()>;
    /// Goes to the last key before `before`, or to the last of all.
    fn seek_back(&mut self, before: Option<&[u8]>) -> Result<()>;
    fn next(&mut self) -> Result<()>;
    fn prev(&mut self) -> Result<()>;
    /// Where it stands; `None` past either end.
    fn entry(&self) -> Option<Entry<'_>>;
    /// The value of the entry where it stands.
    fn value(&self) -> Value;
}

/// Entries of one index in a range of keys, in order, as they were at one instant.
///
/// It can be walked from both ends, in turns, until they meet. It owns what it reads from, so that
/// it may outlive everything else, and others may write meanwhile. After an error it ends.
pub struct Iter {
    state: Arc<State>,
    sequence: u64,
    /// What is left between the two ends.
    range: Range,
    /// Where the range began, for `seek`.
    first: Vec<u8>,
    front: Option<Merge>,
    back: Option<Merge>,
    failed: bool,
}

impl Iter {
    pub(crate) fn new(state: Arc<State>, sequence: u64, range: Range) -> Iter {
        let first = range.from.clone();
        Iter {
            state,
            sequence,
            range,
            first,
            front: None,
            back: None,
            failed: false,
        }
    }

    /// Goes forward or back so that the next call of `next` gives the first entry of the range
    /// whose key is not before `key` and that `next_back` has not given yet.
    pub fn seek(&mut self, key: &[u8]) {
        let mut from = self
            .first
            .get(..crate::keys::INDEX_BYTES)
            .unwrap_or_default()
            .to_vec();
        from.extend_from_slice(key);
        self.range.from = from.max(self.first.clone());
        self.front = None;
        // It may have been made for less than is left now, or have passed what is left again.
        self.back = None;
    }

    fn step(&mut self, direction: Direction) -> Result<Option<(Key, Value)>> {
        if self.failed
            || self
                .range
                .to
                .as_ref()
                .is_some_and(|to| *to <= self.range.from)
        {
            return Ok(None);
        }
        let end = match direction {
            Direction::Forward => &mut self.front,
            Direction::Back => &mut self.back,
        };
        let merge = match end {
            Some(merge) => merge,
            None => end.insert(self.state.merge(&self.range, self.sequence, direction)?),
        };
        let Some(value) = merge.next_live(&self.range)? else {
            // Nothing is left in between, from whichever end one asks.
            self.range.to = Some(self.range.from.clone());
            return Ok(None);
        };
        let key = merge.key();
        match direction {
            Direction::Forward => {
                self.range.from.clear();
                self.range.from.extend_from_slice(key);
                self.range.from.push(0);
            }
            Direction::Back => {
                let to = self.range.to.get_or_insert_default();
                to.clear();
                to.extend_from_slice(key);
            }
        }
        Ok(Some((Key::from(user_key(key)), value)))
    }

    fn result(&mut self, direction: Direction) -> Option<Result<(Key, Value)>> {
        let result = self.step(direction);
        self.failed |= result.is_err();
        result.transpose()
    }
}

impl Iterator for Iter {
    type Item = Result<(Key, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.result(Direction::Forward)
    }
}

impl DoubleEndedIterator for Iter {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.result(Direction::Back)
    }
}

impl std::iter::FusedIterator for Iter {}
