//! Builds a database of what is left, in a folder of its own.

use super::{ManifestState, Report, evidence::Evidence, log};
use crate::{
    error::{Context, Result},
    fs::Open,
    iter::{Cursor, Entry},
    keys::{Kind, Range},
    log::format as log_format,
    manifest::{Manifest, edit::Edit, version::LEVELS},
    memtable::{Memtable, MemtableCursor},
    options::Options,
    progress::Meter,
    slice::Value,
    table::{
        Table, TableMeta, Tables,
        builder::TableBuilder,
        format as table_format,
        salvage::{Lost, SalvageCursor, Salvaged, salvage},
    },
    tombstones::Tombstones,
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    path::Path,
    sync::Arc,
};

struct Build<'a> {
    from: Arc<Tables>,
    to: Arc<Tables>,
    options: &'a Options,
    dry_run: bool,
    next_file: u64,
    added: Vec<(usize, TableMeta)>,
    /// Highest sequence number of all.
    last: u64,
    index_max: u32,
    /// Indices that were dropped.
    dropped: BTreeSet<u32>,
}

/// Fills `work` with a database, or only finds out what would be in it.
pub(super) fn run(
    dir: &Path,
    work: &Path,
    options: &Options,
    evidence: &Evidence,
    dry_run: bool,
    report: &mut Report,
    meter: &mut Meter<'_>,
) -> Result<()> {
    let tables = |dir: &Path| Arc::new(Tables::new(options.fs.clone(), dir, options));
    let mut build = Build {
        from: tables(dir),
        to: tables(work),
        options,
        dry_run,
        next_file: evidence.next_file,
        added: Vec::new(),
        last: evidence.flushed,
        index_max: evidence.last_index,
        dropped: evidence.dropped.clone(),
    };
    let fs = &*options.fs;
    let batches = log::read(fs, dir, evidence, options.memtable_bytes, report)?;
    build.last = build.last.max(batches.last);
    build.index_max = build.index_max.max(batches.index_max);
    build.dropped.extend(&batches.dropped);
    if evidence.whole {
        build.patch(evidence, report, meter)?;
        for memtable in &batches.memtables {
            build.flush(memtable)?;
        }
    } else {
        build.merge(evidence, &batches.memtables, report, meter)?;
    }
    build.finish(evidence, report)
}

impl Build<'_> {
    /// Takes the tables in their levels, those that are damaged without what is lost.
    fn patch(
        &mut self,
        evidence: &Evidence,
        report: &mut Report,
        meter: &mut Meter<'_>,
    ) -> Result<()> {
        let named = evidence.named.values();
        named.clone().for_each(|(_, meta)| meter.expect(meta.size));
        report.tables_obsolete = evidence.tables.len() as u64;
        for (level, meta) in named {
            self.last = self.last.max(meta.sequence_max);
            let name = table_format::table_name(meta.number);
            let path = self.from.path(meta.number);
            if !evidence.tables.contains(&meta.number) {
                report.tables_missing += 1;
                report.lose(&path, missing(meta));
                continue;
            }
            report.tables_obsolete -= 1;
            if Table::new(self.from.clone(), meta.clone()).verify().is_ok() {
                report.tables_kept += 1;
                self.added.push((*level, meta.clone()));
                if !self.dry_run {
                    let to = self.to.dir.join(name);
                    self.options.fs.hard_link(&path, &to).at("link", &to)?;
                }
            } else {
                report.tables_rewritten += 1;
                self.rewrite(*level, meta, report)?;
            }
            meter.add(meta.size);
        }
        Ok(())
    }

    fn salvage(&mut self, number: u64, report: &mut Report) -> Option<Salvaged> {
        match salvage(&self.from, number) {
            Ok(mut salvaged) => {
                for lost in std::mem::take(&mut salvaged.lost) {
                    report.lose(&salvaged.path, lost);
                }
                self.last = self.last.max(salvaged.sequence_max);
                self.index_max = self.index_max.max(salvaged.index_max);
                Some(salvaged)
            }
            Err(error) => {
                let lost = Lost {
                    offset: 0,
                    what: format!("all of it: {error}"),
                    entries: true,
                    after: None,
                    before: None,
                };
                report.lose(&self.from.path(number), lost);
                None
            }
        }
    }

    /// What is left of a table, at its place in the order.
    fn rewrite(&mut self, level: usize, meta: &TableMeta, report: &mut Report) -> Result<()> {
        let Some(mut salvaged) = self.salvage(meta.number, report) else {
            return Ok(());
        };
        if self.dry_run || (salvaged.entries == 0 && salvaged.tombstones.is_empty()) {
            return Ok(());
        }
        let tombstones = std::mem::take(&mut salvaged.tombstones);
        let mut builder = self.builder(level)?;
        let mut cursor = salvaged.cursor()?;
        while let Some((entry, value)) = cursor.entry() {
            builder.add(&entry, &value)?;
            cursor.next()?;
        }
        tombstones
            .into_iter()
            .for_each(|t| builder.add_tombstone(t));
        let mut made = builder.finish()?;
        // By it level 0 is in order.
        made.sequence_max = meta.sequence_max;
        self.added.push((level, made));
        Ok(())
    }

    /// A memtable as a table of level 0; whatever deletes goes along.
    fn flush(&mut self, memtable: &Arc<Memtable>) -> Result<()> {
        if self.dry_run {
            return Ok(());
        }
        let mut builder = self.builder(0)?;
        let mut cursor = MemtableCursor::new(memtable.clone(), u64::MAX);
        cursor.seek(&[])?;
        while let Some(entry) = cursor.entry() {
            if memtable.covering(entry.key, u64::MAX) < entry.sequence {
                builder.add(&entry, &cursor.value())?;
            }
            cursor.next()?;
        }
        for tombstone in memtable.tombstones(&Range::all(), u64::MAX) {
            builder.add_tombstone(tombstone);
        }
        let made = builder.finish()?;
        if made.entries + made.tombstones > 0 {
            self.added.push((0, made));
        } else {
            let path = self.to.path(made.number);
            self.options.fs.remove(&path).at("remove", &path)?;
        }
        Ok(())
    }

    /// Merges all tables that may count and the log into the last level: the entry of a key with the
    /// highest number counts, and nothing that deletes is left.
    fn merge(
        &mut self,
        evidence: &Evidence,
        memtables: &[Arc<Memtable>],
        report: &mut Report,
        meter: &mut Meter<'_>,
    ) -> Result<()> {
        let mut tombstones = Tombstones::default();
        let mut sources = Vec::new();
        let counting = evidence.tables.difference(&evidence.removed);
        for number in counting {
            let Some(mut salvaged) = self.salvage(*number, report) else {
                continue;
            };
            report.tables_rewritten += 1;
            report.tables_unconfirmed += u64::from(!evidence.named.contains_key(number));
            for tombstone in std::mem::take(&mut salvaged.tombstones) {
                tombstones.add(tombstone);
            }
            if let Some(first) = salvaged.first_key.clone() {
                sources.push((first, Source::Table(*number)));
            }
        }
        report.tables_obsolete = evidence.tables.intersection(&evidence.removed).count() as u64;
        for (number, (_, meta)) in &evidence.named {
            if !evidence.tables.contains(number) {
                report.tables_missing += 1;
                report.lose(&self.from.path(*number), missing(meta));
            }
        }
        if self.dry_run {
            return Ok(());
        }
        for memtable in memtables {
            for tombstone in memtable.tombstones(&Range::all(), u64::MAX) {
                tombstones.add(tombstone);
            }
            let mut cursor = MemtableCursor::new(memtable.clone(), u64::MAX);
            cursor.seek(&[])?;
            if let Some(entry) = cursor.entry() {
                sources.push((entry.key.to_vec(), Source::Memtable(cursor)));
            }
        }
        self.write_merged(sources, &tombstones, meter)
    }

    fn write_merged(
        &mut self,
        sources: Vec<(Vec<u8>, Source)>,
        tombstones: &Tombstones,
        meter: &mut Meter<'_>,
    ) -> Result<()> {
        let mut merge = Merge::new(self.from.clone(), sources);
        let mut builder: Option<TableBuilder> = None;
        while let Some(newest) = merge.next()? {
            let deleted = tombstones.covering(&newest.key, u64::MAX) > newest.sequence;
            if newest.kind == Kind::Delete || deleted {
                continue;
            }
            if builder
                .as_ref()
                .is_some_and(|b| b.len() >= self.options.table_bytes as u64)
            {
                self.end(builder.take(), meter)?;
            }
            let mut into = match builder.take() {
                Some(builder) => builder,
                None => self.builder(LEVELS - 1)?,
            };
            let entry = Entry {
                key: &newest.key,
                sequence: newest.sequence,
                kind: newest.kind,
            };
            into.add(&entry, &newest.value)?;
            builder = Some(into);
        }
        self.end(builder, meter)
    }

    fn end(&mut self, builder: Option<TableBuilder>, meter: &mut Meter<'_>) -> Result<()> {
        if let Some(builder) = builder {
            let made = builder.finish()?;
            meter.expect(made.size);
            meter.add(made.size);
            self.added.push((LEVELS - 1, made));
        }
        Ok(())
    }

    fn builder(&mut self, level: usize) -> Result<TableBuilder> {
        self.next_file += 1;
        TableBuilder::new(&self.to, self.next_file - 1, level, self.options)
    }

    /// Log, manifest and CURRENT.
    fn finish(mut self, evidence: &Evidence, report: &mut Report) -> Result<()> {
        let mut indices: BTreeMap<String, u32> = BTreeMap::new();
        let named = evidence.indices.iter();
        for (id, name) in named.filter(|(id, _)| !self.dropped.contains(id)) {
            indices.insert(name.clone(), *id);
        }
        if report.manifest != ManifestState::Whole {
            let known = |id: &u32| evidence.indices.contains_key(id) || self.dropped.contains(id);
            for id in (1..=self.index_max).filter(|id| !known(id)) {
                let mut name = format!("index-{id}");
                while indices.contains_key(&name) {
                    name.push('\'');
                }
                report.indices_renamed.push(name.clone());
                indices.insert(name, id);
            }
        }
        if self.dry_run {
            return Ok(());
        }
        let fs = &*self.options.fs;
        let log_number = evidence.logs.last().max(Some(&evidence.log_number));
        let log_number = log_number.map_or(1, |last| last + 1);
        let path = self.to.dir.join(log_format::segment_name(log_number));
        let file = fs.open(&path, Open::CreateNew).at("create", &path)?;
        file.write_at(&log_format::segment_header(log_number), 0)
            .at("write", &path)?;
        file.sync_data().at("sync", &path)?;
        let number = self.next_file;
        let edit = Edit {
            log_number: Some(log_number),
            flushed: Some(self.last),
            next_file: Some(number + 1),
            added: std::mem::take(&mut self.added),
            last_index: Some(self.index_max),
            ..Edit::default()
        };
        Manifest::create(fs, &self.to.dir, number, edit, indices).map(drop)
    }
}

fn missing(meta: &TableMeta) -> Lost {
    Lost {
        offset: 0,
        what: format!("all of it: it is missing, with {} entries", meta.entries),
        entries: true,
        after: Some(meta.from.clone()),
        before: Some(meta.to.clone()),
    }
}

/// One of what is merged. A table is only open while the merge is among its keys.
enum Source {
    Table(u64),
    Open(Box<SalvageCursor>),
    Memtable(MemtableCursor),
}

impl Source {
    fn entry(&self) -> Option<(Entry<'_>, Value)> {
        match self {
            Source::Table(_) => None,
            Source::Open(cursor) => cursor.entry(),
            Source::Memtable(cursor) => Some((cursor.entry()?, cursor.value())),
        }
    }

    fn next(&mut self) -> Result<()> {
        match self {
            Source::Table(_) => Ok(()),
            Source::Open(cursor) => cursor.next(),
            Source::Memtable(cursor) => cursor.next(),
        }
    }
}

struct Newest {
    key: Vec<u8>,
    sequence: u64,
    kind: Kind,
    value: Value,
}

/// Goes through sources in order of their keys.
struct Merge {
    tables: Arc<Tables>,
    sources: Vec<Source>,
    next: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
}

impl Merge {
    fn new(tables: Arc<Tables>, sources: Vec<(Vec<u8>, Source)>) -> Merge {
        let (mut all, mut next) = (Vec::new(), BinaryHeap::new());
        for (n, (first, source)) in sources.into_iter().enumerate() {
            next.push(Reverse((first, n)));
            all.push(source);
        }
        Merge {
            tables,
            sources: all,
            next,
        }
    }

    /// The entry of the next key that has the highest number.
    fn next(&mut self) -> Result<Option<Newest>> {
        let mut newest: Option<Newest> = None;
        while let Some(Reverse((key, n))) = self.next.peek() {
            if newest.as_ref().is_some_and(|newest| newest.key != *key) {
                break;
            }
            let n = *n;
            self.next.pop();
            let source = &mut self.sources[n];
            if let Source::Table(number) = source {
                *source = Source::Open(Box::new(salvage(&self.tables, *number)?.cursor()?));
            } else {
                if let Some((entry, value)) = source.entry()
                    && newest.as_ref().is_none_or(|n| n.sequence < entry.sequence)
                {
                    newest = Some(Newest {
                        key: entry.key.to_vec(),
                        sequence: entry.sequence,
                        kind: entry.kind,
                        value,
                    });
                }
                source.next()?;
            }
            if let Some((entry, _)) = source.entry() {
                self.next.push(Reverse((entry.key.to_vec(), n)));
            }
        }
        Ok(newest)
    }
}
