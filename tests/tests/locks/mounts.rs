//! Two mounts of one volume, in two processes, and programs that lock through them.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation as Operation;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use xtfs_tests::{Home, Part, TestCell, require, secs};

/// Longest wait for something that happens at once.
const PATIENCE: Duration = secs(30);

/// A running `xtfs up` and a second mount of its volume, with a file in it.
struct Two {
    home: Home,
    files: [PathBuf; 2],
}

impl Two {
    fn new() -> Self {
        require(&["flock"]);
        let home = Home::empty();
        home.does(&["up", "--detach", "--osds", "1", "mount"]);
        home.does(&["mount", "--detach", "second"]);
        let second = home.scratch.path().join("second");
        let files = [home.mountpoint.join("file"), second.join("file")];
        fs::write(&files[0], "content").unwrap();
        Self { home, files }
    }

    fn end(self) {
        self.home.does(&["down", "second"]);
        self.home.does(&["down", "mount"]);
    }
}

fn open(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap()
}

type Take = fn(&File, Operation) -> Result<(), Errno>;
const FLOCK: Take = |file, operation| rustix::fs::flock(file, operation);
const FCNTL: Take = |file, operation| rustix::fs::fcntl_lock(file, operation);

fn await_true(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "not in time: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// `flock(1)` on a file, with something to run under the lock.
fn flock(file: &Path, script: &str) -> Child {
    Command::new("flock")
        .arg(file)
        .args(["sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until the script says that it runs, and so has the lock.
fn await_held(child: &mut Child) {
    let mut line = String::new();
    let stdout = child.stdout.as_mut().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
}

fn await_blocked(child: &Child) {
    let call = format!("{} ", libc::SYS_flock);
    let path = format!("/proc/{}/syscall", child.id());
    await_true("it waits for the lock", || {
        fs::read_to_string(&path).is_ok_and(|text| text.starts_with(&call))
    });
}

#[test]
fn locks_of_either_kind_exclude_those_of_the_other_mount() {
    let two = Two::new();
    for take in [FLOCK, FCNTL] {
        let [one, other] = [open(&two.files[0]), open(&two.files[1])];
        take(&one, Operation::LockExclusive).unwrap();
        let refused = take(&other, Operation::NonBlockingLockShared);
        assert_eq!(refused, Err(Errno::AGAIN));
        take(&one, Operation::LockShared).unwrap();
        take(&other, Operation::NonBlockingLockShared).unwrap();
        let refused = take(&one, Operation::NonBlockingLockExclusive);
        assert_eq!(refused, Err(Errno::AGAIN));
        let waiting = thread::spawn(move || take(&one, Operation::LockExclusive).map(|()| one));
        drop(other);
        let one = waiting.join().unwrap().unwrap();
        let other = open(&two.files[1]);
        let refused = take(&other, Operation::NonBlockingLockShared);
        assert_eq!(refused, Err(Errno::AGAIN));
        drop(one);
        take(&other, Operation::LockExclusive).unwrap();
    }
    // Locks of files and of ranges do not see each other.
    let [one, other] = [open(&two.files[0]), open(&two.files[1])];
    FLOCK(&one, Operation::LockExclusive).unwrap();
    FCNTL(&other, Operation::NonBlockingLockExclusive).unwrap();
    // A process that closes any descriptor of a file has no locks of its ranges any more, and
    // those of the open file stay.
    FCNTL(&other, Operation::NonBlockingUnlock).unwrap();
    FCNTL(&one, Operation::LockExclusive).unwrap();
    drop(File::open(&two.files[0]).unwrap());
    FCNTL(&other, Operation::NonBlockingLockExclusive).unwrap();
    assert_eq!(
        FLOCK(&other, Operation::NonBlockingLockShared),
        Err(Errno::AGAIN)
    );
    drop((one, other));
    two.end();
}

#[test]
fn a_killed_holder_is_followed_by_who_waits_and_an_interrupted_wait_leaves_nothing() {
    let two = Two::new();
    let mut holder = flock(&two.files[0], "echo held; cat");
    await_held(&mut holder);
    let mut interrupted = flock(&two.files[1], "echo held");
    await_blocked(&interrupted);
    let mut next = flock(&two.files[1], "echo held; cat");
    await_blocked(&next);
    // Ctrl-C.
    let pid = Pid::from_child(&interrupted);
    kill_process(pid, Signal::INT).unwrap();
    let ended = Instant::now();
    assert!(!interrupted.wait().unwrap().success());
    assert!(ended.elapsed() < PATIENCE);
    // The script holds the descriptor as well: both have to go.
    let children = format!("/proc/{0}/task/{0}/children", holder.id());
    for child in fs::read_to_string(children).unwrap().split_whitespace() {
        let pid = Pid::from_raw(child.parse().unwrap()).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
    }
    holder.kill().unwrap();
    drop(holder.stdin.take());
    holder.wait().unwrap();
    await_held(&mut next);
    drop(next.stdin.take());
    assert!(next.wait().unwrap().success());
    let file = open(&two.files[0]);
    FLOCK(&file, Operation::LockExclusive).unwrap();
    drop(file);
    two.end();
}

#[test]
fn counting_under_locks_through_both_mounts_loses_nothing() {
    const ROUNDS: u32 = 40;
    let two = Two::new();
    for take in [FLOCK, FCNTL] {
        fs::write(&two.files[0], "0").unwrap();
        let counting = two.files.clone().map(|path| {
            thread::spawn(move || {
                for _ in 0..ROUNDS {
                    let file = open(&path);
                    take(&file, Operation::LockExclusive).unwrap();
                    let mut text = String::new();
                    (&file).read_to_string(&mut text).unwrap();
                    let count: u32 = text.parse().unwrap();
                    file.write_all_at((count + 1).to_string().as_bytes(), 0)
                        .unwrap();
                    take(&file, Operation::Unlock).unwrap();
                }
            })
        });
        for thread in counting {
            thread.join().unwrap();
        }
        let count = fs::read_to_string(&two.files[1]).unwrap();
        assert_eq!(count, (2 * ROUNDS).to_string());
    }
    two.end();
}

#[test]
fn a_lock_outlives_a_restart_of_the_mrc() {
    require(&["flock"]);
    let mut cell = TestCell::cluster(1);
    let path = cell.path().join("file");
    let file = File::create(&path).unwrap();
    FLOCK(&file, Operation::LockExclusive).unwrap();
    let mut next = flock(&path, "echo held");
    await_blocked(&next);
    cell.kill(Part::Mrc);
    cell.start(Part::Mrc);
    let other = File::open(&path).unwrap();
    assert_eq!(
        FLOCK(&other, Operation::NonBlockingLockShared),
        Err(Errno::AGAIN)
    );
    assert!(next.try_wait().unwrap().is_none());
    drop((file, other));
    await_held(&mut next);
    assert!(next.wait().unwrap().success());
    cell.stop();
}
