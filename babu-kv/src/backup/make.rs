//! Makes a backup, in a folder or as a stream.
//!
//! Closed log segments and tables never change. So the log goes on in a new segment; then, under the
//! lock of the manifest, the version is taken, whose tables stay as long as somebody holds it, and
//! the closed segments are opened, which keeps their bytes when a flush removes their names. All
//! reading and copying happens after that, beside writers, flushes and compactions.
//!
//! A database that is open for reading only has all that already: its tables are open, and of its log
//! it knows how far it was read.

use super::{
    Backup,
    copy::Source,
    folder,
    format::{self, Kind, LogFile, Manifest},
    stream::FrameWriter,
};
use crate::{
    core::Core,
    error::{Context, Result},
    fs::{Fs, Open},
    log::{format as log_format, seal::Seal},
    manifest::{edit::Edit, version::Version},
    progress::{Meter, Progress},
    read_only::PinnedSegment,
};
use std::{
    collections::BTreeSet,
    io::Write,
    path::Path,
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
    logs: Vec<(PinnedSegment, u64)>,
}

/// Where a backup goes.
trait Target {
    /// Whether the content is there already.
    fn has(&self, name: &str, bytes: u64) -> Result<bool>;
    fn add(
        &mut self,
        source: &Source<'_>,
        hash: u64,
        name: &str,
        meter: &mut Meter<'_>,
    ) -> Result<()>;
}

struct Folder<'a> {
    fs: &'a dyn Fs,
    dir: &'a Path,
}

struct Stream<'a, 'b> {
    frames: &'a mut FrameWriter<'b>,
    have: &'a BTreeSet<String>,
}

impl Core {
    /// Makes a backup in the folder `dir`.
    pub(crate) fn backup(
        &self,
        dir: &Path,
        time: Option<u64>,
        observe: &mut dyn FnMut(Progress),
    ) -> Result<Backup> {
        self.check_open()?;
        // Not that of the tables, which refuses writing when the database is for reading only.
        let fs = &*self.options.fs;
        fs.create_dir_all(dir).at("create", dir)?;
        let _lock = folder::lock(fs, dir)?;
        if let Some(parent) = dir.parent() {
            fs.sync_dir(parent).at("sync", parent)?;
        }
        folder::remove_parts(fs, dir)?;
        let mut target = Folder { fs, dir };
        let pinned = self.pin()?;
        let mut manifest = pinned.manifest(time);
        manifest.number = folder::next_number(fs, dir)?;
        let mut meter = Meter::new(observe);
        manifest.bytes_new = self.missing(&pinned, &target)?;
        meter.expect(manifest.bytes_new);
        self.send(&pinned, &mut target, &mut meter)?;
        fs.sync_dir(dir).at("sync", dir)?;
        folder::store(fs, dir, &manifest)?;
        Ok(manifest.backup())
    }

    /// Writes a backup as a stream, without the content files that the receiver has.
    pub(crate) fn backup_to(
        &self,
        output: &mut dyn Write,
        have: &BTreeSet<String>,
        time: Option<u64>,
        observe: &mut dyn FnMut(Progress),
    ) -> Result<Backup> {
        self.check_open()?;
        let pinned = self.pin()?;
        let mut manifest = pinned.manifest(time);
        let mut frames = FrameWriter::new(output)?;
        let mut target = Stream {
            frames: &mut frames,
            have,
        };
        let mut meter = Meter::new(observe);
        manifest.bytes_new = self.missing(&pinned, &target)?;
        meter.expect(manifest.bytes_new);
        target.frames.manifest(&manifest)?;
        self.send(&pinned, &mut target, &mut meter)?;
        frames.end()?;
        Ok(manifest.backup())
    }

    /// Bytes of the files that the target does not have.
    fn missing(&self, pinned: &Pinned, target: &dyn Target) -> Result<u64> {
        let tables = pinned.version.tables().map(|table| {
            let (bytes, hash) = (table.meta.size, table.meta.hash);
            (bytes, format::content_name(Kind::Table, hash, bytes))
        });
        let logs = pinned.logs.iter().map(|(log, hash)| {
            let name = format::content_name(Kind::Log, *hash, log.bytes);
            (log.bytes, name)
        });
        let mut missing: u64 = 0;
        for (bytes, name) in tables.chain(logs) {
            if !target.has(&name, bytes)? {
                missing = missing.saturating_add(bytes);
            }
        }
        Ok(missing)
    }

    fn send(&self, pinned: &Pinned, target: &mut dyn Target, meter: &mut Meter<'_>) -> Result<()> {
        for table in pinned.version.tables() {
            self.check_open()?;
            let (size, hash) = (table.meta.size, table.meta.hash);
            let name = format::content_name(Kind::Table, hash, size);
            if !target.has(&name, size)? {
                let path = self.tables.path(table.meta.number);
                let source = Source::open(&*self.tables.fs, &path, size)?;
                target.add(&source, hash, &name, meter)?;
            }
        }
        for (log, hash) in &pinned.logs {
            self.check_open()?;
            let name = format::content_name(Kind::Log, *hash, log.bytes);
            if !target.has(&name, log.bytes)? {
                target.add(&source_of(log), *hash, &name, meter)?;
            }
        }
        Ok(())
    }

    fn pin(&self) -> Result<Pinned> {
        let logs = match self.pinned_log() {
            Some(_) => None,
            None => Some(self.close_for_backup()?),
        };
        // As long as the manifest stands still, no segment that it needs is removed.
        let manifest = self.manifest.lock();
        let version = self.state().version.clone();
        let mut segments = Vec::new();
        let (sequence, sealed) = match (logs, self.pinned_log()) {
            (Some(closed), _) => {
                let sealed = self.seals(&version, closed.segment);
                for number in version.log_number..closed.segment {
                    let seal = sealed.iter().find(|seal| seal.segment == number);
                    segments.extend(self.closed_segment(number, seal)?);
                }
                // A flush that came between may have put more into tables.
                let sequence = closed.sequence.max(version.flushed);
                (sequence, sealed)
            }
            (None, pinned) => {
                segments.extend(pinned.into_iter().flatten().cloned());
                (self.visible(), version.as_edit().sealed)
            }
        };
        let indices = manifest.indices.iter();
        let edit = Edit {
            next_file: Some(self.next_file.load(Relaxed)),
            sealed,
            last_index: Some(manifest.last_index),
            indices: indices.map(|(name, id)| (*id, name.clone())).collect(),
            ..version.as_edit()
        };
        self.check_open()?;
        drop(manifest);
        let mut logs = Vec::new();
        for segment in segments {
            let hash = source_of(&segment).hash()?;
            logs.push((segment, hash));
        }
        Ok(Pinned {
            sequence,
            version,
            edit,
            logs,
        })
    }

    fn close_for_backup(&self) -> Result<crate::core::Closed> {
        let closed = self.close_log()?;
        let first = self.state().version.log_number;
        if closed.segment.saturating_sub(first) <= LOG_SEGMENTS_MAX {
            return Ok(closed);
        }
        self.flush()?;
        self.close_log()
    }

    /// Opens a closed segment, up to where its seal says that it ends. Failed rotations leave numbers
    /// without a file.
    fn closed_segment(&self, number: u64, seal: Option<&Seal>) -> Result<Option<PinnedSegment>> {
        let path = self.tables.dir.join(log_format::segment_name(number));
        if !self.tables.fs.exists(&path).at("look up", &path)? {
            return Ok(None);
        }
        let file = self.tables.fs.open(&path, Open::Read).at("open", &path)?;
        let length = file.len().at("measure", &path)?;
        let bytes = seal.map_or(length, |seal| seal.bytes.min(length));
        Ok(Some(PinnedSegment {
            number,
            path,
            file,
            bytes,
        }))
    }
}

fn source_of(segment: &PinnedSegment) -> Source<'_> {
    Source {
        file: segment.file.clone(),
        path: &segment.path,
        bytes: segment.bytes,
    }
}

impl Pinned {
    fn manifest(&self, time: Option<u64>) -> Manifest {
        let log = |(log, hash): &(PinnedSegment, u64)| LogFile {
            number: log.number,
            bytes: log.bytes,
            hash: *hash,
        };
        Manifest {
            number: 1,
            time,
            sequence: self.sequence,
            bytes_new: 0,
            logs: self.logs.iter().map(log).collect(),
            edit: self.edit.clone(),
        }
    }
}

impl Target for Folder<'_> {
    fn has(&self, name: &str, bytes: u64) -> Result<bool> {
        folder::has(self.fs, self.dir, name, bytes)
    }

    fn add(
        &mut self,
        source: &Source<'_>,
        hash: u64,
        name: &str,
        meter: &mut Meter<'_>,
    ) -> Result<()> {
        folder::take_in(self.fs, self.dir, name, |part| {
            source.copy(hash, meter, self.fs, part)
        })
    }
}

impl Target for Stream<'_, '_> {
    fn has(&self, name: &str, _: u64) -> Result<bool> {
        Ok(self.have.contains(name))
    }

    fn add(
        &mut self,
        source: &Source<'_>,
        hash: u64,
        name: &str,
        meter: &mut Meter<'_>,
    ) -> Result<()> {
        self.frames.file(source, hash, name, meter)
    }
}
