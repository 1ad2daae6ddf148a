//! A cursor over tables that follow one another without overlap.

use super::{Cursor, Entry, merge::Direction};
use crate::{
    error::Result,
    slice::Value,
    table::{Table, block_cursor::BlockCursor, cursor::TableCursor},
};
use std::sync::Arc;

pub(crate) struct LevelCursor {
    tables: Vec<Arc<Table>>,
    keep: bool,
    at: usize,
    cursor: Option<TableCursor>,
}

impl LevelCursor {
    pub(crate) fn new(tables: Vec<Arc<Table>>, keep: bool) -> LevelCursor {
        LevelCursor {
            tables,
            keep,
            at: 0,
            cursor: None,
        }
    }

    /// Makes table `n` the current one; without a table of that number the cursor stands past the
    /// end.
    fn enter(&mut self, n: usize) -> Option<&mut TableCursor> {
        if n != self.at || self.cursor.is_none() {
            self.at = n;
            self.cursor = self
                .tables
                .get(n)
                .map(|table| TableCursor::new(table.clone(), self.keep));
        }
        self.cursor.as_mut()
    }

    /// Goes on towards `end` over what is in the current table, when none of it is newer than
    /// `sequence`.
    pub(super) fn pass(&mut self, end: &[u8], sequence: u64, direction: Direction) -> Result<()> {
        let Some(table) = self.tables.get(self.at) else {
            return Ok(());
        };
        let is_ahead = |e: Entry<'_>| direction.order(e.key, end).is_lt();
        if table.meta.sequence_max > sequence || !self.entry().is_some_and(is_ahead) {
            return Ok(());
        }
        let meta = &table.clone().meta;
        match direction {
            Direction::Forward => self.seek(end.min(&meta.to)),
            Direction::Back => self.seek_back(Some(end.max(&meta.from))),
        }
    }

    /// The block where it stands.
    pub(super) fn block(&self) -> Option<&BlockCursor> {
        self.cursor.as_ref().map(TableCursor::block)
    }

    /// The same, to move in it.
    #[inline]
    pub(super) fn block_mut(&mut self) -> Option<&mut BlockCursor> {
        self.cursor.as_mut().map(TableCursor::block_mut)
    }

    fn is_past(&self) -> bool {
        self.cursor.as_ref().is_some_and(|c| c.entry().is_none())
    }

    /// Goes on to the next table as long as the current one has no more. A table may hold nothing
    /// but range tombstones.
    fn settle_forward(&mut self) -> Result<()> {
        while self.is_past() {
            if let Some(cursor) = self.enter(self.at + 1) {
                cursor.seek(&[])?;
            }
        }
        Ok(())
    }

    fn settle_back(&mut self) -> Result<()> {
        while self.is_past() {
            match self.at.checked_sub(1).and_then(|n| self.enter(n)) {
                Some(cursor) => cursor.seek_back(None)?,
                None => self.cursor = None,
            }
        }
        Ok(())
    }
}

impl Cursor for LevelCursor {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        let n = self.tables.partition_point(|t| t.meta.to.as_slice() <= key);
        if let Some(cursor) = self.enter(n) {
            cursor.seek(key)?;
        }
        self.settle_forward()
    }

    fn seek_back(&mut self, before: Option<&[u8]>) -> Result<()> {
        let after = before.map_or(self.tables.len(), |key| {
            self.tables
                .partition_point(|t| t.meta.from.as_slice() < key)
        });
        match after.checked_sub(1).and_then(|n| self.enter(n)) {
            Some(cursor) => cursor.seek_back(before)?,
            None => self.cursor = None,
        }
        self.settle_back()
    }

    fn next(&mut self) -> Result<()> {
        if let Some(cursor) = &mut self.cursor {
            cursor.next()?;
        }
        self.settle_forward()
    }

    fn prev(&mut self) -> Result<()> {
        if let Some(cursor) = &mut self.cursor {
            cursor.prev()?;
        }
        self.settle_back()
    }

    #[inline]
    fn entry(&self) -> Option<Entry<'_>> {
        self.cursor.as_ref()?.entry()
    }

    fn value(&self) -> Value {
        self.cursor
            .as_ref()
            .map_or_else(|| Value::from(&[][..]), Cursor::value)
    }

    #[inline]
    fn value_bytes(&self) -> &[u8] {
        self.cursor.as_ref().map_or(&[], Cursor::value_bytes)
    }
}
