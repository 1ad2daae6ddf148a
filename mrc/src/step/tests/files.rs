//! Opening, truncating, updating, closing.

use xtfs_protocol::Code;
use xtfs_protocol::ids::ROOT_INO as ROOT;
use xtfs_protocol::meta::{FileKind, FileUpdate, MetaOp, OpenMode, PendingCut, SetAttr, SetTime};

use super::*;

fn update(ino: Ino, size: u64, epoch: u64, delta: i64, written_at: Option<Time>) -> MetaOp {
    MetaOp::Update {
        ino,
        update: FileUpdate {
            appended: 0,
            size_at_least: size,
            truncate_epoch: epoch,
            allocated_delta: delta,
            written_at,
            read_at: None,
        },
    }
}

const fn cut(epoch: u64, size: u64) -> PendingCut {
    PendingCut {
        epoch,
        size,
        told: true,
    }
}

fn reopen(world: &mut World, ino: Ino, truncate: bool) -> Opened {
    let open = OpenMode {
        read: true,
        write: true,
        truncate,
    };
    opened(world.run(&MetaOp::Open { ino, open }).unwrap())
}

#[test]
fn writing_raises_the_size_and_moves_the_times() {
    let mut world = World::new();
    let made = world.create(ROOT, "file");
    let ino = made.entry.attr.ino;
    let at = Time {
        secs: world.now,
        nanos: 5,
    };
    let reply = world.run(&update(ino, 100, 0, 100, Some(at))).unwrap();
    let after = attr(&reply);
    assert_eq!((after.size, after.allocated), (100, 100));
    assert_eq!((after.mtime, after.ctime), (at, at));
    assert!(after.data_version > made.entry.attr.data_version);
    // A smaller end is no news.
    let reply = world.run(&update(ino, 50, 0, -40, None)).unwrap();
    assert_eq!((attr(&reply).size, attr(&reply).allocated), (100, 60));
    assert_eq!(
        world.refused(&update(ino, 1 << 63, 0, 0, None)),
        Code::TooLarge
    );
}

#[test]
fn an_explicit_time_wins_over_news_of_an_earlier_write() {
    let mut world = World::new();
    let ino = world.create(ROOT, "file").entry.attr.ino;
    let written = Time {
        secs: world.now,
        nanos: 9,
    };
    let past = Time { secs: 5, nanos: 0 };
    let set = SetAttr {
        mtime: Some(SetTime::At(past)),
        ..SetAttr::default()
    };
    world.set(ino, set).unwrap();
    let reply = world.run(&update(ino, 10, 0, 10, Some(written))).unwrap();
    assert_eq!((attr(&reply).mtime, attr(&reply).size), (past, 10));
    let later = Time {
        secs: world.now,
        nanos: 1,
    };
    let reply = world.run(&update(ino, 10, 0, 0, Some(later))).unwrap();
    assert_eq!(attr(&reply).mtime, later);
}

#[test]
fn truncation_to_nothing_gives_fresh_content_and_queues_the_old() {
    let mut world = World::new();
    let made = world.create(ROOT, "file");
    let ino = made.entry.attr.ino;
    world
        .run(&update(ino, 100, 0, 100, Some(world.time())))
        .unwrap();
    let cut = opened(world.truncate(ino, 0).unwrap());
    assert!(!world.last.durable && world.last.reclaims);
    assert_ne!(cut.capability.file.data, made.capability.file.data);
    assert_eq!(cut.capability.truncate_epoch, 1);
    assert_eq!(cut.pending_cut, None);
    assert_eq!((cut.entry.attr.size, cut.entry.attr.allocated), (0, 0));
    assert_eq!(world.view.count(Table::Deleted), 1);
    // News of the old content changes nothing.
    let late = world.run(&update(ino, 100, 0, 100, None)).unwrap();
    assert_eq!((attr(&late).size, attr(&late).allocated), (0, 0));
}

#[test]
fn content_whose_size_nobody_has_told_yet_is_replaced_too() {
    let mut world = World::new();
    let made = world.create(ROOT, "file");
    let again = reopen(&mut world, made.entry.attr.ino, true);
    assert_ne!(again.capability.file.data, made.capability.file.data);
    assert_eq!(world.view.count(Table::Deleted), 1);
}

#[test]
fn a_file_that_nobody_could_write_leaves_nothing_to_delete() {
    let mut world = World::new();
    let ino = world.file(ROOT, "file", 0o644);
    world.run(&unlink(ROOT, "file")).unwrap();
    assert_eq!(world.view.count(Table::Deleted), 0);
    assert_eq!(world.refused(&MetaOp::Getattr { ino }), Code::Stale);
}

#[test]
fn truncation_to_less_waits_to_be_durable_and_is_told_until_done() {
    let mut world = World::new();
    let ino = world.create(ROOT, "file").entry.attr.ino;
    world
        .run(&update(ino, 100, 0, 100, Some(world.time())))
        .unwrap();
    let first = opened(world.truncate(ino, 40).unwrap());
    assert!(world.last.durable);
    assert_eq!(first.pending_cut, Some(cut(1, 40)));
    assert!(first.capability.write);
    // Growing again does not bring bytes back: the smallest size counts.
    let grown = opened(world.truncate(ino, 80).unwrap());
    assert_eq!(grown.entry.attr.size, 80);
    assert_eq!(grown.pending_cut, first.pending_cut);
    let second = opened(world.truncate(ino, 60).unwrap());
    assert_eq!(second.pending_cut, Some(cut(2, 40)));
    assert_eq!(
        reopen(&mut world, ino, false).pending_cut,
        second.pending_cut
    );

    world.run(&MetaOp::TruncateDone { ino, epoch: 1 }).unwrap();
    assert!(reopen(&mut world, ino, false).pending_cut.is_some());
    world.run(&MetaOp::TruncateDone { ino, epoch: 2 }).unwrap();
    assert_eq!(reopen(&mut world, ino, false).pending_cut, None);
    // The stored bytes that the cut freed are still counted, under its epoch or an older one.
    let reply = world.run(&update(ino, 0, 2, -60, None)).unwrap();
    assert_eq!(attr(&reply).allocated, 40);
}

#[test]
fn late_news_from_before_a_truncation_does_not_grow_the_file() {
    let mut world = World::new();
    let ino = world.create(ROOT, "file").entry.attr.ino;
    world
        .run(&update(ino, 100, 0, 100, Some(world.time())))
        .unwrap();
    world.truncate(ino, 40).unwrap();
    let reply = world.run(&update(ino, 100, 0, 0, None)).unwrap();
    assert_eq!(attr(&reply).size, 40);
}

#[test]
fn growing_needs_no_cut() {
    let mut world = World::new();
    let ino = world.create(ROOT, "file").entry.attr.ino;
    let grown = opened(world.truncate(ino, 1 << 40).unwrap());
    assert_eq!((grown.entry.attr.size, grown.pending_cut), (1 << 40, None));
    assert!(!world.last.durable);
}

#[test]
fn an_unlinked_open_file_lives_until_the_last_holder_closes_it() {
    let mut world = World::new();
    let ino = world.create(ROOT, "file").entry.attr.ino;
    world.open.borrow_mut().elsewhere.insert(ino);
    world.run(&unlink(ROOT, "file")).unwrap();
    assert_eq!(world.view.count(Table::Orphans), 1);
    world
        .run(&update(ino, 10, 0, 10, Some(world.time())))
        .unwrap();
    assert_eq!(world.refused(&link(ino, ROOT, "back")), Code::NotFound);
    world.run(&MetaOp::Release { ino }).unwrap();
    assert_eq!(world.attr(ino).nlink, 0);
    world.open.borrow_mut().elsewhere.clear();
    world.run(&MetaOp::Release { ino }).unwrap();
    assert_eq!(world.refused(&MetaOp::Getattr { ino }), Code::Stale);
    assert_eq!(world.view.count(Table::Deleted), 1);
    // Closing once more is no error: a retry may come late.
    world.run(&MetaOp::Release { ino }).unwrap();
}

#[test]
fn writing_by_others_takes_set_id_bits() {
    let mut world = World::new();
    world.trusted = true;
    let made = world.create(ROOT, "file");
    let ino = made.entry.attr.ino;
    world.chmod(ino, 0o6777).unwrap();
    world
        .run(&update(ino, 1, 0, 1, Some(world.time())))
        .unwrap();
    assert_eq!(world.attr(ino).mode, 0o6777);
    world.act_as(ALICE);
    world
        .run(&update(ino, 2, 0, 1, Some(world.time())))
        .unwrap();
    assert_eq!(world.attr(ino).mode, 0o777);
    world.act_as(0).chmod(ino, 0o6777).unwrap();
    world.act_as(ALICE).truncate(ino, 1).unwrap();
    assert_eq!(world.attr(ino).mode, 0o777);
}

#[test]
fn a_user_reports_only_about_files_that_they_may_write() {
    let mut world = World::new();
    world.create(ROOT, "file");
    let ino = attr(&world.run(&lookup(ROOT, "file")).unwrap()).ino;
    world.open.borrow_mut().own.clear();
    world.act_as(ALICE);
    let op = update(ino, 1 << 40, 0, 0, Some(world.time()));
    assert_eq!(world.refused(&op), Code::AccessDenied);
    let cut = MetaOp::TruncateDone { ino, epoch: 0 };
    assert_eq!(world.refused(&cut), Code::AccessDenied);
}

#[test]
fn only_regular_files_are_opened() {
    let mut world = World::new();
    let dir = world.mkdir(ROOT, "dir", 0o755);
    world
        .run(&mknod(ROOT, "fifo", FileKind::Fifo, 0o644))
        .unwrap();
    let open = OpenMode::default();
    assert_eq!(
        world.refused(&MetaOp::Open { ino: dir, open }),
        Code::IsDirectory
    );
    assert_eq!(world.refused(&create(ROOT, "dir", open)), Code::IsDirectory);
    assert_eq!(world.refused(&create(ROOT, "fifo", open)), Code::Stale);
}

#[test]
fn the_first_right_to_write_is_durable_before_it_is_given() {
    let mut world = World::new();
    let ino = world.file(ROOT, "file", 0o644);
    reopen(&mut world, ino, false);
    assert!(world.last.durable);
    reopen(&mut world, ino, false);
    assert!(!world.last.durable && world.last.changes.is_empty());
}

#[test]
fn reading_moves_the_access_time_without_a_right_to_write() {
    let mut world = World::new();
    let ino = world.file(ROOT, "file", 0o644);
    world.act_as(ALICE);
    let read_at = Time {
        secs: world.now + 5,
        nanos: 0,
    };
    let update = FileUpdate {
        appended: 0,
        size_at_least: 0,
        truncate_epoch: 0,
        allocated_delta: 0,
        written_at: None,
        read_at: Some(read_at),
    };
    let after = attr(&world.run(&MetaOp::Update { ino, update }).unwrap());
    assert_eq!(after.atime, read_at);
    assert!(after.mtime < read_at && after.data_version == 0);
}

#[test]
fn the_first_right_to_write_a_known_content_waits_to_be_durable() {
    let mut world = World::new();
    let opened_empty = world.file(ROOT, "opened", 0o644);
    reopen(&mut world, opened_empty, true);
    assert!(world.last.durable);
    reopen(&mut world, opened_empty, false);
    assert!(!world.last.durable);
    let cut = world.file(ROOT, "cut", 0o644);
    world.truncate(cut, 0).unwrap();
    assert!(world.last.durable);
    // A power loss that forgets a fresh content forgets all of it.
    world.create(ROOT, "created");
    assert!(!world.last.durable);
}

#[test]
fn times_of_writes_and_reads_are_checked() {
    let mut world = World::new();
    let ino = world.create(ROOT, "file").entry.attr.ino;
    let wrong = Time {
        secs: 5,
        nanos: 1_000_000_000,
    };
    let written = update(ino, 1, 0, 1, Some(wrong));
    assert_eq!(world.refused(&written), Code::Invalid);
    let read = MetaOp::Update {
        ino,
        update: FileUpdate {
            appended: 0,
            size_at_least: 0,
            truncate_epoch: 0,
            allocated_delta: 0,
            written_at: None,
            read_at: Some(wrong),
        },
    };
    assert_eq!(world.refused(&read), Code::Invalid);
}

#[test]
fn what_is_appended_goes_behind_what_others_appended() {
    let mut world = World::new();
    let ino = world.create(ROOT, "file").entry.attr.ino;
    let mut append = |bytes| {
        let update = FileUpdate {
            appended: bytes,
            size_at_least: 0,
            truncate_epoch: 0,
            allocated_delta: 0,
            written_at: None,
            read_at: None,
        };
        world.run(&MetaOp::Update { ino, update })
    };
    for end in [10, 20] {
        let Ok(MetaReply::Entry(entry)) = append(10) else {
            panic!("an entry");
        };
        assert_eq!(entry.attr.size, end);
    }
    assert_eq!(
        append(u64::MAX).err().map(|error| error.code),
        Some(Code::TooLarge)
    );
}
