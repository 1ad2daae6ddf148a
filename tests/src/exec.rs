//! Commands that a test runs to their end, within a limit.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::process::await_exit;

/// What a command left.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended.
    pub status: ExitStatus,
    /// What it printed.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
}

/// Builds a command in one line.
#[must_use]
pub fn command<S: AsRef<std::ffi::OsStr>>(program: &str, arguments: &[S]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// Runs a command to its end and returns how it went.
///
/// # Panics
/// When it cannot be started or takes longer than `limit`. It is killed then, but not waited for:
/// it may be stuck in a file system that only the end of the test sets free.
pub fn outcome(command: &mut Command, limit: Duration) -> Outcome {
    let shown = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap_or_else(|error| panic!("start {shown}: {error}"));
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let pid = Pid::from_child(&child);
    if !await_exit(pid, limit) {
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        panic!("{shown} takes longer than {limit:?}");
    }
    let status = child.wait().expect("status of the command");
    Outcome {
        status,
        stdout: text(stdout),
        stderr: text(stderr),
    }
}

/// Runs a command that has to succeed and returns what it printed.
///
/// # Panics
/// When it fails or takes longer than `limit`.
pub fn run(command: &mut Command, limit: Duration) -> String {
    let result = outcome(command, limit);
    assert!(
        result.status.success(),
        "{command:?}: {}\n{}{}",
        result.status,
        shortened(&result.stdout),
        shortened(&result.stderr)
    );
    result.stdout
}

/// Runs lines of a shell script in a directory; the first that fails ends it.
///
/// # Panics
/// When it fails or takes longer than `limit`.
pub fn shell(directory: &Path, script: &str, limit: Duration) -> String {
    run(
        Command::new("bash")
            .args(["-euo", "pipefail", "-c", script])
            .current_dir(directory)
            .env("LC_ALL", "C"),
        limit,
    )
}

/// Where a command is, if it is installed: on the path, or among the tools that `tests/all.sh`
/// installs below `target/tools`.
#[must_use]
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = std::env::var_os("XTFS_TEST_TOOLS").map(PathBuf::from);
    let beside = std::env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.ancestors().nth(3)?.join("tools/bin")));
    own.into_iter()
        .chain(beside)
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

fn text(reader: JoinHandle<Vec<u8>>) -> String {
    String::from_utf8_lossy(&reader.join().unwrap_or_default()).into_owned()
}

/// The beginning of what may be very long.
fn shortened(text: &str) -> String {
    const CHARS_MAX: usize = 4000;
    let mut out: String = text.chars().take(CHARS_MAX).collect();
    if text.chars().nth(CHARS_MAX).is_some() {
        out.push_str("\n[...]\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_status_arrive() {
        let result = outcome(
            Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]),
            Duration::from_secs(20),
        );
        assert_eq!(result.status.code(), Some(3));
        assert_eq!(
            (result.stdout.as_str(), result.stderr.as_str()),
            ("out\n", "err\n")
        );
    }

    #[test]
    #[should_panic(expected = "takes longer")]
    fn a_command_that_hangs_fails() {
        let _ = outcome(Command::new("sleep").arg("1000"), Duration::from_millis(50));
    }
}
