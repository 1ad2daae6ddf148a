//! Who may do what.

use xtfs_protocol::Code;
use xtfs_protocol::ids::ROOT_INO as ROOT;
use xtfs_protocol::meta::{FileKind, MetaOp, MetaReply, OpenMode};

use super::*;

fn access(ino: Ino, mask: u8) -> MetaOp {
    MetaOp::Access { ino, mask }
}

#[test]
fn owner_group_and_others_have_their_own_bits() {
    let mut world = World::new();
    world.act_as(ALICE);
    world.caller.gid = STAFF;
    let ino = world.file(ROOT, "file", 0o640);
    assert!(world.run(&access(ino, 6)).is_ok());
    assert_eq!(world.refused(&access(ino, 1)), Code::AccessDenied);
    world.act_as(BOB);
    assert_eq!(world.refused(&access(ino, 4)), Code::AccessDenied);
    world.caller.groups = vec![7, STAFF];
    assert!(world.run(&access(ino, 4)).is_ok());
    assert_eq!(world.refused(&access(ino, 2)), Code::AccessDenied);
}

#[test]
fn the_owner_is_bound_by_the_owners_bits_even_when_others_have_more() {
    let mut world = World::new();
    world.act_as(ALICE);
    let ino = world.file(ROOT, "file", 0o077);
    assert_eq!(world.refused(&access(ino, 4)), Code::AccessDenied);
    world.act_as(BOB);
    assert!(world.run(&access(ino, 7)).is_ok());
}

#[test]
fn root_reads_and_writes_all_but_executes_only_programs() {
    let mut world = World::new();
    let ino = world.file(ROOT, "file", 0);
    assert!(world.run(&access(ino, 6)).is_ok());
    assert_eq!(world.refused(&access(ino, 1)), Code::AccessDenied);
    world.chmod(ino, 0o001).unwrap();
    assert!(world.run(&access(ino, 7)).is_ok());
    let dir = world.mkdir(ROOT, "dir", 0);
    assert!(world.run(&access(dir, 7)).is_ok());
}

#[test]
fn a_directory_is_searched_listed_and_changed_by_different_bits() {
    let mut world = World::new();
    let dir = world.mkdir(ROOT, "dir", 0o755);
    world.file(dir, "file", 0o644);
    let list = MetaOp::Readdir {
        ino: dir,
        after: vec![],
        limit: 10,
        with_attr: false,
    };
    let make = mknod(dir, "new", FileKind::File, 0o644);
    world.act_as(ALICE);
    assert!(world.run(&lookup(dir, "file")).is_ok());
    assert!(world.run(&list).is_ok());
    assert_eq!(world.refused(&make), Code::AccessDenied);
    assert_eq!(world.refused(&unlink(dir, "file")), Code::AccessDenied);

    world.act_as(0).chmod(dir, 0o744).unwrap();
    world.act_as(ALICE);
    assert_eq!(world.refused(&lookup(dir, "file")), Code::AccessDenied);
    assert!(world.run(&list).is_ok());

    world.act_as(0).chmod(dir, 0o711).unwrap();
    world.act_as(ALICE);
    assert!(world.run(&lookup(dir, "file")).is_ok());
    assert_eq!(world.refused(&list), Code::AccessDenied);
}

#[test]
fn an_existing_name_is_told_before_the_missing_permission() {
    let mut world = World::new();
    let dir = world.mkdir(ROOT, "dir", 0o755);
    world.file(dir, "file", 0o644);
    world.act_as(ALICE);
    let make = mknod(dir, "file", FileKind::File, 0o644);
    assert_eq!(world.refused(&make), Code::Exists);
    assert_eq!(world.refused(&unlink(dir, "none")), Code::NotFound);
}

#[test]
fn in_a_sticky_directory_names_belong_to_their_owners() {
    let mut world = World::new();
    let tmp = world.mkdir(ROOT, "tmp", 0o1777);
    world.act_as(ALICE).file(tmp, "file", 0o666);
    world.mkdir(tmp, "dir", 0o777);
    world.act_as(BOB).file(tmp, "mine", 0o666);
    assert_eq!(world.refused(&unlink(tmp, "file")), Code::NotPermitted);
    assert_eq!(world.refused(&rmdir(tmp, "dir")), Code::NotPermitted);
    let steal = rename((tmp, "file"), (ROOT, "file"));
    assert_eq!(world.refused(&steal), Code::NotPermitted);
    let replace = rename((tmp, "mine"), (tmp, "file"));
    assert_eq!(world.refused(&replace), Code::NotPermitted);
    world.act_as(ALICE).run(&unlink(tmp, "file")).unwrap();
    // The owner of the directory may clear it.
    world.act_as(0).chown(tmp, Some(BOB), None).unwrap();
    world.act_as(BOB).run(&rmdir(tmp, "dir")).unwrap();
}

#[test]
fn what_is_made_belongs_to_the_caller_and_to_the_group_of_a_set_gid_directory() {
    let mut world = World::new();
    let dir = world.mkdir(ROOT, "dir", 0o777);
    world.chown(dir, None, Some(STAFF)).unwrap();
    world.act_as(ALICE);
    let plain = world.file(dir, "plain", 0o644);
    let plain = world.attr(plain);
    assert_eq!((plain.uid, plain.gid), (ALICE, ALICE));

    world.act_as(0).chmod(dir, 0o2777).unwrap();
    world.act_as(ALICE);
    let file = world.file(dir, "file", 0o2755);
    let file = world.attr(file);
    // A program that would run as a group the caller is not in loses the bit.
    assert_eq!((file.gid, file.mode), (STAFF, 0o755));
    let sub = world.mkdir(dir, "sub", 0o755);
    let sub = world.attr(sub);
    assert_eq!((sub.gid, sub.mode), (STAFF, 0o2755));
}

#[test]
fn opening_needs_the_permission_of_each_way() {
    let mut world = World::new();
    world.act_as(ALICE);
    let ino = world.file(ROOT, "file", 0o604);
    world.act_as(BOB);
    let open = |read, write, truncate| MetaOp::Open {
        ino,
        open: OpenMode {
            read,
            write,
            truncate,
        },
    };
    assert!(world.run(&open(true, false, false)).is_ok());
    assert_eq!(world.refused(&open(true, true, false)), Code::AccessDenied);
    assert_eq!(world.refused(&open(true, false, true)), Code::AccessDenied);
}

#[test]
fn a_capability_is_renewed_although_the_mode_changed() {
    let mut world = World::new();
    world.act_as(ALICE);
    let made = world.create(ROOT, "file");
    let ino = made.entry.attr.ino;
    world.chmod(ino, 0).unwrap();
    let renew = MetaOp::Open {
        ino,
        open: OpenMode {
            read: true,
            write: true,
            truncate: false,
        },
    };
    assert!(matches!(world.run(&renew), Ok(MetaReply::Opened(_))));
    world.run(&MetaOp::Release { ino }).unwrap();
    assert_eq!(world.refused(&renew), Code::AccessDenied);
}

#[test]
fn a_file_made_read_only_is_written_by_its_maker() {
    let mut world = World::new();
    world.act_as(ALICE);
    let op = MetaOp::Create {
        parent: ROOT,
        name: b"file".to_vec(),
        mode: 0o444,
        exclusive: true,
        open: OpenMode {
            read: false,
            write: true,
            truncate: false,
        },
    };
    let made = opened(world.run(&op).unwrap());
    assert!(made.capability.write && !made.capability.read);
    assert_eq!(world.refused(&op), Code::Exists);
}

#[test]
fn a_program_that_may_only_be_executed_is_read_by_a_host_but_not_by_a_user() {
    let mut world = World::new();
    let ino = world.file(ROOT, "program", 0o711);
    world.act_as(ALICE);
    let open = MetaOp::Open {
        ino,
        open: OpenMode {
            read: true,
            ..OpenMode::default()
        },
    };
    assert_eq!(world.refused(&open), Code::AccessDenied);
    world.trusted = true;
    assert!(world.run(&open).is_ok());
}
