//! Renaming.

use xtfs_protocol::Code;
use xtfs_protocol::ids::ROOT_INO as ROOT;
use xtfs_protocol::meta::{MetaOp, OpenMode, RenameFlags};

use super::*;

fn flagged(from: (Ino, &str), to: (Ino, &str), flags: RenameFlags) -> MetaOp {
    match rename(from, to) {
        MetaOp::Rename {
            parent,
            name,
            new_parent,
            new_name,
            ..
        } => MetaOp::Rename {
            parent,
            name,
            new_parent,
            new_name,
            flags,
        },
        other => other,
    }
}

const NO_REPLACE: RenameFlags = RenameFlags {
    no_replace: true,
    exchange: false,
};
const EXCHANGE: RenameFlags = RenameFlags {
    no_replace: false,
    exchange: true,
};

fn found(world: &mut World, parent: Ino, name: &str) -> Option<Ino> {
    let reply = world.run(&lookup(parent, name));
    reply.ok().map(|reply| attr(&reply).ino)
}

#[test]
fn a_directory_moves_with_its_parent_entry_and_links() {
    let mut world = World::new();
    let left = world.mkdir(ROOT, "left", 0o755);
    let right = world.mkdir(ROOT, "right", 0o755);
    let dir = world.mkdir(left, "dir", 0o755);
    world.run(&rename((left, "dir"), (right, "moved"))).unwrap();
    let moved = world.time();
    assert_eq!(found(&mut world, right, "moved"), Some(dir));
    assert_eq!(found(&mut world, left, "dir"), None);
    assert_eq!(attr(&world.run(&lookup(dir, "..")).unwrap()).ino, right);
    let (left, right, dir) = (world.attr(left), world.attr(right), world.attr(dir));
    assert_eq!((left.nlink, right.nlink), (2, 3));
    assert_eq!((left.mtime, right.mtime, dir.ctime), (moved, moved, moved));
}

#[test]
fn a_replaced_file_loses_its_name() {
    let mut world = World::new();
    let old = world.file(ROOT, "old", 0o644);
    let new = world.file(ROOT, "new", 0o644);
    world.run(&rename((ROOT, "new"), (ROOT, "old"))).unwrap();
    assert_eq!(found(&mut world, ROOT, "old"), Some(new));
    assert_eq!(found(&mut world, ROOT, "new"), None);
    assert_eq!(world.attr(old).nlink, 0);
    assert_eq!(world.view.count(Table::Orphans), 1);
}

#[test]
fn a_replaced_file_is_opened_by_who_found_it_before() {
    let mut world = World::new();
    let old = world.file(ROOT, "old", 0o644);
    world.file(ROOT, "new", 0o644);
    world.run(&rename((ROOT, "new"), (ROOT, "old"))).unwrap();
    let open = MetaOp::Open {
        ino: old,
        open: OpenMode {
            read: true,
            ..OpenMode::default()
        },
    };
    world.run(&open).unwrap();
}

#[test]
fn a_replaced_file_that_is_open_stays_until_it_is_closed() {
    let mut world = World::new();
    let old = world.create(ROOT, "old").entry.attr.ino;
    world.file(ROOT, "new", 0o644);
    world.run(&rename((ROOT, "new"), (ROOT, "old"))).unwrap();
    assert_eq!(world.attr(old).nlink, 0);
    world.run(&MetaOp::Release { ino: old }).unwrap();
    assert_eq!(world.view.count(Table::Deleted), 1);
}

#[test]
fn kinds_do_not_replace_each_other_and_full_directories_stay() {
    let mut world = World::new();
    let full = world.mkdir(ROOT, "full", 0o755);
    world.file(full, "x", 0o644);
    let empty = world.mkdir(ROOT, "empty", 0o755);
    world.file(ROOT, "file", 0o644);
    let code = |world: &mut World, from, to| world.refused(&rename((ROOT, from), (ROOT, to)));
    assert_eq!(code(&mut world, "file", "empty"), Code::IsDirectory);
    assert_eq!(code(&mut world, "empty", "file"), Code::NotDirectory);
    assert_eq!(code(&mut world, "empty", "full"), Code::NotEmpty);
    assert_eq!(code(&mut world, "none", "full"), Code::NotFound);
    world.run(&rename((ROOT, "full"), (ROOT, "empty"))).unwrap();
    assert_eq!(found(&mut world, ROOT, "empty"), Some(full));
    assert_eq!(world.refused(&MetaOp::Getattr { ino: empty }), Code::Stale);
}

#[test]
fn nothing_moves_below_itself_and_nothing_replaces_what_is_above() {
    let mut world = World::new();
    let a = world.mkdir(ROOT, "a", 0o755);
    let b = world.mkdir(a, "b", 0o755);
    let c = world.mkdir(b, "c", 0o755);
    assert_eq!(world.refused(&rename((ROOT, "a"), (c, "x"))), Code::Invalid);
    assert_eq!(world.refused(&rename((ROOT, "a"), (a, "x"))), Code::Invalid);
    assert_eq!(
        world.refused(&rename((b, "c"), (ROOT, "a"))),
        Code::NotEmpty
    );
    let swap = flagged((b, "c"), (ROOT, "a"), EXCHANGE);
    assert_eq!(world.refused(&swap), Code::Invalid);
}

#[test]
fn two_names_of_one_inode_are_left_alone() {
    let mut world = World::new();
    let ino = world.file(ROOT, "one", 0o644);
    world.run(&link(ino, ROOT, "two")).unwrap();
    world.run(&rename((ROOT, "one"), (ROOT, "two"))).unwrap();
    assert_eq!(found(&mut world, ROOT, "one"), Some(ino));
    assert_eq!(found(&mut world, ROOT, "two"), Some(ino));
    world.run(&rename((ROOT, "one"), (ROOT, "one"))).unwrap();
}

#[test]
fn no_replace_leaves_what_is_there() {
    let mut world = World::new();
    world.file(ROOT, "a", 0o644);
    world.file(ROOT, "b", 0o644);
    let op = flagged((ROOT, "a"), (ROOT, "b"), NO_REPLACE);
    assert_eq!(world.refused(&op), Code::Exists);
    world
        .run(&flagged((ROOT, "a"), (ROOT, "c"), NO_REPLACE))
        .unwrap();
}

#[test]
fn exchange_swaps_a_directory_and_a_file_across_directories() {
    let mut world = World::new();
    let left = world.mkdir(ROOT, "left", 0o755);
    let right = world.mkdir(ROOT, "right", 0o755);
    let dir = world.mkdir(left, "x", 0o755);
    let file = world.file(right, "y", 0o644);
    world
        .run(&flagged((left, "x"), (right, "y"), EXCHANGE))
        .unwrap();
    assert_eq!(found(&mut world, left, "x"), Some(file));
    assert_eq!(found(&mut world, right, "y"), Some(dir));
    assert_eq!(attr(&world.run(&lookup(dir, "..")).unwrap()).ino, right);
    let missing = flagged((left, "x"), (right, "none"), EXCHANGE);
    assert_eq!(world.refused(&missing), Code::NotFound);
    let both = RenameFlags {
        no_replace: true,
        exchange: true,
    };
    let both = flagged((left, "x"), (right, "y"), both);
    assert_eq!(world.refused(&both), Code::Invalid);
}

#[test]
fn a_directory_that_changes_its_parent_must_be_writable_itself() {
    let mut world = World::new();
    let to = world.mkdir(ROOT, "to", 0o777);
    let dir = world.mkdir(ROOT, "dir", 0o755);
    world.file(ROOT, "file", 0o444);
    world.act_as(ALICE);
    let op = rename((ROOT, "dir"), (to, "dir"));
    assert_eq!(world.refused(&op), Code::AccessDenied);
    world
        .run(&rename((ROOT, "dir"), (ROOT, "renamed")))
        .unwrap();
    world.run(&rename((ROOT, "file"), (to, "file"))).unwrap();
    world.act_as(0).chmod(dir, 0o777).unwrap();
    world.act_as(ALICE);
    world.run(&rename((ROOT, "renamed"), (to, "dir"))).unwrap();
}
