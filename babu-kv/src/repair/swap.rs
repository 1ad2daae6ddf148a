//! Puts a repaired database in the place of the damaged one.
//!
//! ```text
//! DIR/repair.part/          the repaired database, being built; CURRENT comes last
//! DIR/repair.part/READY     it is complete, and the damaged one begins to move
//! DIR/repair.part/MOVED     the files of the damaged one are all in lost-NNNNNN
//! DIR/lost-NNNNNN/          the files of the damaged one
//! ```
//!
//! First the files of the damaged database move aside, CURRENT first; then those of the repaired one
//! move in, CURRENT last. In between there is no CURRENT, so that nobody takes the folder for a
//! database, and the next call goes on where this one ended.

use crate::{
    error::{Context, Result},
    fs::{Fs, Open},
    log::format as log_format,
    manifest::format as manifest_format,
    table::format as table_format,
};
use std::path::{Path, PathBuf};

/// The folder in which it is built.
pub(crate) const WORK: &str = "repair.part";
const READY: &str = "READY";
const MOVED: &str = "MOVED";

fn is_of_a_database(name: &str) -> bool {
    name.starts_with(manifest_format::CURRENT)
        || manifest_format::manifest_number(name).is_some()
        || log_format::segment_number(name).is_some()
        || table_format::table_number(name).is_some()
}

fn lost_number(name: &str) -> Option<u64> {
    crate::coding::number_in(name, "lost-", "")
}

/// The folder that takes the originals: of this call, or of one that did not come to its end.
fn lost(fs: &dyn Fs, dir: &Path, next: bool) -> Result<PathBuf> {
    let names = fs.list(dir).at("list", dir)?;
    let last = names.iter().filter_map(|name| lost_number(name)).max();
    let number = last.unwrap_or(0) + u64::from(next || last.is_none());
    Ok(dir.join(format!("lost-{number:06}")))
}

/// Completes a repair that was cut short after it had built all; says where the originals are. With
/// `look` it only finds out.
pub(super) fn resume(fs: &dyn Fs, dir: &Path, look: bool) -> Result<Option<PathBuf>> {
    let has = |path: PathBuf| fs.exists(&path).at("look up", &path);
    let work = dir.join(WORK);
    if !has(work.join(READY))? {
        return Ok(None);
    }
    let (waits, is_in) = (
        has(work.join(manifest_format::CURRENT))?,
        has(dir.join(manifest_format::CURRENT))?,
    );
    match (waits, is_in) {
        // All has moved, and only the marks are left.
        (false, true) if !look => clear(fs, &work).map(|()| None),
        (false, _) => Ok(None),
        (true, _) if look => lost(fs, dir, false).map(Some),
        (true, _) => finish(fs, dir).map(Some),
    }
}

/// An empty folder to build in.
pub(super) fn prepare(fs: &dyn Fs, dir: &Path) -> Result<()> {
    let work = dir.join(WORK);
    fs.create_dir_all(&work).at("create", &work)?;
    for name in fs.list(&work).at("list", &work)? {
        let path = work.join(name);
        fs.remove(&path).at("remove", &path)?;
    }
    Ok(())
}

fn clear(fs: &dyn Fs, work: &Path) -> Result<()> {
    // READY goes last: it says that there is something to go on with.
    let mut names = fs.list(work).at("list", work)?;
    names.sort_by_key(|name| name == READY);
    for name in names {
        let path = work.join(name);
        fs.remove(&path).at("remove", &path)?;
    }
    fs.sync_dir(work).at("sync", work)?;
    fs.remove_dir(work).at("remove", work)
}

/// Removes what a failed repair has built. What cannot be removed now is removed by the next one.
pub(super) fn discard(fs: &dyn Fs, dir: &Path) {
    let _ = clear(fs, &dir.join(WORK));
}

fn mark(fs: &dyn Fs, work: &Path, name: &str) -> Result<()> {
    let path = work.join(name);
    let file = fs.open(&path, Open::Create).at("create", &path)?;
    file.sync_data().at("sync", &path)?;
    fs.sync_dir(work).at("sync", work)
}

/// Moves the originals aside and the repaired files in; says where the originals are.
pub(super) fn swap(fs: &dyn Fs, dir: &Path) -> Result<PathBuf> {
    let lost = lost(fs, dir, true)?;
    fs.create_dir_all(&lost).at("create", &lost)?;
    fs.sync_dir(dir).at("sync", dir)?;
    mark(fs, &dir.join(WORK), READY)?;
    finish(fs, dir)
}

fn finish(fs: &dyn Fs, dir: &Path) -> Result<PathBuf> {
    let work = dir.join(WORK);
    let lost = lost(fs, dir, false)?;
    let moved = work.join(MOVED);
    if !fs.exists(&moved).at("look up", &moved)? {
        // Names are sorted: CURRENT is before all others.
        move_all(fs, dir, &lost)?;
        fs.sync_dir(&lost).at("sync", &lost)?;
        fs.sync_dir(dir).at("sync", dir)?;
        mark(fs, &work, MOVED)?;
    }
    let mut names = fs.list(&work).at("list", &work)?;
    names.retain(|name| is_of_a_database(name) && name != manifest_format::CURRENT);
    for name in names {
        let from = work.join(&name);
        fs.rename(&from, &dir.join(name)).at("rename", &from)?;
    }
    fs.sync_dir(dir).at("sync", dir)?;
    let current = work.join(manifest_format::CURRENT);
    fs.rename(&current, &dir.join(manifest_format::CURRENT))
        .at("rename", &current)?;
    fs.sync_dir(dir).at("sync", dir)?;
    // Nothing may come back after loss of power that would be moved in again.
    fs.sync_dir(&work).at("sync", &work)?;
    clear(fs, &work)?;
    fs.sync_dir(dir).at("sync", dir)?;
    Ok(lost)
}

fn move_all(fs: &dyn Fs, from: &Path, to: &Path) -> Result<()> {
    for name in fs.list(from).at("list", from)? {
        if is_of_a_database(&name) {
            let path = from.join(&name);
            fs.rename(&path, &to.join(name)).at("rename", &path)?;
        }
    }
    Ok(())
}
