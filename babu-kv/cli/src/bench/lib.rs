//! The measures of the engine, for one engine or for several side by side.
//!
//! Every row is measured for each engine at the same conditions ([`engine::Setup`]): the same
//! cache, memtables, codec and durability, in one process, on one disk, with the engines taking
//! turns so that what disturbs the machine disturbs all of them. An engine that is not measured has
//! no work left in the background. Each value is the median of several rounds.
//!
//! Gets and listings are measured in time that the reading thread ran, which other work on the
//! machine changes less; all data is in the page cache. Everything else is time that passed, unless
//! the row says that it is the processor's.
//!
//! | module | what lives there |
//! |---|---|
//! | [`engine`] | what an engine must offer; the equal conditions |
//! | `ours`, `counting` | babu-kv as an engine |
//! | `workload` | keys and values as a metadata server has them |
//! | `scale` | arguments, and how much is done |
//! | `turns` | folders, stores, and whose turn it is |
//! | `samples`, `report` | medians, rows, targets, printing |
//! | `writes` | creates, buffered and durable |
//! | `copies` | creates while checkpoints and backups are made |
//! | `reads` | gets, misses, listings |
//! | `deletes` | renames, a directory just emptied, a spool directory |
//! | `load` | a large database in a process of its own: disk, memory, bytes written, reopen |

#![warn(missing_docs)]

mod copies;
mod counting;
mod deletes;
pub mod engine;
mod load;
mod ours;
mod reads;
mod report;
mod samples;
mod scale;
mod turns;
mod workload;
mod writes;

pub use load::LoadArguments;
pub use ours::BabuKv;
pub use scale::Arguments;

use anyhow::{Context, Result, bail};
use engine::Engine;
use report::Rows;
use serde_json::json;
use std::{
    fs,
    io::{self, Write},
};
use turns::{Bench, Scratch};

/// Measures the engines and prints the rows; targets are those of the first engine.
///
/// It starts its own program as `bench-load` with [`LoadArguments`]; the program must then call
/// [`load`].
///
/// # Errors
///
/// Those of the engines and of the file system, and a wrong answer of an engine. The folders that
/// were made are removed then, too.
pub fn run(engines: &[&dyn Engine], arguments: &Arguments) -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let dir = match &arguments.dir {
        Some(dir) => {
            fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
            fs::canonicalize(dir)?
        }
        None => temporary.path().to_path_buf(),
    };
    let bench = Bench {
        engines,
        scale: arguments.scale(),
        scratch: Scratch::new(&dir, "babu-kv-bench")?,
    };
    let mut rows = Rows::default();
    {
        let created = bench.folder("create")?;
        writes::buffered(&bench, &created, &mut rows)?;
        copies::checkpoints(&bench, &created, &mut rows)?;
        copies::backups(&bench, &created, &mut rows)?;
        reads::run(&bench, &created, &mut rows)?;
    }
    writes::durable(&bench, &mut rows)?;
    deletes::renames(&bench, &mut rows)?;
    deletes::emptied(&bench, &mut rows)?;
    deletes::spool(&bench, &mut rows)?;
    load::run(&bench, &mut rows)?;

    let names: Vec<&'static str> = engines.iter().map(|engine| engine.name()).collect();
    if !arguments.json {
        return rows.print(&names);
    }
    let report = json!({
        "engines": names,
        "version": env!("CARGO_PKG_VERSION"),
        "rounds": bench.scale.rounds,
        "entries": bench.scale.load_entries,
        "rows": rows.json(&names),
    });
    writeln!(io::stdout(), "{report:#}")?;
    Ok(())
}

/// What the process that `run` starts has to do.
///
/// # Errors
///
/// As [`run`], and for the name of an engine that is not among `engines`.
pub fn load(engines: &[&dyn Engine], arguments: &LoadArguments) -> Result<()> {
    let mut engines = engines.iter();
    match engines.find(|engine| engine.name() == arguments.engine) {
        Some(engine) => load::child(*engine, arguments),
        None => bail!("no engine {:?}", arguments.engine),
    }
}
