//! The comparison runs, and every row has a value for every engine that can have one.

use serde_json::Value;
use std::process::Command;

/// What only some engines have.
const LEFT_OUT: [(&str, &str); 3] = [
    ("fjall", "syncs"),
    ("fjall", "checkpoint"),
    ("", "full backup"),
];

fn bench(dir: &std::path::Path, json: bool) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_babu-kv-compare"));
    command.arg("bench").arg(dir).arg("--quick");
    if json {
        command.arg("--json");
    }
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_row_is_there_for_every_engine() {
    let dir = tempfile::tempdir().unwrap();
    let report: Value = serde_json::from_str(&bench(dir.path(), true)).unwrap();
    let engines = report["engines"].as_array().unwrap();
    assert!(engines.len() > 1 && engines[0] == "babu-kv", "{report}");
    let rows = report["rows"].as_array().unwrap();
    for row in rows {
        let name = row["name"].as_str().unwrap();
        for engine in engines.iter().map(|engine| engine.as_str().unwrap()) {
            let left_out = LEFT_OUT.iter().any(|(who, what)| {
                engine != "babu-kv" && (who.is_empty() || *who == engine) && name.contains(what)
            });
            let value = &row["values"][engine];
            assert_eq!(value.is_null(), left_out, "{engine}: {name}: {value}");
            assert!(
                left_out || value.as_f64().unwrap() > 0.0,
                "{engine}: {name}"
            );
        }
        let compared = row["values"].as_object().unwrap().len() > 1;
        assert_eq!(row["ratio"].is_number(), compared, "{row}");
        assert_eq!(row["target"].is_string(), row["met"].is_boolean(), "{row}");
    }
    for measured in [
        "create, buffered: processor",
        "create, during a checkpoint: p99 to that before",
        "durable create, threads: 16",
        "durable create, threads: 16: p99",
        "get, hot",
        "get, missing",
        "get, data 10 times the cache",
        "list 100, hot",
        "list a directory of 2000 just emptied: first",
        "list a directory of 2000 just emptied: settled",
        "spool: list its 100 files",
        "load: disk, settled",
        "load: tables written for each byte",
        "load: peak memory",
        "load: open after kill -9",
        "load: open after a clean close",
    ] {
        let row = rows.iter().find(|row| row["name"] == measured);
        let row = row.unwrap_or_else(|| panic!("no row {measured:?}: {report}"));
        assert!(row["target"].is_string(), "{row}");
    }
    let left = dir.path().read_dir().unwrap().count();
    assert_eq!(left, 0, "something was left behind");
}

#[test]
fn the_table_has_a_column_for_every_engine() {
    let dir = tempfile::tempdir().unwrap();
    let table = bench(dir.path(), false);
    let header = table.lines().next().unwrap();
    for column in ["babu-kv", "fjall", "ratio", "target"] {
        assert!(header.contains(column), "{header}");
    }
    let row = table.lines().find(|l| l.contains("get, hot")).unwrap();
    assert!(row.contains("<= 0.7 x"), "{row}");
    assert!(row.contains("met") || row.contains("MISSED"), "{row}");
}
