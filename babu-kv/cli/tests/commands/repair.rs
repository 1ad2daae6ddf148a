//! Repair from a shell.

use crate::{babu_kv, file, json, with_a_database};
use std::fs;

#[test]
fn what_is_well_is_left_alone() {
    let dir = with_a_database();
    let said = babu_kv(dir.path(), &["repair", "db"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out.starts_with("no damage"), "{}", said.out);
}

#[test]
fn a_flipped_byte_costs_a_block_which_is_named() {
    let dir = with_a_database();
    let before = babu_kv(dir.path(), &["dump", "db"]).out;
    let table = file(dir.path(), ".table");
    let mut bytes = fs::read(&table).unwrap();
    bytes[3000] ^= 4;
    fs::write(&table, &bytes).unwrap();
    assert_eq!(babu_kv(dir.path(), &["verify", "db"]).code, Some(2));

    let said = babu_kv(dir.path(), &["repair", "db", "--dry-run"]);
    assert_eq!(said.code, Some(2), "{}", said.err);
    assert!(said.out.contains("nothing was changed"), "{}", said.out);
    assert_eq!(fs::read(&table).unwrap(), bytes);

    let said = babu_kv(dir.path(), &["repair", "db", "--json"]);
    assert_eq!(said.code, Some(3), "{}", said.err);
    let report = json(&said);
    assert_eq!(report["outcome"], "repaired");
    assert_eq!(report["tables"]["rewritten"], 1);
    assert_eq!(report["losses"].as_array().unwrap().len(), 1);
    let lost = &report["losses"][0];
    assert!(lost["file"].as_str().unwrap().ends_with(".table"));
    assert!(lost["before"].as_str().unwrap().starts_with("1:\\x00"));

    assert_eq!(babu_kv(dir.path(), &["verify", "db"]).code, Some(0));
    let after = babu_kv(dir.path(), &["dump", "db"]).out;
    let written: Vec<&str> = before.lines().collect();
    assert!(after.lines().all(|line| written.contains(&line)));
    let gone = written.len() - after.lines().count();
    assert!(gone > 0 && gone < 500, "{gone} entries are gone");
    let original = report["originals"].as_str().unwrap();
    let name = table.file_name().unwrap();
    let kept = fs::read(dir.path().join(original).join(name)).unwrap();
    assert_eq!(kept, bytes);
}

#[test]
fn without_its_manifest_a_database_comes_back_with_other_names() {
    let dir = with_a_database();
    let before = babu_kv(dir.path(), &["dump", "db"]).out;
    for name in ["CURRENT", "MANIFEST-000001"] {
        fs::remove_file(dir.path().join("db").join(name)).unwrap();
    }
    let said = babu_kv(dir.path(), &["repair", "db"]);
    assert_eq!(said.code, Some(0), "{} {}", said.out, said.err);
    let renamed = "an index is called index-1";
    assert!(said.out.contains(renamed), "{}", said.out);
    let after = babu_kv(dir.path(), &["dump", "db"]).out;
    let names = [("names\t", "index-1\t"), ("owners\t", "index-2\t")];
    let renamed = names
        .iter()
        .fold(before, |s, (old, new)| s.replace(old, new));
    assert_eq!(after, renamed);
}
