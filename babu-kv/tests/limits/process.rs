//! A test in a process of its own.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

const FOLDER: &str = "BABU_KV_LIMITS_FOLDER";

/// The folder to work in, inside of the process that [`again`] starts.
pub fn folder() -> Option<PathBuf> {
    env::var_os(FOLDER).map(PathBuf::from)
}

/// Runs `test` of this program again with a folder to work in; `wrapper` are the words in front of
/// its command line.
///
/// # Panics
/// When it cannot be started or fails.
pub fn again(test: &str, folder: &Path, wrapper: &[&str], settings: &[(&str, String)]) -> Output {
    let program = env::current_exe().unwrap();
    let words = wrapper.iter().map(|word| (*word).into());
    let mut words: Vec<std::ffi::OsString> = words.collect();
    words.push(program.into_os_string());
    let output = Command::new(&words[0])
        .args(&words[1..])
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder)
        .envs(settings.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("start {:?}: {error}", words[0]));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success() && text(&output.stdout).contains("1 passed"),
        "{settings:?}: {}\n{}\n{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}

/// Runs a command to its end.
///
/// # Panics
/// When it fails.
pub fn run(program: &str, arguments: &[&std::ffi::OsStr]) {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("start {program}: {error}"));
    assert!(
        output.status.success(),
        "{program}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
