//! chmod, chown and times.

use xtfs_protocol::Code;
use xtfs_protocol::ids::ROOT_INO as ROOT;
use xtfs_protocol::meta::{FileKind, MetaOp, SetAttr, SetTime};

use super::*;

const LONG_AGO: Time = Time {
    secs: -7,
    nanos: 999_999_999,
};

#[test]
fn only_owner_and_root_change_the_mode() {
    let mut world = World::new();
    world.act_as(ALICE);
    let ino = world.file(ROOT, "file", 0o644);
    world.chmod(ino, 0o4711).unwrap();
    let changed = world.time();
    let now = world.attr(ino);
    assert_eq!((now.mode, now.ctime), (0o4711, changed));
    world.act_as(BOB);
    assert_eq!(
        world.chmod(ino, 0o777).unwrap_err().code,
        Code::NotPermitted
    );
    world.act_as(0).chmod(ino, 0o600).unwrap();
}

#[test]
fn set_gid_is_only_for_members_of_the_group() {
    let mut world = World::new();
    world.act_as(ALICE);
    let ino = world.file(ROOT, "file", 0o755);
    world.act_as(0).chown(ino, None, Some(STAFF)).unwrap();
    world.act_as(ALICE).chmod(ino, 0o2755).unwrap();
    assert_eq!(world.attr(ino).mode, 0o755);
    world.caller.groups = vec![STAFF];
    world.chmod(ino, 0o2755).unwrap();
    assert_eq!(world.attr(ino).mode, 0o2755);
}

#[test]
fn owners_choose_among_their_groups_and_give_nothing_away() {
    let mut world = World::new();
    world.act_as(ALICE);
    let ino = world.file(ROOT, "file", 0o644);
    let refused = |result: Result<MetaReply>| result.unwrap_err().code;
    assert_eq!(
        refused(world.chown(ino, Some(BOB), None)),
        Code::NotPermitted
    );
    assert_eq!(
        refused(world.chown(ino, None, Some(STAFF))),
        Code::NotPermitted
    );
    world.chown(ino, Some(ALICE), Some(ALICE)).unwrap();
    world.caller.groups = vec![STAFF];
    world.chown(ino, None, Some(STAFF)).unwrap();
    assert_eq!(world.attr(ino).gid, STAFF);
    world.act_as(BOB).caller.groups = vec![STAFF];
    assert_eq!(
        refused(world.chown(ino, None, Some(STAFF))),
        Code::NotPermitted
    );
}

#[test]
fn a_new_owner_gets_no_set_id_program() {
    let mut world = World::new();
    let ino = world.file(ROOT, "file", 0o6755);
    world.chown(ino, Some(ALICE), Some(ALICE)).unwrap();
    assert_eq!(world.attr(ino).mode, 0o755);
    // Without execution by the group, set-group-id means something else and stays for root.
    world.chmod(ino, 0o6745).unwrap();
    world.chown(ino, Some(BOB), None).unwrap();
    assert_eq!(world.attr(ino).mode, 0o2745);
    let dir = world.mkdir(ROOT, "dir", 0o2755);
    assert_eq!(world.attr(dir).mode, 0o755);
    world.chmod(dir, 0o2755).unwrap();
    world.chown(dir, Some(ALICE), None).unwrap();
    assert_eq!(world.attr(dir).mode, 0o2755);
}

#[test]
fn explicit_times_are_the_owners_and_now_is_for_writers() {
    let mut world = World::new();
    world.act_as(ALICE);
    let ino = world.file(ROOT, "file", 0o666);
    let at = SetAttr {
        atime: Some(SetTime::At(LONG_AGO)),
        mtime: Some(SetTime::At(LONG_AGO)),
        ..SetAttr::default()
    };
    let now = SetAttr {
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    world.set(ino, at).unwrap();
    let set = world.time();
    let attr = world.attr(ino);
    assert_eq!(
        (attr.atime, attr.mtime, attr.ctime),
        (LONG_AGO, LONG_AGO, set)
    );

    world.act_as(BOB);
    assert_eq!(world.set(ino, at).unwrap_err().code, Code::NotPermitted);
    world.set(ino, now).unwrap();
    let touched = world.time();
    assert_eq!(world.attr(ino).mtime, touched);
    world.act_as(ALICE).chmod(ino, 0o644).unwrap();
    world.act_as(BOB);
    assert_eq!(world.set(ino, now).unwrap_err().code, Code::AccessDenied);
}

#[test]
fn one_time_is_set_and_the_other_left() {
    let mut world = World::new();
    let ino = world.file(ROOT, "file", 0o644);
    let before = world.attr(ino);
    let set = SetAttr {
        mtime: Some(SetTime::At(LONG_AGO)),
        ..SetAttr::default()
    };
    world.set(ino, set).unwrap();
    let after = world.attr(ino);
    assert_eq!((after.atime, after.mtime), (before.atime, LONG_AGO));
    let wrong = SetAttr {
        atime: Some(SetTime::At(Time {
            secs: 0,
            nanos: 1_000_000_000,
        })),
        ..SetAttr::default()
    };
    assert_eq!(world.set(ino, wrong).unwrap_err().code, Code::Invalid);
}

#[test]
fn a_refused_part_leaves_all_as_it_was() {
    let mut world = World::new();
    world.act_as(ALICE);
    let ino = world.file(ROOT, "file", 0o644);
    let op = MetaOp::Setattr {
        ino,
        set: SetAttr {
            mode: Some(0o600),
            uid: Some(BOB),
            size: Some(10),
            ..SetAttr::default()
        },
        by_handle: false,
    };
    assert_eq!(world.refused(&op), Code::NotPermitted);
}

#[test]
fn sizes_are_for_regular_files() {
    let mut world = World::new();
    let dir = world.mkdir(ROOT, "dir", 0o755);
    let fifo = attr(
        &world
            .run(&mknod(ROOT, "fifo", FileKind::Fifo, 0o644))
            .unwrap(),
    )
    .ino;
    assert_eq!(world.truncate(dir, 0).unwrap_err().code, Code::IsDirectory);
    assert_eq!(world.truncate(fifo, 0).unwrap_err().code, Code::Invalid);
    let file = world.file(ROOT, "file", 0o644);
    assert_eq!(
        world.truncate(file, 1 << 63).unwrap_err().code,
        Code::TooLarge
    );
}
