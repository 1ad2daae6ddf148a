//! Reads backups: to see whether they are whole, and to make databases of them.

use super::{
    Backup, BackupFile,
    copy::Source,
    folder,
    format::{self, Kind},
};
use crate::{
    error::{Context, Error, Result},
    fs::{Fs, Open},
    log::format as log_format,
    manifest::{Manifest, edit::Edit},
    table::format as table_format,
};
use std::path::Path;

/// What [`verify`] found.
#[derive(Clone, Debug)]
#[must_use]
#[non_exhaustive]
pub struct Report {
    /// The backup.
    pub backup: Backup,
    /// One error for each file that is missing, damaged or cannot be read; empty when the backup is
    /// whole.
    pub damage: Vec<Error>,
}

/// Reads all files of a backup and compares them with their checksums. An error when there is no
/// such backup, or its manifest is damaged.
///
/// A content file that is damaged can be removed: the next backup copies it again, if the database
/// still has it.
pub fn verify(fs: &dyn Fs, dir: &Path, number: u64) -> Result<Report> {
    let backup = folder::load(fs, dir, number)?.backup();
    let checks = backup.files.iter().map(|file| check(fs, dir, file));
    let damage = checks.filter_map(Result::err).collect();
    Ok(Report { backup, damage })
}

fn check(fs: &dyn Fs, dir: &Path, file: &BackupFile) -> Result<()> {
    with_source(fs, dir, &file.name, |source| {
        source.check(file.bytes, file.hash)
    })
}

fn with_source(
    fs: &dyn Fs,
    dir: &Path,
    name: &str,
    then: impl FnOnce(&Source<'_>) -> Result<()>,
) -> Result<()> {
    let path = dir.join(name);
    if !fs.exists(&path).at("look up", &path)? {
        return Err(Error::corrupt(&path, 0, "it is missing"));
    }
    let file = fs.open(&path, Open::Read).at("open", &path)?;
    then(&Source {
        file: &*file,
        path: &path,
    })
}

/// Makes a database of a backup in the folder `destination`, which must be empty or missing.
///
/// It holds exactly what the backup does, is durable when this returns, and is independent of the
/// backup. Each file is checked on the way; a damaged one ends the call with an error that names
/// it, and with an empty destination. After a kill half-way the destination is not taken for a
/// database, and must be emptied before the next attempt.
pub fn restore(fs: &dyn Fs, dir: &Path, number: u64, destination: &Path) -> Result<Backup> {
    let manifest = folder::load(fs, dir, number)?;
    fs.create_dir_all(destination).at("create", destination)?;
    if !fs.list(destination).at("list", destination)?.is_empty() {
        return Err(Error::invalid(format!(
            "{} is not empty",
            destination.display()
        )));
    }
    let restored = give_back(fs, dir, &manifest, destination);
    if restored.is_err() {
        // So that it can be tried again.
        for name in fs.list(destination).unwrap_or_default().iter().rev() {
            let _ = fs.remove(&destination.join(name));
        }
    }
    restored.map(|()| manifest.backup())
}

fn give_back(
    fs: &dyn Fs,
    dir: &Path,
    manifest: &format::Manifest,
    destination: &Path,
) -> Result<()> {
    let give = |kind, bytes, hash, to: String| {
        let name = format::content_name(kind, hash, bytes);
        with_source(fs, dir, &name, |source| {
            source.copy(bytes, hash, fs, &destination.join(to))
        })
    };
    for (_, table) in &manifest.edit.added {
        let to = table_format::table_name(table.number);
        give(Kind::Table, table.size, table.hash, to)?;
    }
    for log in &manifest.logs {
        let to = log_format::segment_name(log.number);
        give(Kind::Log, log.bytes, log.hash, to)?;
    }
    if manifest.logs.is_empty() {
        // A database has a segment to go on from.
        let first = manifest.edit.log_number.unwrap_or(1);
        let path = destination.join(log_format::segment_name(first));
        let file = fs.open(&path, Open::CreateNew).at("create", &path)?;
        file.write_at(&log_format::segment_header(first), 0)
            .at("write", &path)?;
        file.sync_data().at("sync", &path)?;
    }
    let number = manifest.edit.next_file.unwrap_or(1);
    let edit = Edit {
        next_file: Some(number + 1),
        ..manifest.edit.clone()
    };
    let indices = edit.indices.iter();
    let indices = indices.map(|(id, name)| (name.clone(), *id)).collect();
    // Syncs the folder, and writes CURRENT last.
    Manifest::create(fs, destination, number, edit, indices)?;
    match destination.parent() {
        Some(parent) => fs.sync_dir(parent).at("sync", parent),
        None => Ok(()),
    }
}
