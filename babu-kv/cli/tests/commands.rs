//! The commands as somebody at a shell meets them.

use babu_kv::{Batch, Database, Durability, Options};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Said {
        Said {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

fn babu_kv(dir: &Path, words: &[&str]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_babu-kv"));
    command.current_dir(dir).args(words);
    command.output().unwrap().into()
}

fn json(said: &Said) -> serde_json::Value {
    serde_json::from_str(&said.out).unwrap()
}

/// A folder with the database `db`: 2000 names in a table, one in the log.
fn with_a_database() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let database = Database::open(&dir.path().join("db"), Options::default()).unwrap();
    let (names, owners) = (
        database.index("names").unwrap(),
        database.index("owners").unwrap(),
    );
    let mut batch = Batch::new();
    for n in 0..2000u32 {
        batch.put(&names, &n.to_be_bytes(), format!("file\t{n}").as_bytes());
    }
    database.write(batch, Durability::Synced).unwrap();
    database.flush().unwrap();
    let mut batch = Batch::new();
    batch.put(&owners, b"root", b"\0");
    database.write(batch, Durability::Synced).unwrap();
    database.close().unwrap();
    dir
}

fn file(dir: &Path, ending: &str) -> PathBuf {
    fs::read_dir(dir.join("db"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_string_lossy().ends_with(ending))
        .unwrap()
}

#[test]
fn stats_say_what_is_there() {
    let dir = with_a_database();
    let said = babu_kv(dir.path(), &["stats", "db"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out.contains("operations so far  2001"), "{}", said.out);
    assert!(said.out.contains("names") && said.out.contains("owners"));
    let stats = json(&babu_kv(dir.path(), &["stats", "db", "--json"]));
    assert_eq!(stats["sequence"], 2001);
    assert_eq!(stats["indices"][1]["name"], "owners");
    assert_eq!(stats["levels"][0]["entries"], 2000);
    assert_eq!(stats["files"]["tables"]["files"], 1);
}

#[test]
fn verify_passes_what_is_well_and_names_the_file_with_a_flipped_byte() {
    let dir = with_a_database();
    let said = babu_kv(dir.path(), &["verify", "db"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out.starts_with("no damage: 1 tables"), "{}", said.out);
    let verified = json(&babu_kv(dir.path(), &["verify", "db", "--json"]));
    assert_eq!(
        (&verified["damaged"], &verified["entries"]),
        (&false.into(), &2000.into())
    );

    for (ending, at) in [(".table", 3000), ("MANIFEST-000001", 20)] {
        let path = file(dir.path(), ending);
        let whole = fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        flipped[at] ^= 4;
        fs::write(&path, flipped).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let said = babu_kv(dir.path(), &["verify", "db"]);
        assert_eq!(said.code, Some(2), "{name}: {}", said.err);
        assert!(said.err.contains(name), "{}", said.err);
        assert!(said.err.contains("is damaged at byte"), "{}", said.err);
        let said = babu_kv(dir.path(), &["verify", "db", "--json"]);
        assert_eq!(said.code, Some(2));
        let damage = json(&said);
        assert_eq!(damage["damaged"], true);
        assert!(damage["file"].as_str().unwrap().ends_with(name));
        assert!(damage["offset"].as_u64().unwrap() <= at as u64);
        fs::write(&path, whole).unwrap();
    }
    assert_eq!(babu_kv(dir.path(), &["verify", "db"]).code, Some(0));

    fs::remove_file(dir.path().join("db/CURRENT")).unwrap();
    let said = babu_kv(dir.path(), &["verify", "db"]);
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("CURRENT"), "{}", said.err);
}

#[test]
fn dump_prints_what_was_asked_for_one_entry_a_line() {
    let dir = with_a_database();
    let dump = |words: &[&str]| {
        let said = babu_kv(dir.path(), &[&["dump", "db"], words].concat());
        assert_eq!(said.code, Some(0), "{}", said.err);
        said.out
    };
    assert_eq!(dump(&["owners"]), "root\t\\x00\n");
    let all = dump(&[]);
    assert_eq!(all.lines().count(), 2001);
    assert_eq!(
        all.lines().next(),
        Some("names\t\\x00\\x00\\x00\\x00\tfile\\t0")
    );
    assert_eq!(all.lines().last(), Some("owners\troot\t\\x00"));
    assert_eq!(
        dump(&["names", "--prefix", "000001", "--limit", "2", "--keys-only"]),
        "\\x00\\x00\\x01\\x00\n\\x00\\x00\\x01\\x01\n"
    );
    let said = babu_kv(dir.path(), &["dump", "db", "ownrs"]);
    assert_eq!(said.code, Some(1));
    assert!(
        said.err.contains("there are: names, owners"),
        "{}",
        said.err
    );
    let said = babu_kv(dir.path(), &["dump", "db", "names", "--prefix", "0"]);
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("hexadecimal"), "{}", said.err);
}

#[test]
fn a_checkpoint_is_a_database_of_its_own_and_compaction_changes_no_entry() {
    let dir = with_a_database();
    let before = babu_kv(dir.path(), &["dump", "db"]).out;
    let said = babu_kv(dir.path(), &["checkpoint", "db", "copy"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let said = babu_kv(dir.path(), &["checkpoint", "db", "copy"]);
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("is not empty"), "{}", said.err);
    let said = babu_kv(dir.path(), &["compact", "copy"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let stats = json(&babu_kv(dir.path(), &["stats", "copy", "--json"]));
    assert_eq!(stats["levels"][0]["tables"], 0);
    for database in ["db", "copy"] {
        assert_eq!(babu_kv(dir.path(), &["dump", database]).out, before);
        assert_eq!(babu_kv(dir.path(), &["verify", database]).code, Some(0));
    }
}

#[test]
fn where_there_is_no_database_none_is_made() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("empty")).unwrap();
    for command in ["stats", "verify", "dump", "compact"] {
        for place in ["missing", "empty"] {
            let said = babu_kv(dir.path(), &[command, place]);
            assert_eq!(said.code, Some(1), "{command} {place}: {}", said.err);
            let what = format!("no database in {place}");
            assert!(said.err.contains(&what), "{}", said.err);
        }
    }
    let said = babu_kv(dir.path(), &["checkpoint", "missing", "copy"]);
    assert_eq!(said.code, Some(1));
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "{names:?}");
    assert_eq!(fs::read_dir(dir.path().join("empty")).unwrap().count(), 0);
}

#[test]
fn a_database_in_use_is_left_alone_and_said_to_be_in_use() {
    let dir = with_a_database();
    let database = Database::open(&dir.path().join("db"), Options::default()).unwrap();
    for command in ["stats", "verify", "dump", "compact"] {
        let said = babu_kv(dir.path(), &[command, "db"]);
        assert_eq!(said.code, Some(1), "{command}");
        assert!(said.err.contains("in db is in use"), "{}", said.err);
    }
    database.close().unwrap();
}

#[test]
fn help_shows_examples_and_exit_codes() {
    let dir = tempfile::tempdir().unwrap();
    let said = babu_kv(dir.path(), &["--help"]);
    assert_eq!(said.code, Some(0));
    assert!(said.out.contains("Exit codes"), "{}", said.out);
    for command in ["stats", "verify", "dump", "checkpoint", "compact", "bench"] {
        assert!(said.out.contains(command), "{}", said.out);
        let said = babu_kv(dir.path(), &[command, "--help"]);
        assert_eq!(said.code, Some(0));
        assert!(said.out.contains("Example"), "{command}: {}", said.out);
    }
    assert_eq!(babu_kv(dir.path(), &["sats"]).code, Some(1));
}

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
