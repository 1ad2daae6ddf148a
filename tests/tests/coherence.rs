//! Two mounts of one volume, in two processes: what one does, the other sees, as two programs on
//! one machine see each other. Each check is run in both directions.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::XattrFlags;
use xtfs_tests::{Home, secs};

/// A minimal access control list: what `cp -a` sets in place of a mode. Version, then tag,
/// permission and unused number of owner, group and others.
fn acl(mode: u32) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, shift) in [(1_u16, 6), (4, 3), (32, 0)] {
        bytes.extend(tag.to_le_bytes());
        bytes.extend((((mode >> shift) & 7) as u16).to_le_bytes());
        bytes.extend(u32::MAX.to_le_bytes());
    }
    bytes
}

/// A running `xtfs up` and a second mount of its volume.
struct Two {
    home: Home,
    second: PathBuf,
}

impl Two {
    fn new() -> Self {
        let home = Home::empty();
        home.does(&["up", "--detach", "--osds", "2", "mount"]);
        home.does(&["mount", "--detach", "second"]);
        let second = home.scratch.path().join("second");
        Self { home, second }
    }

    /// Runs a check in a folder of its own, with either mount as the first one.
    fn both(self, check: impl Fn(&Path, &Path)) {
        let mounts = [&self.home.mountpoint, &self.second];
        for (name, [one, other]) in [("there", mounts), ("back", [mounts[1], mounts[0]])] {
            fs::create_dir(one.join(name)).unwrap();
            check(&one.join(name), &other.join(name));
        }
        self.home.does(&["down", "second"]);
        self.home.does(&["down", "mount"]);
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn names_that_come_go_and_move_are_seen_at_once() {
    Two::new().both(|one, other| {
        for round in 0..20 {
            let name = format!("file-{round}");
            assert!(!other.join(&name).exists(), "before it is made");
            fs::write(one.join(&name), "content").unwrap();
            assert!(other.join(&name).exists(), "no negative entry is kept");
            assert_eq!(names(other), [name.as_str()]);
            assert_eq!(fs::metadata(other.join(&name)).unwrap().len(), 7);

            let moved = format!("moved-{round}");
            fs::rename(one.join(&name), one.join(&moved)).unwrap();
            assert!(!other.join(&name).exists(), "the old name");
            assert_eq!(fs::read(other.join(&moved)).unwrap(), b"content");

            fs::remove_file(one.join(&moved)).unwrap();
            assert!(!other.join(&moved).exists(), "after it is removed");
            assert_eq!(names(other), [""; 0]);
            // The name may lead to something else the next moment.
            fs::create_dir(one.join(&moved)).unwrap();
            assert!(fs::metadata(other.join(&moved)).unwrap().is_dir());
            fs::remove_dir(one.join(&moved)).unwrap();
        }
    });
}

#[test]
fn what_is_in_a_closed_file_is_read_whatever_was_cached() {
    Two::new().both(|one, other| {
        for round in 0..20_usize {
            let content = format!("{round}").repeat(1000 * (round + 1));
            fs::write(one.join("file"), &content).unwrap();
            assert_eq!(fs::read_to_string(other.join("file")).unwrap(), content);
            assert_eq!(
                fs::metadata(other.join("file")).unwrap().len(),
                content.len() as u64
            );
        }
        let file = OpenOptions::new().write(true).open(one.join("file"));
        file.unwrap().set_len(10).unwrap();
        assert_eq!(fs::metadata(other.join("file")).unwrap().len(), 10);
        assert_eq!(fs::read(other.join("file")).unwrap(), b"1919191919");
        let file = OpenOptions::new().write(true).open(one.join("file"));
        file.unwrap().set_len(5000).unwrap();
        assert_eq!(fs::read(other.join("file")).unwrap()[10..], [0; 4990]);
    });
}

#[test]
fn attributes_are_seen_whoever_asked_for_them_a_moment_ago() {
    Two::new().both(|one, other| {
        fs::write(one.join("file"), "content").unwrap();
        let look = || fs::metadata(other.join("file")).unwrap();
        for mode in [0o640, 0o600, 0o755] {
            look();
            fs::set_permissions(one.join("file"), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(look().mode() & 0o777, mode);
            let list = acl(mode & 0o750);
            let name = "system.posix_acl_access";
            rustix::fs::setxattr(one.join("file"), name, &list, XattrFlags::empty()).unwrap();
            assert_eq!(look().mode() & 0o777, mode & 0o750);
        }
        fs::hard_link(one.join("file"), one.join("link")).unwrap();
        assert_eq!(look().nlink(), 2);
        std::os::unix::fs::chown(one.join("file"), Some(7), Some(8)).unwrap();
        assert_eq!((look().uid(), look().gid()), (7, 8));
        let before = fs::metadata(other).unwrap();
        fs::create_dir(one.join("sub")).unwrap();
        let after = fs::metadata(other).unwrap();
        assert_eq!(after.nlink(), before.nlink() + 1);
        assert!(after.modified().unwrap() > before.modified().unwrap());
    });
}

#[test]
fn a_file_that_is_replaced_all_the_time_is_always_there_and_whole() {
    Two::new().both(|one, other| {
        fs::write(one.join("file"), [0; 4096]).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 1..=100_u8 {
                    fs::write(one.join("new"), [round; 4096]).unwrap();
                    fs::rename(one.join("new"), one.join("file")).unwrap();
                }
            });
            let mut last = 0;
            while !writer.is_finished() {
                let content = fs::read(other.join("file")).unwrap();
                let round = content[0];
                assert_eq!(content, [round; 4096]);
                assert!(round >= last, "{round} after {last}");
                last = round;
            }
            writer.join().unwrap();
        });
        assert_eq!(fs::read(other.join("file")).unwrap(), [100; 4096]);
    });
}

#[test]
fn a_listing_neither_misses_nor_repeats_what_stays_while_names_come_and_go() {
    const FILES: usize = 1500;
    Two::new().both(|one, other| {
        for number in 0..FILES {
            File::create(one.join(format!("stays-{number:04}"))).unwrap();
        }
        let mut seen = Vec::new();
        for (number, entry) in fs::read_dir(other).unwrap().enumerate() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if number % 2 == 0 {
                File::create(one.join(format!("comes-{number:04}"))).unwrap();
            } else {
                fs::remove_file(one.join(format!("comes-{:04}", number - 1))).unwrap();
            }
            if name.starts_with("stays") {
                seen.push(name);
            }
        }
        seen.sort();
        let expected: Vec<_> = (0..FILES).map(|n| format!("stays-{n:04}")).collect();
        assert_eq!(seen, expected);
    });
}

#[test]
fn what_is_written_and_not_closed_is_seen_by_who_has_the_file_open_and_by_who_asks() {
    Two::new().both(|one, other| {
        fs::write(one.join("file"), [b'0'; 8192]).unwrap();
        let reader = File::open(other.join("file")).unwrap();
        let mut seen = [0; 8192];
        reader.read_exact_at(&mut seen, 0).unwrap();
        let writer = OpenOptions::new().write(true).open(one.join("file"));
        let writer = writer.unwrap();
        writer.write_all_at(&[b'1'; 8192], 0).unwrap();
        reader.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!(seen, [b'1'; 8192]);

        let writer = File::create(one.join("grows")).unwrap();
        for round in 1..20_u64 {
            writer
                .write_all_at(&[b'x'; 1000], (round - 1) * 1000)
                .unwrap();
            let size = fs::metadata(other.join("grows")).unwrap().len();
            assert_eq!(size, round * 1000);
        }
    });
}

#[test]
fn appends_of_both_are_all_there_and_whole() {
    Two::new().both(|one, other| {
        const RECORDS: usize = 50;
        File::create(one.join("log")).unwrap();
        std::thread::scope(|scope| {
            for (mount, letter) in [(one, b'a'), (other, b'b')] {
                scope.spawn(move || {
                    let file = OpenOptions::new().append(true).open(mount.join("log"));
                    let mut file = file.unwrap();
                    for _ in 0..RECORDS {
                        file.write_all(&[letter; 64]).unwrap();
                    }
                });
            }
        });
        let content = fs::read(one.join("log")).unwrap();
        assert_eq!(content, fs::read(other.join("log")).unwrap());
        assert_eq!(content.len(), 2 * RECORDS * 64);
        let of = |letter| content.chunks(64).filter(|r| **r == [letter; 64]).count();
        assert_eq!((of(b'a'), of(b'b')), (RECORDS, RECORDS));
    });
}

#[test]
fn only_one_of_many_makes_a_name() {
    Two::new().both(|one, other| {
        for round in 0..20 {
            let name = format!("lock-{round}");
            let made = std::thread::scope(|scope| {
                let tries: Vec<_> = [one, other, one, other]
                    .into_iter()
                    .map(|mount| {
                        let path = mount.join(&name);
                        scope.spawn(move || File::create_new(path).is_ok())
                    })
                    .collect();
                let made = tries.into_iter().map(|one| one.join().unwrap());
                made.filter(|made| *made).count()
            });
            assert_eq!(made, 1);
        }
    });
}

#[test]
fn a_file_that_the_other_removes_stays_with_who_has_it_open() {
    Two::new().both(|one, other| {
        fs::write(one.join("file"), [7; 70_000]).unwrap();
        let mut file = File::options()
            .read(true)
            .write(true)
            .open(one.join("file"))
            .unwrap();
        fs::remove_file(other.join("file")).unwrap();
        let mut content = Vec::new();
        file.read_to_end(&mut content).unwrap();
        assert_eq!(content, [7; 70_000]);
        file.write_all(b"more").unwrap();
        let found = file.metadata().unwrap();
        assert_eq!((found.len(), found.nlink()), (70_004, 0));
        let mut end = [0; 4];
        file.read_exact_at(&mut end, 70_000).unwrap();
        assert_eq!(&end, b"more");
    });
}

/// No second mount is needed to be wrong here: a listing hands on attributes.
#[test]
fn a_listing_does_not_bring_back_attributes_from_before_a_change() {
    let home = Home::empty();
    home.does(&["up", "--detach", "mount"]);
    let path = |number: usize| home.mountpoint.join(format!("file-{number}"));
    for number in 0..20 {
        File::create(path(number)).unwrap();
        fs::set_permissions(path(number), fs::Permissions::from_mode(0o600)).unwrap();
        let list = acl(0o640);
        let name = "system.posix_acl_access";
        rustix::fs::setxattr(path(number), name, &list, XattrFlags::empty()).unwrap();
        fs::hard_link(path(number), home.mountpoint.join(format!("link-{number}"))).unwrap();
    }
    assert_eq!(names(&home.mountpoint).len(), 40);
    for number in 0..20 {
        let found = fs::metadata(path(number)).unwrap();
        assert_eq!((found.mode() & 0o777, found.nlink()), (0o640, 2));
    }
    home.does(&["down", "mount"]);
}

/// Who is killed while another one relies on an answer holds it up for a lease, not for ever.
#[test]
fn a_mount_that_is_killed_holds_the_other_up_only_for_a_moment() {
    let two = Two::new();
    let (one, other) = (&two.home.mountpoint, &two.second);
    fs::write(one.join("file"), "content").unwrap();
    fs::metadata(other.join("file")).unwrap();
    let up = two.home.pid();
    let second = xtfs_tests::scratch::processes_of(two.home.scratch.path())
        .into_iter()
        .find(|pid| *pid != up)
        .unwrap();
    let second = rustix::process::Pid::from_raw(second).unwrap();
    rustix::process::kill_process(second, rustix::process::Signal::KILL).unwrap();
    let chmod = std::process::Command::new("timeout")
        .args(["20", "chmod", "600"])
        .arg(one.join("file"))
        .status()
        .unwrap();
    assert!(chmod.success());
    assert!(xtfs_tests::process::await_exit(second, secs(60)));
    two.home.refuses(&["down", "second"], "was killed");
    two.home.does(&["down", "mount"]);
}
