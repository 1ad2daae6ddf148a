//! Whatever becomes of a test, nothing of it is left: no mount, no process, no file.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use xtfs_tests::process::await_exit;
use xtfs_tests::scratch::{mounts_below, processes_of};
use xtfs_tests::{require, secs};

/// A test that has set up a cell and done some work: what it left behind will be looked for.
struct Abandoned {
    child: Child,
    scratch: PathBuf,
}

fn start(shape: &str, end: &str) -> Abandoned {
    require(&[]);
    let mut child = Command::new(env!("CARGO_BIN_EXE_xtfs-test-abandon"))
        .args([shape, end])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let scratch = line
        .strip_prefix("working in ")
        .expect("a cell that works")
        .trim();
    Abandoned {
        child,
        scratch: scratch.into(),
    }
}

fn left_of(scratch: &Path) -> Vec<String> {
    let mut left: Vec<String> = mounts_below(scratch)
        .iter()
        .map(|mount| format!("{mount:?}"))
        .collect();
    left.extend(
        processes_of(scratch)
            .iter()
            .map(|pid| format!("process {pid}")),
    );
    if scratch.exists() {
        left.push(scratch.display().to_string());
    }
    left
}

/// The warden is nobody's child by now, so there is nothing to wait on.
fn await_nothing_left(scratch: &Path) {
    let until = Instant::now() + secs(60);
    loop {
        let left = left_of(scratch);
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < until, "left behind: {left:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn ends_clean(shape: &str, end: &str, success: bool) {
    let mut abandoned = start(shape, end);
    let pid = Pid::from_child(&abandoned.child);
    assert!(await_exit(pid, secs(90)), "the abandoned test hangs");
    assert_eq!(abandoned.child.wait().unwrap().success(), success);
    assert_eq!(left_of(&abandoned.scratch), Vec::<String>::new());
}

#[test]
fn a_test_that_passes_leaves_nothing() {
    ends_clean("up", "return", true);
}

#[test]
fn a_test_that_fails_leaves_nothing() {
    ends_clean("up", "panic", false);
    ends_clean("cluster", "panic", false);
}

#[test]
fn a_test_that_is_killed_leaves_nothing() {
    for shape in ["up", "cluster"] {
        let mut abandoned = start(shape, "wait");
        let pid = Pid::from_child(&abandoned.child);
        assert!(!processes_of(&abandoned.scratch).is_empty());
        assert!(!mounts_below(&abandoned.scratch).is_empty());
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
        abandoned.child.wait().unwrap();
        await_nothing_left(&abandoned.scratch);
    }
}
