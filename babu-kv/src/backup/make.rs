//! Makes a backup.
//!
//! Closed log segments and tables never change. So the log goes on in a new segment; then, under the
//! lock of the manifest, the version is taken, whose tables stay as long as somebody holds it, and
//! the closed segments are opened, which keeps their bytes when a flush removes their names. All
//! reading and copying happens after that, beside writers, flushes and compactions.

use super::{
    Backup,
    copy::Source,
    folder,
    format::{self, Kind, LogFile, Manifest},
};
use crate::{
    core::Core,
    error::{Context, Result},
    fs::{File, Fs, Open},
    log::format as log_format,
    manifest::{edit::Edit, version::Version},
};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering::Relaxed},
};

/// With more closed segments than this since the last flush, a backup flushes first: each costs an
/// open file and a file in the backup.
const LOG_SEGMENTS_MAX: u64 = 32;

/// The files of one instant, safe from removal.
struct Pinned {
    sequence: u64,
    version: Arc<Version>,
    edit: Edit,
    logs: Vec<(u64, PathBuf, Arc<dyn File>)>,
}

/// The folder that a backup goes to.
struct Target<'a> {
    fs: &'a dyn Fs,
    dir: &'a Path,
    bytes_new: u64,
}

impl Core {
    /// Makes a backup in the folder `dir`.
    pub(crate) fn backup(&self, dir: &Path, time: Option<u64>) -> Result<Backup> {
        self.check_open()?;
        let fs = &*self.tables.fs;
        fs.create_dir_all(dir).at("create", dir)?;
        let _lock = folder::lock(fs, dir)?;
        if let Some(parent) = dir.parent() {
            fs.sync_dir(parent).at("sync", parent)?;
        }
        folder::remove_parts(fs, dir)?;
        let number = folder::numbers(fs, dir)?.last().map_or(1, |last| last + 1);
        let pinned = self.pin()?;
        let mut target = Target {
            fs,
            dir,
            bytes_new: 0,
        };
        for table in pinned.version.tables() {
            self.check_open()?;
            let (size, hash) = (table.meta.size, table.meta.hash);
            let name = format::content_name(Kind::Table, hash, size);
            if !target.has(&name, size)? {
                let path = self.tables.path(table.meta.number);
                let file = fs.open(&path, Open::Read).at("open", &path)?;
                let source = Source {
                    file: &*file,
                    path: &path,
                };
                target.add(&source, size, hash, &name)?;
            }
        }
        let mut logs = Vec::new();
        for (number, path, file) in &pinned.logs {
            self.check_open()?;
            let bytes = file.len().at("measure", path)?;
            let source = Source {
                file: &**file,
                path,
            };
            let hash = source.hash(bytes)?;
            let name = format::content_name(Kind::Log, hash, bytes);
            if !target.has(&name, bytes)? {
                target.add(&source, bytes, hash, &name)?;
            }
            logs.push(LogFile {
                number: *number,
                bytes,
                hash,
            });
        }
        fs.sync_dir(dir).at("sync", dir)?;
        let manifest = Manifest {
            number,
            time,
            sequence: pinned.sequence,
            bytes_new: target.bytes_new,
            logs,
            edit: pinned.edit,
        };
        folder::store(fs, dir, &manifest)?;
        Ok(manifest.backup())
    }

    fn pin(&self) -> Result<Pinned> {
        let mut closed = self.close_log()?;
        if closed
            .segment
            .saturating_sub(self.state().version.log_number)
            > LOG_SEGMENTS_MAX
        {
            self.flush()?;
            closed = self.close_log()?;
        }
        // As long as the manifest stands still, no segment that it needs is removed.
        let manifest = self.manifest.lock();
        let version = self.state().version.clone();
        let mut logs = Vec::new();
        for number in version.log_number..closed.segment {
            let path = self.tables.dir.join(log_format::segment_name(number));
            // Failed rotations leave numbers without a file.
            if self.tables.fs.exists(&path).at("look up", &path)? {
                let file = self.tables.fs.open(&path, Open::Read).at("open", &path)?;
                logs.push((number, path, file));
            }
        }
        let indices = manifest.indices.iter();
        let edit = Edit {
            next_file: Some(self.next_file.load(Relaxed)),
            indices: indices.map(|(name, id)| (*id, name.clone())).collect(),
            ..version.as_edit()
        };
        Ok(Pinned {
            // A flush that came between may have put more into tables.
            sequence: closed.sequence.max(version.flushed),
            version,
            edit,
            logs,
        })
    }
}

impl Target<'_> {
    /// Whether the content is there already. It got its name when it was whole.
    fn has(&self, name: &str, bytes: u64) -> Result<bool> {
        let path = self.dir.join(name);
        Ok(self.fs.exists(&path).at("look up", &path)?
            && self.fs.file_len(&path).at("measure", &path)? == bytes)
    }

    fn add(&mut self, source: &Source<'_>, bytes: u64, hash: u64, name: &str) -> Result<()> {
        let part = self.dir.join(format::part_name(name));
        let copied = source.copy(bytes, hash, self.fs, &part).and_then(|()| {
            let path = self.dir.join(name);
            self.fs.rename(&part, &path).at("rename", &part)
        });
        if copied.is_err() {
            // The next backup removes what cannot be removed now.
            let _ = self.fs.remove(&part);
        }
        self.bytes_new = self.bytes_new.saturating_add(bytes);
        copied
    }
}
