//! Opens databases that are there. Nothing here makes one: a mistyped name must not leave an empty
//! database behind and report that all is well with it.

use anyhow::{Context, Result, anyhow, bail};
use babu_kv::{Background, Database, Error, Options};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{fs, io, path::Path};

/// Opens the database in `dir`, without threads: nothing is flushed or compacted unasked.
pub fn open(dir: &Path) -> Result<Database> {
    check(dir)?;
    match Database::open(dir, options()) {
        Err(Error::Locked { .. }) => Err(in_use(dir)),
        opened => Ok(opened?),
    }
}

/// Opens the database in `dir` to read it as it is now, whoever else has it open.
pub fn look(dir: &Path) -> Result<Database> {
    check(dir)?;
    Ok(Database::open_read_only(dir, options())?)
}

fn options() -> Options {
    Options {
        background: Background::Inline,
        ..Options::default()
    }
}

pub fn in_use(dir: &Path) -> anyhow::Error {
    anyhow!(
        "the database in {} is in use: the process that has it open must close it first; \
         `stats`, `verify`, `dump` and `backup create` work beside it",
        dir.display()
    )
}

/// A database that is open for reading has a descriptor for each of its tables.
pub fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where it stays as it is, a large database says that there are too many open files.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
}

/// Whether a database is in `dir`.
fn check(dir: &Path) -> Result<()> {
    if remains(dir)? {
        return Err(Error::Corrupt {
            file: dir.join("CURRENT"),
            offset: 0,
            what: "it is missing, but there are files of a database".into(),
        }
        .into());
    }
    Ok(())
}

/// Whether a database, or a part of one, is in `dir`.
pub fn is_there_in_parts(dir: &Path) -> Result<()> {
    remains(dir).map(drop)
}

/// Whether there are only parts of a database; an error when not even those.
fn remains(dir: &Path) -> Result<bool> {
    let entries = fs::read_dir(dir).with_context(|| format!("no database in {}", dir.display()))?;
    let mut remains = false;
    for entry in entries {
        let name = entry
            .with_context(|| format!("list {}", dir.display()))?
            .file_name();
        let name = name.to_string_lossy();
        if name == "CURRENT" {
            return Ok(false);
        }
        remains |=
            name.starts_with("MANIFEST-") || name.ends_with(".table") || name == "repair.part";
    }
    if remains {
        return Ok(true);
    }
    bail!("no database in {}: there is no file CURRENT", dir.display())
}

/// Whether the error says that bytes on disk are not what was written.
pub fn is_damage(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|e| matches!(e.downcast_ref(), Some(Error::Corrupt { .. })))
}

/// Whether the error says that nobody reads the output any more.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
