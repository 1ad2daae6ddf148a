//! Where log lines go: stderr, or a file for processes without a terminal.

use std::fs::OpenOptions;
use std::io::{self, IsTerminal};
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

/// What tools log where nothing else is asked for.
pub const TOOL: &str = "warn";

/// What long-running processes log where nothing else is asked for.
pub const SERVICE: &str = "warn,xtfs=info,xtfs_mrc=info,xtfs_osd=info,xtfs_client=info,\
    xtfs_protocol=info,babu_kv=info";

/// Starts logging to `file`, or to stderr without one. Called once.
pub fn start(filter: &str, file: Option<&Path>) -> Result<()> {
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        anyhow!("log filter {filter:?}: {error}; an example is warn,xtfs_osd=debug")
    })?;
    let (writer, color) = match file {
        None => (BoxMakeWriter::new(io::stderr), io::stderr().is_terminal()),
        Some(path) => {
            let file = OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .with_context(|| format!("log file {}: cannot be opened", path.display()))?;
            (BoxMakeWriter::new(file), false)
        }
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(color)
        .try_init()
        .map_err(|error| anyhow!("logging cannot be started: {error}"))
}
