//! Going to the background: the command starts itself again as a process of its own and waits
//! until that process says that it is ready, or why it is not.
//!
//! A process with threads cannot fork, so the program is executed anew before any thread exists.
//! The child's stdout is a pipe to its parent; its first line is either what the parent prints as
//! the command's own outcome, or `failed: ` and the reason. After that line the child writes
//! nothing more to it.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// The hidden flag that marks the child.
pub const CHILD_FLAG: &str = "--background-child";

/// Begins the line with which the child reports that it failed.
const FAILED: &str = "failed: ";

/// Longest report that is read.
const REPORT_BYTES_MAX: u64 = 64 << 10;

/// Time for the child to get ready; it may have to replay the log of a crash.
const REPORT_LIMIT: Duration = Duration::from_secs(300);

/// Starts this command again in the background, with its stderr in `log`, and waits for its
/// report, which it returns.
pub fn spawn(log: &Path) -> Result<String> {
    let program = std::env::current_exe().context("this program: cannot be found")?;
    let errors = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("log file {}: cannot be opened", log.display()))?;
    let mut arguments = std::env::args_os();
    let mut child = Command::new(program)
        // The name by which the program was called may say what it is to do.
        .arg0(arguments.next().unwrap_or_default())
        .arg(CHILD_FLAG)
        .args(arguments)
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
    Ok(line.to_owned())
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

/// Prints the one line that says that everything is ready. False when nobody listens: for a process
/// in the foreground no reason to stop serving, but for a child the sign that whoever waited for it
/// has given up.
pub fn report_ready(line: &str) -> bool {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}")
        .and_then(|()| stdout.flush())
        .is_ok()
}

/// Tells the parent why the child failed.
pub fn report_failure(error: &anyhow::Error) {
    let text = format!("{error:#}").replace('\n', " ");
    // Without a parent the log has it.
    let _ = report_ready(&format!("{FAILED}{text}"));
}
