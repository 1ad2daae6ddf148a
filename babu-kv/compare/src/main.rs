//! Measures babu-kv beside fjall, and beside RocksDB when it is built with it.
//!
//! It is a package of its own so that nobody who builds or tests babu-kv has to build them.

mod fjall;
#[cfg(feature = "rocksdb")]
mod rocks;

use babu_kv_bench::{Arguments, BabuKv, LoadArguments, engine::Engine};
use clap::{Parser, Subcommand};

/// Measures babu-kv beside other engines.
#[derive(Parser)]
#[command(name = "babu-kv-compare", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measures all engines in turns and prints a table.
    #[command(after_help = "Examples:\n  babu-kv-compare bench --quick\n  \
            babu-kv-compare bench /mnt/disk/scratch --entries 5000000 --rounds 3 --json")]
    Bench(Arguments),
    /// Loads a database for `bench` and waits to be killed.
    #[command(hide = true)]
    BenchLoad(LoadArguments),
}

fn main() -> anyhow::Result<()> {
    let engines: &[&dyn Engine] = &[
        &BabuKv,
        #[cfg(feature = "rocksdb")]
        &rocks::RocksDb,
        &fjall::Fjall,
    ];
    match Cli::parse().command {
        Command::Bench(arguments) => babu_kv_bench::run(engines, &arguments),
        Command::BenchLoad(arguments) => babu_kv_bench::load(engines, &arguments),
    }
}
