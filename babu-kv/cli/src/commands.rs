//! The commands that look at a database or copy it.

use crate::{Dump, place, progress::Bar};
use anyhow::{Context, Result, bail};
use babu_kv::{Database, Error, Index};
use comfy_table::{CellAlignment, Table, presets};
use serde_json::json;
use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    path::Path,
};

/// Bytes that keys start with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix(pub Vec<u8>);

/// Bytes written in hexadecimal, two digits each.
pub fn bytes_of_hex(text: &str) -> Result<Prefix, String> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok()))
        .collect();
    match digits {
        Some(digits) if digits.len() % 2 == 0 => Ok(Prefix(
            digits
                .as_chunks()
                .0
                .iter()
                .map(|[high, low]| high << 4 | low)
                .collect(),
        )),
        _ => Err("two hexadecimal digits for each byte are needed, as in 00ff".into()),
    }
}

pub fn print_json(value: &serde_json::Value) -> Result<()> {
    writeln!(io::stdout(), "{value:#}")?;
    Ok(())
}

/// Number and bytes of the files of each kind.
fn files(dir: &Path) -> Result<BTreeMap<&'static str, (u64, u64)>> {
    let mut kinds = BTreeMap::new();
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let entry = entry?;
        let name = entry.file_name();
        let kind = match name.to_string_lossy().as_ref() {
            name if name.ends_with(".table") => "tables",
            name if name.ends_with(".log") => "log",
            name if name.starts_with("MANIFEST-") => "manifest",
            _ => "other",
        };
        let (count, bytes): &mut (u64, u64) = kinds.entry(kind).or_default();
        *count += 1;
        *bytes += entry.metadata()?.len();
    }
    Ok(kinds)
}

pub fn prometheus(dir: &Path) -> Result<()> {
    let database = place::look(dir)?;
    let text = database.stats().to_prometheus();
    database.close()?;
    write!(io::stdout(), "{text}")?;
    Ok(())
}

pub fn stats(dir: &Path, json: bool) -> Result<()> {
    let database = place::look(dir)?;
    let (stats, indices, files) = (database.stats(), database.indices(), files(dir)?);
    database.close()?;
    if json {
        let levels = stats.levels.iter().map(|level| {
            json!({"tables": level.tables, "bytes": level.bytes, "entries": level.entries,
                "tombstones": level.tombstones})
        });
        let files = files
            .iter()
            .map(|(kind, (count, bytes))| (*kind, json!({"files": count, "bytes": bytes})));
        return print_json(&json!({
            "sequence": stats.sequence_visible,
            "replayed_bytes": stats.memtable_bytes,
            "indices": indices.iter().map(|i| json!({"id": i.id(), "name": i.name()}))
                .collect::<Vec<_>>(),
            "levels": levels.collect::<Vec<_>>(),
            "files": files.collect::<BTreeMap<_, _>>(),
        }));
    }
    let mut out = io::stdout().lock();
    writeln!(out, "operations so far  {}", stats.sequence_visible)?;
    writeln!(out, "not yet in tables  {} bytes", stats.memtable_bytes)?;
    for index in &indices {
        writeln!(out, "index {:<12} {}", index.id(), index.name())?;
    }
    for (kind, (count, bytes)) in &files {
        writeln!(out, "{kind:<18} {count} files, {bytes} bytes")?;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header([
        "level",
        "tables",
        "bytes",
        "entries",
        "tombstones",
    ]);
    for (number, level) in stats.levels.iter().enumerate() {
        table.add_row([
            number as u64,
            level.tables as u64,
            level.bytes,
            level.entries,
            level.tombstones,
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    writeln!(out, "{table}")?;
    Ok(())
}

pub fn verify(dir: &Path, json: bool) -> Result<()> {
    // Opening reads the manifest and the log; `verify` reads the tables.
    let verified = place::look(dir).and_then(|database| {
        let bar = Bar::new("verify", None);
        let verified = database.verify_with(&mut |progress| bar.at(progress))?;
        database.close()?;
        Ok(verified)
    });
    match verified {
        Ok(found) if json => print_json(&json!({
            "damaged": false, "tables": found.tables, "bytes": found.bytes,
            "entries": found.entries,
        })),
        Ok(found) => {
            writeln!(
                io::stdout(),
                "no damage: {} tables with {} bytes and {} entries, the log and the manifest",
                found.tables,
                found.bytes,
                found.entries
            )?;
            Ok(())
        }
        Err(error) => {
            if json
                && let Some(Error::Corrupt { file, offset, what }) =
                    error.chain().find_map(|e| e.downcast_ref())
            {
                print_json(&json!({
                    "damaged": true, "file": file.to_string_lossy(), "offset": offset,
                    "what": what,
                }))?;
            }
            Err(error)
        }
    }
}

/// The index of this name, or all.
fn chosen(database: &Database, name: Option<&str>) -> Result<Vec<Index>> {
    let mut indices = database.indices();
    if let Some(name) = name {
        indices.retain(|index| index.name() == name);
        if indices.is_empty() {
            let names = database.indices();
            let names: Vec<&str> = names.iter().map(Index::name).collect();
            bail!("no index {name:?}; there are: {}", names.join(", "));
        }
    }
    Ok(indices)
}

pub fn dump(dump: &Dump) -> Result<()> {
    let database = place::look(&dump.dir)?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut left = dump.limit.unwrap_or(u64::MAX);
    let snapshot = database.snapshot();
    let prefix = dump.prefix.as_ref().map_or(&[][..], |p| &p.0);
    for index in chosen(&database, dump.index.as_deref())? {
        for entry in snapshot.prefix(&index, prefix) {
            if left == 0 {
                break;
            }
            left -= 1;
            let (key, value) = entry?;
            if dump.index.is_none() {
                write!(out, "{}\t", index.name().escape_default())?;
            }
            write!(out, "{}", key.escape_ascii())?;
            if !dump.keys_only {
                write!(out, "\t{}", value.escape_ascii())?;
            }
            writeln!(out)?;
        }
    }
    out.flush()?;
    drop(snapshot);
    database.close()?;
    Ok(())
}

pub fn checkpoint(dir: &Path, destination: &Path) -> Result<()> {
    let database = place::open(dir)?;
    database.checkpoint(destination)?;
    database.close()?;
    Ok(())
}

pub fn compact(dir: &Path) -> Result<()> {
    let database = place::open(dir)?;
    database.compact()?;
    database.close()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_digits_are_read_in_pairs() {
        assert_eq!(bytes_of_hex("00fF").unwrap(), Prefix(vec![0, 255]));
        assert_eq!(bytes_of_hex("").unwrap(), Prefix(vec![]));
        for wrong in ["0", "0g", "+1", "ä0"] {
            assert!(bytes_of_hex(wrong).is_err(), "{wrong}");
        }
    }
}
