//! End-to-end tests of xtfs: whole cells, real mounts, faults.
//!
//! This library is the harness; the tests themselves are the programs in `tests/`. They need root,
//! `/dev/fuse` and a few tools, and fail with a clear message where one is missing: nothing is
//! skipped.
//!
//! What always holds:
//! - all that a test makes lies below one [`Scratch`] folder; when the test ends, also by a panic
//!   or by `kill -9`, its mounts, processes and files are gone;
//! - every wait has a limit, and readiness is a line that the program prints, never a pause;
//! - randomness is seeded and the seed is printed.
//!
//! Read in this order:
//! - [`scratch`], [`process`], [`exec`]: folders, daemons and commands that leave nothing behind;
//! - [`cell`], [`home`]: a cell of xtfs, in one process or in several; `xtfs up` as people type it;
//! - [`suite`]: what a user does with a file system, as pieces that run in any directory;
//! - [`manifest`], [`tree`]: file trees, compared and generated;
//! - [`model`], [`workload`]: what must be there after a crash, and the work that says so;
//! - [`segment`], [`loop_disk`], [`proxy`]: damage, small disks and bad networks;
//! - [`simulation`]: a cell in virtual time.
#![warn(missing_docs)]

pub mod cell;
pub mod exec;
pub mod home;
pub mod loop_disk;
pub mod manifest;
pub mod model;
pub mod process;
pub mod proxy;
pub mod scratch;
pub mod segment;
pub mod simulation;
pub mod suite;
pub mod tree;
pub mod workload;

pub use cell::{Part, TestCell};
pub use home::Home;
pub use scratch::Scratch;

use std::time::Duration;

/// Fails the test unless it runs as root on a machine with FUSE and these commands.
///
/// # Panics
/// Names what is missing.
pub fn require(commands: &[&str]) {
    let mut missing = Vec::new();
    if !rustix::process::geteuid().is_root() {
        missing.push("root (run the tests as root)".to_owned());
    }
    if !std::path::Path::new("/dev/fuse").exists() {
        missing.push("/dev/fuse (load the kernel module fuse)".to_owned());
    }
    for command in commands {
        if exec::find(command).is_none() {
            missing.push(format!("command {command} (tests/all.sh installs it)"));
        }
    }
    assert!(
        missing.is_empty(),
        "this test needs: {}",
        missing.join(", ")
    );
}

/// A number from the environment, to make a test longer or shorter.
///
/// # Panics
/// When the variable is set to something else than a number.
#[must_use]
pub fn number_from_env(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} must be a number, not '{text}'")),
        Err(_) => default,
    }
}

/// The seed of a randomised test: from the environment, or new. Printed, so that a failure can be
/// repeated.
#[must_use]
pub fn seed_from_env(name: &str) -> u64 {
    let seed = number_from_env(name, rand::random::<u32>().into());
    println!("{name}={seed}");
    seed
}

/// Seconds, as a duration.
#[must_use]
pub const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
