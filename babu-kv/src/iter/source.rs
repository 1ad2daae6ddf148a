//! What a merge merges.

use super::{Cursor, Entry, Head, level::LevelCursor, merge::Direction};
use crate::{
    error::Result,
    memtable::MemtableCursor,
    slice::Value,
    table::{block_cursor::BlockCursor, cursor::TableCursor},
};

/// A cursor of one of the known kinds. A call through it costs a branch that is always taken the
/// same way.
pub(crate) enum Source {
    Memtable(MemtableCursor),
    Table(TableCursor),
    Level(LevelCursor),
}

macro_rules! each {
    ($source:expr, $cursor:ident => $call:expr) => {
        match $source {
            Source::Memtable($cursor) => $call,
            Source::Table($cursor) => $call,
            Source::Level($cursor) => $call,
        }
    };
}

impl Source {
    pub(super) fn head(&self) -> Head<'_> {
        match self {
            Source::Memtable(cursor) => cursor.head(),
            other => other.entry().map_or(Head::End, Head::Entry),
        }
    }

    /// The block of a table where it stands.
    pub(super) fn block(&self) -> Option<&BlockCursor> {
        match self {
            Source::Memtable(_) => None,
            Source::Table(cursor) => Some(cursor.block()),
            Source::Level(cursor) => cursor.block(),
        }
    }

    /// The same, to move in it.
    #[inline]
    pub(super) fn block_mut(&mut self) -> Option<&mut BlockCursor> {
        match self {
            Source::Memtable(_) => None,
            Source::Table(cursor) => Some(cursor.block_mut()),
            Source::Level(cursor) => cursor.block_mut(),
        }
    }

    /// Whether it stands in a stretch where nothing is live.
    pub(super) fn is_dead(&self) -> bool {
        matches!(self, Source::Memtable(cursor) if cursor.is_dead())
    }

    /// Goes on from a stretch where nothing is live.
    pub(super) fn skip(&mut self) {
        if let Source::Memtable(cursor) = self {
            cursor.skip();
        }
    }

    /// Whether it deletes `key` in a stretch where nothing is live.
    pub(super) fn hides(&mut self, key: &[u8]) -> bool {
        match self {
            Source::Memtable(cursor) => cursor.hides(key),
            _ => false,
        }
    }

    /// Goes on towards `end` over entries that are not newer than `sequence`, as far as it knows
    /// without looking at each.
    pub(super) fn pass(&mut self, end: &[u8], sequence: u64, direction: Direction) -> Result<()> {
        match self {
            Source::Memtable(cursor) => {
                cursor.pass(end, sequence);
                Ok(())
            }
            Source::Table(cursor) => cursor.pass(end, sequence, direction),
            Source::Level(cursor) => cursor.pass(end, sequence, direction),
        }
    }

    pub(super) fn advance(&mut self, direction: Direction) -> Result<()> {
        match direction {
            Direction::Forward => self.next(),
            Direction::Back => self.prev(),
        }
    }
}

impl Cursor for Source {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        each!(self, cursor => cursor.seek(key))
    }

    fn seek_back(&mut self, before: Option<&[u8]>) -> Result<()> {
        each!(self, cursor => cursor.seek_back(before))
    }

    fn next(&mut self) -> Result<()> {
        each!(self, cursor => cursor.next())
    }

    fn prev(&mut self) -> Result<()> {
        each!(self, cursor => cursor.prev())
    }

    #[inline]
    fn entry(&self) -> Option<Entry<'_>> {
        each!(self, cursor => cursor.entry())
    }

    fn value(&self) -> Value {
        each!(self, cursor => cursor.value())
    }

    #[inline]
    fn value_bytes(&self) -> &[u8] {
        each!(self, cursor => cursor.value_bytes())
    }
}
