//! What a merge merges.

use super::{Cursor, Entry, Head, level::LevelCursor, merge::Direction};
use crate::{error::Result, memtable::MemtableCursor, slice::Value, table::cursor::TableCursor};

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

    fn entry(&self) -> Option<Entry<'_>> {
        each!(self, cursor => cursor.entry())
    }

    fn value(&self) -> Value {
        each!(self, cursor => cursor.value())
    }
}
