//! Iteration: cursors over memtables and tables, merged, and the [`Iter`] that users see.

pub(crate) mod level;
pub(crate) mod merge;
mod source;

pub(crate) use source::Source;

use crate::{
    error::{Error, Result},
    keys::{INDEX_BYTES, Kind, Range, user_key},
    pins::Pin,
    slice::{Key, Value},
};
use merge::{Direction, Limit, Merge};
use std::sync::Arc;

/// An entry under a cursor. The key is a full key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    pub key: &'a [u8],
    pub sequence: u64,
    pub kind: Kind,
}

/// What a source knows of its next key.
pub(crate) enum Head<'a> {
    Entry(Entry<'a>),
    /// Nothing is live before this key, or up to the end; at the key itself something may be. Going
    /// back, "before" is "after".
    Dead(Option<&'a [u8]>),
    End,
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
    /// The same, borrowed.
    fn value_bytes(&self) -> &[u8];
}

/// Entries of one index in a range of keys, in order, as they were at one instant.
///
/// It can be walked from both ends, in turns, until they meet. It owns what it reads from, so that
/// it may outlive everything else, and others may write meanwhile. After an error it ends.
pub struct Iter {
    pin: Arc<Pin>,
    /// What there was between the two ends when the merges below began.
    range: Range,
    /// Where the range began, for `seek`.
    first: Vec<u8>,
    /// Each stands on the entry that it gave last, which ends the other.
    front: Option<Merge>,
    back: Option<Merge>,
    /// Nothing is left, from whichever end one asks.
    over: bool,
    failed: bool,
}

impl Iter {
    pub(crate) fn new(pin: Arc<Pin>, range: Range) -> Iter {
        Iter {
            pin,
            first: range.from.clone(),
            over: is_empty(&range),
            range,
            front: None,
            back: None,
            failed: false,
        }
    }

    /// Goes forward or back so that the next call of `next` gives the first entry of the range
    /// whose key is not before `key` and that `next_back` has not given yet.
    pub fn seek(&mut self, key: &[u8]) {
        let index = self.first.get(..INDEX_BYTES).unwrap_or_default();
        self.range.from = [index, key].concat().max(self.first.clone());
        self.front = None;
        // The other end was made for the range that there was, which may have begun later.
        if let Some(back) = self.back.take() {
            self.range.to = Some(back.key().to_vec());
        }
        self.over = is_empty(&self.range);
    }

    fn next_forward(&mut self) -> Result<bool> {
        let front = match &mut self.front {
            Some(front) => front,
            None => {
                let front = &mut self.front;
                front.insert(self.pin.state()?.merge(
                    &self.range,
                    self.pin.sequence,
                    Direction::Forward,
                )?)
            }
        };
        front.next_live(match (&self.back, &self.range.to) {
            (Some(back), _) => Limit::Outside(back.key()),
            (None, Some(to)) => Limit::Outside(to),
            (None, None) => Limit::None,
        })
    }

    fn next_backward(&mut self) -> Result<bool> {
        let back = match &mut self.back {
            Some(back) => back,
            None => {
                let back = &mut self.back;
                back.insert(self.pin.state()?.merge(
                    &self.range,
                    self.pin.sequence,
                    Direction::Back,
                )?)
            }
        };
        let limit = match &self.front {
            Some(front) => Limit::Outside(front.key()),
            None => Limit::Inside(&self.range.from),
        };
        if back.next_live(limit)? {
            return Ok(true);
        }
        // All down to the other end was given. This end stays there if the other moves.
        self.range.to = Some(match limit {
            Limit::Outside(last) => [last, &[0]].concat(),
            _ => self.range.from.clone(),
        });
        self.back = None;
        Ok(false)
    }

    fn step(&mut self, direction: Direction) -> Result<bool> {
        if self.over {
            return Ok(false);
        }
        // Too old: whatever the ends still stand on.
        self.pin.check()?;
        let (near, far) = match direction {
            Direction::Forward => (&mut self.front, &mut self.back),
            Direction::Back => (&mut self.back, &mut self.front),
        };
        // The other end was to go on up to where this one stood.
        if let Some(far) = far {
            far.stop();
        }
        if near.as_mut().is_some_and(Merge::glide) {
            return Ok(true);
        }
        let found = match direction {
            Direction::Forward => self.next_forward()?,
            Direction::Back => self.next_backward()?,
        };
        self.over = !found;
        Ok(found)
    }

    /// The end that has moved to an entry; `None` when there was none.
    #[inline]
    fn go(&mut self, direction: Direction) -> Option<Result<&Merge>> {
        if self.failed {
            return None;
        }
        match self.step(direction) {
            Ok(true) => match direction {
                Direction::Forward => self.front.as_ref().map(Ok),
                Direction::Back => self.back.as_ref().map(Ok),
            },
            Ok(false) => None,
            Err(error) => Some(self.fail(error)),
        }
    }

    #[cold]
    fn fail<T>(&mut self, error: Error) -> Result<T> {
        self.failed = true;
        // So that one that is too old lets go of what its cursors hold.
        self.front = None;
        self.back = None;
        self.pin.observe(Err(error))
    }

    /// [`next`](Iterator::next) that lends key and value until the next step: nothing is copied, and
    /// no count of holders changes. A value that is to be kept is kept by `next`.
    pub fn next_borrowed(&mut self) -> Option<Result<(&[u8], &[u8])>> {
        let merge = self.go(Direction::Forward)?;
        Some(merge.map(Merge::borrowed))
    }

    /// The same from the other end.
    pub fn next_back_borrowed(&mut self) -> Option<Result<(&[u8], &[u8])>> {
        let merge = self.go(Direction::Back)?;
        Some(merge.map(Merge::borrowed))
    }
}

/// An entry to keep.
fn owned(merge: &Merge) -> (Key, Value) {
    (Key::from(user_key(merge.key())), merge.value())
}

fn is_empty(range: &Range) -> bool {
    range.to.as_ref().is_some_and(|to| *to <= range.from)
}

impl Iterator for Iter {
    type Item = Result<(Key, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.go(Direction::Forward).map(|merge| merge.map(owned))
    }
}

impl DoubleEndedIterator for Iter {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.go(Direction::Back).map(|merge| merge.map(owned))
    }
}

impl std::iter::FusedIterator for Iter {}
