//! The long-run program, for a moment.

use std::{fs, process::Command};

fn stress(dir: &std::path::Path, minutes: &str) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_stress"))
        .args(["--minutes", minutes, "--seed", "7", "--dir"])
        .arg(dir)
        .env("TMPDIR", dir.parent().unwrap())
        .output()
        .unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn what_was_written_before_each_kill_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let (code, out, err) = stress(&dir.path().join("run"), "0.1");
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("seed 7") && out.contains("killed"), "{out}");
    // A folder of a run is not used for another one.
    let (code, _, err) = stress(&dir.path().join("run"), "0.1");
    assert_eq!(code, Some(1));
    assert!(err.contains("create"), "{err}");
    assert!(fs::exists(dir.path().join("run/database/CURRENT")).unwrap());
    let left = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 1, "something lies beside the folder of the run");
}
