//! Opening: finds or creates the database of a folder, replays its log, removes what no longer
//! belongs to it.

use crate::{
    core::{Core, Opened},
    error::{Context, Error, Result},
    fs::Open,
    log::{format as log_format, reader::Replay, seal::Closed},
    manifest::{Manifest, edit::Edit, format as manifest_format, version::Version},
    memtable::Memtable,
    options::Options,
    state::State,
    table::{Tables, format as table_format},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    sync::Arc,
};

pub(crate) const LOCK: &str = "LOCK";

pub(crate) fn open(dir: &Path, options: Options) -> Result<Core> {
    let options = options.bounded();
    let fs = options.fs.clone();
    fs.create_dir_all(dir).at("create", dir)?;
    let lock = fs.lock(&dir.join(LOCK)).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => Error::Locked {
            path: dir.to_path_buf(),
        },
        _ => Error::io("lock", dir, e),
    })?;
    let tables = Arc::new(Tables::new(fs, dir, &options));
    // Small beside the tables that it lists.
    let rewrite_bytes = options.table_bytes as u64 / 16;
    let current = dir.join(manifest_format::CURRENT);
    if !tables.fs.exists(&current).at("look up", &current)? {
        create(&tables)?;
    }
    let (manifest, version, next_file) = Manifest::open(&tables, rewrite_bytes)?;
    *tables.prefixes.write() = version.prefixes.clone();
    let files = Files::list(&tables)?;
    files.check(&tables, &version)?;
    let logs: Vec<u64> = files.logs.range(version.log_number..).copied().collect();
    let version = Arc::new(version);
    let core = Core::new(Opened {
        options,
        tables,
        lock: Some(lock),
        read_only: None,
        next_file: next_file.max(files.next()),
        last: version.flushed,
        next_segment: logs.last().map_or(version.log_number, |last| *last) + 1,
        closed_logs: Closed::default(),
        state: State {
            active: Arc::new(Memtable::new()),
            waiting: Vec::new(),
            version: version.clone(),
        },
        manifest,
    });
    replay(&core, &version, &logs)?;
    let (number, version) = (core.manifest.lock().number(), core.state().version.clone());
    files.remove_obsolete(&core.tables, &version, number);
    Ok(core)
}

/// Takes in the log. When more memtables are full than may wait, the oldest is flushed, as it would
/// be later: that all up to its end is in tables is true from its edit on, whatever becomes of this
/// call.
fn replay(core: &Core, version: &Version, logs: &[u64]) -> Result<()> {
    let indices = core.manifest.lock().last_index;
    let replay = Replay {
        fs: &*core.tables.fs,
        dir: &core.tables.dir,
        flushed: version.flushed,
        indices,
        memtable_bytes: core.options.memtable_bytes,
        sealed: &version.sealed,
        cuts: true,
    };
    let replayed = replay.run(logs, &mut |full, dropped| {
        core.indices.replayed(dropped);
        core.take_full(full)
    })?;
    core.indices.replayed(&replayed.dropped);
    core.take_replayed(replayed)
}

/// Makes an empty database. The log segment comes first and CURRENT last, so that a database
/// without CURRENT holds nothing.
fn create(tables: &Arc<Tables>) -> Result<()> {
    let (fs, dir) = (&*tables.fs, tables.dir.as_path());
    let files = Files::list(tables)?;
    let first = dir.join(log_format::segment_name(1));
    let repair = dir.join(crate::repair::WORK);
    let unused = !fs.exists(&repair).at("look up", &repair)?
        && files.tables.is_empty()
        && files.logs.iter().chain(&files.manifests).all(|n| *n == 1);
    let unused = unused
        && (files.logs.is_empty()
            || fs.file_len(&first).at("measure", &first)?
                <= log_format::SEGMENT_HEADER_BYTES as u64);
    if !unused {
        return Err(Error::corrupt(
            &dir.join(manifest_format::CURRENT),
            0,
            "it is missing, but there are files of a database",
        ));
    }
    let file = fs.open(&first, Open::Create).at("create", &first)?;
    file.write_at(&log_format::segment_header(1), 0)
        .at("write", &first)?;
    file.sync_data().at("sync", &first)?;
    if let Some(parent) = dir.parent() {
        fs.sync_dir(parent).at("sync", parent)?;
    }
    let edit = Edit {
        log_number: Some(1),
        flushed: Some(0),
        next_file: Some(2),
        ..Edit::default()
    };
    Manifest::create(fs, dir, 1, edit, BTreeMap::new()).map(drop)
}

/// The numbers of the files in a folder.
pub(crate) struct Files {
    pub logs: BTreeSet<u64>,
    tables: BTreeSet<u64>,
    manifests: BTreeSet<u64>,
}

impl Files {
    pub(crate) fn list(tables: &Tables) -> Result<Files> {
        let names = tables.fs.list(&tables.dir).at("list", &tables.dir)?;
        let numbers =
            |parse: fn(&str) -> Option<u64>| names.iter().filter_map(|name| parse(name)).collect();
        Ok(Files {
            logs: numbers(log_format::segment_number),
            tables: numbers(table_format::table_number),
            manifests: numbers(manifest_format::manifest_number),
        })
    }

    /// A number above those of all tables and manifests.
    fn next(&self) -> u64 {
        self.tables
            .last()
            .max(self.manifests.last())
            .map_or(1, |last| last + 1)
    }

    /// Everything that the manifest needs is there.
    pub(crate) fn check(&self, tables: &Tables, version: &Version) -> Result<()> {
        if let Some(table) = version
            .tables()
            .find(|t| !self.tables.contains(&t.meta.number))
        {
            return Err(Error::corrupt(
                &tables.path(table.meta.number),
                0,
                "the table is missing",
            ));
        }
        let needed = std::iter::once(&version.log_number).chain(version.sealed.keys());
        if let Some(missing) = needed.into_iter().find(|n| !self.logs.contains(*n)) {
            let path = tables.dir.join(log_format::segment_name(*missing));
            return Err(Error::corrupt(&path, 0, "the log segment is missing"));
        }
        Ok(())
    }

    /// Removes what a crash or a failed removal left behind. What cannot be removed now does no
    /// harm.
    fn remove_obsolete(&self, tables: &Tables, version: &Version, manifest: u64) {
        let used: BTreeSet<u64> = version.tables().map(|t| t.meta.number).collect();
        let old_tables = self
            .tables
            .difference(&used)
            .map(|n| table_format::table_name(*n));
        let old_logs = self
            .logs
            .range(..version.log_number)
            .map(|n| log_format::segment_name(*n));
        let old_manifests = self
            .manifests
            .iter()
            .filter(|n| **n != manifest)
            .map(|n| manifest_format::manifest_name(*n));
        for name in old_tables.chain(old_logs).chain(old_manifests) {
            let _ = tables.fs.remove(&tables.dir.join(name));
        }
    }
}
