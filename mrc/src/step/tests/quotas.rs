//! Limits of users, groups and the volume.

use xtfs_protocol::Code;
use xtfs_protocol::ids::ROOT_INO as ROOT;
use xtfs_protocol::meta::{FileUpdate, MetaOp, OpenMode};
use xtfs_protocol::quota::{QuotaLimits, QuotaSubject};

use super::*;

impl World {
    fn allow_bytes(&mut self, subject: QuotaSubject, bytes: u64) {
        let limits = QuotaLimits {
            bytes_hard: Some(bytes),
            ..QuotaLimits::default()
        };
        self.limits.insert(subject, limits);
    }

    fn allow_inodes(&mut self, subject: QuotaSubject, inodes: u64) {
        let limits = QuotaLimits {
            inodes_hard: Some(inodes),
            ..QuotaLimits::default()
        };
        self.limits.insert(subject, limits);
    }
}

fn written(ino: Ino, size: u64) -> MetaOp {
    MetaOp::Update {
        ino,
        update: FileUpdate {
            appended: 0,
            size_at_least: size,
            truncate_epoch: 0,
            allocated_delta: 0,
            written_at: None,
            read_at: None,
        },
    }
}

#[test]
fn what_is_allowed_can_be_used_up_and_not_one_byte_more() {
    let mut world = World::new();
    world.act_as(ALICE);
    let ino = world.file(ROOT, "file", 0o644);
    world.allow_bytes(QuotaSubject::User(ALICE), 100);
    world.run(&written(ino, 100)).unwrap();
    assert_eq!(world.refused(&written(ino, 101)), Code::QuotaExceeded);
    assert_eq!(
        world.truncate(ino, 101).unwrap_err().code,
        Code::QuotaExceeded
    );
    world.truncate(ino, 40).unwrap();
    let other = world.file(ROOT, "other", 0o644);
    assert_eq!(
        world.truncate(other, 61).unwrap_err().code,
        Code::QuotaExceeded
    );
    world.truncate(other, 60).unwrap();
    world.act_as(BOB);
    let free = world.file(ROOT, "bobs", 0o644);
    world.truncate(free, 1000).unwrap();
}

#[test]
fn inodes_count_until_the_last_of_a_file_is_gone() {
    let mut world = World::new();
    world.act_as(ALICE);
    world.allow_inodes(QuotaSubject::User(ALICE), 2);
    world.mkdir(ROOT, "dir", 0o755);
    let open = OpenMode {
        read: true,
        write: true,
        truncate: false,
    };
    let ino = world.create(ROOT, "open").entry.attr.ino;
    let third = create(ROOT, "third", open);
    assert_eq!(world.refused(&third), Code::QuotaExceeded);
    world.run(&unlink(ROOT, "open")).unwrap();
    assert_eq!(
        world.refused(&third),
        Code::QuotaExceeded,
        "it is open still"
    );
    world.run(&MetaOp::Release { ino }).unwrap();
    world.run(&third).unwrap();
    // A file that takes the place of another one needs no more than that.
    world
        .run(&rename((ROOT, "third"), (ROOT, "moved")))
        .unwrap();
}

#[test]
fn files_are_not_given_to_who_has_no_room_for_them() {
    let mut world = World::new();
    let ino = world.file(ROOT, "file", 0o644);
    world.truncate(ino, 500).unwrap();
    world.allow_bytes(QuotaSubject::User(ALICE), 499);
    world.allow_bytes(QuotaSubject::Group(STAFF), 500);
    let refused = world.chown(ino, Some(ALICE), None).unwrap_err();
    assert_eq!(refused.code, Code::QuotaExceeded);
    world.chown(ino, Some(BOB), Some(STAFF)).unwrap();
    let grown = world.truncate(ino, 501).unwrap_err();
    assert_eq!(grown.code, Code::QuotaExceeded, "the group is full");
}

#[test]
fn a_limit_below_what_is_in_use_only_lets_it_become_less() {
    let mut world = World::new();
    let ino = world.file(ROOT, "file", 0o644);
    world.truncate(ino, 500).unwrap();
    world.allow_bytes(QuotaSubject::Volume, 100);
    world.truncate(ino, 400).unwrap();
    world.chmod(ino, 0o600).unwrap();
    let grown = world.truncate(ino, 401).unwrap_err();
    assert_eq!(grown.code, Code::QuotaExceeded, "root is bound, too");
    world.run(&unlink(ROOT, "file")).unwrap();
}

#[test]
fn what_was_refused_is_cut_off_before_a_file_becomes_longer() {
    let mut world = World::new();
    let ino = world.create(ROOT, "file").entry.attr.ino;
    world.allow_bytes(QuotaSubject::Volume, 100);
    world.run(&written(ino, 100)).unwrap();
    assert_eq!(world.refused(&written(ino, 200)), Code::QuotaExceeded);
    let taken = opened(world.run(&MetaOp::TakeBack { ino }).unwrap());
    let cut = taken.pending_cut.unwrap();
    assert_eq!((cut.epoch, cut.size, cut.told), (1, 100, false));
    assert_eq!(taken.entry.attr.size, 100);
    assert!(world.last.durable);
}
