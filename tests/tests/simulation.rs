//! A cell in virtual time: what was synced survives partitions and the loss of power, and the same
//! seed gives the same run.
//!
//! `XTFS_SIMULATION_SEEDS` tries more seeds, `XTFS_SIMULATION_SEED` names the first.

use xtfs_tests::simulation::run;
use xtfs_tests::{number_from_env, seed_from_env};

#[test]
fn synced_files_survive_partitions_and_power_loss() {
    let first = seed_from_env("XTFS_SIMULATION_SEED");
    for seed in first..first + number_from_env("XTFS_SIMULATION_SEEDS", 10) {
        println!("seed {seed}");
        let trace = run(seed);
        let happened = |what: &str| trace.iter().any(|line| line.contains(what));
        for host in ["osd0", "mrc", "osd1"] {
            assert!(happened(&format!("{host} loses power")));
        }
        assert!(happened("is cut off from osd1"));
        // Such an fsync may succeed only if nothing is lost; here everything unsynced is.
        for host in ["osd0", "osd1"] {
            assert!(happened(&format!("is told of taken by {host}")));
        }
        assert!(
            trace
                .last()
                .is_some_and(|line| line.ends_with("client is done"))
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let (first, second) = (run(5), run(5));
    assert!(first.len() > 200, "only {} events", first.len());
    for (one, other) in first.iter().zip(&second) {
        assert_eq!(one, other);
    }
    assert_eq!(first.len(), second.len());
    assert_ne!(first, run(6), "another seed gives another trace");
}
