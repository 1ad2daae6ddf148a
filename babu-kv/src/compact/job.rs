//! A compaction that was chosen: which tables go where.

use super::shape::{LAST, Shape};
use crate::{
    keys::Range,
    manifest::version::{self, LEVELS, Version},
    options::Options,
    table::Table,
};
use std::sync::Arc;

/// Tables of one level that go to a deeper one, with those there that they overlap.
#[derive(Debug)]
pub(crate) struct Job {
    pub level: usize,
    /// From new to old if of level 0, else in order of their keys.
    pub inputs: Vec<Arc<Table>>,
    pub output_level: usize,
    /// Tables of the levels between, and of the output level, in which the inputs may be newer; in
    /// order of level, then key.
    pub below: Vec<(usize, Vec<Arc<Table>>)>,
    /// The single input goes down as it is.
    pub is_move: bool,
}

pub(crate) fn bytes(tables: &[Arc<Table>]) -> u64 {
    tables.iter().map(|t| t.meta.size).sum()
}

/// The range that tables cover together.
pub(crate) fn hull(tables: &[Arc<Table>]) -> Range {
    let from = tables.iter().map(|t| &t.meta.from).min();
    let to = tables.iter().map(|t| &t.meta.to).max();
    Range {
        from: from.cloned().unwrap_or_default(),
        to: to.cloned(),
    }
}

pub(crate) fn shape(version: &Version, options: &Options) -> Shape {
    let bytes: [u64; LEVELS] = std::array::from_fn(|n| bytes(&version.levels[n]));
    Shape::of(&bytes, options.level1_bytes)
}

/// Where tables of level 0 go: the first level that has tables, or the base when it is above.
fn below_level0(version: &Version, base: usize) -> usize {
    (1..base)
        .find(|n| !version.levels[*n].is_empty())
        .unwrap_or(base)
}

impl Job {
    /// Tables of a level to the next that is used. Those of level 0 must be all that overlap each
    /// other.
    pub(crate) fn down(
        version: &Version,
        base: usize,
        level: usize,
        inputs: Vec<Arc<Table>>,
    ) -> Job {
        let output_level = match level {
            0 => below_level0(version, base),
            _ => level + 1,
        };
        let range = hull(&inputs);
        let below = version::within(&version.levels[output_level], &range).to_vec();
        // Tombstones that nothing below needs end here; they must not move on for ever.
        let is_clean = |t: &Arc<Table>| {
            t.meta.tombstones == 0 || !is_free(version, output_level + 1, LAST, &range)
        };
        Job {
            level,
            is_move: below.is_empty() && matches!(inputs.as_slice(), [t] if is_clean(t)),
            inputs,
            output_level,
            below: vec![(output_level, below)],
        }
    }

    /// A table of level 0 that overlaps nothing older goes as deep as nothing is in its way, at no
    /// cost: keys that come in order are written once.
    pub(crate) fn sink(version: &Version, base: usize, table: &Arc<Table>) -> Option<Job> {
        let range = hull(std::slice::from_ref(table));
        let older = version.levels[0]
            .iter()
            .skip_while(|t| t.meta.number != table.meta.number)
            .skip(1);
        let top = below_level0(version, base);
        if table.meta.tombstones > 0 || older.into_iter().any(|t| t.overlaps(&range)) {
            return None;
        }
        let output_level = (top..LEVELS)
            .take_while(|n| is_free(version, *n, *n, &range))
            .last()?;
        Some(Job {
            level: 0,
            inputs: vec![table.clone()],
            output_level,
            below: Vec::new(),
            is_move: true,
        })
    }

    /// All tables, into the deepest level.
    pub(crate) fn everything(version: &Version) -> Option<Job> {
        let top = version.levels.iter().position(|level| !level.is_empty())?;
        let inputs = version.levels[top].clone();
        if top == LAST && inputs.iter().all(|t| t.meta.tombstones == 0) {
            return None;
        }
        let below = (top + 1..LEVELS)
            .map(|n| (n, version.levels[n].clone()))
            .collect();
        Some(Job {
            level: top,
            inputs,
            output_level: LAST,
            below,
            is_move: false,
        })
    }

    pub(crate) fn tables(&self) -> impl Iterator<Item = (usize, &Arc<Table>)> {
        let below = self
            .below
            .iter()
            .flat_map(|(level, tables)| tables.iter().map(|t| (*level, t)));
        self.inputs.iter().map(|t| (self.level, t)).chain(below)
    }

    /// Bytes of the tables below for each byte of the inputs.
    pub(crate) fn overlap_ratio(&self) -> f64 {
        let below: u64 = self.below.iter().map(|(_, tables)| bytes(tables)).sum();
        below as f64 / bytes(&self.inputs).max(1) as f64
    }
}

/// Whether no table of these levels shares a key with `range`.
fn is_free(version: &Version, from: usize, through: usize, range: &Range) -> bool {
    (from..=through).all(|n| version::within(&version.levels[n], range).is_empty())
}
