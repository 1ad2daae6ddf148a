//! What is in a backup folder, and what may go.

use super::{
    Backup,
    format::{self, Manifest},
};
use crate::{
    error::{Context, Error, Result},
    fs::{Fs, Lock, Open},
    manifest::read_file,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
};

/// What [`prune`] removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// Backups.
    pub backups: u64,
    /// Content files that no other backup needs.
    pub files: u64,
    /// Bytes of those files.
    pub bytes: u64,
}

/// Keeps other writers out of the folder.
pub(super) fn lock(fs: &dyn Fs, dir: &Path) -> Result<Box<dyn Lock>> {
    fs.lock(&dir.join(format::LOCK))
        .map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => Error::Locked {
                path: dir.to_path_buf(),
            },
            _ => Error::io("lock", dir, e),
        })
}

/// The numbers of all manifests, ascending, readable or not.
pub(super) fn numbers(fs: &dyn Fs, dir: &Path) -> Result<BTreeSet<u64>> {
    let names = fs.list(dir).at("list", dir)?;
    let numbers = names
        .iter()
        .filter_map(|name| format::manifest_number(name));
    Ok(numbers.collect())
}

/// The number that the next backup takes.
pub(super) fn next_number(fs: &dyn Fs, dir: &Path) -> Result<u64> {
    Ok(numbers(fs, dir)?.last().map_or(1, |last| last + 1))
}

/// Whether the content is there already. It got its name when it was whole.
pub(super) fn has(fs: &dyn Fs, dir: &Path, name: &str, bytes: u64) -> Result<bool> {
    let path = dir.join(name);
    Ok(fs.exists(&path).at("look up", &path)? && fs.file_len(&path).at("measure", &path)? == bytes)
}

/// Lets `write` write and sync the content `name` under another name, and names it when it is whole.
pub(super) fn take_in(
    fs: &dyn Fs,
    dir: &Path,
    name: &str,
    write: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    let part = dir.join(format::part_name(name));
    let taken = write(&part).and_then(|()| fs.rename(&part, &dir.join(name)).at("rename", &part));
    if taken.is_err() {
        // The next backup removes what cannot be removed now.
        let _ = fs.remove(&part);
    }
    taken
}

pub(super) fn load(fs: &dyn Fs, dir: &Path, number: u64) -> Result<Manifest> {
    let path = dir.join(format::manifest_name(number));
    if !fs.exists(&path).at("look up", &path)? {
        return Err(Error::invalid(format!(
            "there is no backup {number} in {}",
            dir.display()
        )));
    }
    let manifest = Manifest::decode(&read_file(fs, &path)?);
    let manifest = manifest.map_err(|what| Error::corrupt(&path, 0, what))?;
    if manifest.number != number {
        return Err(Error::corrupt(&path, 0, "it belongs to another backup"));
    }
    Ok(manifest)
}

/// Writes a manifest. Everything that it names is durable already; it is itself when this returns.
pub(super) fn store(fs: &dyn Fs, dir: &Path, manifest: &Manifest) -> Result<()> {
    let name = format::manifest_name(manifest.number);
    let part = dir.join(format::part_name(&name));
    let file = fs.open(&part, Open::CreateNew).at("create", &part)?;
    file.write_at(&manifest.encode(), 0).at("write", &part)?;
    file.sync_data().at("sync", &part)?;
    fs.rename(&part, &dir.join(name)).at("rename", &part)?;
    fs.sync_dir(dir).at("sync", dir)
}

/// Removes what failed or killed backups left half written.
pub(super) fn remove_parts(fs: &dyn Fs, dir: &Path) -> Result<()> {
    for name in fs.list(dir).at("list", dir)? {
        if format::is_part(&name) {
            let path = dir.join(name);
            fs.remove(&path).at("remove", &path)?;
        }
    }
    Ok(())
}

/// All backups in the folder, from old to new. One whose manifest is damaged is an error in its
/// place, and does not hide the others. Only manifests are read: [`verify`](super::verify) tells
/// whether a backup is whole.
pub fn list(fs: &dyn Fs, dir: &Path) -> Result<Vec<Result<Backup>>> {
    let numbers = numbers(fs, dir)?;
    let backup = |number| load(fs, dir, number).map(|manifest| manifest.backup());
    Ok(numbers.into_iter().map(backup).collect())
}

/// The names of all content files in the folder: what an incremental stream to here may leave out
/// (see [`send`](super::send) and [`Database::backup_to`](crate::Database::backup_to)). None when
/// the folder is missing.
pub fn contents(fs: &dyn Fs, dir: &Path) -> Result<BTreeSet<String>> {
    if !fs.exists(dir).at("look up", dir)? {
        return Ok(BTreeSet::new());
    }
    let names = fs.list(dir).at("list", dir)?;
    Ok(names
        .into_iter()
        .filter(|name| format::is_content(name))
        .collect())
}

/// Removes all but the newest `keep` backups (at least one), and the files that none of those
/// needs, also those that a backup which failed left behind.
///
/// First the manifests are removed, durably, then the files; after an error or a kill in between
/// every backup that is still listed is whole, and the next call removes the rest. When the manifest
/// of one that stays is damaged, nothing is removed, because nobody knows what it needs. Waits for
/// the disk, not for the database.
pub fn prune(fs: &dyn Fs, dir: &Path, keep: usize) -> Result<Pruned> {
    if keep == 0 {
        return Err(Error::invalid("at least one backup is kept"));
    }
    let _lock = lock(fs, dir)?;
    let mut old: Vec<u64> = numbers(fs, dir)?.into_iter().collect();
    let kept = old.split_off(old.len().saturating_sub(keep));
    let mut needed = BTreeSet::new();
    for number in kept {
        let backup = load(fs, dir, number)?.backup();
        needed.extend(backup.files.into_iter().map(|file| file.name));
    }
    let mut pruned = Pruned::default();
    for number in &old {
        let path = dir.join(format::manifest_name(*number));
        fs.remove(&path).at("remove", &path)?;
        pruned.backups += 1;
    }
    // Also when an earlier call removed them and failed here.
    fs.sync_dir(dir).at("sync", dir)?;
    let mut unneeded = BTreeMap::new();
    for name in fs.list(dir).at("list", dir)? {
        if format::is_content(&name) && !needed.contains(&name) {
            let path = dir.join(name);
            let bytes = fs.file_len(&path).at("measure", &path)?;
            unneeded.insert(path, bytes);
        }
    }
    for (path, bytes) in unneeded {
        fs.remove(&path).at("remove", &path)?;
        pruned.files += 1;
        pruned.bytes = pruned.bytes.saturating_add(bytes);
    }
    remove_parts(fs, dir)?;
    fs.sync_dir(dir).at("sync", dir)?;
    Ok(pruned)
}
