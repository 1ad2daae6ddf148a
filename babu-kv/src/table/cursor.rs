//! A cursor over one table.

use super::{
    Table,
    block_cursor::BlockCursor,
    index::{IndexCursor, Place},
    reader::Reading,
};
use crate::{
    error::Result,
    iter::{Cursor, Entry, merge::Direction},
    slice::Value,
};
use std::sync::Arc;

pub(crate) struct TableCursor {
    table: Arc<Table>,
    reading: Reading,
    index: IndexCursor,
    /// The block that `entries` walks.
    place: Option<Place>,
    entries: BlockCursor,
}

/// Stands at an entry, as one does after the step into another block.
fn is_not_empty(is_there: bool) -> Result<bool, &'static str> {
    if is_there {
        Ok(true)
    } else {
        Err("the block is empty")
    }
}

impl TableCursor {
    /// `keep` puts the blocks that it reads into the cache.
    pub(crate) fn new(table: Arc<Table>, keep: bool) -> TableCursor {
        TableCursor {
            table,
            reading: if keep { Reading::Keep } else { Reading::Pass },
            index: IndexCursor::default(),
            place: None,
            entries: BlockCursor::default(),
        }
    }

    /// Makes `place` the current block; `false` when there is none.
    fn enter(&mut self, place: Option<Place>) -> Result<bool> {
        if self.place != place || place.is_none() {
            self.place = None;
            self.entries.leave();
            let Some(next) = place else {
                return Ok(false);
            };
            let reader = self.table.reader()?;
            self.entries.enter(reader.block(next.handle, self.reading)?);
            self.place = place;
        }
        Ok(true)
    }

    /// What a step in the current block found.
    fn found(&self, step: Result<bool, &'static str>) -> Result<bool> {
        step.or_else(|what| {
            let place = self.place.unwrap_or_default();
            Err(self.table.reader()?.corrupt(place.handle, what))
        })
    }

    /// Goes on to the next block.
    fn next_block(&mut self) -> Result<()> {
        let place = self.index.next(&*self.table.reader()?, self.reading)?;
        if self.enter(place)? {
            let step = self.entries.first();
            self.found(step.and_then(is_not_empty))?;
        }
        Ok(())
    }

    /// Goes back to the block before.
    fn prev_block(&mut self) -> Result<()> {
        let place = self.index.prev(&*self.table.reader()?, self.reading)?;
        if self.enter(place)? {
            let step = self.entries.seek_back(None);
            self.found(step.and_then(is_not_empty))?;
        }
        Ok(())
    }
}

impl TableCursor {
    /// The block where it stands.
    pub(crate) fn block(&self) -> &BlockCursor {
        &self.entries
    }

    /// The same, to move in it.
    #[inline]
    pub(crate) fn block_mut(&mut self) -> &mut BlockCursor {
        &mut self.entries
    }

    /// Goes on to `end`, when nothing in the table is newer than `sequence`.
    pub(crate) fn pass(&mut self, end: &[u8], sequence: u64, direction: Direction) -> Result<()> {
        let is_ahead = |e: Entry<'_>| direction.order(e.key, end).is_lt();
        if self.table.meta.sequence_max > sequence || !self.entry().is_some_and(is_ahead) {
            return Ok(());
        }
        match direction {
            Direction::Forward => self.seek(end),
            Direction::Back => self.seek_back(Some(end)),
        }
    }
}

impl Cursor for TableCursor {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        let place = self.index.seek(&*self.table.reader()?, key, self.reading)?;
        if self.enter(place)? {
            let step = self.entries.seek(key);
            if !self.found(step)? {
                self.next_block()?;
            }
        }
        Ok(())
    }

    fn seek_back(&mut self, before: Option<&[u8]>) -> Result<()> {
        let reader = self.table.reader()?;
        let place = match before {
            Some(key) => self.index.seek(&reader, key, self.reading)?,
            None => None,
        };
        let place = match place {
            Some(place) => Some(place),
            None => self.index.last(&reader, self.reading)?,
        };
        if self.enter(place)? {
            let step = self.entries.seek_back(before);
            if !self.found(step)? {
                self.prev_block()?;
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        if self.place.is_some() {
            let step = self.entries.next();
            if !self.found(step)? {
                self.next_block()?;
            }
        }
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        if self.place.is_some() {
            let step = self.entries.prev();
            if !self.found(step)? {
                self.prev_block()?;
            }
        }
        Ok(())
    }

    #[inline]
    fn entry(&self) -> Option<Entry<'_>> {
        self.entries.entry()
    }

    fn value(&self) -> Value {
        self.entries.value()
    }

    #[inline]
    fn value_bytes(&self) -> &[u8] {
        self.entries.value_bytes()
    }
}
