//! Mounting as other file systems are mounted: a second mount of a running `xtfs up`, mount(8) and
//! fstab with the helper, the examples of the book.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use xtfs_tests::cell::binary;
use xtfs_tests::exec::{Outcome, outcome, run, shell};
use xtfs_tests::process::{Daemon, await_exit};
use xtfs_tests::scratch::{mounts_below, processes_of};
use xtfs_tests::{Home, require, secs};

/// Time for a command or the end of a process.
const LIMIT: Duration = secs(60);
/// User without rights, as `nobody` on every Debian.
const NOBODY: u32 = 65_534;

fn pid_of(home: &Home) -> Pid {
    Pid::from_raw(home.pid()).unwrap()
}

/// `xtfs up` whose process does not answer; it goes on when this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(home: &Home) -> Self {
        let pid = pid_of(home);
        kill_process(pid, Signal::STOP).unwrap();
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

#[test]
fn a_running_up_is_mounted_once_more_and_a_restart_is_ridden_out() {
    let home = Home::empty();
    home.does(&["up", "--detach", "mount"]);
    let second = home.scratch.path().join("second");
    let line = home.does(&["mount", "--data", "data", "--detach", "second"]);
    assert_eq!(line, format!("mounted main at {}\n", second.display()));
    fs::write(home.mountpoint.join("one"), "from the first").unwrap();
    assert_eq!(fs::read(second.join("one")).unwrap(), b"from the first");
    fs::write(second.join("two"), "from the second").unwrap();
    let two = fs::read(home.mountpoint.join("two")).unwrap();
    assert_eq!(two, b"from the second");

    let up = pid_of(&home);
    kill_process(up, Signal::KILL).unwrap();
    assert!(await_exit(up, LIMIT));
    home.does(&["up", "--detach", "mount"]);
    fs::write(home.mountpoint.join("three"), "after the restart").unwrap();
    let three = fs::read(second.join("three")).unwrap();
    assert_eq!(three, b"after the restart");
    home.does(&["down", "second"]);
    home.does(&["down", "mount"]);
}

#[test]
fn why_a_running_up_cannot_be_mounted_is_said() {
    let home = Home::empty();
    home.refuses(&["mount", "second"], "no `xtfs up` runs on it");
    home.does(&["up", "--detach", "mount"]);
    home.refuses(&["mount", "mount"], "is mounted there already");
    home.refuses(&["mount", "docs", "second"], "volume docs: there is none");
    home.refuses(&["mount", "-o", "raed", "second"], "\"raed\"");

    let mut foreign = home.xtfs(&["mount", "--detach", "second"]);
    let foreign = outcome(foreign.uid(NOBODY), LIMIT);
    let owner = "belongs to the user with number 0";
    assert!(foreign.stderr.contains(owner), "{foreign:?}");

    let pid = home.pid();
    let stopped = Stopped::new(&home);
    let silent = home.refuses(
        &["mount", "--detach", "-o", "timeout=1", "second"],
        "does not answer",
    );
    assert!(
        silent.stderr.contains(&format!("(process {pid}) at 127.")),
        "{silent:?}"
    );
    drop(stopped);
    home.does(&["down", "mount"]);
    home.refuses(&["mount", "second"], "no `xtfs up` runs on it");
    assert!(mounts_below(home.scratch.path()).is_empty());
}

#[test]
fn who_stops_waiting_for_a_mount_does_not_get_one() {
    let home = Home::empty();
    home.does(&["up", "--detach", "mount"]);
    let before = processes_of(home.scratch.path());
    let stopped = Stopped::new(&home);
    let mut waiting = home
        .xtfs(&["mount", "--detach", "second"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // The process of the mount has left the session of the terminal, so Ctrl-C does not reach it.
    let child = eventually(|| {
        let own = i32::try_from(waiting.id()).unwrap();
        processes_of(home.scratch.path())
            .into_iter()
            .filter(|pid| !before.contains(pid) && *pid != own)
            .find(|pid| session_of(*pid) == Some(*pid))
    });
    let parent = Pid::from_child(&waiting);
    kill_process(parent, Signal::INT).unwrap();
    waiting.wait().unwrap();
    drop(stopped);
    assert!(await_exit(Pid::from_raw(child).unwrap(), LIMIT));
    assert!(mounts_below(&home.scratch.path().join("second")).is_empty());
    home.does(&["down", "mount"]);
}

#[test]
fn ctrl_c_ends_a_mount_that_still_waits_for_its_server() {
    let home = Home::empty();
    home.does(&["up", "--detach", "mount"]);
    let stopped = Stopped::new(&home);
    let log = home.scratch.path().join("second.log");
    let mut second = Daemon::standby("second", &home.xtfs(&["mount", "second"]), &log);
    second.go();
    let status = format!("/proc/{}/status", second.pid().as_raw_nonzero());
    let interrupt = 1_u64 << (Signal::INT.as_raw() - 1);
    eventually(|| {
        let text = fs::read_to_string(&status).unwrap();
        let field = |name| text.lines().find_map(|line| line.strip_prefix(name));
        // Before, it is the shell that will become it.
        let caught = field("SigCgt:").filter(|_| field("Name:") == Some("\txtfs"))?;
        let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
        (caught & interrupt != 0).then_some(())
    });
    kill_process(second.pid(), Signal::INT).unwrap();
    // Less than the minute for which it would wait.
    let ended = second.await_end(secs(20));
    assert_eq!(ended.code(), Some(1), "{ended}");
    drop(stopped);
    home.does(&["down", "mount"]);
}

/// mount(8) with the helper in its place: a mount namespace of its own, where nothing but the
/// helper is in /sbin.
struct Helper {
    home: Home,
}

impl Helper {
    fn new() -> Self {
        require(&["mount", "umount", "unshare"]);
        let home = Home::empty();
        let _ = (home.scratch.folder("sbin"), home.scratch.folder("here"));
        home.does(&["up", "--detach", "mount"]);
        home.does(&["install-helpers", "--dir", "sbin"]);
        Self { home }
    }

    fn script(&self, script: &str) -> Outcome {
        let mut command = Command::new("unshare");
        command
            .args(["-m", "bash", "-euc"])
            .arg(format!("mount --bind sbin /sbin\n{script}"))
            .current_dir(self.home.scratch.path())
            .env("XTFS_TEST_SCRATCH", self.home.scratch.path())
            .env("XTFS_RUN_DIR", self.home.scratch.path().join("run"))
            .env("D", self.home.scratch.path())
            .env("V", self.home.data.join("main"))
            .env_remove("XTFS_DATA");
        outcome(&mut command, secs(120))
    }

    fn does(&self, script: &str) -> String {
        let result = self.script(script);
        assert!(result.status.success(), "{result:?}");
        result.stdout
    }
}

#[test]
fn mount_8_mounts_and_unmounts_and_the_table_shows_what_was_asked_for() {
    let helper = Helper::new();
    fs::write(helper.home.mountpoint.join("file"), "content").unwrap();
    let volume = helper.home.data.join("main");
    let volume = volume.display();
    let place = helper.home.scratch.path().join("here");
    let place = place.display();
    let seen = helper.does(
        "mount -t xtfs $V here -o noatime,nodev,_netdev,x-systemd.automount
         cat here/file && echo
         grep here /proc/self/mounts | cut -d' ' -f1-4
         umount here
         mount -t fuse.xtfs -o ro main $D/here -o \"data=$D/data\"
         grep here /proc/self/mounts | cut -d' ' -f1-4 | cut -d, -f1
         umount here
         echo \"$V $D/here xtfs noauto,user,exec 0 0\" >fstab
         mount -T fstab here
         grep here /proc/self/mounts | cut -d' ' -f1-4 | cut -d, -f1-4
         umount here",
    );
    let expected = format!(
        "content\n\
         {volume} {place} fuse.xtfs rw,nodev,noatime,user_id=0,group_id=0,default_permissions,\
         allow_other\n\
         main {place} fuse.xtfs ro\n\
         {volume} {place} fuse.xtfs rw,nosuid,nodev,relatime\n"
    );
    assert_eq!(seen, expected);
    helper.home.does(&["down", "mount"]);
}

#[test]
fn mount_8_makes_a_mount_read_only_and_writable_again() {
    let helper = Helper::new();
    let seen = helper.does(
        "mount -t xtfs $V here
         mount -o remount,ro here
         ! touch here/file 2>error || exit 1
         grep -o 'Read-only file system' error
         mount -o remount,rw,noexec here
         printf '#!/bin/sh' >here/file && chmod 755 here/file
         ! here/file 2>/dev/null || exit 1
         exec 9>>here/file
         ! mount -o remount,ro here 2>/dev/null || exit 1
         exec 9>&-
         umount here",
    );
    assert_eq!(seen, "Read-only file system\n");
    helper.home.does(&["down", "mount"]);
}

#[test]
fn mount_8_says_why_it_cannot_and_leaves_nothing() {
    let helper = Helper::new();
    for (line, reason) in [
        ("$V nowhere", "nowhere: No such file or directory"),
        ("$V here -o raed", "mount option \"raed\": there is none"),
        ("$D/data/docs here", "volume docs: there is none"),
        ("$D/other/main here", "other: there is none"),
        ("main here", "no `xtfs up` runs on it"),
    ] {
        let script = format!("export XTFS_DATA=/nowhere; mount -t xtfs {line}");
        let result = helper.script(&script);
        let reason = if line == "main here" {
            "/nowhere"
        } else {
            reason
        };
        assert_eq!(result.status.code(), Some(32), "{line}: {result:?}");
        assert!(result.stderr.contains(reason), "{line}: {result:?}");
    }
    let usage = helper.script("sbin/mount.xtfs onlyone");
    assert_eq!(usage.status.code(), Some(1), "{usage:?}");
    let sloppy = "sbin/mount.xtfs -s -o raed $V here; umount here";
    helper.does(sloppy);
    helper.home.does(&["down", "mount"]);
}

#[test]
fn mount_8_replaces_a_dead_mount_and_mounts_again_behind_an_unmount() {
    let helper = Helper::new();
    helper.does(
        "mount -t xtfs $V here
         before=$(grep -l here run/*.json)
         kill -9 $(sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/' $before)
         ! ls here 2>error || exit 1
         mount -t xtfs $V here
         [ $(grep -c here /proc/self/mounts) = 1 ]
         touch here/file
         for i in 1 2 3; do umount here; mount -t xtfs $V here; ls here/file; done
         umount here",
    );
    helper.home.does(&["down", "mount"]);
}

#[test]
fn the_helpers_come_and_go_and_foreign_files_stay() {
    let home = Home::empty();
    let folder = home.scratch.folder("sbin");
    home.does(&["install-helpers", "--dir", "sbin"]);
    for name in ["mount.xtfs", "mount.fuse.xtfs"] {
        assert_eq!(fs::read_link(folder.join(name)).unwrap(), binary());
    }
    home.does(&["install-helpers", "--dir", "sbin", "--remove"]);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    fs::write(folder.join("mount.xtfs"), "a script").unwrap();
    home.refuses(&["install-helpers", "--dir", "sbin"], "is there");
}

#[test]
fn the_examples_of_the_book_are_understood() {
    require(&["systemd-analyze", "findmnt"]);
    let home = Home::empty();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples");
    let mut units = Vec::new();
    for entry in fs::read_dir(&examples).unwrap() {
        let path = entry.unwrap().path();
        let name = PathBuf::from(path.file_name().unwrap());
        let text = fs::read_to_string(&path).unwrap();
        if let Some(line) = text
            .lines()
            .find_map(|line| line.strip_prefix("ExecStart="))
        {
            // The program takes it, but for the folders that are not here.
            let mut words = line.split_whitespace();
            assert_eq!(words.next(), Some("/usr/bin/xtfs"));
            let parsed = outcome(home.xtfs(&[]).args(words).arg("--help"), LIMIT);
            assert!(parsed.status.success(), "{line}: {parsed:?}");
        }
        let here = home.scratch.path().join(&name);
        let program = binary().display().to_string();
        fs::write(&here, text.replace("/usr/bin/xtfs", &program)).unwrap();
        if name.extension().is_some() {
            units.push(here);
        }
    }
    assert_eq!(units.len(), 4);
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).args(&units);
    let verified = outcome(&mut verify, LIMIT);
    let named = |line: &&str| line.contains("xtfs") || line.contains("mnt-docs");
    let complaints: Vec<_> = verified.stderr.lines().filter(named).collect();
    assert!(complaints.is_empty(), "{verified:?}");

    // findmnt knows no mount points here and no type xtfs, but it reads every line.
    let listed = run(
        Command::new("findmnt")
            .args(["--noheadings", "--raw", "--output", "TARGET,FSTYPE,OPTIONS"])
            .arg("--tab-file")
            .arg(home.scratch.path().join("fstab")),
        LIMIT,
    );
    assert_eq!(listed.lines().count(), 3, "{listed}");
    for line in listed.lines() {
        let [_, fs_type, options] = *line.split(' ').collect::<Vec<_>>() else {
            panic!("{line}");
        };
        assert_eq!(fs_type, "xtfs");
        let fake = format!(
            "ln -sf {} mount.xtfs; ./mount.xtfs -f home/docs . -o {options}",
            binary().display()
        );
        shell(home.scratch.path(), &fake, LIMIT);
    }
}

/// Waits until something can be seen.
fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < until, "it did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The session of a process.
fn session_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(3)?.parse().ok()
}
