//! Opens databases that are there. Nothing here makes one: a mistyped name must not leave an empty
//! database behind and report that all is well with it.

use anyhow::{Context, Result, bail};
use babu_kv::{Background, Database, Error, Options};
use std::{fs, io, path::Path};

/// Opens the database in `dir`, without threads: nothing is flushed or compacted unasked.
pub fn open(dir: &Path) -> Result<Database> {
    check(dir)?;
    let options = Options {
        background: Background::Inline,
        ..Options::default()
    };
    match Database::open(dir, options) {
        Err(Error::Locked { .. }) => bail!(
            "the database in {} is in use: the process that has it open must close it first, or \
             make a checkpoint of it to look at",
            dir.display()
        ),
        opened => Ok(opened?),
    }
}

/// Whether a database is in `dir`.
fn check(dir: &Path) -> Result<()> {
    let entries = fs::read_dir(dir).with_context(|| format!("no database in {}", dir.display()))?;
    let mut remains = false;
    for entry in entries {
        let name = entry
            .with_context(|| format!("list {}", dir.display()))?
            .file_name();
        let name = name.to_string_lossy();
        if name == "CURRENT" {
            return Ok(());
        }
        remains |= name.starts_with("MANIFEST-") || name.ends_with(".table");
    }
    if remains {
        return Err(Error::Corrupt {
            file: dir.join("CURRENT"),
            offset: 0,
            what: "it is missing, but there are files of a database".into(),
        }
        .into());
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
