//! The manifest: the durable list of what a database consists of.

pub(crate) mod edit;
pub(crate) mod format;
pub(crate) mod version;

use crate::{
    error::{Context, Error, Result},
    fs::{File, Fs, Open},
    table::Tables,
    threads::atomic::{AtomicU64, Ordering::Relaxed},
};
use edit::Edit;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};
use version::Version;

/// The open manifest of a database.
pub(crate) struct Manifest {
    number: u64,
    file: Arc<dyn File>,
    path: PathBuf,
    length: u64,
    first_record_bytes: u64,
    /// An append failed in a way that leaves open what is on disk: the next edit goes to a new
    /// file.
    broken: bool,
    /// It is rewritten when it is longer than this and than four times its first record.
    rewrite_bytes: u64,
    pub(crate) indices: BTreeMap<String, u32>,
    /// The last number that was ever given to an index.
    pub(crate) last_index: u32,
}

pub(crate) fn read_file(fs: &dyn Fs, path: &Path) -> Result<Vec<u8>> {
    let file = fs.open(path, Open::Read).at("open", path)?;
    let length = file.len().at("measure", path)?;
    let mut bytes =
        vec![0; usize::try_from(length).map_err(|_| Error::corrupt(path, 0, "it is too long"))?];
    file.read_exact_at(&mut bytes, 0).at("read", path)?;
    Ok(bytes)
}

/// A manifest, and what will be CURRENT: written, but not durable yet.
pub(crate) struct Draft<'a> {
    fs: &'a dyn Fs,
    dir: &'a Path,
    manifest: Manifest,
    current: Arc<dyn File>,
    current_path: PathBuf,
}

impl Draft<'_> {
    pub(crate) fn sync_manifest(&self) -> Result<()> {
        let path = &self.manifest.path;
        self.manifest.file.sync_data().at("sync", path)
    }

    pub(crate) fn sync_current(&self) -> Result<()> {
        self.current.sync_data().at("sync", &self.current_path)
    }

    /// Points CURRENT to it, durably. Both files must be durable, with their names and all that the
    /// manifest names.
    pub(crate) fn make_current(self) -> Result<Manifest> {
        self.fs
            .rename(&self.current_path, &self.dir.join(format::CURRENT))
            .at("rename", &self.current_path)?;
        self.fs.sync_dir(self.dir).at("sync", self.dir)?;
        Ok(self.manifest)
    }
}

/// Takes an edit into the names of indices; gives the highest number in it.
fn note_indices(indices: &mut BTreeMap<String, u32>, edit: &Edit) -> u32 {
    indices.extend(edit.indices.iter().map(|(id, name)| (name.clone(), *id)));
    indices.retain(|_, id| !edit.dropped.contains(id));
    let numbers = edit.indices.iter().map(|(id, _)| *id);
    numbers.chain(edit.last_index).max().unwrap_or(0)
}

impl Manifest {
    /// Writes a manifest that says everything, and makes it the current one.
    pub(crate) fn create(
        fs: &dyn Fs,
        dir: &Path,
        number: u64,
        first: Edit,
        indices: BTreeMap<String, u32>,
    ) -> Result<Manifest> {
        let draft = Manifest::draft(fs, dir, number, first, indices)?;
        draft.sync_manifest()?;
        draft.sync_current()?;
        fs.sync_dir(dir).at("sync", dir)?;
        draft.make_current()
    }

    /// Writes a manifest that says everything.
    pub(crate) fn draft<'a>(
        fs: &'a dyn Fs,
        dir: &'a Path,
        number: u64,
        mut first: Edit,
        indices: BTreeMap<String, u32>,
    ) -> Result<Draft<'a>> {
        first.version = Some(format::VERSION);
        first.indices = indices
            .iter()
            .map(|(name, id)| (*id, name.clone()))
            .collect();
        let last_index = indices.values().copied().max().max(first.last_index);
        first.last_index = last_index;
        let path = dir.join(format::manifest_name(number));
        let file = fs.open(&path, Open::Create).at("create", &path)?;
        let record = format::encode_record(&first.encode(), number, 0);
        file.write_at(&record, 0).at("write", &path)?;
        let current_path = dir.join("CURRENT.new");
        let current = fs
            .open(&current_path, Open::Create)
            .at("create", &current_path)?;
        current
            .write_at(format::encode_current(number).as_bytes(), 0)
            .at("write", &current_path)?;
        let length = record.len() as u64;
        let manifest = Manifest {
            number,
            file,
            path,
            length,
            first_record_bytes: length,
            broken: false,
            rewrite_bytes: u64::MAX,
            indices,
            last_index: last_index.unwrap_or(0),
        };
        Ok(Draft {
            fs,
            dir,
            manifest,
            current,
            current_path,
        })
    }

    /// Reads the current manifest and cuts a torn last record. Also gives the next file number.
    pub(crate) fn open(
        tables: &Arc<Tables>,
        rewrite_bytes: u64,
    ) -> Result<(Manifest, Version, u64)> {
        Manifest::load(tables, Open::Write, rewrite_bytes)
    }

    /// The same, to read only: what is torn is left out, and stays where it is.
    pub(crate) fn open_read_only(tables: &Arc<Tables>) -> Result<(Manifest, Version, u64)> {
        Manifest::load(tables, Open::Read, u64::MAX)
    }

    fn load(
        tables: &Arc<Tables>,
        how: Open,
        rewrite_bytes: u64,
    ) -> Result<(Manifest, Version, u64)> {
        let current = tables.dir.join(format::CURRENT);
        let number = format::decode_current(&read_file(&*tables.fs, &current)?);
        let number =
            number.ok_or_else(|| Error::corrupt(&current, 0, "it does not name a manifest"))?;
        let path = tables.dir.join(format::manifest_name(number));
        let bytes = read_file(&*tables.fs, &path)?;
        let (mut version, mut indices, mut next_file) =
            (Version::default(), BTreeMap::new(), number + 1);
        let (mut at, mut first_record_bytes, mut last_index) = (0, 0, 0);
        while at < bytes.len() {
            let Some((edit, end)) = format::check_record(&bytes, number, at) else {
                break;
            };
            let edit = Edit::decode(edit)
                .ok_or_else(|| Error::corrupt(&path, at as u64, "an edit is not well formed"))?;
            if at == 0 && edit.version.is_none() {
                return Err(Error::corrupt(&path, 0, "the first record has no version"));
            }
            version = version
                .apply(&edit, tables)
                .map_err(|what| Error::corrupt(&path, at as u64, what))?;
            next_file = next_file.max(edit.next_file.unwrap_or(0));
            last_index = last_index.max(note_indices(&mut indices, &edit));
            at = end;
            if first_record_bytes == 0 {
                first_record_bytes = end as u64;
            }
        }
        let file = tables.fs.open(&path, how).at("open", &path)?;
        if at < bytes.len() || at == 0 {
            if at == 0
                || (at + 1..bytes.len())
                    .any(|offset| format::check_record(&bytes, number, offset).is_some())
            {
                return Err(Error::corrupt(&path, at as u64, "a record does not check"));
            }
            if how == Open::Write {
                file.set_len(at as u64).at("truncate", &path)?;
                file.sync_data().at("sync", &path)?;
            }
        }
        let manifest = Manifest {
            number,
            file,
            path,
            length: at as u64,
            first_record_bytes,
            broken: false,
            rewrite_bytes,
            indices,
            last_index,
        };
        Ok((manifest, version, next_file))
    }

    /// Whether one of these indices has a name.
    pub(crate) fn names_any(&self, indices: &[u32]) -> bool {
        self.indices.values().any(|id| indices.contains(id))
    }

    /// Whether a failed edit may be on disk all the same, so that the files that it names must
    /// stay.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Makes an edit durable and returns the version after it. `next_file` gives numbers for new
    /// files.
    pub(crate) fn commit(
        &mut self,
        tables: &Arc<Tables>,
        now: &Version,
        edit: &Edit,
        next_file: &AtomicU64,
    ) -> Result<Version> {
        let next = now
            .apply(edit, tables)
            .map_err(|what| Error::corrupt(&self.path, self.length, what))?;
        let mut edit = edit.clone();
        edit.next_file = Some(next_file.load(Relaxed));
        let mut indices = self.indices.clone();
        let last_index = self.last_index.max(note_indices(&mut indices, &edit));
        if self.broken || self.length > self.rewrite_bytes.max(self.first_record_bytes * 4) {
            // The number of the manifest comes from the same counter as those of tables.
            let number = next_file.fetch_add(1, Relaxed);
            edit = Edit {
                next_file: Some(number + 1),
                last_index: Some(last_index),
                ..next.as_edit()
            };
            let old = self.path.clone();
            self.broken = true;
            let rewrite_bytes = self.rewrite_bytes;
            *self = Manifest::create(&*tables.fs, &tables.dir, number, edit, indices)?;
            self.rewrite_bytes = rewrite_bytes;
            // What cannot be removed now is removed at the next open.
            let _ = tables.fs.remove(&old);
        } else {
            let record = format::encode_record(&edit.encode(), self.number, self.length);
            if let Err(e) = self.file.write_at(&record, self.length) {
                let cut = self
                    .file
                    .set_len(self.length)
                    .and_then(|()| self.file.sync_data());
                self.broken = cut.is_err();
                return Err(Error::io("write", &self.path, e));
            }
            if let Err(e) = self.file.sync_data() {
                self.broken = true;
                return Err(Error::io("sync", &self.path, e));
            }
            self.length += record.len() as u64;
            self.indices = indices;
            self.last_index = last_index;
        }
        Ok(next)
    }
}
