//! The measures, at a small size.

use crate::{babu_kv, json};
use std::fs;

#[test]
fn bench_prints_every_row_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let said = babu_kv(dir.path(), &["bench", "disk", "--quick", "--json"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let report = json(&said);
    let rows = report["rows"].as_array().unwrap();
    for start in [
        "create, buffered: processor",
        "create, buffered: p999",
        "checkpoint",
        "create, during a checkpoint: p99",
        "full backup",
        "create, during a full backup: p99",
        "get, hot",
        "get, zipf",
        "get, missing",
        "get, data 10 times the cache",
        "list 100, hot",
        "list 1000, hot",
        "durable create, threads: 16",
        "durable create, threads: 16: syncs",
        "list 500 of 1000 renamed",
        "list a directory of 2000 just emptied: settled",
        "spool: list",
        "load: disk",
        "load: tables written for each byte",
        "load: peak memory",
        "load: open after kill -9",
    ] {
        let row = rows
            .iter()
            .find(|row| row["name"].as_str().unwrap().starts_with(start));
        let value = row.and_then(|row| row["values"]["babu-kv"].as_f64());
        assert!(value.is_some_and(|value| value > 0.0), "{start}: {report}");
    }
    assert_eq!(fs::read_dir(dir.path().join("disk")).unwrap().count(), 0);
}
