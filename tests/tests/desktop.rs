//! Real work on a mount: copying, git, compiling, a database, a big file; all of it again after a
//! restart.

use std::process::Command;

use rustix::fs::{Mode, OFlags};
use xtfs_tests::exec::find;
use xtfs_tests::suite::big_file::BigFile;
use xtfs_tests::suite::build::Build;
use xtfs_tests::suite::copy::Copy;
use xtfs_tests::suite::git::Git;
use xtfs_tests::suite::sqlite::Sqlite;
use xtfs_tests::suite::{Suite, verify_all, work_all};
use xtfs_tests::{TestCell, number_from_env, require};

const TOOLS: &[&str] = &[
    "cp", "diff", "rsync", "git", "cargo", "cc", "ar", "sqlite3", "find", "du",
];

fn works_and_stays(mut cell: TestCell, big_mebibytes: u64) {
    let mut suites: Vec<Box<dyn Suite>> = vec![
        Box::new(Copy::of(5000, 1000)),
        Box::new(Git::of(500)),
        Box::new(Build),
        Box::new(Sqlite::of(100)),
        Box::new(BigFile::of(big_mebibytes)),
    ];
    let outside = cell.scratch().folder("outside");
    work_all(&mut suites, cell.path(), &outside);
    cell.restart();
    verify_all(&suites, cell.path(), &outside);
    cell.assert_scrub_clean();
    cell.stop();
}

#[test]
fn a_desktop_works_on_one_process() {
    require(TOOLS);
    works_and_stays(TestCell::up(1), number_from_env("XTFS_BIG_MIB_UP", 2048));
}

#[test]
fn a_desktop_works_on_separate_processes_with_three_osds() {
    require(TOOLS);
    works_and_stays(
        TestCell::cluster(3),
        number_from_env("XTFS_BIG_MIB_CLUSTER", 512),
    );
}

/// The third way of opening it truncated the file before the kernel refused, and the program died.
#[test]
fn a_running_program_is_not_truncated_by_a_refused_open() {
    require(&["sleep"]);
    let mut cell = TestCell::up(1);
    let path = cell.path().join("program");
    let length = std::fs::copy(find("sleep").unwrap(), &path).unwrap();
    let mut program = Command::new(&path).arg("1000").spawn().unwrap();
    for flags in [OFlags::WRONLY, OFlags::RDWR, OFlags::RDONLY | OFlags::TRUNC] {
        let opened = rustix::fs::open(&path, flags, Mode::empty());
        assert_eq!(opened.unwrap_err(), rustix::io::Errno::TXTBSY, "{flags:?}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), length, "{flags:?}");
    }
    assert_eq!(program.try_wait().unwrap(), None, "the program died");
    program.kill().unwrap();
    program.wait().unwrap();
    cell.stop();
}
