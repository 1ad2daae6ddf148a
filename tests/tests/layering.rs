//! No crate of the house uses what it may not.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use xtfs_tests::exec::run;
use xtfs_tests::secs;

/// The table of the house: what each crate may use of the others.
const MAY_USE: &[(&str, &[&str])] = &[
    ("babu-kv", &[]),
    ("babu-kv-cli", &["babu-kv"]),
    ("babu-kv-compare", &["babu-kv-cli"]),
    ("xtfs-layout", &[]),
    ("xtfs-protocol", &["xtfs-layout"]),
    ("xtfs-mrc", &["babu-kv", "xtfs-layout", "xtfs-protocol"]),
    ("xtfs-osd", &["babu-kv", "xtfs-layout", "xtfs-protocol"]),
    ("xtfs-client", &["xtfs-layout", "xtfs-protocol"]),
    ("xtfs-scrub", &["xtfs-client", "xtfs-protocol"]),
    ("xtfs-cleanup", &["xtfs-client", "xtfs-protocol"]),
];

/// Crates that may use every other one.
const MAY_USE_ALL: &[&str] = &["xtfs", "xtfs-tests"];

#[test]
fn every_crate_uses_only_what_it_may() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let printed = run(
        Command::new(env!("CARGO"))
            .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
            .current_dir(root),
        secs(60),
    );
    let metadata: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let uses: BTreeMap<&str, BTreeSet<&str>> = metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|package| {
            let dependencies = package["dependencies"].as_array().unwrap();
            let own = package["name"].as_str().unwrap();
            // A crate may name itself, to test itself with its optional features.
            let names = dependencies.iter().map(|one| one["name"].as_str().unwrap());
            (own, names.filter(|name| *name != own).collect())
        })
        .collect();
    let house: BTreeSet<&str> = uses.keys().copied().collect();
    let planned: BTreeSet<&str> = MAY_USE
        .iter()
        .map(|(name, _)| *name)
        .chain(MAY_USE_ALL.iter().copied())
        .collect();
    assert_eq!(house, planned, "the crates of the workspace");
    for (name, allowed) in MAY_USE {
        let allowed: BTreeSet<&str> = allowed.iter().copied().collect();
        let used: BTreeSet<&str> = uses[name].intersection(&house).copied().collect();
        let wrong: Vec<_> = used.difference(&allowed).collect();
        assert!(wrong.is_empty(), "{name} may not use {wrong:?}");
    }
    for name in MAY_USE.iter().map(|(name, _)| name) {
        assert!(
            !uses[name].contains("fuser") || *name == "xtfs-client",
            "{name} knows FUSE"
        );
    }
}
