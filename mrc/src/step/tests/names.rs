//! Finding, making, linking, listing and removing names.

use xtfs_protocol::ids::ROOT_INO as ROOT;
use xtfs_protocol::meta::{DirEntry, FileKind, MetaOp, MetaReply};
use xtfs_protocol::{Code, Error};

use super::*;

fn readdir(ino: Ino, after: &[u8], limit: u32) -> MetaOp {
    MetaOp::Readdir {
        ino,
        after: after.to_vec(),
        limit,
        with_attr: true,
    }
}

fn page(reply: MetaReply) -> (Vec<DirEntry>, bool) {
    match reply {
        MetaReply::Page { entries, end, .. } => (entries, end),
        other => panic!("{other:?}"),
    }
}

#[test]
fn names_out_of_bounds_are_refused_whatever_the_client_checked() {
    let mut world = World::new();
    for name in ["", ".", "..", "a/b", "a\0b"] {
        let op = mknod(ROOT, name, FileKind::Fifo, 0o644);
        assert_eq!(world.refused(&op), Code::Invalid, "{name:?}");
    }
    let long = "x".repeat(256);
    let op = mknod(ROOT, &long, FileKind::Fifo, 0o644);
    assert_eq!(world.refused(&op), Code::NameTooLong);
    world
        .run(&mknod(ROOT, &long[..255], FileKind::Fifo, 0o644))
        .unwrap();
}

#[test]
fn dots_lead_to_the_directory_itself_and_its_parent() {
    let mut world = World::new();
    let dir = world.mkdir(ROOT, "dir", 0o755);
    assert_eq!(attr(&world.run(&lookup(dir, ".")).unwrap()).ino, dir);
    assert_eq!(attr(&world.run(&lookup(dir, "..")).unwrap()).ino, ROOT);
    assert_eq!(attr(&world.run(&lookup(ROOT, "..")).unwrap()).ino, ROOT);
}

#[test]
fn making_a_directory_and_removing_it_counts_the_parents_links() {
    let mut world = World::new();
    let dir = world.mkdir(ROOT, "dir", 0o755);
    let made = world.time();
    let root = world.attr(ROOT);
    assert_eq!((root.nlink, root.mtime, root.ctime), (3, made, made));
    assert_eq!(world.attr(dir).nlink, 2);
    world.run(&rmdir(ROOT, "dir")).unwrap();
    let removed = world.time();
    let root = world.attr(ROOT);
    assert_eq!((root.nlink, root.mtime), (2, removed));
    assert_eq!(world.refused(&MetaOp::Getattr { ino: dir }), Code::Stale);
}

#[test]
fn only_empty_directories_are_removed() {
    let mut world = World::new();
    let dir = world.mkdir(ROOT, "dir", 0o755);
    world.file(dir, "file", 0o644);
    assert_eq!(world.refused(&rmdir(ROOT, "dir")), Code::NotEmpty);
    assert_eq!(world.refused(&rmdir(dir, "file")), Code::NotDirectory);
    assert_eq!(world.refused(&unlink(ROOT, "dir")), Code::IsDirectory);
    assert_eq!(world.refused(&unlink(ROOT, "none")), Code::NotFound);
    world.run(&unlink(dir, "file")).unwrap();
    world.run(&rmdir(ROOT, "dir")).unwrap();
}

#[test]
fn a_file_is_no_directory() {
    let mut world = World::new();
    let file = world.file(ROOT, "file", 0o644);
    assert_eq!(world.refused(&lookup(file, "x")), Code::NotDirectory);
    let op = mknod(file, "x", FileKind::File, 0o644);
    assert_eq!(world.refused(&op), Code::NotDirectory);
}

#[test]
fn hard_links_share_an_inode_until_the_last_goes() {
    let mut world = World::new();
    let ino = world.file(ROOT, "one", 0o644);
    let linked = attr(&world.run(&link(ino, ROOT, "two")).unwrap());
    assert_eq!((linked.ino, linked.nlink), (ino, 2));
    assert_eq!(linked.ctime, world.time());
    world.run(&unlink(ROOT, "one")).unwrap();
    let left = world.attr(ino);
    assert_eq!(left.nlink, 1);
    world.run(&unlink(ROOT, "two")).unwrap();
    assert_eq!(world.refused(&MetaOp::Getattr { ino }), Code::Stale);
}

#[test]
fn links_have_their_errors() {
    let mut world = World::new();
    let dir = world.mkdir(ROOT, "dir", 0o755);
    let ino = world.file(ROOT, "file", 0o644);
    assert_eq!(world.refused(&link(dir, ROOT, "again")), Code::NotPermitted);
    assert_eq!(world.refused(&link(ino, ROOT, "dir")), Code::Exists);
    assert_eq!(world.refused(&link(99, ROOT, "new")), Code::Stale);

    let key = (Table::Inodes, keys::number(ino).to_vec());
    let mut full = Inode::decode(ino, &world.view.0[&key]).unwrap();
    full.nlink = super::super::LINKS_MAX;
    world.view.0.insert(key, full.encode());
    assert_eq!(world.refused(&link(ino, ROOT, "new")), Code::TooManyLinks);
}

#[test]
fn a_link_target_reads_back_and_counts_its_bytes() {
    let mut world = World::new();
    let symlink = |target: &[u8]| MetaOp::Symlink {
        parent: ROOT,
        name: b"link".to_vec(),
        target: target.to_vec(),
    };
    assert_eq!(world.refused(&symlink(b"")), Code::Invalid);
    assert_eq!(world.refused(&symlink(&[b'x'; 4096])), Code::NameTooLong);
    let made = attr(&world.run(&symlink(b"../else")).unwrap());
    assert_eq!(
        (made.kind, made.size, made.mode),
        (FileKind::Symlink, 7, 0o777)
    );
    let op = MetaOp::Readlink { ino: made.ino };
    assert_eq!(
        world.run(&op).unwrap(),
        MetaReply::Bytes(b"../else".to_vec())
    );
    assert_eq!(
        world.refused(&MetaOp::Readlink { ino: ROOT }),
        Code::Invalid
    );
}

#[test]
fn devices_are_for_root() {
    let mut world = World::new();
    let made = attr(
        &world
            .run(&mknod(ROOT, "zero", FileKind::CharDevice, 0o666))
            .unwrap(),
    );
    assert_eq!((made.kind, made.rdev), (FileKind::CharDevice, 7));
    world.act_as(ALICE);
    let op = mknod(ROOT, "null", FileKind::BlockDevice, 0o666);
    assert_eq!(world.refused(&op), Code::NotPermitted);
    let fifo = attr(
        &world
            .run(&mknod(ROOT, "fifo", FileKind::Fifo, 0o666))
            .unwrap(),
    );
    assert_eq!(fifo.rdev, 0);
}

#[test]
fn without_osds_no_file_is_made_but_directories_are() {
    let mut world = World::new();
    world.placement = Err(Error::retryable(Code::Unreachable, "no OSD", 500));
    let op = mknod(ROOT, "file", FileKind::File, 0o644);
    assert_eq!(world.refused(&op), Code::Unreachable);
    world.mkdir(ROOT, "dir", 0o755);
}

#[test]
fn pages_go_on_by_name_while_others_create_and_delete() {
    let mut world = World::new();
    for number in 0..10 {
        world.file(ROOT, &format!("f{number}"), 0o644);
    }
    let (first, end) = page(world.run(&readdir(ROOT, b"", 4)).unwrap());
    assert!(!end);
    let names = |entries: &[DirEntry]| -> Vec<String> {
        let text = |entry: &DirEntry| String::from_utf8(entry.name.clone()).unwrap();
        entries.iter().map(text).collect()
    };
    assert_eq!(names(&first), ["f0", "f1", "f2", "f3"]);
    world.run(&unlink(ROOT, "f3")).unwrap();
    world.run(&unlink(ROOT, "f4")).unwrap();
    world.file(ROOT, "f35", 0o644);
    let (rest, end) = page(world.run(&readdir(ROOT, b"f3", 100)).unwrap());
    assert!(end);
    assert_eq!(names(&rest), ["f35", "f5", "f6", "f7", "f8", "f9"]);
    for entry in rest {
        assert_eq!(entry.attr.unwrap().ino, entry.ino);
    }
}

#[test]
fn a_full_page_at_the_end_says_that_nothing_follows() {
    let mut world = World::new();
    world.file(ROOT, "a", 0o644);
    world.file(ROOT, "b", 0o644);
    let (entries, end) = page(world.run(&readdir(ROOT, b"", 2)).unwrap());
    assert_eq!((entries.len(), end), (2, true));
    assert_eq!(world.refused(&readdir(ROOT, b"", 0)), Code::Invalid);
    assert_eq!(world.refused(&readdir(ROOT, b"", 5000)), Code::Invalid);
}

#[test]
fn the_inodes_of_one_directory_lie_side_by_side() {
    let mut world = World::new();
    let left = world.mkdir(ROOT, "left", 0o755);
    let right = world.mkdir(ROOT, "right", 0o755);
    let mut numbers = (vec![], vec![]);
    for number in 0..64 {
        numbers.0.push(world.file(left, &number.to_string(), 0o644));
        numbers
            .1
            .push(world.file(right, &number.to_string(), 0o644));
    }
    for run in [numbers.0, numbers.1] {
        assert_eq!(run[63] - run[0], 63);
    }
}

#[test]
fn numbers_from_before_a_crash_are_not_handed_out_again() {
    let mut world = World::new();
    let before = world.file(ROOT, "before", 0o644);
    world.number_floor = 1 << 32;
    let key = (Table::Settings, keys::SETTING_COUNTERS.to_vec());
    let mut counters = Counters::decode(&world.view.0[&key]).unwrap();
    counters.next_number = 1 << 32;
    world.view.0.insert(key, counters.encode());
    let after = world.file(ROOT, "after", 0o644);
    assert!(before < 1 << 32 && after >= 1 << 32);
}
