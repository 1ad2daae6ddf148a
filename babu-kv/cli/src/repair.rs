//! `babu-kv repair`.

use crate::{commands::print_json, place, progress::Bar};
use anyhow::Result;
use babu_kv::{
    Error, Options,
    repair::{Loss, ManifestState, Outcome, Report, repair},
};
use clap::Args;
use serde_json::{Value, json};
use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

/// Makes a database that opens out of what is left of one that does not.
///
/// Every entry whose checksum is right is kept, and what is lost is named: blocks of tables with the
/// keys between which they stood, batches of the log by their numbers. Where the manifest is whole,
/// only damaged tables are written anew. Where it is lost, all tables are merged, and of each key the
/// entry with the highest number counts; the names of indices are lost then, and they are called
/// index-1, index-2 and so on.
///
/// It cannot be known what stood in a lost block: an older value of its keys, or one that had been
/// deleted, may be back. Without the manifest neither can be known whether a table was still in use;
/// one that was not may bring deleted keys back. Restore a backup where there is one.
///
/// The files that were there stay, in a folder lost-NNNNNN inside the database, until you remove it.
/// A repair that is killed is completed, or begun anew, by the next one. A database that opens and
/// verifies is left alone. There must be room for what is written: damaged tables, or without the
/// manifest all of them.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
        babu-kv repair /var/lib/db --dry-run\n  \
        babu-kv repair /var/lib/db && babu-kv verify /var/lib/db\n\n\
        Exit codes:\n  \
        0  the database opens and verifies, and nothing is lost\n  \
        1  it could not be done: no database there, in use, disk full; nothing was changed\n  \
        2  --dry-run: it is damaged\n  \
        3  the database opens and verifies again, and what is listed is lost")]
pub struct Arguments {
    /// Folder of the database.
    dir: PathBuf,
    /// Only say what would be done.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    place::is_there_in_parts(&arguments.dir)?;
    let bar = Bar::new("repair", None);
    let report = repair(
        &arguments.dir,
        Options::default(),
        arguments.dry_run,
        &mut |progress| bar.at(progress),
    );
    drop(bar);
    let report = report.map_err(|error| match error {
        Error::Locked { .. } => place::in_use(&arguments.dir),
        error => error.into(),
    })?;
    if arguments.json {
        print_json(&as_json(&report))?;
    } else {
        say(&report)?;
    }
    Ok(match report.outcome {
        Outcome::Planned => ExitCode::from(2),
        Outcome::Repaired if !report.is_lossless() => ExitCode::from(3),
        _ => ExitCode::SUCCESS,
    })
}

fn manifest(report: &Report) -> &'static str {
    match report.manifest {
        ManifestState::Whole => "whole",
        ManifestState::Damaged => "damaged",
        ManifestState::Missing => "missing",
    }
}

fn place_of(place: &Option<(u32, Vec<u8>)>) -> Option<String> {
    let (index, key) = place.as_ref()?;
    Some(format!("{index}:{}", key.escape_ascii()))
}

fn as_json(report: &Report) -> Value {
    let loss = |loss: &Loss| {
        json!({
            "file": loss.file.to_string_lossy(), "offset": loss.offset, "what": loss.what, "entries": loss.entries,
            "after": place_of(&loss.after), "before": place_of(&loss.before),
        })
    };
    json!({
        "outcome": match report.outcome {
            Outcome::Healthy => "healthy",
            Outcome::Planned => "planned",
            Outcome::Repaired => "repaired",
        },
        "manifest": manifest(report),
        "tables": {
            "kept": report.tables_kept, "rewritten": report.tables_rewritten,
            "missing": report.tables_missing, "obsolete": report.tables_obsolete,
            "unconfirmed": report.tables_unconfirmed,
        },
        "batches": report.batches,
        "operations_missing": report.operations_missing,
        "losses": report.losses.iter().map(loss).collect::<Vec<_>>(),
        "indices_renamed": report.indices_renamed,
        "originals": report.originals.as_ref().map(|dir| dir.to_string_lossy()),
    })
}

fn say(report: &Report) -> Result<()> {
    let mut out = io::stdout().lock();
    match report.outcome {
        Outcome::Healthy => {
            writeln!(out, "no damage; nothing was changed")?;
            return Ok(());
        }
        Outcome::Planned => writeln!(out, "nothing was changed; a repair would do this:")?,
        Outcome::Repaired => writeln!(out, "the database opens and verifies")?,
    }
    writeln!(out, "manifest           {}", manifest(report))?;
    writeln!(
        out,
        "tables             {} kept, {} written anew, {} missing, {} obsolete",
        report.tables_kept, report.tables_rewritten, report.tables_missing, report.tables_obsolete
    )?;
    writeln!(out, "batches of the log {}", report.batches)?;
    if report.tables_unconfirmed > 0 {
        writeln!(
            out,
            "no manifest says that {} of the tables count: deleted keys may be back",
            report.tables_unconfirmed
        )?;
    }
    for (first, last) in &report.operations_missing {
        writeln!(out, "lost: operations {first} to {last} of the log")?;
    }
    for loss in &report.losses {
        write!(
            out,
            "lost: {} at byte {}: {}",
            loss.file.display(),
            loss.offset,
            loss.what
        )?;
        if let Some(after) = place_of(&loss.after) {
            write!(out, ", after {after}")?;
        }
        if let Some(before) = place_of(&loss.before) {
            write!(out, ", before {before}")?;
        }
        writeln!(out)?;
    }
    for name in &report.indices_renamed {
        writeln!(out, "an index is called {name} now")?;
    }
    if let Some(originals) = &report.originals {
        writeln!(out, "what was there     {}", originals.display())?;
    }
    Ok(())
}
