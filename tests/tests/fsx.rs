//! Random verified reads and writes: what was written is read.
//!
//! `XTFS_FSX_OPS` makes it longer, `XTFS_FSX_SEED` repeats a run.

use xtfs_tests::exec::{command, outcome};
use xtfs_tests::suite::fsx::{PROFILES, run};
use xtfs_tests::{TestCell, number_from_env, require, secs, seed_from_env};

/// The kinds of operation that the file system refuses as a whole, as it may.
fn refused(cell: &TestCell) -> Vec<&'static str> {
    let probe = cell.path().join("probe");
    std::fs::write(&probe, [1; 65_536]).unwrap();
    let refuses = |arguments: &[&str]| {
        let result = outcome(command("fallocate", arguments).arg(&probe), secs(30));
        !result.status.success() && result.stderr.contains("not supported")
    };
    let mut all = Vec::new();
    if refuses(&["-o", "0", "-l", "4096"]) {
        all.push("posix_fallocate");
    }
    if refuses(&["-p", "-o", "0", "-l", "4096"]) {
        all.push("punch_hole");
    }
    all
}

fn stays_true(mut cell: TestCell, operations: u64) {
    let seed = seed_from_env("XTFS_FSX_SEED");
    let refused = refused(&cell);
    println!("left out, because not supported: {refused:?}");
    for profile in PROFILES {
        run(
            *profile,
            operations,
            seed,
            &refused,
            cell.path(),
            cell.scratch().path(),
        );
    }
    cell.assert_scrub_clean();
    cell.stop();
}

#[test]
fn random_operations_are_read_back_on_one_process() {
    require(&["fsx", "fallocate"]);
    stays_true(TestCell::up(1), number_from_env("XTFS_FSX_OPS", 20_000));
}

#[test]
fn random_operations_are_read_back_on_separate_processes() {
    require(&["fsx", "fallocate"]);
    stays_true(
        TestCell::cluster(3),
        number_from_env("XTFS_FSX_OPS", 20_000) / 4,
    );
}
