//! Backups from a shell.

use crate::{babu_kv, json, with_a_database};
use std::{fs, path::Path, process::Command};

#[test]
fn backups_are_made_listed_verified_pruned_and_restored() {
    let dir = with_a_database();
    let run = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        let said = babu_kv(dir.path(), &words);
        assert_eq!(said.code, Some(0), "{words:?}: {}", said.err);
        said
    };
    let before = run("dump db").out;
    let first = json(&run("backup create db safe --json"));
    assert_eq!(
        (&first["number"], &first["sequence"]),
        (&1.into(), &2001.into())
    );
    assert_eq!(first["bytes"], first["bytes_new"]);
    assert!(first["time"].as_u64().unwrap() > 1_700_000_000);
    let second = json(&run("backup create db safe --rate-max 500M --json"));
    assert_eq!(
        (&second["number"], &second["bytes_new"]),
        (&2.into(), &0.into())
    );
    let listed = json(&run("backup list safe --json"));
    assert_eq!(listed.as_array().unwrap().len(), 2);
    assert_eq!(run("backup list safe").out.lines().count(), 2);
    let verified = run("backup verify safe").out;
    assert!(verified.starts_with("no damage: 2 backups"));
    run("backup restore again --from safe --number 1");
    assert_eq!(run("dump again").out, before);
    run("backup prune safe --keep 1");
    let listed = json(&run("backup list safe --json"));
    assert_eq!(listed[0]["number"], 2);
    run("backup restore newest --from safe");
    assert_eq!(run("dump newest").out, before);
    for wrong in [
        "backup restore newest --from safe",
        "backup restore other --from safe --number 1",
        "backup restore other --from nowhere",
        "backup restore other",
        "backup list nowhere",
        "backup prune nowhere --keep 1",
        "backup prune safe --keep 0",
        "backup create nowhere safe",
        "backup create db",
        "backup create db safe --rate-max 5X",
    ] {
        let words: Vec<&str> = wrong.split(' ').collect();
        assert_eq!(babu_kv(dir.path(), &words).code, Some(1), "{wrong}");
    }
    assert!(!dir.path().join("nowhere").exists());
}

#[test]
fn a_flipped_byte_in_a_backup_is_named_and_keeps_it_from_being_restored() {
    let dir = with_a_database();
    let run = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        babu_kv(dir.path(), &words)
    };
    assert_eq!(run("backup create db safe").code, Some(0));
    for ending in [".table", ".log", ".backup"] {
        let entries = fs::read_dir(dir.path().join("safe")).unwrap();
        let mut paths = entries.map(|entry| entry.unwrap().path());
        let path = paths.find(|p| p.to_string_lossy().ends_with(ending));
        let path = path.unwrap();
        let whole = fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        flipped[40] ^= 1;
        fs::write(&path, flipped).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let said = run("backup verify safe");
        assert_eq!(said.code, Some(2), "{name}");
        assert!(said.err.contains(name), "{}", said.err);
        let said = run("backup restore out --from safe --number 1");
        assert_eq!(said.code, Some(2), "{name}: {}", said.err);
        let left = fs::read_dir(dir.path().join("out")).map_or(0, Iterator::count);
        assert_eq!(left, 0);
        fs::write(&path, whole).unwrap();
    }
    assert_eq!(run("backup verify safe").code, Some(0));
}

/// Runs a script that calls the command as `$B`.
fn shell(dir: &Path, script: &str) -> (Option<i32>, String) {
    let output = Command::new("bash")
        .args(["-o", "pipefail", "-c", script])
        .env("B", env!("CARGO_BIN_EXE_babu-kv"))
        .current_dir(dir)
        .output()
        .unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), err)
}

#[test]
fn streams_go_through_pipes_and_files_full_and_incremental() {
    let dir = with_a_database();
    let before = babu_kv(dir.path(), &["dump", "db"]).out;
    for script in [
        "$B backup create db --stream - | $B backup restore piped --stream -",
        "$B backup create db --stream full && $B backup restore filed --stream full",
        "$B backup create db --stream - | $B backup receive safe --stream -",
        "$B backup list safe --files > there",
        "$B backup create db --stream - --have there > small",
        "$B backup receive safe --stream small",
        "$B backup send safe --number 2 --stream - | $B backup restore sent --stream -",
    ] {
        let (code, err) = shell(dir.path(), script);
        assert_eq!(code, Some(0), "{script}: {err}");
    }
    for copy in ["piped", "filed", "sent"] {
        let dumped = babu_kv(dir.path(), &["dump", copy]).out;
        assert_eq!(dumped, before, "{copy}");
    }
    let length = |name: &str| fs::metadata(dir.path().join(name)).unwrap().len();
    assert!(length("small") * 10 < length("full"));
    for (script, code) in [
        // Files are not overwritten.
        ("$B backup create db --stream full", 1),
        ("head -c -100 full | $B backup restore torn --stream -", 2),
        (
            "head -c -100 full | $B backup receive torn-safe --stream -",
            2,
        ),
        ("$B backup restore small-only --stream small", 1),
    ] {
        let (got, err) = shell(dir.path(), script);
        assert_eq!(got, Some(code), "{script}: {err}");
    }
    assert_eq!(fs::read_dir(dir.path().join("torn")).unwrap().count(), 0);
    let listed = babu_kv(dir.path(), &["backup", "list", "torn-safe"]);
    assert_eq!((listed.code, listed.out.as_str()), (Some(0), ""));
}
