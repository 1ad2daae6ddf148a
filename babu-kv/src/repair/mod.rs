//! Repair: makes a database that opens out of what is left of one that does not.
//!
//! Everything is judged by its checksum, and nothing is taken that does not check. What was there
//! stays, in a folder `lost-NNNNNN` inside the database, until its owner removes that.
//!
//! | what is damaged | what becomes of it |
//! |---|---|
//! | a table, the manifest is whole | it is written anew without the blocks that do not check; all other tables stay as they are |
//! | a table is missing | what it held is gone |
//! | a segment of the log | all whole batches of all segments are taken, also those after the damage; what is missing is reported |
//! | CURRENT | the newest manifest that checks takes its place |
//! | the manifest | all tables are merged into new ones: of each key the entry with the highest sequence number counts |
//!
//! The order of tables, which a manifest says, matters: of two entries for a key the one of the newer
//! table counts, and numbers within tables do not say which table is newer. So without the manifest
//! tables cannot be put into levels again, and are merged by the number of each entry, which is right
//! in any order.
//!
//! What repair cannot know:
//! - What stood in a block that is lost. If it replaced or deleted a key, the older value of that key
//!   in another table is back.
//! - Without a whole manifest, whether a table was still in use. A table that had been compacted
//!   already, but not removed yet, may bring deleted keys back. Where the manifest is whole, such
//!   tables are left aside; where it can be read in parts, those are that it says were removed.
//! - The names of indices that only a lost manifest knew: they are called `index-N` by their number.
//! - Whether the last batch of the log was cut by a crash or by damage.
//!
//! A repair that is killed leaves the database as it was, or is completed by the next call.

mod evidence;
mod log;
mod rebuild;
mod swap;

pub(crate) use swap::WORK;

use crate::{
    Database,
    error::{Context, Error, Result},
    options::{Background, Options},
    progress::{Meter, Progress},
    table::salvage::Lost,
};
use std::{
    io,
    path::{Path, PathBuf},
};

/// What is to be done, and what was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// The database opens and verifies: nothing was touched.
    #[default]
    Healthy,
    /// It was only asked what would be done: nothing was touched.
    Planned,
    /// The database opens and verifies now.
    Repaired,
}

/// What was found of the manifest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ManifestState {
    /// All of it: it says which tables count.
    #[default]
    Whole,
    /// A part.
    Damaged,
    /// None.
    Missing,
}

/// Something that is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// In which file, under the name that it had in the database.
    pub file: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// What.
    pub what: String,
    /// Whether entries or deletions are lost with it, as far as is known.
    pub entries: bool,
    /// The number of the index and the last key before the lost entries, where known.
    pub after: Option<(u32, Vec<u8>)>,
    /// The number of the index and the first key behind the lost entries, where known.
    pub before: Option<(u32, Vec<u8>)>,
}

/// What [`repair`] found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct Report {
    /// What was done.
    pub outcome: Outcome,
    /// What was found of the manifest.
    pub manifest: ManifestState,
    /// Tables that were taken as they are.
    pub tables_kept: u64,
    /// Tables that were written anew, without what is lost of them.
    pub tables_rewritten: u64,
    /// Tables that the manifest names and that are not there.
    pub tables_missing: u64,
    /// Tables that the manifest does not name any more: they were left aside.
    pub tables_obsolete: u64,
    /// Tables that were taken though no manifest says that they count.
    pub tables_unconfirmed: u64,
    /// Batches of the log that were taken.
    pub batches: u64,
    /// Sequence numbers, first and last, of operations that must have been in the log and are not.
    pub operations_missing: Vec<(u64, u64)>,
    /// What is lost, at most 10 000 of them.
    pub losses: Vec<Loss>,
    /// Indices whose names are lost, under the names that they have now.
    pub indices_renamed: Vec<String>,
    /// Where the files are that were there before.
    pub originals: Option<PathBuf>,
}

/// More losses are not written down one by one.
const LOSSES_MAX: usize = 10_000;

impl Report {
    /// Whether no entry and no deletion is lost, as far as is known.
    pub fn is_lossless(&self) -> bool {
        self.operations_missing.is_empty() && self.losses.iter().all(|loss| !loss.entries)
    }

    fn lose(&mut self, file: &Path, lost: Lost) {
        if self.losses.len() < LOSSES_MAX {
            let place = |full: Vec<u8>| {
                let index = crate::keys::index_of(&full)?;
                Some((index, crate::keys::user_key(&full).to_vec()))
            };
            self.losses.push(Loss {
                file: file.to_path_buf(),
                offset: lost.offset,
                what: lost.what,
                entries: lost.entries,
                after: lost.after.and_then(place),
                before: lost.before.and_then(place),
            });
        }
    }
}

/// Repairs the database in `dir`, which must not be open anywhere ([`Error::Locked`]). With `dry_run`
/// it only says what it would do, and changes nothing. A database that opens and verifies is left
/// alone.
///
/// Sizes and compression of new tables and the file system are those of `options`. It needs room for
/// what it writes: the damaged tables where the manifest is whole, else all of them. `observe` is told
/// how far it is after each table. After an error the database is as it was, or the next call
/// completes what this one began.
pub fn repair(
    dir: &Path,
    options: Options,
    dry_run: bool,
    observe: &mut dyn FnMut(Progress),
) -> Result<Report> {
    let options = Options {
        background: Background::Inline,
        ..options.bounded()
    };
    let fs = &*options.fs;
    if !fs.exists(dir).at("look up", dir)? {
        return Err(Error::invalid(format!(
            "there is no folder {}",
            dir.display()
        )));
    }
    let lock = dir.join(crate::open::LOCK);
    let _lock = if dry_run && !fs.exists(&lock).at("look up", &lock)? {
        None
    } else {
        Some(fs.lock(&lock).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => Error::Locked {
                path: dir.to_path_buf(),
            },
            _ => Error::io("lock", dir, e),
        })?)
    };
    if let Some(originals) = swap::resume(fs, dir, dry_run)? {
        return Ok(Report {
            outcome: if dry_run {
                Outcome::Planned
            } else {
                Outcome::Repaired
            },
            originals: Some(originals),
            ..Report::default()
        });
    }
    if is_healthy(dir, &options)? {
        return Ok(Report::default());
    }
    let mut report = Report::default();
    let evidence = evidence::gather(fs, dir, &mut report)?;
    let mut meter = Meter::new(observe);
    let work = dir.join(WORK);
    if !dry_run {
        swap::prepare(fs, dir)?;
    }
    let built = rebuild::run(
        dir,
        &work,
        &options,
        &evidence,
        dry_run,
        &mut report,
        &mut meter,
    );
    if dry_run {
        built?;
        report.outcome = Outcome::Planned;
        return Ok(report);
    }
    let checked = built.and_then(|()| {
        let database = Database::open_read_only(&work, options.clone())?;
        database.verify().map(drop)
    });
    if let Err(error) = checked {
        swap::discard(fs, dir);
        return Err(error);
    }
    report.originals = Some(swap::swap(fs, dir)?);
    report.outcome = Outcome::Repaired;
    Ok(report)
}

fn is_healthy(dir: &Path, options: &Options) -> Result<bool> {
    let looked =
        Database::open_read_only(dir, options.clone()).and_then(|database| database.verify());
    match looked {
        Ok(_) => Ok(true),
        Err(Error::Corrupt { .. } | Error::Io { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
