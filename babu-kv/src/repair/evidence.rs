//! What the manifest still says, and which files are there.

use super::{ManifestState, Report};
use crate::{
    error::{Context, Result},
    fs::Fs,
    log::format as log_format,
    manifest::{edit::Edit, format, read_file},
    table::{TableMeta, format as table_format, salvage::Lost},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// All that is known before tables and log are read.
#[derive(Default)]
pub(super) struct Evidence {
    /// Tables that count as far as the manifest can be read, with their levels.
    pub named: BTreeMap<u64, (usize, TableMeta)>,
    /// Tables that it says were removed.
    pub removed: BTreeSet<u64>,
    pub indices: BTreeMap<u32, String>,
    /// Numbers of indices that were dropped.
    pub dropped: BTreeSet<u32>,
    /// The last number that was given to an index, as far as it is known.
    pub last_index: u32,
    /// The first segment that is still needed.
    pub log_number: u64,
    pub flushed: u64,
    /// Nothing is missing in it.
    pub whole: bool,
    /// Numbers of the files that are there.
    pub tables: BTreeSet<u64>,
    pub logs: BTreeSet<u64>,
    /// A number that no file has.
    pub next_file: u64,
}

pub(super) fn gather(fs: &dyn Fs, dir: &Path, report: &mut Report) -> Result<Evidence> {
    let names = fs.list(dir).at("list", dir)?;
    let numbers = |parse: fn(&str) -> Option<u64>| -> BTreeSet<u64> {
        names.iter().filter_map(|name| parse(name)).collect()
    };
    let (tables, logs) = (
        numbers(table_format::table_number),
        numbers(log_format::segment_number),
    );
    let manifests = numbers(format::manifest_number);
    let current_path = dir.join(format::CURRENT);
    let current = read_file(fs, &current_path)
        .ok()
        .and_then(|bytes| format::decode_current(&bytes));
    if current.is_none() {
        report.lose(&current_path, lost(0, "which manifest counts"));
    }
    // That which CURRENT names, else from new to old.
    let others = manifests
        .iter()
        .rev()
        .copied()
        .filter(|n| Some(*n) != current);
    let mut found = current
        .into_iter()
        .chain(others)
        .find_map(|number| read(fs, dir, number, report));
    if found.is_none() {
        report.manifest = ManifestState::Missing;
    }
    let torn = found.as_ref().is_some_and(|(_, torn)| *torn);
    let mut evidence = found
        .take()
        .map(|(evidence, _)| evidence)
        .unwrap_or_default();
    // A last record that does not check may have been torn by a crash, before anything came of it.
    // If the files fit to what stands before it, it was.
    let fits = evidence.named.keys().eq(&tables) && logs.contains(&evidence.log_number);
    if torn && !fits {
        evidence.whole = false;
    }
    if report.manifest == ManifestState::Whole && !evidence.whole {
        report.manifest = ManifestState::Damaged;
    }
    let last = tables.last().max(manifests.last()).copied();
    evidence.next_file = evidence.next_file.max(last.unwrap_or(0) + 1);
    evidence.tables = tables;
    evidence.logs = logs;
    Ok(evidence)
}

fn lost(offset: usize, what: &str) -> Lost {
    Lost {
        offset: offset as u64,
        what: what.into(),
        entries: false,
        after: None,
        before: None,
    }
}

/// What manifest `number` says, and whether it ends in bytes that do not check. `None` when not even
/// its first record can be read.
fn read(fs: &dyn Fs, dir: &Path, number: u64, report: &mut Report) -> Option<(Evidence, bool)> {
    let path = dir.join(format::manifest_name(number));
    let Ok(bytes) = read_file(fs, &path) else {
        report.lose(&path, lost(0, "all of it: it cannot be read"));
        return None;
    };
    let mut evidence = Evidence {
        whole: true,
        next_file: number + 1,
        ..Evidence::default()
    };
    let (mut at, mut gap) = (0, None);
    while at < bytes.len() {
        let record = format::check_record(&bytes, number, at);
        let edit = record.and_then(|(edit, end)| Some((Edit::decode(edit)?, end)));
        let Some((edit, end)) = edit else {
            gap.get_or_insert(at);
            at += 1;
            continue;
        };
        if let Some(from) = gap.take() {
            evidence.whole = false;
            report.lose(&path, lost(from, "a record"));
        }
        evidence.take(edit);
        at = end;
    }
    if gap == Some(0) || bytes.is_empty() {
        report.lose(&path, lost(0, "all of it: no record checks"));
        return None;
    }
    if let Some(from) = gap {
        report.lose(&path, lost(from, "its end, which a crash may have torn"));
    }
    Some((evidence, gap.is_some()))
}

impl Evidence {
    fn take(&mut self, edit: Edit) {
        for (_, number) in &edit.removed {
            self.named.remove(number);
            self.removed.insert(*number);
        }
        for (level, meta) in edit.added {
            self.removed.remove(&meta.number);
            self.named.insert(meta.number, (level, meta));
        }
        let numbers = edit.indices.iter().map(|(id, _)| *id);
        let last = numbers.chain(edit.last_index).max().unwrap_or(0);
        self.last_index = self.last_index.max(last);
        self.indices.extend(edit.indices);
        for id in edit.dropped {
            self.indices.remove(&id);
            self.dropped.insert(id);
        }
        self.log_number = edit.log_number.unwrap_or(self.log_number);
        self.flushed = edit.flushed.unwrap_or(self.flushed);
        self.next_file = self.next_file.max(edit.next_file.unwrap_or(0));
    }
}
