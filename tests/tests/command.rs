//! The command as people type it: in the background and down again, refusals with reasons, tools
//! on a running file system, on a stopped one and on separate services.

use std::time::Duration;

use serde_json::Value;
use xtfs_tests::exec::{outcome, run};
use xtfs_tests::process::Daemon;
use xtfs_tests::{Home, Part, TestCell, secs};

#[test]
fn up_in_the_background_returns_when_live_and_down_when_everything_is_on_disk() {
    let home = Home::empty();
    let printed = home.does(&["up", "--detach", "--osds", "2", "mount"]);
    let line = format!("mounted main at {}\n", home.mountpoint.display());
    assert_eq!(printed, line);
    let pid = home.pid();
    std::fs::write(home.mountpoint.join("kept"), "content").unwrap();
    home.does(&["down", "mount"]);
    assert!(!home.is_mounted());
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    assert!(xtfs_tests::process::await_exit(pid, Duration::ZERO));

    home.does(&["up", "--detach", "mount"]);
    let kept = std::fs::read_to_string(home.mountpoint.join("kept")).unwrap();
    assert_eq!(kept, "content");
    home.does(&["down", "mount"]);
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let home = Home::empty();
    home.refuses(&["status"], "holds no file system");
    home.refuses(&["down", "."], "nothing is mounted there");
    home.refuses(&["up", "data/inside"], "overlaps the data folder");
    home.does(&["up", "--detach", "--osds", "2", "mount"]);
    let pid = home.pid().to_string();
    let second = home.refuses(&["up", "--detach", "elsewhere"], "runs on it already");
    assert!(second.stderr.contains(&pid), "{second:?}");
    home.refuses(
        &["up", "--detach", "--data", "other", "mount"],
        "is mounted there already",
    );
    home.does(&["down", "mount"]);
    home.refuses(&["up", "--osds", "3", "mount"], "was made with --osds 2");
    let unknown = outcome(&mut home.xtfs(&["upp"]), secs(60));
    assert_eq!(unknown.status.code(), Some(64));
}

#[test]
fn a_mount_in_use_goes_down_only_by_force_and_keeps_what_was_written() {
    let home = Home::empty();
    home.does(&["up", "--detach", "mount"]);
    let path = home.mountpoint.join("open");
    let mut file = std::fs::File::create(&path).unwrap();
    std::io::Write::write_all(&mut file, b"written").unwrap();
    let name = format!("({})", std::process::id());
    let busy = home.refuses(&["down", "mount"], "in use by");
    assert!(busy.stderr.contains(&name), "{busy:?}");
    assert!(home.is_mounted());
    home.does(&["down", "--force", "mount"]);
    assert!(!home.is_mounted());
    drop(file);
    home.does(&["up", "--detach", "mount"]);
    assert_eq!(std::fs::read(&path).unwrap(), b"written");
    home.does(&["down", "mount"]);
}

#[test]
fn the_dead_mount_of_a_killed_process_is_no_obstacle() {
    let home = Home::empty();
    home.does(&["up", "--detach", "mount"]);
    let kill = |home: &Home| {
        let pid = rustix::process::Pid::from_raw(home.pid()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        assert!(xtfs_tests::process::await_exit(pid, secs(60)));
    };
    kill(&home);
    home.does(&["up", "--detach", "mount"]);
    kill(&home);
    home.refuses(&["down", "mount"], "was killed");
    assert!(!home.is_mounted());
    home.does(&["up", "--detach", "mount"]);
    home.does(&["down", "mount"]);
}

#[test]
fn an_unmount_ends_the_process() {
    let home = Home::empty();
    home.does(&["up", "--detach", "mount"]);
    let pid = rustix::process::Pid::from_raw(home.pid()).unwrap();
    rustix::mount::unmount(&home.mountpoint, rustix::mount::UnmountFlags::empty()).unwrap();
    assert!(xtfs_tests::process::await_exit(pid, secs(60)));
    home.refuses(&["down", "mount"], "nothing is mounted there");
}

#[test]
fn tools_say_the_same_of_running_and_of_stopped_data() {
    let home = Home::empty();
    home.does(&["up", "--detach", "--osds", "3", "mount"]);
    for number in 0..5 {
        let path = home.mountpoint.join(format!("file-{number}"));
        std::fs::write(path, vec![number; 3 << 20]).unwrap();
    }
    std::fs::File::open(&home.mountpoint)
        .unwrap()
        .sync_all()
        .unwrap();
    let look = |home: &Home| {
        let volumes = home.json(&["ls", "--json"]);
        let scrub = home.json(&["scrub", "--json"]);
        let cleanup = home.json(&["cleanup", "--json", "--grace", "0"]);
        (
            volumes[0]["name"].clone(),
            volumes[0]["used_bytes"].clone(),
            scrub["outcome"].clone(),
            scrub["files"].clone(),
            scrub["osds"].as_array().unwrap().len(),
            cleanup["objects"].clone(),
            cleanup["orphaned_objects"].clone(),
        )
    };
    let running = look(&home);
    home.does(&["down", "mount"]);
    let stopped = look(&home);
    assert_eq!(running, stopped);
    assert_eq!(stopped.2, "clean");
    assert_eq!((stopped.3, stopped.4), (5.into(), 3));
    assert_eq!((stopped.5, stopped.6), (15.into(), 0.into()));
}

#[test]
fn volumes_of_a_cell_come_and_go() {
    let cell = TestCell::cluster(1);
    let home = cell.home();
    let does = |arguments: &[&str]| {
        let mut command = cell.xtfs(arguments);
        run(command.arg("--cell").arg(&home), secs(120))
    };
    let names = || {
        let volumes: Value = serde_json::from_str(&does(&["ls", "--json"])).unwrap();
        let volumes = volumes.as_array().unwrap().iter();
        volumes
            .map(|volume| volume["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    does(&["mkfs", "other", "--object-size", "64K"]);
    assert_eq!(names(), ["other", "test"]);
    let mut unasked = cell.xtfs(&["rmfs", "other"]);
    let unasked = outcome(unasked.arg("--cell").arg(&home), secs(60));
    assert!(unasked.stderr.contains("--yes"), "{unasked:?}");
    does(&["rmfs", "other", "--yes"]);
    assert_eq!(names(), ["test"]);
    let status: Value = serde_json::from_str(&does(&["status", "--json"])).unwrap();
    let kinds: Vec<_> = status["services"].as_array().unwrap().iter().collect();
    assert_eq!(kinds.len(), 2);
    assert!(kinds.iter().all(|service| service["state"] == "online"));
}

#[test]
fn an_osd_that_starts_before_the_first_mrc_waits_for_it() {
    let home = Home::empty();
    home.does(&["cell", "init", "--data", "cell"]);
    let start = |name: &str| {
        let command = home.xtfs(&[name, "--cell", "cell", "--data", name]);
        let log = home.scratch.path().join(format!("{name}.log"));
        let mut daemon = Daemon::standby(name, &command, &log);
        daemon.go();
        daemon
    };
    let mut osd = start("osd");
    let mut mrc = start("mrc");
    assert!(mrc.await_line("ready at", secs(60)).starts_with("mrc "));
    assert!(osd.await_line("ready at", secs(60)).starts_with("osd "));
}

#[test]
fn a_scrub_without_one_osd_is_incomplete() {
    let mut cell = TestCell::cluster(2);
    std::fs::write(cell.path().join("file"), "content").unwrap();
    cell.stop_part(Part::Mount);
    cell.stop_part(Part::Osd(1));
    let scrub = cell.scrub();
    assert_eq!(scrub.status.code(), Some(3), "{scrub:?}");
    let report: Value = serde_json::from_str(&scrub.stdout).unwrap();
    assert_eq!(report["outcome"], "incomplete");
    let osds = report["osds"].as_array().unwrap();
    assert_eq!(osds.iter().filter(|osd| osd["error"].is_null()).count(), 1);
}

#[test]
fn a_benchmark_measures_every_row_and_leaves_nothing() {
    let home = Home::empty();
    let folder = home.scratch.folder("plain");
    let report = home.json(&[
        "bench",
        "plain",
        "--bound",
        "--json",
        "--quick",
        "--files",
        "20",
        "--file-size",
        "2M",
        "--random-ops",
        "20",
        "--fsyncs",
        "5",
    ]);
    let directories = report["directories"].as_array().unwrap();
    assert_eq!(directories.len(), 2);
    for directory in directories {
        let measures = directory["measures"].as_object().unwrap();
        assert_eq!(measures.len(), 14);
        for (name, measure) in measures {
            assert!(measure["median"].as_f64().unwrap() > 0.0, "{name}");
        }
    }
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
}
