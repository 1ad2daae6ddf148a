//! A cursor over one table.

use super::{Table, block::Unfolded};
use crate::{
    error::Result,
    iter::{Cursor, Entry},
    slice::Value,
};
use std::sync::Arc;

pub(crate) struct TableCursor {
    table: Arc<Table>,
    /// Whether the blocks that it reads go into the cache.
    keep: bool,
    block: Option<(usize, Unfolded)>,
    /// The entry in the block.
    at: usize,
}

impl TableCursor {
    pub(crate) fn new(table: Arc<Table>, keep: bool) -> TableCursor {
        TableCursor {
            table,
            keep,
            block: None,
            at: 0,
        }
    }

    /// Makes `n` the current block.
    fn enter(&mut self, n: usize) -> Result<&Unfolded> {
        let reader = self.table.reader()?;
        let unfolded = match self.block.take() {
            Some((current, unfolded)) if current == n => unfolded,
            _ => reader
                .block(n, self.keep)?
                .unfold()
                .map_err(|what| reader.corrupt(n, what))?,
        };
        Ok(&self.block.insert((n, unfolded)).1)
    }
}

impl Cursor for TableCursor {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        let reader = self.table.reader()?;
        let index = reader.index();
        let n = index.find(key);
        if n == index.len() {
            self.block = None;
            return Ok(());
        }
        self.at = self.enter(n)?.find(key);
        Ok(())
    }

    fn seek_back(&mut self, before: Option<&[u8]>) -> Result<()> {
        let reader = self.table.reader()?;
        let index = reader.index();
        let blocks = index.len();
        let n = before
            .map_or(blocks, |key| index.find(key))
            .min(blocks.saturating_sub(1));
        if blocks == 0 {
            self.block = None;
            return Ok(());
        }
        let unfolded = self.enter(n)?;
        self.at = before.map_or(unfolded.len(), |key| unfolded.find(key));
        self.prev()
    }

    fn next(&mut self) -> Result<()> {
        let Some((n, unfolded)) = &self.block else {
            return Ok(());
        };
        self.at += 1;
        if self.at >= unfolded.len() {
            let n = n + 1;
            if n >= self.table.reader()?.index().len() {
                self.block = None;
                return Ok(());
            }
            self.enter(n)?;
            self.at = 0;
        }
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        let Some((n, _)) = &self.block else {
            return Ok(());
        };
        if self.at > 0 {
            self.at -= 1;
            return Ok(());
        }
        match n.checked_sub(1) {
            Some(n) => self.at = self.enter(n)?.len().saturating_sub(1),
            None => self.block = None,
        }
        Ok(())
    }

    fn entry(&self) -> Option<Entry<'_>> {
        self.block.as_ref()?.1.entry(self.at)
    }

    fn value(&self) -> Value {
        self.block.as_ref().map_or_else(
            || Value::from(&[][..]),
            |(_, unfolded)| unfolded.value(self.at),
        )
    }
}
