//! Arguments, and how much is done.

use clap::Args;
use std::path::PathBuf;

/// Arguments of a run.
#[derive(Args)]
pub struct Arguments {
    /// Folder to measure in; it is made when missing and gets folders that are removed at the end.
    /// Without it: a temporary folder, which may lie in memory.
    pub(crate) dir: Option<PathBuf>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
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
    /// Files made and removed in the spool directory in a round.
    pub spooled: u64,
}

impl Arguments {
    pub(crate) fn scale(&self) -> Scale {
        if self.quick {
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
            rounds: self.rounds,
            creates: self.entries / 2,
            load_entries: self.entries,
            durable: 500,
            gets: 100_000,
            directory: 10_000,
            emptied: 100_000,
            spooled: 200_000,
        }
    }
}

impl Scale {
    /// Buffered creates in a round; all rounds together make [`creates`](Scale::creates) or a few
    /// less.
    pub fn creates_in_round(&self) -> u64 {
        self.creates / self.rounds
    }
}
