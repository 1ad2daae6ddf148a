//! What an application notices of the file system, on fakes of its servers.

mod fakes;

use std::sync::Arc;
use std::time::Duration;

use fakes::{Cell, OBJECT_SIZE};
use proptest::prelude::*;
use xtfs_client::{Allocate, ClientOptions, OpenOptions, OpenedFile, Vfs, Write};
use xtfs_protocol::ids::ROOT_INO;
use xtfs_protocol::meta::{Caller, MetaOp, SetAttr, SetTime};
use xtfs_protocol::time::Time;
use xtfs_protocol::transport::fault::{FaultPlan, FaultyConnector};
use xtfs_protocol::{Code, Error};

const BOTH: OpenOptions = OpenOptions {
    read: true,
    write: true,
    truncate: false,
    append: false,
    direct: false,
};

fn root() -> Caller {
    Caller::root()
}

async fn create(vfs: &Vfs, name: &str) -> OpenedFile {
    vfs.create(&root(), (ROOT_INO, name.as_bytes()), 0o644, false, BOTH)
        .await
        .unwrap()
}

fn at(offset: u64, data: &[u8]) -> Write<'_> {
    Write {
        offset,
        exact: false,
        data,
        kill_set_id: false,
    }
}

async fn truncate(vfs: &Vfs, ino: u64, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    vfs.setattr(&root(), ino, set, true).await.unwrap();
}

#[tokio::test]
async fn what_one_client_closed_another_reads() {
    let cell = Cell::new(3);
    let (one, two) = (cell.client().await, cell.client().await);
    let text: Vec<u8> = (0..50_000u32).map(|n| n as u8).collect();
    let file = create(&one, "file").await;
    one.write(file.handle, at(0, &text)).await.unwrap();
    one.flush(file.handle).await.unwrap();
    one.release(file.handle).await.unwrap();

    let found = two.lookup(&root(), ROOT_INO, b"file").await.unwrap();
    assert_eq!(found.attr.size, 50_000);
    let opened = two.open_file(&root(), found.attr.ino, BOTH).await.unwrap();
    assert_eq!(two.read(opened.handle, 0, 1 << 20).await.unwrap(), text);
    assert_eq!(
        two.read(opened.handle, 49_990, 100).await.unwrap(),
        text[49_990..]
    );
    assert!(two.read(opened.handle, 50_000, 1).await.unwrap().is_empty());
    one.close().await.unwrap();
    two.close().await.unwrap();
}

#[tokio::test]
async fn a_small_file_costs_one_write_and_one_update() {
    let cell = Cell::new(1);
    let vfs = cell.client().await;
    let file = create(&vfs, "small").await;
    for n in 0..10 {
        vfs.write(file.handle, at(n * 10, b"0123456789"))
            .await
            .unwrap();
    }
    let ino = file.found.attr.ino;
    assert_eq!(vfs.getattr(&root(), ino).await.unwrap().attr.size, 100);
    assert_eq!(cell.mrc.size(ino), 0, "not told yet");
    vfs.flush(file.handle).await.unwrap();
    vfs.release(file.handle).await.unwrap();
    assert_eq!(cell.writes(), 1);
    assert_eq!(cell.mrc.count(|op| matches!(op, MetaOp::Update { .. })), 1);
    assert_eq!(cell.mrc.count(|op| matches!(op, MetaOp::Open { .. })), 0);
    assert_eq!(cell.mrc.size(ino), 100);
}

#[tokio::test]
async fn closing_a_file_that_was_not_written_asks_no_osd() {
    let cell = Cell::new(1);
    let vfs = cell.client().await;
    let file = create(&vfs, "file").await;
    vfs.flush(file.handle).await.unwrap();
    vfs.release(file.handle).await.unwrap();
    assert_eq!(cell.writes(), 0);
    assert_eq!(cell.mrc.count(|op| matches!(op, MetaOp::Update { .. })), 0);
}

#[tokio::test]
async fn an_error_of_a_background_write_reaches_every_handle_once() {
    let cell = Cell::new(1);
    let vfs = cell.client().await;
    let one = create(&vfs, "file").await;
    let two = vfs
        .open_file(&root(), one.found.attr.ino, BOTH)
        .await
        .unwrap();
    cell.set_write_error(Some(Error::new(Code::NoSpace, "full")));
    vfs.write(one.handle, at(0, b"lost")).await.unwrap();
    assert_eq!(vfs.flush(one.handle).await.unwrap_err().code, Code::NoSpace);
    vfs.flush(one.handle).await.unwrap();
    cell.set_write_error(None);
    assert_eq!(vfs.fsync(two.handle).await.unwrap_err().code, Code::NoSpace);
    vfs.fsync(two.handle).await.unwrap();
    vfs.write(two.handle, at(0, b"kept")).await.unwrap();
    vfs.fsync(two.handle).await.unwrap();
    assert_eq!(vfs.read(one.handle, 0, 10).await.unwrap(), b"kept");
}

#[tokio::test]
async fn written_bytes_leave_within_seconds_without_being_asked_for() {
    let cell = Cell::new(1);
    let options = ClientOptions {
        dirty_age_max: Duration::from_millis(50),
        ..cell.options()
    };
    let vfs = Vfs::open(cell.connector(), options).await.unwrap();
    let file = create(&vfs, "file").await;
    vfs.write(file.handle, at(0, b"soon")).await.unwrap();
    let told = async {
        while cell.mrc.size(file.found.attr.ino) != 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), told)
        .await
        .unwrap();
    assert_eq!(cell.writes(), 1);
}

#[tokio::test]
async fn fsync_reaches_the_disks_of_the_osds_and_the_mrc_in_this_order() {
    let cell = Cell::new(2);
    let vfs = cell.client().await;
    let file = create(&vfs, "file").await;
    let data = vec![1; 2 * OBJECT_SIZE as usize];
    vfs.write(file.handle, at(0, &data)).await.unwrap();
    vfs.fsync(file.handle).await.unwrap();
    for osd in &cell.osds {
        assert_eq!(osd.state.lock().flushes, 1);
    }
    let state = cell.mrc.state.lock();
    let tail: Vec<_> = state.calls.iter().rev().take(2).collect();
    assert!(matches!(tail[..], [MetaOp::Sync, MetaOp::Update { .. }]));
}

#[tokio::test]
async fn fsync_covers_what_was_written_and_closed_before() {
    let cell = Cell::new(2);
    let vfs = cell.client().await;
    let file = create(&vfs, "file").await;
    vfs.write(file.handle, at(0, &[1; 10])).await.unwrap();
    vfs.release(file.handle).await.unwrap();
    assert_eq!(
        vfs.inodes_kept(),
        0,
        "nothing is known of the file any more"
    );
    let again = vfs
        .open_file(&root(), file.found.attr.ino, BOTH)
        .await
        .unwrap();
    vfs.fsync(again.handle).await.unwrap();
    assert_eq!(cell.osds[0].state.lock().flushes, 1);
    vfs.fsync(again.handle).await.unwrap();
    assert_eq!(cell.osds[0].state.lock().flushes, 1, "nothing was written");
}

#[tokio::test]
async fn a_file_that_shrank_and_grew_again_reads_zeros_in_between() {
    let cell = Cell::new(2);
    let vfs = cell.client().await;
    let file = create(&vfs, "file").await;
    vfs.write(file.handle, at(0, &[7; 10_000])).await.unwrap();
    truncate(&vfs, file.found.attr.ino, 5_000).await;
    truncate(&vfs, file.found.attr.ino, 9_000).await;
    let bytes = vfs.read(file.handle, 0, 20_000).await.unwrap();
    assert_eq!(bytes.len(), 9_000);
    assert!(bytes[..5_000].iter().all(|byte| *byte == 7));
    assert!(bytes[5_000..].iter().all(|byte| *byte == 0));
}

#[tokio::test]
async fn opening_with_truncation_empties_the_file_for_every_handle() {
    let cell = Cell::new(1);
    let vfs = cell.client().await;
    let one = create(&vfs, "file").await;
    vfs.write(one.handle, at(0, b"old bytes")).await.unwrap();
    let emptying = OpenOptions {
        truncate: true,
        ..BOTH
    };
    let two = vfs
        .open_file(&root(), one.found.attr.ino, emptying)
        .await
        .unwrap();
    assert_eq!(two.found.attr.size, 0);
    assert!(vfs.read(one.handle, 0, 100).await.unwrap().is_empty());
    vfs.write(one.handle, at(0, b"new")).await.unwrap();
    vfs.flush(one.handle).await.unwrap();
    assert_eq!(vfs.read(two.handle, 0, 100).await.unwrap(), b"new");
}

#[tokio::test]
async fn a_removed_file_stays_usable_while_it_is_open() {
    let cell = Cell::new(1);
    let vfs = cell.client().await;
    let file = create(&vfs, "file").await;
    vfs.unlink(&root(), ROOT_INO, b"file").await.unwrap();
    vfs.write(file.handle, at(0, b"still here")).await.unwrap();
    vfs.fsync(file.handle).await.unwrap();
    assert_eq!(vfs.read(file.handle, 6, 10).await.unwrap(), b"here");
    vfs.release(file.handle).await.unwrap();
    assert!(cell.mrc.state.lock().open.is_empty());
    assert_eq!(vfs.inodes_kept(), 0);
}

#[tokio::test]
async fn two_handles_that_append_do_not_overwrite_each_other() {
    let cell = Cell::new(1);
    let vfs = cell.client().await;
    let appending = OpenOptions {
        append: true,
        ..BOTH
    };
    let one = create(&vfs, "log").await;
    let two = vfs
        .open_file(&root(), one.found.attr.ino, appending)
        .await
        .unwrap();
    vfs.write(one.handle, at(0, b"first ")).await.unwrap();
    vfs.write(two.handle, at(0, b"second")).await.unwrap();
    assert_eq!(vfs.read(one.handle, 0, 100).await.unwrap(), b"first second");
}

#[tokio::test]
async fn an_explicit_time_beats_the_write_before_it() {
    let cell = Cell::new(1);
    let vfs = cell.client().await;
    let file = create(&vfs, "file").await;
    vfs.write(file.handle, at(0, b"text")).await.unwrap();
    let chosen = Time { secs: 12, nanos: 5 };
    let set = SetAttr {
        mtime: Some(SetTime::At(chosen)),
        ..SetAttr::default()
    };
    vfs.setattr(&root(), file.found.attr.ino, set, true)
        .await
        .unwrap();
    vfs.flush(file.handle).await.unwrap();
    let found = vfs.getattr(&root(), file.found.attr.ino).await.unwrap();
    assert_eq!((found.attr.mtime, found.attr.size), (chosen, 4));
}

#[tokio::test]
async fn a_second_open_of_unchanged_content_keeps_the_cache() {
    let cell = Cell::new(1);
    let (vfs, other) = (cell.client().await, cell.client().await);
    let file = create(&vfs, "file").await;
    vfs.remember(&file.found);
    vfs.write(file.handle, at(0, b"text")).await.unwrap();
    vfs.flush(file.handle).await.unwrap();
    vfs.release(file.handle).await.unwrap();
    let ino = file.found.attr.ino;
    let again = vfs.open_file(&root(), ino, BOTH).await.unwrap();
    assert!(again.keep_cache, "nobody else wrote");
    assert_eq!(vfs.read(again.handle, 0, 10).await.unwrap(), b"text");
    assert!(cell.osds[0].state.lock().reads.is_empty());

    let theirs = other.open_file(&root(), ino, BOTH).await.unwrap();
    other.write(theirs.handle, at(0, b"TEXT")).await.unwrap();
    other.release(theirs.handle).await.unwrap();
    let later = vfs.open_file(&root(), ino, BOTH).await.unwrap();
    assert!(!later.keep_cache, "somebody else wrote");
    assert_eq!(vfs.read(later.handle, 0, 10).await.unwrap(), b"TEXT");
}

#[tokio::test]
async fn a_random_reader_does_not_fetch_what_it_did_not_ask_for() {
    let cell = Cell::new(1);
    let vfs = cell.client().await;
    let file = create(&vfs, "file").await;
    let size = 4096 * u64::from(OBJECT_SIZE);
    truncate(&vfs, file.found.attr.ino, size).await;
    for object in [3000, 200, 2000] {
        vfs.read(file.handle, object * u64::from(OBJECT_SIZE), 100)
            .await
            .unwrap();
    }
    let reads = cell.osds[0].state.lock().reads.clone();
    assert_eq!(
        reads.iter().map(|read| read.0).collect::<Vec<_>>(),
        [3000, 200, 2000]
    );
}

#[tokio::test]
async fn a_hole_punched_into_a_file_reads_zeros() {
    let cell = Cell::new(2);
    let vfs = cell.client().await;
    let file = create(&vfs, "file").await;
    vfs.write(file.handle, at(0, &[9; 12_000])).await.unwrap();
    vfs.fallocate(file.handle, 1_000, 8_000, Allocate::PunchHole, false)
        .await
        .unwrap();
    let bytes = vfs.read(file.handle, 0, 20_000).await.unwrap();
    let expected = |index: usize| {
        if (1_000..9_000).contains(&index) {
            0
        } else {
            9
        }
    };
    assert!(
        bytes
            .iter()
            .enumerate()
            .all(|(index, byte)| *byte == expected(index))
    );
    assert_eq!(bytes.len(), 12_000);
    let extend = Allocate::Extend { keep_size: false };
    vfs.fallocate(file.handle, 0, 13_000, extend, false)
        .await
        .unwrap();
    assert_eq!(
        vfs.read(file.handle, 11_990, 2_000).await.unwrap().len(),
        1_010
    );
}

#[tokio::test]
async fn a_client_whose_session_ran_out_goes_on_in_a_new_one() {
    let cell = Cell::new(1);
    let vfs = cell.client().await;
    let file = create(&vfs, "file").await;
    vfs.write(file.handle, at(0, b"before")).await.unwrap();
    cell.mrc.expire();
    cell.osds[0].state.lock().session_epoch_min = 2;
    vfs.fsync(file.handle).await.unwrap();
    assert_eq!(vfs.read(file.handle, 0, 10).await.unwrap(), b"before");
    assert_eq!(cell.mrc.size(file.found.attr.ino), 6);
}

#[tokio::test]
async fn lost_and_repeated_calls_have_one_effect() {
    let cell = Cell::new(2);
    let connector = FaultyConnector::new(cell.connector(), cell.env.clone());
    let faults = connector.faults();
    let options = ClientOptions {
        attempt_deadline: Duration::from_millis(40),
        ..cell.options()
    };
    let vfs = Vfs::open(Arc::new(connector), options).await.unwrap();
    faults.set_plan(FaultPlan {
        delay_max: Duration::from_millis(2),
        lost_request_permille: 150,
        lost_reply_permille: 150,
        duplicate_permille: 150,
    });
    for number in 0..30 {
        let name = format!("file {number}");
        let file = create(&vfs, &name).await;
        vfs.write(file.handle, at(0, name.as_bytes()))
            .await
            .unwrap();
        vfs.fsync(file.handle).await.unwrap();
        assert_eq!(
            vfs.read(file.handle, 0, 100).await.unwrap(),
            name.as_bytes()
        );
        vfs.release(file.handle).await.unwrap();
        if number % 3 == 0 {
            vfs.unlink(&root(), ROOT_INO, name.as_bytes())
                .await
                .unwrap();
        }
    }
    faults.set_plan(FaultPlan::default());
    let made = cell.mrc.count(|op| matches!(op, MetaOp::Create { .. }));
    assert_eq!(made, 30, "no repeat was taken for a new request");
    assert!(
        cell.mrc.state.lock().headers.len() > 30 * 4,
        "some were repeated"
    );
    vfs.close().await.unwrap();
}

#[tokio::test]
async fn an_operation_ends_by_its_deadline_when_a_server_is_gone() {
    let cell = Cell::new(1);
    let connector = cell.connector();
    let options = ClientOptions {
        op_deadline: Duration::from_millis(300),
        ..cell.options()
    };
    let vfs = Vfs::open(connector.clone(), options).await.unwrap();
    let file = create(&vfs, "file").await;
    vfs.write(file.handle, at(0, b"text")).await.unwrap();
    connector.remove_osd(xtfs_protocol::ids::ServiceId::from_random([10; 16]));
    let error = vfs.fsync(file.handle).await.unwrap_err();
    assert_eq!(error.errno(), Error::from(Code::Io).errno());
    assert!(error.to_string().contains("osd"), "{error}");
}

#[tokio::test]
async fn a_listing_misses_nothing_that_stayed() {
    let cell = Cell::new(1);
    let vfs = cell.client().await;
    let name = |number: u32| format!("{number:06}").into_bytes();
    for number in 0..3000 {
        let file = vfs
            .create(&root(), (ROOT_INO, &name(number)), 0o644, true, BOTH)
            .await
            .unwrap();
        vfs.release(file.handle).await.unwrap();
    }
    let handle = vfs.opendir(ROOT_INO).unwrap();
    let (mut seen, mut position, mut step) = (Vec::new(), 0, 0);
    loop {
        let listing = vfs
            .readdir(&root(), handle, position, 100, step % 2 == 0)
            .await
            .unwrap();
        if listing.entries.is_empty() {
            break;
        }
        position = listing.first + listing.entries.len() as u64;
        seen.extend(listing.entries.into_iter().map(|entry| entry.name));
        // Odd names go while the listing runs, before it or behind it.
        for number in [2 * step + 1, 2999 - 2 * step] {
            vfs.unlink(&root(), ROOT_INO, &name(number)).await.unwrap();
        }
        step += 1;
    }
    for number in (0..3000).step_by(2) {
        let times = seen.iter().filter(|other| **other == name(number)).count();
        assert_eq!(times, 1, "{number}");
    }
    vfs.releasedir(handle);
}

#[derive(Debug, Clone)]
enum Step {
    Write(u16, u16, u8),
    Read(u16, u16),
    Truncate(u16),
    Punch(u16, u16),
    Flush,
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let offset = 0u16..20_000;
    let length = 1u16..9_000;
    let step = prop_oneof![
        4 => (offset.clone(), length.clone(), any::<u8>()).prop_map(|(o, l, b)| Step::Write(o, l, b)),
        4 => (offset.clone(), length.clone()).prop_map(|(o, l)| Step::Read(o, l)),
        1 => offset.clone().prop_map(Step::Truncate),
        1 => (offset, length).prop_map(|(o, l)| Step::Punch(o, l)),
        1 => Just(Step::Flush),
        1 => Just(Step::Reopen),
    ];
    proptest::collection::vec(step, 1..60)
}

async fn run(steps: Vec<Step>, cache_bytes: usize, direct: bool) {
    let cell = Cell::new(2);
    let options = ClientOptions {
        cache_bytes,
        dirty_bytes_max: 16_384,
        ..cell.options()
    };
    let vfs = Vfs::open(cell.connector(), options).await.unwrap();
    let how = OpenOptions { direct, ..BOTH };
    let mut file = create(&vfs, "file").await;
    let ino = file.found.attr.ino;
    let mut model: Vec<u8> = Vec::new();
    for step in steps {
        match step {
            Step::Write(offset, length, byte) => {
                let (offset, end) = (
                    usize::from(offset),
                    usize::from(offset) + usize::from(length),
                );
                let data = vec![byte; usize::from(length)];
                vfs.write(file.handle, at(offset as u64, &data))
                    .await
                    .unwrap();
                model.resize(model.len().max(end), 0);
                model[offset..end].copy_from_slice(&data);
            }
            Step::Read(offset, length) => {
                let read = vfs
                    .read(file.handle, offset.into(), length.into())
                    .await
                    .unwrap();
                let end = model.len().min(usize::from(offset) + usize::from(length));
                assert_eq!(read, model.get(usize::from(offset)..end).unwrap_or(&[]));
            }
            Step::Truncate(size) => {
                truncate(&vfs, ino, size.into()).await;
                model.resize(size.into(), 0);
            }
            Step::Punch(offset, length) => {
                let what = Allocate::PunchHole;
                vfs.fallocate(file.handle, offset.into(), length.into(), what, false)
                    .await
                    .unwrap();
                let end = model.len().min(usize::from(offset) + usize::from(length));
                if let Some(hole) = model.get_mut(usize::from(offset)..end) {
                    hole.fill(0);
                }
            }
            Step::Flush => vfs.flush(file.handle).await.unwrap(),
            Step::Reopen => {
                vfs.release(file.handle).await.unwrap();
                file = vfs.open_file(&root(), ino, how).await.unwrap();
            }
        }
        assert_eq!(
            vfs.getattr(&root(), ino).await.unwrap().attr.size,
            model.len() as u64
        );
    }
    vfs.release(file.handle).await.unwrap();
    assert_eq!(cell.mrc.size(ino), model.len() as u64);
    let fresh = cell.client().await;
    let file = fresh.open_file(&root(), ino, BOTH).await.unwrap();
    assert_eq!(fresh.read(file.handle, 0, 1 << 20).await.unwrap(), model);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_file_is_an_array_of_bytes(steps in steps(), small in any::<bool>(), direct in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(run(steps, if small { 8_192 } else { 1 << 20 }, direct));
    }
}

#[tokio::test]
async fn preallocation_never_cuts_what_another_client_wrote() {
    let cell = Cell::new(1);
    let (one, two) = (cell.client().await, cell.client().await);
    let file = create(&one, "file").await;
    let ino = file.found.attr.ino;
    let theirs = two.open_file(&root(), ino, BOTH).await.unwrap();
    two.write(theirs.handle, at(0, &[7; 1000])).await.unwrap();
    two.fsync(theirs.handle).await.unwrap();
    let extend = Allocate::Extend { keep_size: false };
    one.fallocate(file.handle, 0, 500, extend, false)
        .await
        .unwrap();
    assert_eq!(cell.mrc.size(ino), 1000);
    one.fallocate(file.handle, 0, 2000, extend, false)
        .await
        .unwrap();
    assert_eq!(cell.mrc.size(ino), 2000);
    let found = one.getattr(&root(), ino).await.unwrap();
    assert_eq!(found.attr.size, 2000);
}
