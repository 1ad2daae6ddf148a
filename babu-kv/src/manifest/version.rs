//! A version: which tables make up the database, in which levels. Immutable; each edit makes a new
//! one.

use super::edit::Edit;
use crate::{
    log::seal::Seal,
    table::{Prefixes, Table, Tables},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Level 0 holds flushed memtables, which may overlap; the tables of any other level do not.
pub(crate) const LEVELS: usize = 7;

#[derive(Clone, Debug, Default)]
pub(crate) struct Version {
    /// Level 0 from new to old; other levels in order of their keys.
    pub levels: [Vec<Arc<Table>>; LEVELS],
    /// The first log segment that is still needed.
    pub log_number: u64,
    /// All batches up to this sequence number are in tables.
    pub flushed: u64,
    /// Closed segments from `log_number` on, by number.
    pub sealed: BTreeMap<u64, Seal>,
    /// What was declared of indices.
    pub prefixes: Prefixes,
}

impl Version {
    /// The version after an edit; the error says why the edit does not fit.
    pub(crate) fn apply(&self, edit: &Edit, tables: &Arc<Tables>) -> Result<Version, &'static str> {
        let mut next = self.clone();
        let mut removed: BTreeMap<u64, Arc<Table>> = BTreeMap::new();
        for (level, number) in &edit.removed {
            let at = next.levels[*level]
                .iter()
                .position(|t| t.meta.number == *number);
            let table =
                next.levels[*level].remove(at.ok_or("an edit removes a table that is not there")?);
            removed.insert(*number, table);
        }
        for (level, meta) in &edit.added {
            // A table that only moves keeps its handle, so that its file stays.
            let table = removed
                .get(&meta.number)
                .cloned()
                .unwrap_or_else(|| Table::new(tables.clone(), meta.clone()));
            next.levels[*level].push(table);
        }
        next.levels[0].sort_by_key(|t| std::cmp::Reverse((t.meta.sequence_max, t.meta.number)));
        for level in &mut next.levels[1..] {
            level.sort_by(|a, b| a.meta.from.cmp(&b.meta.from));
            if level
                .windows(2)
                .any(|pair| pair[0].meta.to > pair[1].meta.from)
            {
                return Err("tables of one level overlap");
            }
        }
        let mut numbers = BTreeSet::new();
        if !next.tables().all(|t| numbers.insert(t.meta.number)) {
            return Err("an edit adds a table that is there already");
        }
        next.log_number = edit.log_number.unwrap_or(next.log_number);
        next.flushed = edit.flushed.unwrap_or(next.flushed);
        let sealed = edit.sealed.iter().map(|seal| (seal.segment, *seal));
        next.sealed.extend(sealed);
        next.sealed = next.sealed.split_off(&next.log_number);
        if !edit.prefixes.is_empty() {
            Arc::make_mut(&mut next.prefixes).extend(edit.prefixes.iter().copied());
        }
        if edit.dropped.iter().any(|id| next.prefixes.contains_key(id)) {
            Arc::make_mut(&mut next.prefixes).retain(|id, _| !edit.dropped.contains(id));
        }
        Ok(next)
    }

    /// The edit that makes this version out of nothing.
    pub(crate) fn as_edit(&self) -> Edit {
        let added = self
            .levels
            .iter()
            .enumerate()
            .flat_map(|(n, level)| level.iter().map(move |t| (n, t.meta.clone())));
        Edit {
            log_number: Some(self.log_number),
            flushed: Some(self.flushed),
            added: added.collect(),
            sealed: self.sealed.values().copied().collect(),
            prefixes: self.prefixes.iter().map(|(id, n)| (*id, *n)).collect(),
            ..Edit::default()
        }
    }

    pub(crate) fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.levels.iter().flatten()
    }

    /// The tables that may know `key`, from new to old.
    pub(crate) fn covering(&self, key: &[u8]) -> impl Iterator<Item = &Arc<Table>> {
        let (first, others) = self.levels.split_at(1);
        let deeper = others.iter().filter_map(move |level| at_key(level, key));
        first
            .iter()
            .flatten()
            .filter(move |t| t.covers(key))
            .chain(deeper)
    }
}

/// The table of a level whose range covers `key`.
pub(crate) fn at_key<'a>(level: &'a [Arc<Table>], key: &[u8]) -> Option<&'a Arc<Table>> {
    let n = level.partition_point(|t| t.meta.to.as_slice() <= key);
    level.get(n).filter(|t| t.covers(key))
}

/// The tables of a level (not level 0) that share keys with `range`.
pub(crate) fn within<'a>(level: &'a [Arc<Table>], range: &crate::keys::Range) -> &'a [Arc<Table>] {
    let from = level.partition_point(|t| t.meta.to <= range.from);
    let to = match &range.to {
        Some(to) => level.partition_point(|t| t.meta.from < *to),
        None => level.len(),
    };
    level.get(from..to).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fs::MemoryFs, options::Options};
    use std::path::Path;

    #[test]
    fn nothing_is_left_of_a_dropped_index() {
        let options = Options::simulated(Arc::new(MemoryFs::new()));
        let tables = Arc::new(Tables::new(options.fs.clone(), Path::new("/db"), &options));
        let declared = Edit {
            prefixes: vec![(1, 4), (2, 8)],
            ..Edit::default()
        };
        let dropped = Edit {
            dropped: vec![1],
            ..Edit::default()
        };
        let version = Version::default().apply(&declared, &tables).unwrap();
        let version = version.apply(&dropped, &tables).unwrap();
        assert_eq!(version.as_edit().prefixes, [(2, 8)]);
    }
}
