//! How many requests an operation costs: each is a round trip.

mod fakes;

use fakes::Cell;
use xtfs_client::{OpenOptions, Vfs, Write};
use xtfs_protocol::ids::{Ino, ROOT_INO};
use xtfs_protocol::meta::Caller;

const BOTH: OpenOptions = OpenOptions {
    read: true,
    write: true,
    truncate: false,
    append: false,
    direct: false,
};

/// Requests to the MRC and to OSDs so far.
fn calls(cell: &Cell) -> (usize, usize) {
    let osd = |osd: &std::sync::Arc<fakes::FakeOsd>| {
        let state = osd.state.lock();
        state.writes + state.flushes + state.reads.len()
    };
    let mrc = cell.mrc.state.lock().headers.len();
    (mrc, cell.osds.iter().map(osd).sum())
}

/// What an operation costs.
async fn cost<T>(cell: &Cell, operation: impl Future<Output = T>) -> ((usize, usize), T) {
    let before = calls(cell);
    let outcome = operation.await;
    let after = calls(cell);
    ((after.0 - before.0, after.1 - before.1), outcome)
}

async fn make(vfs: &Vfs, name: &str, data: &[u8]) -> Ino {
    let caller = Caller::root();
    let place = (ROOT_INO, name.as_bytes());
    let made = vfs.create(&caller, place, 0o644, false, BOTH).await;
    let file = made.unwrap();
    vfs.remember(&file.found);
    if !data.is_empty() {
        let write = Write {
            offset: 0,
            exact: false,
            data,
            kill_set_id: false,
        };
        vfs.write(file.handle, write).await.unwrap();
    }
    vfs.flush(file.handle).await.unwrap();
    vfs.release(file.handle).await.unwrap();
    file.found.attr.ino
}

#[tokio::test]
async fn no_operation_asks_more_than_it_has_to() {
    let cell = Cell::new(3);
    let (vfs, caller) = (cell.client().await, Caller::root());

    // Create, Release.
    let (empty, _) = cost(&cell, make(&vfs, "empty", &[])).await;
    assert_eq!(empty, (2, 0), "an empty file");
    // Create, Update, Release, and one write.
    let (small, ino) = cost(&cell, make(&vfs, "small", &[1; 4096])).await;
    assert_eq!(small, (3, 1), "a small file");
    // Lookup; what it said is kept.
    let (stat, _) = cost(&cell, async {
        vfs.lookup(&caller, ROOT_INO, b"small").await.unwrap();
        vfs.getattr(&caller, ino).await.unwrap()
    })
    .await;
    assert_eq!(stat, (1, 0), "stat");
    let reading = OpenOptions {
        write: false,
        ..BOTH
    };
    let read = || async {
        let file = vfs.open_file(&caller, ino, reading).await.unwrap();
        assert_eq!(vfs.read(file.handle, 0, 4096).await.unwrap(), [1; 4096]);
        vfs.release(file.handle).await.unwrap();
    };
    // Open, Update of the access time, Release; the content is in the cache.
    assert_eq!(cost(&cell, read()).await.0, (3, 0), "reading again");
    vfs.keep_access_times();
    assert_eq!(cost(&cell, read()).await.0, (2, 0), "reading with noatime");
    let (removed, _) = cost(&cell, vfs.unlink(&caller, ROOT_INO, b"small")).await;
    assert_eq!(removed, (1, 0), "removing");
    let synced = async {
        let place = (ROOT_INO, &b"synced"[..]);
        let made = vfs.create(&caller, place, 0o644, false, BOTH).await;
        let file = made.unwrap();
        let write = Write {
            offset: 0,
            exact: false,
            data: b"text",
            kill_set_id: false,
        };
        vfs.write(file.handle, write).await.unwrap();
        vfs.fsync(file.handle).await.unwrap();
        vfs.flush(file.handle).await.unwrap();
        vfs.release(file.handle).await.unwrap();
    };
    // Create, Update, Sync, Release; a write and a flush of the one OSD that was written to.
    assert_eq!(cost(&cell, synced).await.0, (4, 2), "a synced file");
}
