//! Extended attributes.

use xtfs_protocol::Code;
use xtfs_protocol::ids::ROOT_INO as ROOT;
use xtfs_protocol::meta::{FileKind, FileUpdate, MetaOp, MetaReply, XattrMode};

use super::*;

fn set(ino: Ino, name: &str, value: &[u8], mode: XattrMode) -> MetaOp {
    MetaOp::Setxattr {
        ino,
        name: name.into(),
        value: value.to_vec(),
        mode,
    }
}

fn get(ino: Ino, name: &str) -> MetaOp {
    MetaOp::Getxattr {
        ino,
        name: name.into(),
    }
}

fn remove(ino: Ino, name: &str) -> MetaOp {
    MetaOp::Removexattr {
        ino,
        name: name.into(),
    }
}

fn list(world: &mut World, ino: Ino) -> String {
    match world.run(&MetaOp::Listxattr { ino }).unwrap() {
        MetaReply::Bytes(bytes) => String::from_utf8(bytes).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_value_reads_back_is_listed_and_goes() {
    let mut world = World::new();
    let ino = world.file(ROOT, "file", 0o644);
    let bytes = |value: &[u8]| MetaReply::Bytes(value.to_vec());
    world
        .run(&set(ino, "user.b", b"2", XattrMode::Set))
        .unwrap();
    assert_eq!(world.attr(ino).ctime.secs, world.now - 1);
    world
        .run(&set(ino, "user.a", b"", XattrMode::Create))
        .unwrap();
    assert_eq!(world.run(&get(ino, "user.b")).unwrap(), bytes(b"2"));
    assert_eq!(world.run(&get(ino, "user.a")).unwrap(), bytes(b""));
    assert_eq!(list(&mut world, ino), "user.a\0user.b\0");
    let again = set(ino, "user.a", b"x", XattrMode::Create);
    assert_eq!(world.refused(&again), Code::Exists);
    let missing = set(ino, "user.c", b"x", XattrMode::Replace);
    assert_eq!(world.refused(&missing), Code::NoAttribute);
    world.run(&remove(ino, "user.b")).unwrap();
    assert_eq!(world.refused(&get(ino, "user.b")), Code::NoAttribute);
    assert_eq!(world.refused(&remove(ino, "user.b")), Code::NoAttribute);
    assert_eq!(list(&mut world, ino), "user.a\0");
}

#[test]
fn attributes_go_with_their_file() {
    let mut world = World::new();
    let ino = world.file(ROOT, "file", 0o644);
    let dir = world.mkdir(ROOT, "dir", 0o755);
    for of in [ino, dir] {
        world.run(&set(of, "user.a", b"1", XattrMode::Set)).unwrap();
        world
            .run(&set(of, "security.b", b"2", XattrMode::Set))
            .unwrap();
    }
    world.run(&unlink(ROOT, "file")).unwrap();
    world.run(&rmdir(ROOT, "dir")).unwrap();
    assert_eq!(world.view.count(Table::Xattrs), 0);
}

#[test]
fn each_namespace_has_its_rules() {
    let mut world = World::new();
    let ino = world.file(ROOT, "file", 0o644);
    for name in ["user.x", "trusted.x", "security.x"] {
        world.run(&set(ino, name, b"v", XattrMode::Set)).unwrap();
    }
    world.act_as(ALICE);
    assert_eq!(list(&mut world, ino), "security.x\0user.x\0");
    assert!(world.run(&get(ino, "user.x")).is_ok());
    assert!(world.run(&get(ino, "security.x")).is_ok());
    assert_eq!(world.refused(&get(ino, "trusted.x")), Code::NoAttribute);
    let code = |world: &mut World, name| world.refused(&set(ino, name, b"w", XattrMode::Set));
    assert_eq!(code(&mut world, "user.x"), Code::AccessDenied);
    assert_eq!(code(&mut world, "trusted.x"), Code::NotPermitted);
    assert_eq!(code(&mut world, "security.x"), Code::NotPermitted);
    assert_eq!(code(&mut world, "system.other"), Code::Unsupported);
    assert_eq!(code(&mut world, "nonsense"), Code::Unsupported);
    assert_eq!(code(&mut world, "user."), Code::Invalid);
}

#[test]
fn user_attributes_are_for_files_and_directories() {
    let mut world = World::new();
    let fifo = attr(
        &world
            .run(&mknod(ROOT, "fifo", FileKind::Fifo, 0o666))
            .unwrap(),
    )
    .ino;
    let op = set(fifo, "user.a", b"1", XattrMode::Set);
    assert_eq!(world.refused(&op), Code::NotPermitted);
    world
        .run(&set(fifo, "trusted.a", b"1", XattrMode::Set))
        .unwrap();
}

#[test]
fn values_and_names_have_bounds() {
    let mut world = World::new();
    let ino = world.file(ROOT, "file", 0o644);
    let long = vec![0; MetaOp::XATTR_BYTES_MAX + 1];
    let op = set(ino, "user.a", &long, XattrMode::Set);
    assert_eq!(world.refused(&op), Code::AttributeTooLong);
    let name = format!("user.{}", "x".repeat(251));
    assert_eq!(
        world.refused(&set(ino, &name, b"", XattrMode::Set)),
        Code::Range
    );
    let mut refused = None;
    for number in 0..400 {
        let name = format!("user.{number:0>240}");
        if let Err(error) = world.run(&set(ino, &name, b"", XattrMode::Set)) {
            refused = Some((number, error.code));
            break;
        }
    }
    assert_eq!(refused, Some((266, Code::NoSpace)));
}

#[test]
fn writing_takes_the_rights_that_a_program_file_carries() {
    let mut world = World::new();
    let ino = world.create(ROOT, "program").entry.attr.ino;
    world
        .run(&set(ino, "security.capability", b"c", XattrMode::Set))
        .unwrap();
    let update = FileUpdate {
        appended: 0,
        size_at_least: 5,
        truncate_epoch: 0,
        allocated_delta: 5,
        written_at: Some(world.time()),
        read_at: None,
    };
    world.run(&MetaOp::Update { ino, update }).unwrap();
    assert_eq!(list(&mut world, ino), "");
}
