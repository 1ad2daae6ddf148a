//! Reads backups: to see whether they are whole, and to make databases of them.

use super::{Backup, BackupFile, copy::Source, folder, format};
use crate::{
    error::{Context, Error, Result},
    fs::{Fs, Open},
    log::format as log_format,
    manifest::{Manifest, edit::Edit},
    progress::{Meter, Progress},
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
    verify_with(fs, dir, number, &mut |_| {})
}

/// [`verify`] that tells how far it is, after each piece of at most 1 MiB.
pub fn verify_with(
    fs: &dyn Fs,
    dir: &Path,
    number: u64,
    observe: &mut dyn FnMut(Progress),
) -> Result<Report> {
    let backup = folder::load(fs, dir, number)?.backup();
    let mut meter = Meter::new(observe);
    meter.expect(backup.bytes());
    let mut damage = Vec::new();
    for file in &backup.files {
        damage.extend(check(fs, dir, file, &mut meter).err());
    }
    Ok(Report { backup, damage })
}

fn check(fs: &dyn Fs, dir: &Path, file: &BackupFile, meter: &mut Meter<'_>) -> Result<()> {
    with_source(fs, dir, &file.name, file.bytes, |source| {
        source.give(file.hash, meter, |_, _| Ok(()))
    })
}

pub(super) fn with_source(
    fs: &dyn Fs,
    dir: &Path,
    name: &str,
    bytes: u64,
    then: impl FnOnce(&Source<'_>) -> Result<()>,
) -> Result<()> {
    let path = dir.join(name);
    if !fs.exists(&path).at("look up", &path)? {
        return Err(Error::corrupt(&path, 0, "it is missing"));
    }
    then(&Source::open(fs, &path, bytes)?)
}

/// Makes a database of a backup in the folder `destination`, which must be empty or missing.
///
/// It holds exactly what the backup does, is durable when this returns, and is independent of the
/// backup. Each file is checked on the way; a damaged one ends the call with an error that names
/// it, and with an empty destination. After a kill half-way the destination is not taken for a
/// database, and must be emptied before the next attempt.
pub fn restore(fs: &dyn Fs, dir: &Path, number: u64, destination: &Path) -> Result<Backup> {
    restore_with(fs, dir, number, destination, &mut |_| {})
}

/// [`restore`] that tells how far it is, after each piece of at most 1 MiB.
pub fn restore_with(
    fs: &dyn Fs,
    dir: &Path,
    number: u64,
    destination: &Path,
    observe: &mut dyn FnMut(Progress),
) -> Result<Backup> {
    let manifest = folder::load(fs, dir, number)?;
    let mut meter = Meter::new(observe);
    meter.expect(manifest.backup().bytes());
    into_empty(fs, destination, || {
        for (file, to) in manifest.backup().files.iter().zip(places(&manifest)) {
            with_source(fs, dir, &file.name, file.bytes, |source| {
                source.copy(file.hash, &mut meter, fs, &destination.join(to))
            })?;
        }
        finish(fs, &manifest, destination)
    })?;
    Ok(manifest.backup())
}

/// The names in a database of the files of a backup, in their order.
pub(super) fn places(manifest: &format::Manifest) -> impl Iterator<Item = String> + '_ {
    let tables = manifest.edit.added.iter();
    let tables = tables.map(|(_, table)| table_format::table_name(table.number));
    let logs = manifest.logs.iter();
    tables.chain(logs.map(|log| log_format::segment_name(log.number)))
}

/// Fills a folder that must be empty or missing, or leaves it empty.
pub(super) fn into_empty<T>(
    fs: &dyn Fs,
    destination: &Path,
    fill: impl FnOnce() -> Result<T>,
) -> Result<T> {
    fs.create_dir_all(destination).at("create", destination)?;
    if !fs.list(destination).at("list", destination)?.is_empty() {
        return Err(Error::invalid(format!(
            "{} is not empty",
            destination.display()
        )));
    }
    let filled = fill();
    if filled.is_err() {
        // So that it can be tried again.
        for name in fs.list(destination).unwrap_or_default().iter().rev() {
            let _ = fs.remove(&destination.join(name));
        }
    }
    filled
}

/// Makes a database of a folder that holds all files of a backup.
pub(super) fn finish(fs: &dyn Fs, manifest: &format::Manifest, destination: &Path) -> Result<()> {
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
