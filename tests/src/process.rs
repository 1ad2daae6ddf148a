//! Daemons of a test: started, awaited, ended, and never left behind.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal};

/// A running program in a process group of its own. Killed when dropped, and when the thread that
/// started it dies.
pub struct Daemon {
    name: String,
    child: Child,
    log: PathBuf,
    lines: Receiver<String>,
    reader: Option<JoinHandle<()>>,
    /// Holds a program back that has not been let go yet.
    gate: Option<ChildStdin>,
}

impl Daemon {
    /// Makes the process of a program, which waits until it is let go. What it prints is appended
    /// to the file `log`.
    ///
    /// A new process closes what its parent has open. Where other threads have files open on a
    /// mount whose servers are gone, that waits for the servers: so the process that brings them
    /// back has to be there before.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn standby(name: &str, command: &Command, log: &Path) -> Self {
        let open = || -> File {
            OpenOptions::new()
                .create(true)
                .append(true)
                .open(log)
                .expect("open the log")
        };
        let mut sink = open();
        let mut gated = Command::new("sh");
        gated
            .args(["-c", "read -r go && exec \"$@\" </dev/null", "sh"])
            .arg(command.get_program())
            .args(command.get_args());
        if let Some(folder) = command.get_current_dir() {
            gated.current_dir(folder);
        }
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => gated.env(key, value),
                None => gated.env_remove(key),
            };
        }
        die_with_parent(&mut gated);
        let mut child = gated
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(open())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("start {name}: {error}"));
        let stdout = child.stdout.take().expect("its output");
        let gate = child.stdin.take();
        let (sender, lines) = channel();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = writeln!(sink, "{line}");
                let _ = sender.send(line);
            }
        });
        Self {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
            lines,
            reader: Some(reader),
            gate,
        }
    }

    /// Lets a program go that stands by.
    ///
    /// # Panics
    /// When it went or died before.
    pub fn go(&mut self) {
        let mut gate = self.gate.take().expect("a program that stands by");
        let mut log = OpenOptions::new().append(true).open(&self.log);
        if let Ok(log) = &mut log {
            let _ = writeln!(log, "--- start of {}", self.name);
        }
        gate.write_all(b"go\n").expect("let the program go");
    }

    /// Waits until the program prints a line with `part` in it, and returns the line.
    ///
    /// # Panics
    /// When it ends before, or does not print it in time.
    pub fn await_line(&mut self, part: &str, limit: Duration) -> String {
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.contains(part) => return line,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => panic!(
                    "{} did not print '{part}' within {limit:?}\n{}",
                    self.name,
                    tail(&self.log, 40)
                ),
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait();
                    panic!(
                        "{} ended ({status:?}) before it printed '{part}'\n{}",
                        self.name,
                        tail(&self.log, 40)
                    );
                }
            }
        }
    }

    /// Its process.
    ///
    /// # Panics
    /// Never: a child has an id.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Has it ended by itself?
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// `kill -9` of the whole process group; returns when it is gone.
    pub fn kill(&mut self) {
        if self.has_ended() {
            return;
        }
        let _ = rustix::process::kill_process_group(self.pid(), Signal::KILL);
        if await_exit(self.pid(), Duration::from_secs(20)) {
            let _ = self.child.wait();
        } else {
            eprintln!("{} does not end after kill -9", self.name);
        }
    }

    /// Asks it to end and waits for that.
    ///
    /// # Panics
    /// When it does not end in time.
    pub fn terminate(&mut self, limit: Duration) -> ExitStatus {
        let _ = rustix::process::kill_process(self.pid(), Signal::TERM);
        self.await_end(limit)
    }

    /// Waits until it ends by itself.
    ///
    /// # Panics
    /// When it does not end in time.
    pub fn await_end(&mut self, limit: Duration) -> ExitStatus {
        assert!(
            await_exit(self.pid(), limit),
            "{} does not end within {limit:?}\n{}",
            self.name,
            tail(&self.log, 40)
        );
        self.child.wait().expect("its status")
    }

    /// What it printed so far.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
        if let Some(reader) = self.reader.take()
            && self.has_ended()
        {
            let _ = reader.join();
        }
    }
}

/// The child gets SIGKILL when the thread that starts it ends.
fn die_with_parent(command: &mut Command) {
    // SAFETY: prctl(PR_SET_PDEATHSIG) is async-signal-safe, and nothing is allocated between fork
    // and exec.
    unsafe {
        command.pre_exec(|| {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            Ok(())
        });
    }
}

/// Waits until a process has ended (it may still have to be reaped). False when it has not in
/// time.
#[must_use]
pub fn await_exit(pid: Pid, limit: Duration) -> bool {
    let Ok(handle) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
        return true;
    };
    let mut poll = libc::pollfd {
        fd: handle.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let millis = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: `poll` points to one valid pollfd for the time of the call.
        let ready = unsafe { libc::poll(&raw mut poll, 1, millis) };
        match ready {
            1.. => return true,
            0 => return false,
            _ if left.is_zero() => return false,
            _ => {}
        }
    }
}

/// The last lines of a log.
#[must_use]
pub fn tail(log: &Path, lines: usize) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    let from = all.len().saturating_sub(lines);
    let mut out = format!("--- last lines of {}\n", log.display());
    for line in &all[from..] {
        out.push_str(line);
        out.push('\n');
    }
    out
}
