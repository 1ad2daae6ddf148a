//! Access control lists: kept, enforced, inherited and in step with the mode.

use xtfs_protocol::Code;
use xtfs_protocol::ids::ROOT_INO as ROOT;
use xtfs_protocol::meta::{Caller, FileKind, MetaOp, MetaReply, XattrMode};

use super::*;
use crate::acl::tests::list;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

fn set(ino: Ino, name: &str, value: &str) -> MetaOp {
    MetaOp::Setxattr {
        ino,
        name: name.into(),
        value: if value.is_empty() {
            vec![]
        } else {
            list(value)
        },
        mode: XattrMode::Set,
    }
}

fn get(world: &mut World, ino: Ino, name: &str) -> Result<Vec<u8>> {
    let name = name.into();
    match world.run(&MetaOp::Getxattr { ino, name })? {
        MetaReply::Bytes(bytes) => Ok(bytes),
        other => panic!("{other:?}"),
    }
}

fn may(world: &mut World, uid: u32, ino: Ino, mask: u8) -> bool {
    world.act_as(uid);
    let may = world.run(&MetaOp::Access { ino, mask }).is_ok();
    world.caller = Caller::root();
    may
}

fn names(world: &mut World, ino: Ino) -> Vec<u8> {
    match world.run(&MetaOp::Listxattr { ino }).unwrap() {
        MetaReply::Bytes(bytes) => bytes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_named_user_may_what_the_list_and_its_mask_allow() {
    let mut world = World::new();
    let ino = world.file(ROOT, "file", 0o600);
    assert!(!may(&mut world, ALICE, ino, 4));
    let text = "u::rw-,u:1000:rw-,g::---,m::r--,o::---";
    world.run(&set(ino, ACCESS, text)).unwrap();
    assert_eq!(get(&mut world, ino, ACCESS).unwrap(), list(text));
    assert_eq!(names(&mut world, ino), b"system.posix_acl_access\0");
    assert!(world.attr(ino).has_acl);
    assert_eq!(world.attr(ino).mode, 0o640, "the group bits are the mask");
    assert!(may(&mut world, ALICE, ino, 4));
    assert!(!may(&mut world, ALICE, ino, 2), "the mask takes it away");
    assert!(!may(&mut world, BOB, ino, 4));

    world.chmod(ino, 0o660).unwrap();
    assert!(may(&mut world, ALICE, ino, 6), "chmod changed the mask");
    let wider = "u::rw-,u:1000:rw-,g::---,m::rw-,o::---";
    assert_eq!(get(&mut world, ino, ACCESS).unwrap(), list(wider));

    let name = ACCESS.into();
    world.run(&MetaOp::Removexattr { ino, name }).unwrap();
    assert!(!may(&mut world, ALICE, ino, 4));
    assert!(!world.attr(ino).has_acl);
    assert_eq!(world.view.count(Table::Acls), 0);
}

#[test]
fn a_list_that_says_no_more_than_a_mode_is_the_mode() {
    let mut world = World::new();
    let ino = world.file(ROOT, "file", 0o4600);
    world
        .run(&set(ino, ACCESS, "u::rwx,g::r-x,o::--x"))
        .unwrap();
    assert_eq!(world.attr(ino).mode, 0o4751);
    assert_eq!(
        get(&mut world, ino, ACCESS).unwrap_err().code,
        Code::NoAttribute
    );
    assert_eq!(world.view.count(Table::Acls), 0);
}

#[test]
fn only_owners_set_lists_and_only_where_they_make_sense() {
    let mut world = World::new();
    let ino = world.file(ROOT, "file", 0o666);
    let text = "u::rwx,g::rwx,o::rwx";
    assert_eq!(world.refused(&set(ino, DEFAULT, text)), Code::AccessDenied);
    world.act_as(ALICE);
    assert_eq!(world.refused(&set(ino, ACCESS, text)), Code::NotPermitted);
    let link = MetaOp::Symlink {
        parent: ROOT,
        name: "link".into(),
        target: "file".into(),
    };
    let link = attr(&world.run(&link).unwrap()).ino;
    assert_eq!(world.refused(&set(link, ACCESS, text)), Code::Unsupported);
    assert_eq!(
        get(&mut world, link, ACCESS).unwrap_err().code,
        Code::Unsupported
    );
}

#[test]
fn setting_a_list_outside_ones_groups_takes_set_group_id_away() {
    let mut world = World::new();
    world.act_as(ALICE);
    let ino = world.file(ROOT, "file", 0o755);
    world.caller = Caller::root();
    world.chown(ino, None, Some(STAFF)).unwrap();
    world.chmod(ino, 0o2755).unwrap();
    world.act_as(ALICE);
    world
        .run(&set(ino, ACCESS, "u::rwx,g::r-x,o::r-x"))
        .unwrap();
    assert_eq!(world.attr(ino).mode, 0o755);
}

#[test]
fn what_is_made_starts_with_the_default_list_and_goes_with_its_file() {
    let mut world = World::new();
    world.caller.umask = 0o077;
    let dir = world.mkdir(ROOT, "dir", 0o777);
    assert_eq!(
        world.attr(dir).mode,
        0o700,
        "without a list the umask counts"
    );
    let text = "u::rwx,u:1000:rwx,g::r-x,m::rwx,o::---";
    world.run(&set(dir, DEFAULT, text)).unwrap();
    assert!(!may(&mut world, ALICE, dir, 1), "it is not the access list");

    let file = world.file(dir, "file", 0o666);
    assert_eq!(world.attr(file).mode, 0o660);
    let made = "u::rw-,u:1000:rwx,g::r-x,m::rw-,o::---";
    assert_eq!(get(&mut world, file, ACCESS).unwrap(), list(made));
    assert!(may(&mut world, ALICE, file, 6));
    assert_eq!(
        get(&mut world, file, DEFAULT).unwrap_err().code,
        Code::NoAttribute
    );

    let sub = world.mkdir(dir, "sub", 0o777);
    assert_eq!(get(&mut world, sub, DEFAULT).unwrap(), list(text));
    assert_eq!(get(&mut world, sub, ACCESS).unwrap(), list(text));
    let fifo = world
        .run(&mknod(sub, "fifo", FileKind::Fifo, 0o600))
        .unwrap();
    assert_eq!(attr(&fifo).mode, 0o600);
    assert!(attr(&fifo).has_acl);
    let link = MetaOp::Symlink {
        parent: sub,
        name: "link".into(),
        target: "fifo".into(),
    };
    let link = world.run(&link).unwrap();
    assert_eq!((attr(&link).mode, attr(&link).has_acl), (0o777, false));

    for (parent, name) in [(sub, "fifo"), (sub, "link"), (dir, "file")] {
        world.run(&unlink(parent, name)).unwrap();
    }
    world.run(&rmdir(dir, "sub")).unwrap();
    world.run(&rmdir(ROOT, "dir")).unwrap();
    assert_eq!(world.view.count(Table::Acls), 0);
}

#[test]
fn a_directory_is_searched_and_changed_as_its_list_says() {
    let mut world = World::new();
    let dir = world.mkdir(ROOT, "dir", 0o700);
    let text = "u::rwx,u:1000:rwx,u:1001:--x,g::---,m::rwx,o::---";
    world.run(&set(dir, ACCESS, text)).unwrap();
    world.act_as(ALICE);
    let file = world.file(dir, "file", 0o644);
    world.act_as(BOB);
    let lookup = MetaOp::Lookup {
        parent: dir,
        name: "file".into(),
    };
    assert_eq!(attr(&world.run(&lookup).unwrap()).ino, file);
    assert_eq!(world.refused(&unlink(dir, "file")), Code::AccessDenied);
}
