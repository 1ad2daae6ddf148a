//! What a lost writer left behind the end of a file.

use xtfs_protocol::Code;
use xtfs_protocol::ids::ROOT_INO as ROOT;
use xtfs_protocol::meta::{FileUpdate, MetaOp, OpenMode, Opened, PendingCut};

use super::*;

fn update(ino: Ino, size: u64, epoch: u64) -> MetaOp {
    MetaOp::Update {
        ino,
        update: FileUpdate {
            appended: 0,
            size_at_least: size,
            truncate_epoch: epoch,
            allocated_delta: 0,
            written_at: None,
            read_at: None,
        },
    }
}

impl World {
    /// From now on another session asks, which has nothing open.
    fn next_session(&mut self) {
        self.session_epoch += 1;
        self.open.borrow_mut().own.clear();
    }

    /// The session that asked so far is lost; from now on another one asks.
    fn lose_session(&mut self) {
        self.open.borrow_mut().lost.insert(self.session_epoch);
        self.next_session();
    }

    fn open(&mut self, ino: Ino, write: bool) -> Opened {
        let open = OpenMode {
            read: true,
            write,
            truncate: false,
        };
        opened(self.run(&MetaOp::Open { ino, open }).unwrap())
    }

    /// A file of 100 bytes, closed.
    fn written(&mut self) -> Ino {
        let ino = self.create(ROOT, "file").entry.attr.ino;
        self.run(&update(ino, 100, 0)).unwrap();
        self.run(&MetaOp::Release { ino }).unwrap();
        ino
    }
}

fn recovery(epoch: u64, size: u64) -> Option<PendingCut> {
    Some(PendingCut {
        epoch,
        size,
        told: false,
    })
}

#[test]
fn whoever_writes_after_a_lost_writer_cuts_at_the_end_first() {
    let mut world = World::new();
    let ino = world.written();
    world.lose_session();
    let reader = world.open(ino, false);
    assert_eq!(reader.pending_cut, None, "a reader");
    let version = reader.entry.attr.data_version;
    let opened = world.open(ino, true);
    assert_eq!(opened.pending_cut, recovery(1, 100));
    assert_eq!((opened.capability.truncate_epoch, opened.fenced), (1, 1));
    assert_eq!(opened.entry.attr.size, 100);
    assert!(
        opened.entry.attr.data_version > version,
        "nobody's cache is right"
    );
    assert!(world.last.durable, "an OSD must not know more than the MRC");
    world.run(&MetaOp::TruncateDone { ino, epoch: 1 }).unwrap();
    world.run(&MetaOp::Release { ino }).unwrap();
    assert_eq!(world.open(ino, true).pending_cut, None, "it is done");
}

#[test]
fn a_file_is_not_made_longer_over_what_a_lost_writer_left() {
    let mut world = World::new();
    let ino = world.written();
    world.lose_session();
    let grown = opened(world.truncate(ino, 500).unwrap());
    assert_eq!(grown.pending_cut, recovery(1, 100));
    assert_eq!(grown.entry.attr.size, 500);
    assert_eq!(grown.capability.truncate_epoch, 1);
}

#[test]
fn sessions_that_ended_in_order_leave_nothing_to_cut() {
    let mut world = World::new();
    let ino = world.written();
    world.next_session();
    let opened = world.open(ino, true);
    assert_eq!((opened.pending_cut, opened.fenced), (None, 0));
    world.run(&MetaOp::Release { ino }).unwrap();
    let again = world.open(ino, true);
    assert_eq!(again.pending_cut, None);
    assert!(world.last.changes.is_empty(), "a second opening is free");
}

#[test]
fn while_another_session_writes_nothing_of_it_is_cut_but_once_all_are_gone() {
    let mut world = World::new();
    let ino = world.written();
    world.next_session();
    world.open.borrow_mut().elsewhere.insert(ino);
    assert_eq!(world.open(ino, true).pending_cut, None);
    world.run(&MetaOp::Release { ino }).unwrap();
    // Which of the two was the last to write is not known any more.
    world.open.borrow_mut().elsewhere.clear();
    assert_eq!(world.open(ino, true).pending_cut, recovery(1, 100));
}

#[test]
fn what_the_asking_session_has_not_told_yet_is_never_cut() {
    let mut world = World::new();
    let ino = world.written();
    world.next_session();
    world.open.borrow_mut().elsewhere.insert(ino);
    world.open(ino, true);
    world.open.borrow_mut().elsewhere.clear();
    assert_eq!(
        world.open(ino, true).pending_cut,
        None,
        "it may have written"
    );
    // Who sets the size has told everything.
    let grown = opened(world.truncate(ino, 200).unwrap());
    assert_eq!(grown.pending_cut, recovery(1, 100));
}

#[test]
fn a_lost_writer_that_comes_back_hears_that_it_lost_something() {
    let mut world = World::new();
    let ino = world.written();
    world.lose_session();
    world.open(ino, true);
    assert_eq!(world.refused(&update(ino, 300, 0)), Code::Io);
    let told = world.run(&update(ino, 300, 1)).unwrap();
    assert_eq!(attr(&told).size, 300);
}

#[test]
fn a_cut_for_a_lost_writer_joins_a_truncation_that_is_not_carried_out() {
    let mut world = World::new();
    let ino = world.written();
    world.truncate(ino, 40).unwrap();
    world.truncate(ino, 60).unwrap();
    world.lose_session();
    let both = PendingCut {
        epoch: 2,
        size: 40,
        told: true,
    };
    assert_eq!(world.open(ino, true).pending_cut, Some(both));
}

#[test]
fn truncation_to_nothing_needs_no_cut() {
    let mut world = World::new();
    let ino = world.written();
    world.lose_session();
    let emptied = opened(world.truncate(ino, 0).unwrap());
    assert_eq!(emptied.pending_cut, None);
    world.run(&MetaOp::Release { ino }).unwrap();
    assert_eq!(world.open(ino, true).pending_cut, None);
}

#[test]
fn who_empties_a_file_that_nobody_had_written_becomes_its_writer() {
    let mut world = World::new();
    let ino = world.file(ROOT, "file", 0o644);
    let open = OpenMode {
        read: true,
        write: true,
        truncate: true,
    };
    world.run(&MetaOp::Open { ino, open }).unwrap();
    world.lose_session();
    assert_eq!(world.open(ino, true).pending_cut, recovery(1, 0));
}

#[test]
fn nobody_hears_of_a_cut_that_a_loss_of_power_could_make_forgotten() {
    let mut world = World::new();
    let ino = world.written();
    world.truncate(ino, 40).unwrap();
    world.open(ino, true);
    assert!(
        world.last.durable,
        "opened before whoever cut has its answer"
    );
    world.open(ino, true);
    assert!(world.last.changes.is_empty() && world.last.durable);
}

#[test]
fn a_new_size_spares_what_a_writer_told_before_a_loss_of_power() {
    let mut world = World::new();
    let ino = world.written();
    world.open(ino, true);
    // The volume forgot that the file had 300 bytes, and who wrote them.
    world.open.borrow_mut().lost.insert(world.session_epoch);
    world.open.borrow_mut().told_more = true;
    world.session_epoch += 1;
    let grown = opened(world.truncate(ino, 400).unwrap());
    assert_eq!(grown.pending_cut, recovery(1, 400));
    let again = opened(world.truncate(ino, 500).unwrap());
    assert_eq!(again.pending_cut, recovery(1, 400), "once is enough");
}
