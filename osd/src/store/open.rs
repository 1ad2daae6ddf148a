//! Opening a store: whose folder is it, what does the index know, what does the log add.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use babu_kv::fs::{Fs, Open};
use babu_kv::{Database, Options};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use xtfs_protocol::ids::ServiceId;

use super::append::Appender;
use super::damage::DamageLog;
use super::pending::Layers;
use super::record::{self, SEGMENT_HEADER_BYTES, encode_segment_header};
use super::segment::SegmentFiles;
use super::sync::GroupSync;
use super::values::{self, StateRecord};
use super::{Indices, Limits, Store};
use crate::error::{At, Result, StoreError};
use crate::options::OsdOptions;

/// No segment is made smaller than this for the sake of a small disk.
const SEGMENT_BYTES_MIN: u64 = 256 << 10;

/// The index's log grows by this much before it is flushed and shrinks again: little on small
/// disks.
const MEMTABLE_BYTES_MIN: usize = 256 << 10;
const MEMTABLE_BYTES_MAX: usize = 16 << 20;

impl Store {
    /// Opens the store in a folder, which is created when missing, and brings the index up to the
    /// log.
    pub(crate) fn open(options: &OsdOptions) -> Result<Self> {
        let (fs, dir) = (&options.fs, &options.dir);
        let segments_dir = dir.join("segments");
        fs.create_dir_all(&segments_dir)
            .at("create", &segments_dir)?;
        let lock = fs.lock(&dir.join("lock")).map_err(|error| {
            if error.kind() == io::ErrorKind::WouldBlock {
                StoreError::InUse { path: dir.clone() }
            } else {
                At::<()>::at(Err(error), "lock", dir)
                    .err()
                    .unwrap_or(StoreError::Invalid("lock"))
            }
        })?;
        claim_folder(fs.as_ref(), dir, options.id)?;
        let total = fs.space(dir).at("statvfs", dir)?.total_bytes;
        let index = Indices::open(options, total)?;
        fs.sync_dir(dir).at("fsync", dir)?;
        let state = index.state()?;
        let mut layers = index.layers()?;
        layers.objects = state.map_or(0, |state| state.objects);
        let files = SegmentFiles::new(fs.clone(), segments_dir);
        let known = tidy(&files, &mut layers, state)?;
        if state.is_none() && known.first().is_some_and(|first| *first > 1) {
            tracing::error!(
                dir = %dir.display(),
                "the index is lost and is made anew from the segments; what was deleted, cut off or \
                 overwritten by zeros may be back"
            );
        }
        let appender = first_appender(&files, &known, state, options.id)?;
        if !known.contains(&appender.segment) {
            let info = layers.segments.entry(appender.segment).or_default();
            info.bytes = SEGMENT_HEADER_BYTES;
        }
        let reserve = options.reserve_bytes.min(total / 16);
        let store = Self {
            dir: dir.clone(),
            id: options.id,
            seed: record::seed(options.id),
            limits: Limits {
                // The reserve is the room in which segments are emptied when the disk is full.
                segment_bytes: options
                    .segment_bytes
                    .min((reserve / 2).max(SEGMENT_BYTES_MIN)),
                checkpoint_bytes: options.checkpoint_bytes,
                reserve_bytes: reserve,
                compress: options.compress,
            },
            fs: fs.clone(),
            files,
            index,
            appender: Mutex::new(appender),
            layers: RwLock::new(layers),
            sync: GroupSync::default(),
            order: Mutex::default(),
            reclaiming: Mutex::new(()),
            checkpointing: Mutex::new(()),
            damage: DamageLog::default(),
            kept: Mutex::new(BTreeSet::new()),
            work: Notify::new(),
            _lock: lock,
        };
        store.recover(&known, state.unwrap_or_default())?;
        Ok(store)
    }
}

impl Indices {
    fn open(options: &OsdOptions, total_bytes: u64) -> Result<Self> {
        let memtable_bytes = usize::try_from(total_bytes / 128)
            .unwrap_or(usize::MAX)
            .clamp(MEMTABLE_BYTES_MIN, MEMTABLE_BYTES_MAX);
        let defaults = Options::default();
        let kv_options = Options {
            memtable_bytes,
            memory_bytes: options.index_cache_bytes
                + memtable_bytes * (defaults.memtables_waiting + 1),
            background: options.background,
            fs: options.fs.clone(),
            ..defaults
        };
        let db = Database::open(&options.dir.join("index"), kv_options)?;
        Ok(Self {
            objects: db.index("objects")?,
            files: db.index("files")?,
            tombstones: db.index("tombstones")?,
            segments: db.index("segments")?,
            state: db.index("state")?,
            db,
        })
    }

    fn state(&self) -> Result<Option<StateRecord>> {
        let value = self.db.get(&self.state, values::STATE_KEY)?;
        value
            .map(|value| {
                values::decode_state(&value).ok_or(StoreError::IndexEntry { index: "state" })
            })
            .transpose()
    }

    fn layers(&self) -> Result<Layers> {
        let mut layers = Layers::default();
        let unreadable = StoreError::IndexEntry { index: "segments" };
        for entry in self.db.prefix(&self.segments, &[]) {
            let (key, value) = entry?;
            let number: [u8; 8] = (*key).try_into().map_err(|_| unreadable.clone())?;
            let info = values::decode_segment(&value).ok_or(unreadable.clone())?;
            layers.segments.insert(u64::from_be_bytes(number), info);
        }
        Ok(layers)
    }
}

/// Makes sure that the folder is this OSD's, and makes a new one its own.
fn claim_folder(fs: &dyn Fs, dir: &Path, id: ServiceId) -> Result<()> {
    let path = dir.join("identity");
    if fs.exists(&path).at("look for", &path)? {
        let file = fs.open(&path, Open::Read).at("open", &path)?;
        let mut text = vec![0; file.len().at("stat", &path)?.min(128) as usize];
        file.read_exact_at(&mut text, 0).at("read", &path)?;
        let found = String::from_utf8_lossy(&text).trim().to_owned();
        if found.parse() == Ok(id) {
            return Ok(());
        }
        return Err(StoreError::ForeignFolder {
            path: dir.to_path_buf(),
            found,
            wanted: id,
        });
    }
    let new = dir.join("identity.new");
    let file = fs.open(&new, Open::Create).at("create", &new)?;
    file.write_at(format!("{id}\n").as_bytes(), 0)
        .and_then(|()| file.sync_data())
        .at("write", &new)?;
    fs.rename(&new, &path).at("rename", &new)?;
    fs.sync_dir(dir).at("fsync", dir)?;
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => fs.sync_dir(parent).at("fsync", parent),
        _ => Ok(()),
    }
}

/// Removes segment files that the index let go of, and learns the sizes of the others. Returns the
/// segments that have a file.
fn tidy(files: &SegmentFiles, layers: &mut Layers, state: Option<StateRecord>) -> Result<Vec<u64>> {
    let mut known = files.list().at("list", files.dir())?;
    known.retain(|segment| {
        let orphan = state.is_some_and(|state| *segment < state.segment)
            && !layers.segments.contains_key(segment);
        if orphan && let Err(error) = files.remove(*segment) {
            let path = files.path(*segment);
            tracing::warn!(path = %path.display(), %error, "a dead segment cannot be removed");
        }
        !orphan
    });
    for (segment, info) in &mut layers.segments {
        if known.binary_search(segment).is_err() {
            if info.live == 0 {
                // Created when the machine lost power, and never used: the next checkpoint lets
                // go of it.
                info.sealed = true;
                continue;
            }
            let path = files.path(*segment);
            tracing::error!(path = %path.display(), "a segment is missing; what it held cannot be read");
            info.bytes = 0;
        } else if let Ok(bytes) = files.get(*segment).and_then(|file| file.len()) {
            info.bytes = bytes;
        }
    }
    Ok(known)
}

/// Opens the last segment to append to, or creates the first one.
fn first_appender(
    files: &SegmentFiles,
    known: &[u64],
    state: Option<StateRecord>,
    id: ServiceId,
) -> Result<Appender> {
    let state = state.unwrap_or_default();
    let (segment, file) = match known.last() {
        Some(last) if *last >= state.segment => {
            let file = files.reopen(*last).at("open", &files.path(*last))?;
            (*last, file)
        }
        last => {
            let next = last.copied().unwrap_or(0).max(state.segment) + 1;
            let header = encode_segment_header(next, id);
            let file = files
                .create(next, &header)
                .at("create", &files.path(next))?;
            (next, file)
        }
    };
    Ok(Appender {
        segment,
        position: SEGMENT_HEADER_BYTES,
        file,
        next_sequence: state.sequence.max(1),
        unsynced: Vec::new(),
        dirty_files: std::collections::BTreeMap::new(),
        suspects: BTreeSet::new(),
        lost: BTreeSet::new(),
        rescues: 0,
        closed: false,
        poisoned: false,
    })
}
