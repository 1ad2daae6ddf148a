//! The tables that a flush or compaction writes. Each takes the keys from its first up to the first
//! of the next, and the pieces of range tombstones in there.

use super::cut::Cutter;
use crate::{
    core::Core,
    error::Result,
    iter::Entry,
    keys::{Range, RangeTombstone},
    manifest::version::{self, Version},
    table::{TableMeta, builder::TableBuilder},
};
use std::sync::atomic::Ordering::Relaxed;

pub(crate) struct Outputs<'a> {
    core: &'a Core,
    level: usize,
    cutter: Cutter,
    /// In order of their start, without overlap.
    tombstones: Vec<RangeTombstone>,
    builder: Option<TableBuilder>,
    /// Where the current table begins; tombstones before it are written.
    from: Vec<u8>,
    done: Vec<TableMeta>,
}

impl<'a> Outputs<'a> {
    /// Tables for `level` with keys of `range`.
    pub(crate) fn new(
        core: &'a Core,
        version: &Version,
        level: usize,
        range: &Range,
        tombstones: Vec<RangeTombstone>,
    ) -> Outputs<'a> {
        // What follows level 0 is decided when it is merged down.
        let next = version.levels.get(level + 1).filter(|_| level > 0);
        let next = next.map_or(&[][..], |tables| version::within(tables, range));
        Outputs {
            core,
            level,
            cutter: Cutter::new(&core.options, next.to_vec()),
            tombstones,
            builder: None,
            from: Vec::new(),
            done: Vec::new(),
        }
    }

    /// Takes an entry; keys ascend.
    pub(crate) fn add(&mut self, entry: &Entry<'_>, value: &[u8]) -> Result<()> {
        let bytes = self.builder.as_ref().map_or(0, TableBuilder::len);
        if self.cutter.ends_before(entry.key, bytes) {
            self.end(Some(entry.key.to_vec()))?;
        }
        self.builder()?.add(entry, value)
    }

    fn builder(&mut self) -> Result<&mut TableBuilder> {
        let builder = match self.builder.take() {
            Some(builder) => builder,
            None => {
                let number = self.core.next_file.fetch_add(1, Relaxed);
                TableBuilder::new(&self.core.tables, number, self.level, &self.core.options)?
            }
        };
        Ok(self.builder.insert(builder))
    }

    /// Ends the current table before `next`, with its pieces of range tombstones.
    fn end(&mut self, next: Option<Vec<u8>>) -> Result<()> {
        let mut pieces = Vec::new();
        for t in &self.tombstones {
            let from = t.from.clone().max(self.from.clone());
            let to = match &next {
                Some(next) => t.to.clone().min(next.clone()),
                None => t.to.clone(),
            };
            if from < to {
                let sequence = t.sequence;
                pieces.push(RangeTombstone { from, to, sequence });
            }
        }
        if !pieces.is_empty() {
            let builder = self.builder()?;
            pieces.into_iter().for_each(|t| builder.add_tombstone(t));
        }
        if let Some(builder) = self.builder.take() {
            self.done.push(builder.finish()?);
        }
        self.from = next.unwrap_or_default();
        Ok(())
    }

    /// The durable tables, named durably in the folder. The caller installs or discards them.
    pub(crate) fn finish(mut self) -> Result<Vec<TableMeta>> {
        self.end(None)?;
        if !self.done.is_empty() {
            self.core.sync_dir()?;
        }
        Ok(std::mem::take(&mut self.done))
    }
}

impl Drop for Outputs<'_> {
    fn drop(&mut self) {
        if !self.done.is_empty() {
            self.core.discard(&self.done);
        }
    }
}
