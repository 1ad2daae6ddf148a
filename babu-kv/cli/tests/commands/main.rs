//! The commands as somebody at a shell meets them.

mod backup;
mod bench;
mod beside;
mod look;
mod repair;

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

const COMMANDS: [&[&str]; 15] = [
    &["stats"],
    &["verify"],
    &["dump"],
    &["checkpoint"],
    &["compact"],
    &["bench"],
    &["repair"],
    &["backup"],
    &["backup", "create"],
    &["backup", "list"],
    &["backup", "verify"],
    &["backup", "restore"],
    &["backup", "send"],
    &["backup", "receive"],
    &["backup", "prune"],
];

#[test]
fn help_shows_examples_and_exit_codes_of_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let said = babu_kv(dir.path(), &["--help"]);
    assert_eq!(said.code, Some(0));
    assert!(said.out.contains("Exit codes"), "{}", said.out);
    for command in COMMANDS {
        assert!(said.out.contains(command[0]), "{}", said.out);
        let help = babu_kv(dir.path(), &[command, &["--help"]].concat());
        assert_eq!(help.code, Some(0));
        if command != ["backup"] {
            for part in ["Example", "Exit codes"] {
                assert!(help.out.contains(part), "{command:?}: {}", help.out);
            }
        }
    }
    // What is listed above is all there is, besides `help`.
    let listed = |out: &str| {
        let (_, from) = out.split_once("Commands:").unwrap();
        let (commands, _) = from.split_once("Options:").unwrap();
        let is_name = |line: &&str| line.starts_with("  ") && !line.starts_with("   ");
        commands.lines().filter(is_name).count() - 1
    };
    let backup = babu_kv(dir.path(), &["backup", "--help"]).out;
    let of_backup = COMMANDS.iter().filter(|words| words.len() == 2).count();
    assert_eq!(listed(&backup), of_backup, "{backup}");
    assert_eq!(
        listed(&said.out),
        COMMANDS.len() - of_backup,
        "{}",
        said.out
    );
    assert_eq!(babu_kv(dir.path(), &["sats"]).code, Some(1));
}
