//! What an application notices when servers fail, stall or restart.

mod fakes;

use std::sync::Arc;
use std::time::Duration;

use fakes::{Cell, OBJECT_SIZE};
use tokio::sync::Semaphore;
use xtfs_client::{ClientOptions, OpenOptions, OpenedFile, Vfs, Write};
use xtfs_protocol::Code;
use xtfs_protocol::ids::ROOT_INO;
use xtfs_protocol::meta::{Caller, MetaOp, SetAttr};
use xtfs_protocol::object::ObjectOp;
use xtfs_protocol::transport::fault::{FaultPlan, FaultyConnector};

const BOTH: OpenOptions = OpenOptions {
    read: true,
    write: true,
    truncate: false,
    append: false,
    direct: false,
};
/// Longest wait for something that happens at once.
const PATIENCE: Duration = Duration::from_secs(30);

async fn create(vfs: &Vfs, name: &str) -> OpenedFile {
    let place = (ROOT_INO, name.as_bytes());
    vfs.create(&Caller::root(), place, 0o644, false, BOTH)
        .await
        .unwrap()
}

async fn write(vfs: &Vfs, file: OpenedFile, offset: u64, data: &[u8]) {
    let write = Write {
        offset,
        exact: false,
        data,
        kill_set_id: false,
    };
    vfs.write(file.handle, write).await.unwrap();
}

async fn until(condition: impl Fn() -> bool) {
    let true_at_last = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, true_at_last)
        .await
        .expect("it never happens");
}

#[tokio::test]
async fn fsync_tells_when_an_osd_lost_power_after_it_had_taken_the_bytes() {
    let cell = Cell::new(1);
    let vfs = cell.client().await;
    let one = create(&vfs, "file").await;
    let ino = one.found.attr.ino;
    let two = vfs.open_file(&Caller::root(), ino, BOTH).await.unwrap();
    write(&vfs, one, 0, b"taken, not durable").await;
    vfs.flush(one.handle).await.unwrap();
    cell.osds[0].state.lock().boot += 1;
    assert_eq!(vfs.fsync(one.handle).await.unwrap_err().code, Code::Io);
    vfs.fsync(one.handle).await.unwrap();
    assert_eq!(vfs.flush(two.handle).await.unwrap_err().code, Code::Io);
    vfs.flush(two.handle).await.unwrap();
    write(&vfs, one, 0, b"again").await;
    vfs.fsync(one.handle).await.unwrap();
}

#[tokio::test]
async fn close_tells_when_a_later_write_finds_the_osd_restarted() {
    let cell = Cell::new(1);
    let vfs = cell.client().await;
    let file = create(&vfs, "file").await;
    write(&vfs, file, 0, b"before").await;
    vfs.flush(file.handle).await.unwrap();
    cell.osds[0].state.lock().boot += 1;
    write(&vfs, file, 10, b"after").await;
    assert_eq!(vfs.flush(file.handle).await.unwrap_err().code, Code::Io);
    vfs.fsync(file.handle).await.unwrap();
}

#[tokio::test]
async fn power_loss_after_fsync_is_no_error() {
    let cell = Cell::new(1);
    let vfs = cell.client().await;
    let file = create(&vfs, "file").await;
    write(&vfs, file, 0, b"durable").await;
    vfs.fsync(file.handle).await.unwrap();
    cell.osds[0].state.lock().boot += 1;
    vfs.fsync(file.handle).await.unwrap();
    write(&vfs, file, 0, b"DURABLE").await;
    vfs.fsync(file.handle).await.unwrap();
}

#[tokio::test]
async fn an_fsync_does_not_overtake_another_that_flushes_the_same_bytes() {
    let cell = Cell::new(1);
    let vfs = cell.client().await;
    let file = create(&vfs, "file").await;
    write(&vfs, file, 0, b"bytes").await;
    let gate = Arc::new(Semaphore::new(0));
    let is_flush = |op: &ObjectOp| matches!(op, ObjectOp::Flush { .. });
    cell.osds[0].state.lock().held = Some((is_flush, Arc::clone(&gate)));
    let first = vfs.fsync(file.handle);
    let second = vfs.fsync(file.handle);
    tokio::pin!(first, second);
    assert!(futures_util::poll!(first.as_mut()).is_pending());
    assert!(
        futures_util::poll!(second.as_mut()).is_pending(),
        "the bytes are not durable yet"
    );
    gate.add_permits(2);
    let (first, second) = futures_util::future::join(first, second).await;
    first.unwrap();
    second.unwrap();
    assert_eq!(cell.osds[0].state.lock().flushes, 1);
}

#[tokio::test]
async fn files_on_other_osds_are_sent_while_one_osd_is_silent() {
    let cell = Cell::new(2);
    let options = ClientOptions {
        dirty_age_max: Duration::from_millis(20),
        ..cell.options()
    };
    let vfs = Vfs::open(cell.connector(), options).await.unwrap();
    let never = Arc::new(Semaphore::new(0));
    cell.osds[0].state.lock().held = Some((|_| true, never));
    for number in 0..20 {
        let stuck = create(&vfs, &format!("stuck {number}")).await;
        write(&vfs, stuck, 0, b"for the silent one").await;
    }
    let file = create(&vfs, "file").await;
    write(&vfs, file, OBJECT_SIZE.into(), b"for the other").await;
    until(|| cell.osds[1].state.lock().writes == 1).await;
}

#[tokio::test]
async fn reading_ahead_from_a_silent_osd_holds_up_no_other_reader() {
    let cell = Cell::new(2);
    let vfs = cell.client().await;
    let object = u64::from(OBJECT_SIZE);
    let mut files = Vec::new();
    for name in ["one", "two"] {
        let file = create(&vfs, name).await;
        write(&vfs, file, 0, &[1; OBJECT_SIZE as usize]).await;
        vfs.flush(file.handle).await.unwrap();
        let set = SetAttr {
            size: Some(300 * object),
            ..SetAttr::default()
        };
        let ino = file.found.attr.ino;
        vfs.setattr(&Caller::root(), ino, set, true).await.unwrap();
        files.push(file.handle);
    }
    let never = Arc::new(Semaphore::new(0));
    cell.osds[0].state.lock().held = Some((|_| true, never));
    for file in files {
        // From the cache, then from the OSD that answers; every second object of what is fetched
        // ahead lies on the one that does not.
        for at in [0, 1, 3, 5, 7] {
            let read = vfs.read(file, at * object, OBJECT_SIZE);
            let bytes = tokio::time::timeout(PATIENCE, read).await;
            let bytes = bytes.expect("a silent OSD is waited for").unwrap();
            assert_eq!(bytes.len(), OBJECT_SIZE as usize);
        }
    }
}

#[tokio::test]
async fn bytes_of_a_content_that_was_cut_off_do_not_count_for_the_next() {
    let cell = Cell::new(1);
    let vfs = cell.client().await;
    let file = create(&vfs, "file").await;
    write(&vfs, file, 0, &[1; OBJECT_SIZE as usize]).await;
    // A whole object leaves at once; the MRC is told later.
    until(|| cell.writes() == 1).await;
    let emptying = OpenOptions {
        truncate: true,
        ..BOTH
    };
    let ino = file.found.attr.ino;
    let again = vfs.open_file(&Caller::root(), ino, emptying).await.unwrap();
    write(&vfs, again, 0, b"0123456789").await;
    vfs.flush(again.handle).await.unwrap();
    let state = cell.mrc.state.lock();
    let told: i64 = state
        .calls
        .iter()
        .map(|op| match op {
            MetaOp::Update { update, .. } => update.allocated_delta,
            _ => 0,
        })
        .sum();
    assert_eq!(told, 10);
}

#[tokio::test]
async fn a_reader_goes_on_when_a_capability_that_a_writer_left_expires() {
    let cell = Cell::new(1);
    let (vfs, other) = (cell.client().await, cell.client().await);
    let theirs = create(&other, "file").await;
    write(&other, theirs, 0, b"text").await;
    other.flush(theirs.handle).await.unwrap();
    let ino = theirs.found.attr.ino;
    let writer = vfs.open_file(&Caller::root(), ino, BOTH).await.unwrap();
    let reading = OpenOptions {
        write: false,
        ..BOTH
    };
    let reader = vfs.open_file(&Caller::root(), ino, reading).await.unwrap();
    vfs.release(writer.handle).await.unwrap();
    cell.mrc.state.lock().expires = 100;
    cell.osds[0].state.lock().expires_min = 100;
    assert_eq!(vfs.read(reader.handle, 0, 10).await.unwrap(), b"text");
}

#[tokio::test]
async fn metadata_and_other_osds_go_on_while_hundreds_of_writes_wait_for_a_silent_osd() {
    let cell = Cell::new(2);
    let hour = Duration::from_secs(3600);
    let options = ClientOptions {
        dirty_age_max: Duration::from_millis(20),
        op_deadline: hour,
        attempt_deadline: hour,
        ..cell.options()
    };
    let vfs = Vfs::open(cell.connector(), options).await.unwrap();
    let never = Arc::new(Semaphore::new(0));
    cell.osds[0].state.lock().held = Some((|_| true, never));
    let object = u64::from(OBJECT_SIZE);
    for number in 0..100 {
        let stuck = create(&vfs, &format!("stuck {number}")).await;
        for part in 0..8 {
            write(&vfs, stuck, 2 * part * object, b"for the silent one").await;
        }
    }
    until(|| cell.osds[0].state.lock().waited >= 128).await;
    let going_on = async {
        let file = create(&vfs, "file").await;
        write(&vfs, file, object, b"for the other").await;
        vfs.fsync(file.handle).await.unwrap();
    };
    tokio::time::timeout(PATIENCE, going_on)
        .await
        .expect("it waits for the silent OSD");
}

#[tokio::test]
async fn fsync_tells_an_mrc_that_lost_power_the_size_again() {
    let cell = Cell::new(1);
    let vfs = cell.client().await;
    let file = create(&vfs, "file").await;
    let ino = file.found.attr.ino;
    write(&vfs, file, 0, b"0123456789").await;
    vfs.flush(file.handle).await.unwrap();
    cell.mrc.lose_power(ino, false);
    vfs.fsync(file.handle).await.unwrap();
    assert_eq!(cell.mrc.size(ino), 10);
    assert_eq!(vfs.read(file.handle, 0, 20).await.unwrap(), b"0123456789");
}

#[tokio::test]
async fn fsync_fails_when_the_mrc_lost_power_and_the_file_with_it() {
    let cell = Cell::new(1);
    let vfs = cell.client().await;
    let file = create(&vfs, "file").await;
    let other = create(&vfs, "other").await;
    write(&vfs, file, 0, b"0123456789").await;
    vfs.flush(file.handle).await.unwrap();
    cell.mrc.lose_power(file.found.attr.ino, true);
    // Whoever syncs first learns it; the others are told all the same.
    vfs.fsync(other.handle).await.unwrap();
    vfs.fsync(file.handle).await.unwrap_err();
    assert_eq!(vfs.sync().await.unwrap_err().code, Code::Io);
    vfs.sync().await.unwrap();
}

#[tokio::test]
async fn what_another_session_took_back_is_an_error_and_no_hole() {
    let cell = Cell::new(1);
    let vfs = cell.client().await;
    let direct = OpenOptions {
        direct: true,
        ..BOTH
    };
    let place = (ROOT_INO, b"file".as_slice());
    let root = Caller::root();
    let file = vfs
        .create(&root, place, 0o644, false, direct)
        .await
        .unwrap();
    let ino = file.found.attr.ino;
    write(&vfs, file, 0, b"sent, not told").await;
    cell.mrc.expire();
    cell.mrc.fence(ino);
    assert_eq!(
        vfs.lookup(&root, ROOT_INO, b"none").await.unwrap_err().code,
        Code::NotFound
    );
    assert_eq!(vfs.fsync(file.handle).await.unwrap_err().code, Code::Io);
    assert_eq!(cell.mrc.size(ino), 0);
    write(&vfs, file, 0, b"again").await;
    vfs.fsync(file.handle).await.unwrap();
    assert_eq!(cell.mrc.size(ino), 5);
}

/// A file whose first object is on an OSD, but not told.
async fn write_untold(cell: &Cell, vfs: &Vfs) -> OpenedFile {
    let file = create(vfs, "file").await;
    write(vfs, file, 0, &[1; OBJECT_SIZE as usize]).await;
    until(|| cell.writes() == 1).await;
    file
}

#[tokio::test]
async fn what_another_session_took_back_is_an_error_though_later_bytes_are_still_unsent() {
    let cell = Cell::new(1);
    let vfs = cell.client().await;
    let file = write_untold(&cell, &vfs).await;
    write(&vfs, file, OBJECT_SIZE.into(), b"unsent").await;
    cell.mrc.expire();
    cell.take_back(file.found.attr.ino);
    assert_eq!(vfs.fsync(file.handle).await.unwrap_err().code, Code::Io);
    // What was never taken from it is not lost with the rest.
    vfs.fsync(file.handle).await.unwrap();
    let mut expected = vec![0; OBJECT_SIZE as usize];
    expected.extend_from_slice(b"unsent");
    assert_eq!(
        vfs.read(file.handle, 0, 2 * OBJECT_SIZE).await.unwrap(),
        expected
    );
}

#[tokio::test]
async fn what_another_session_took_back_is_not_in_the_cache_either() {
    let cell = Cell::new(1);
    let vfs = cell.client().await;
    let file = write_untold(&cell, &vfs).await;
    cell.mrc.expire();
    cell.take_back(file.found.attr.ino);
    assert_eq!(vfs.flush(file.handle).await.unwrap_err().code, Code::Io);
    write(&vfs, file, 2 * u64::from(OBJECT_SIZE), b"behind a hole").await;
    let read = async || vfs.read(file.handle, 0, OBJECT_SIZE).await.unwrap();
    let zeros = vec![0; OBJECT_SIZE as usize];
    assert_eq!(read().await, zeros);
    vfs.fsync(file.handle).await.unwrap();
    assert_eq!(read().await, zeros);
}

#[tokio::test]
async fn fsync_fails_when_another_session_took_back_what_the_mrc_had_forgotten() {
    let cell = Cell::new(1);
    let vfs = cell.client().await;
    let file = create(&vfs, "file").await;
    let ino = file.found.attr.ino;
    write(&vfs, file, 0, b"0123456789").await;
    vfs.flush(file.handle).await.unwrap();
    cell.mrc.lose_power(ino, false);
    cell.take_back(ino);
    assert_eq!(vfs.fsync(file.handle).await.unwrap_err().code, Code::Io);
    assert_eq!(cell.mrc.size(ino), 0);
    write(&vfs, file, 0, b"again").await;
    vfs.fsync(file.handle).await.unwrap();
    assert_eq!(vfs.read(file.handle, 0, 20).await.unwrap(), b"again");
}

#[tokio::test]
async fn a_write_is_sent_again_when_the_file_was_cut_before_its_answer_came() {
    let cell = Cell::new(1);
    let vfs = cell.client().await;
    let file = create(&vfs, "file").await;
    let ino = file.found.attr.ino;
    let gate = Arc::new(Semaphore::new(0));
    let is_write = |op: &ObjectOp| matches!(op, ObjectOp::Write { .. });
    cell.osds[0].state.lock().answers_held = Some((is_write, Arc::clone(&gate)));
    write(&vfs, file, 0, &[1; OBJECT_SIZE as usize]).await;
    until(|| cell.writes() == 1).await;
    cell.take_back(ino);
    // Another operation learns of the cut.
    cell.mrc.state.lock().expires = 100;
    cell.osds[0].state.lock().expires_min = 100;
    write(&vfs, file, u64::from(OBJECT_SIZE), b"more").await;
    let answer = async {
        until(|| cell.writes() == 2).await;
        gate.add_permits(100);
    };
    let (flushed, ()) = futures_util::future::join(vfs.flush(file.handle), answer).await;
    flushed.unwrap();
    let reader = cell.client().await;
    let found = reader.open_file(&Caller::root(), ino, BOTH).await.unwrap();
    let bytes = reader.read(found.handle, 0, OBJECT_SIZE).await.unwrap();
    assert_eq!(bytes, [1; OBJECT_SIZE as usize]);
}

#[tokio::test]
async fn bytes_that_were_sent_before_another_client_emptied_the_file_do_not_make_it_longer() {
    let cell = Cell::new(1);
    let (vfs, other) = (cell.client().await, cell.client().await);
    let file = write_untold(&cell, &vfs).await;
    let ino = file.found.attr.ino;
    let emptying = OpenOptions {
        truncate: true,
        ..BOTH
    };
    other
        .open_file(&Caller::root(), ino, emptying)
        .await
        .unwrap();
    // Opened anew, it learns of the other content.
    vfs.open_file(&Caller::root(), ino, BOTH).await.unwrap();
    vfs.fsync(file.handle).await.unwrap();
    assert_eq!(cell.mrc.size(ino), 0);
}

#[tokio::test]
async fn a_change_whose_session_ran_out_before_its_answer_is_not_made_twice() {
    let cell = Cell::new(1);
    let connector = FaultyConnector::new(cell.connector(), cell.env.clone());
    let faults = connector.faults();
    let options = ClientOptions {
        attempt_deadline: Duration::from_millis(40),
        ..cell.options()
    };
    let vfs = Vfs::open(Arc::new(connector), options).await.unwrap();
    faults.set_plan(FaultPlan {
        lost_reply_permille: 1000,
        ..FaultPlan::default()
    });
    let made = || cell.mrc.count(|op| matches!(op, MetaOp::Mkdir { .. }));
    let root = Caller::root();
    let change = vfs.mkdir(&root, ROOT_INO, b"dir", 0o755);
    let outage = async {
        until(|| made() == 1).await;
        cell.mrc.expire();
        faults.set_plan(FaultPlan::default());
    };
    let (changed, ()) = futures_util::future::join(change, outage).await;
    assert_eq!(changed.unwrap_err().code, Code::Io);
    assert_eq!(made(), 1);
    vfs.mkdir(&root, ROOT_INO, b"another", 0o755).await.unwrap();
}

#[tokio::test]
async fn osds_put_the_writes_of_one_client_in_order_over_a_change_of_its_session() {
    let cell = Cell::new(1);
    let vfs = cell.client().await;
    let file = create(&vfs, "file").await;
    write(&vfs, file, 0, b"one").await;
    vfs.fsync(file.handle).await.unwrap();
    cell.mrc.expire();
    write(&vfs, file, 0, b"two").await;
    vfs.fsync(file.handle).await.unwrap();
    assert_eq!(cell.osds[0].state.lock().clients.len(), 1);
}
