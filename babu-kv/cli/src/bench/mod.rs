//! The measures: each row is the median of several rounds, and says what one unit of it is.
//!
//! | module | what it measures |
//! |---|---|
//! | `counting` | (the file system, counting syncs and bytes) |
//! | `workload` | (keys and values as a metadata server has them) |
//! | `writes` | creates, buffered and durable; commits while checkpoints run |
//! | `reads` | gets, misses, listings |
//! | `deletes` | a directory just emptied, a spool directory |
//! | `load` | a large database in a process of its own: disk, memory, reopen |

mod counting;
mod deletes;
pub mod load;
mod reads;
mod workload;
mod writes;

use anyhow::{Context, Result};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use serde_json::json;
use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::Instant,
};

#[derive(Args)]
pub struct Arguments {
    /// Folder to measure in; it is made when missing and gets folders that are removed at the end.
    /// Without it: a temporary folder, which may lie in memory.
    dir: Option<PathBuf>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Entries of the large database; half as many creates are measured.
    #[arg(long, default_value_t = 1_000_000, value_name = "N",
        value_parser = clap::value_parser!(u64).range(1_000..=1_000_000_000))]
    entries: u64,
    /// Very small sizes and one round: shows that it runs, not how fast.
    #[arg(long)]
    quick: bool,
    /// Rounds of which the median is taken.
    #[arg(long, default_value_t = 5, value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..=101))]
    rounds: u64,
}

/// How much is done.
#[derive(Clone, Copy)]
pub struct Scale {
    pub rounds: u64,
    /// Batches of two puts in the database that is read from.
    pub creates: u64,
    pub load_entries: u64,
    /// Synced commits of each thread in a round.
    pub durable: u64,
    /// Gets in a round.
    pub gets: u64,
    /// Entries of the large directory.
    pub directory: u64,
    /// Entries of the directory that is emptied.
    pub emptied: u64,
    /// Files made and removed in the spool directory.
    pub spooled: u64,
}

impl Scale {
    fn of(arguments: &Arguments) -> Scale {
        if arguments.quick {
            return Scale {
                rounds: 1,
                creates: 4_000,
                load_entries: 8_000,
                durable: 20,
                gets: 2_000,
                directory: 1_000,
                emptied: 2_000,
                spooled: 2_000,
            };
        }
        Scale {
            rounds: arguments.rounds,
            creates: arguments.entries / 2,
            load_entries: arguments.entries,
            durable: 500,
            gets: 100_000,
            directory: 10_000,
            emptied: 100_000,
            spooled: 200_000,
        }
    }
}

/// One measured number.
pub struct Row {
    name: String,
    unit: &'static str,
    value: f64,
}

/// The rows so far.
#[derive(Default)]
pub struct Rows(Vec<Row>);

impl Rows {
    fn add(&mut self, name: impl Into<String>, unit: &'static str, value: f64) {
        self.0.push(Row {
            name: name.into(),
            unit,
            value,
        });
    }
}

/// The value in the middle; 0 of none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// The latency in microseconds that all but `share` of the operations stay under.
fn percentile_us(mut nanoseconds: Vec<u64>, share: f64) -> f64 {
    nanoseconds.sort_unstable();
    let at = (nanoseconds.len() as f64 * (1.0 - share)) as usize;
    let last = nanoseconds.len().saturating_sub(1);
    nanoseconds
        .get(at.min(last))
        .map_or(0.0, |ns| *ns as f64 / 1e3)
}

fn us(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// A folder that is removed with all that is in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(dir: &Path, name: &str) -> Result<Scratch> {
        let path = dir.join(name);
        fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is seen by whoever owns the folder around it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let dir = match &arguments.dir {
        Some(dir) => {
            fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
            fs::canonicalize(dir)?
        }
        None => temporary.path().to_path_buf(),
    };
    let scratch = Scratch::new(&dir, "babu-kv-bench")?;
    let scale = Scale::of(arguments);
    let mut rows = Rows::default();
    {
        let create = Scratch::new(&scratch.0, "create")?;
        writes::create(&create.0, scale, &mut rows)?;
        writes::checkpoints(&create.0, &scratch.0, scale, &mut rows)?;
        reads::run(&create.0, scale, &mut rows)?;
    }
    writes::durable(&scratch.0, scale, &mut rows)?;
    deletes::emptied(&scratch.0, scale, &mut rows)?;
    deletes::spool(&scratch.0, scale, &mut rows)?;
    load::run(&scratch.0, scale, &mut rows)?;
    print(&rows, scale, arguments.json)
}

fn print(rows: &Rows, scale: Scale, json: bool) -> Result<()> {
    let mut out = io::stdout().lock();
    if json {
        let rows = rows
            .0
            .iter()
            .map(|r| json!({"name": r.name, "unit": r.unit, "value": r.value}));
        let report = json!({
            "engine": "babu-kv",
            "version": env!("CARGO_PKG_VERSION"),
            "rounds": scale.rounds,
            "entries": scale.load_entries,
            "rows": rows.collect::<Vec<_>>(),
        });
        writeln!(out, "{report:#}")?;
        return Ok(());
    }
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(["what", "babu-kv", "unit"]);
    for row in &rows.0 {
        table.add_row([&row.name, &format!("{:.2}", row.value), row.unit]);
    }
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    writeln!(out, "{table}")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_and_a_percentile_are_values_that_were_measured() {
        assert_eq!(median(vec![9.0, 1.0, 5.0]), 5.0);
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(
            percentile_us((1..=100).map(|n| n * 1000).collect(), 0.01),
            100.0
        );
        assert_eq!(percentile_us(vec![], 0.01), 0.0);
    }
}
