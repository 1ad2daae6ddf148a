//! Going to the background: the command starts itself again as a process of its own and waits
//! until that process says that it is ready, or why it is not.
//!
//! A process with threads cannot fork, so the program is executed anew before any thread exists.
//! The child's stdout is a pipe to its parent; its first line is either what the parent prints as
//! the command's own outcome, or `failed: ` and the reason. After that line the child writes
//! nothing more to it.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::output;

/// The hidden flag that marks the child.
pub const CHILD_FLAG: &str = "--background-child";

/// Begins the line with which the child reports that it failed.
const FAILED: &str = "failed: ";

/// Longest report that is read.
const REPORT_BYTES_MAX: u64 = 64 << 10;

/// Time for the child to get ready; it may have to replay the log of a crash.
const REPORT_LIMIT: Duration = Duration::from_secs(300);

/// Starts this command again in the background, with its stderr in `log`, and waits for its
/// report.
pub fn spawn(log: &Path) -> Result<ExitCode> {
    let program = std::env::current_exe().context("this program: cannot be found")?;
    let errors = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("log file {}: cannot be opened", log.display()))?;
    let mut child = Command::new(program)
        .arg(CHILD_FLAG)
        .args(std::env::args_os().skip(1))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
        .context("background process: cannot be started")?;
    let Some(line) = await_report(&mut child) else {
        // A process that nobody can find again must not stay.
        child
            .kill()
            .context("background process: cannot be ended")?;
        child.wait().context("background process")?;
        bail!(
            "background process was not ready within {REPORT_LIMIT:?} and was ended; see {}",
            log.display()
        );
    };
    let line = line.trim_end();
    if line.is_empty() || line.starts_with(FAILED) {
        let status = child.wait().context("background process")?;
        match line.strip_prefix(FAILED) {
            Some(reason) => bail!("{reason}"),
            None => bail!(
                "background process ended without a report ({status}); see {}",
                log.display()
            ),
        }
    }
    output::print(&line)?;
    Ok(ExitCode::SUCCESS)
}

/// The first line of the child's stdout, empty if it ended without one; none when neither comes in
/// time.
fn await_report(child: &mut Child) -> Option<String> {
    let stdout = child.stdout.take()?;
    let (tell, told) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(stdout.take(REPORT_BYTES_MAX)).read_line(&mut line);
        // Without a listener the time is over and this process ends.
        let _ = tell.send(read.map(|_| line).unwrap_or_default());
    });
    told.recv_timeout(REPORT_LIMIT).ok()
}

/// Makes this process independent of the terminal and folder it was started from. For the child,
/// once it knows all its paths.
pub fn become_independent() -> Result<()> {
    rustix::process::setsid().context("background process: no session of its own")?;
    rustix::process::chdir("/").context("background process: cannot leave its folder")?;
    Ok(())
}

/// Prints the one line that says that everything is ready.
pub fn report_ready(line: &str) {
    let mut stdout = std::io::stdout().lock();
    // A parent that is gone, or a closed stdout, is no reason to stop serving.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

/// Tells the parent why the child failed.
pub fn report_failure(error: &anyhow::Error) {
    let text = format!("{error:#}").replace('\n', " ");
    report_ready(&format!("{FAILED}{text}"));
}
