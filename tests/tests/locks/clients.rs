//! Several clients and an MRC in one process and in virtual time.

use std::future::{Future, pending};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use babu_kv::fs::{Crash, MemoryFs};
use tokio::task::JoinHandle;
use xtfs_client::{ClientOptions, LockAsk, OpenOptions, OpenedFile, Vfs};
use xtfs_layout::Layout;
use xtfs_mrc::{Mrc, MrcOptions};
use xtfs_protocol::directory::{DirectoryOp, ServiceKind};
use xtfs_protocol::env::Env;
use xtfs_protocol::ids::{ROOT_INO, ServiceId};
use xtfs_protocol::lock::{LockKind, LockRange, LockSpace, LockTarget};
use xtfs_protocol::meta::{Caller, MetaOp};
use xtfs_protocol::object::OsdSpace;
use xtfs_protocol::transport::fault::{FaultPlan, Faults, FaultyConnector, Target};
use xtfs_protocol::transport::{Connector, LocalConnector, Origin, Peer, Service};
use xtfs_protocol::{Call, Code, Request, Result};

const OSD: ServiceId = ServiceId([1; 16]);
const EX: LockKind = LockKind::Exclusive;
const SH: LockKind = LockKind::Shared;

/// An MRC that can be restarted, and the ways to it.
struct House {
    fs: MemoryFs,
    mrc: Arc<Mrc>,
    ways: Vec<Arc<LocalConnector>>,
}

async fn ask(mrc: &Mrc, peer: Peer, request: Request) {
    let origin = Origin { peer, pusher: None };
    mrc.call(origin, Call::new(request, 1000))
        .await
        .reply
        .unwrap();
}

impl House {
    fn start(fs: &MemoryFs) -> Arc<Mrc> {
        let id = ServiceId([9; 16]);
        let mut options = MrcOptions::new(Path::new("/mrc"), id, Env::simulated(1));
        options.kv = babu_kv::Options::simulated(Arc::new(fs.clone()));
        let mrc = Mrc::open(options).unwrap();
        mrc.start(Arc::new(LocalConnector::new(Peer::Service(id))));
        mrc
    }

    async fn new() -> Self {
        let fs = MemoryFs::new();
        let mrc = Self::start(&fs);
        let heartbeat = DirectoryOp::Heartbeat {
            id: OSD,
            incarnation: 1,
            kind: ServiceKind::Osd,
            addresses: vec!["127.0.0.1:1".into()],
            space: OsdSpace {
                total_bytes: 1000,
                free_bytes: 600,
                ..OsdSpace::default()
            },
            version: "1".into(),
        };
        ask(&mrc, Peer::Service(OSD), Request::Directory(heartbeat)).await;
        let op = MetaOp::CreateVolume {
            name: "home".into(),
            layout: Layout::striped(1),
            uid: 0,
            gid: 0,
            mode: 0o755,
        };
        let caller = Caller::root();
        ask(
            &mrc,
            Peer::Host("admin".into()),
            Request::Meta { caller, op },
        )
        .await;
        Self {
            fs,
            mrc,
            ways: Vec::new(),
        }
    }

    async fn client(&mut self) -> (Vfs, Arc<Faults>) {
        let way = Arc::new(LocalConnector::new(Peer::Host("host".into())));
        way.set_mrc(self.mrc.clone());
        let env = Env::simulated(self.ways.len() as u64);
        self.ways.push(way.clone());
        let faulty = Arc::new(FaultyConnector::new(way, env.clone()));
        let faults = faulty.faults();
        let options = ClientOptions {
            env,
            volume: "home".into(),
            attempt_deadline: Duration::from_secs(2),
            ..ClientOptions::default()
        };
        let connector: Arc<dyn Connector> = faulty;
        (Vfs::open(connector, options).await.unwrap(), faults)
    }

    /// The MRC ends without a word and starts again.
    async fn restart(&mut self) {
        self.fs = self.fs.crash(Crash::Kept);
        let old = std::mem::replace(&mut self.mrc, Self::start(&self.fs));
        for way in &self.ways {
            way.set_mrc(self.mrc.clone());
        }
        old.shutdown().await.unwrap();
    }
}

fn root() -> Caller {
    Caller::root()
}

async fn open(vfs: &Vfs) -> OpenedFile {
    let options = OpenOptions {
        read: true,
        write: true,
        ..OpenOptions::default()
    };
    let place = (ROOT_INO, &b"file"[..]);
    vfs.create(&root(), place, 0o644, false, options)
        .await
        .unwrap()
}

fn lock(file: OpenedFile, owner: u64, start: u64, end: u64) -> LockAsk {
    LockAsk {
        target: LockTarget {
            ino: file.found.attr.ino,
            space: LockSpace::Record,
            owner,
            pid: owner as u32,
        },
        range: LockRange { start, end },
        handle: file.handle,
    }
}

fn waiting(
    vfs: &Vfs,
    ask: LockAsk,
    interrupted: impl Future<Output = ()> + Send + 'static,
) -> JoinHandle<Result<()>> {
    let vfs = vfs.clone();
    tokio::spawn(async move { vfs.wait_for_lock(&root(), ask, EX, interrupted).await })
}

async fn refused(vfs: &Vfs, ask: LockAsk) -> Code {
    vfs.set_lock(&root(), ask, Some(EX)).await.unwrap_err().code
}

/// Long enough for whatever is under way to come to rest, in virtual time.
async fn rest() {
    tokio::time::sleep(Duration::from_millis(500)).await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_with_the_lock_when_the_other_client_frees_it() {
    let mut house = House::new().await;
    let ((one, _), (two, _)) = (house.client().await, house.client().await);
    let (mine, theirs) = (open(&one).await, open(&two).await);
    one.set_lock(&root(), lock(mine, 1, 0, 9), Some(EX))
        .await
        .unwrap();
    assert_eq!(refused(&two, lock(theirs, 1, 9, 9)).await, Code::WouldBlock);
    let held = two
        .get_lock(&root(), lock(theirs, 1, 5, 20), SH)
        .await
        .unwrap();
    assert_eq!(held.unwrap().range, LockRange { start: 0, end: 9 });
    let wait = waiting(&two, lock(theirs, 1, 5, 20), pending());
    rest().await;
    assert!(!wait.is_finished());
    let began = tokio::time::Instant::now();
    one.set_lock(&root(), lock(mine, 1, 0, 9), None)
        .await
        .unwrap();
    wait.await.unwrap().unwrap();
    assert!(
        began.elapsed() < Duration::from_millis(100),
        "it was told at once"
    );
    assert_eq!(refused(&one, lock(mine, 1, 20, 30)).await, Code::WouldBlock);
    one.close().await.unwrap();
    two.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_process_that_closes_has_no_locks_and_a_description_has_until_it_is_closed_for_good() {
    let mut house = House::new().await;
    let ((one, _), (two, _)) = (house.client().await, house.client().await);
    let (mine, again, theirs) = (open(&one).await, open(&one).await, open(&two).await);
    one.set_lock(&root(), lock(mine, 1, 0, 9), Some(EX))
        .await
        .unwrap();
    one.set_lock(&root(), lock(mine, 2, 10, 19), Some(EX))
        .await
        .unwrap();
    assert!(one.has_locks(mine.found.attr.ino));
    // Process 1 closes any descriptor of the file.
    one.close_owner(again.handle, 1).await.unwrap();
    two.set_lock(&root(), lock(theirs, 1, 0, 9), Some(EX))
        .await
        .unwrap();
    one.release(again.handle).await.unwrap();
    assert_eq!(
        refused(&two, lock(theirs, 1, 10, 19)).await,
        Code::WouldBlock
    );
    one.release(mine.handle).await.unwrap();
    two.set_lock(&root(), lock(theirs, 1, 10, 19), Some(EX))
        .await
        .unwrap();
    assert!(!one.has_locks(mine.found.attr.ino));
    one.close().await.unwrap();
    two.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_deadlock_over_two_clients_is_found() {
    let mut house = House::new().await;
    let ((one, _), (two, _)) = (house.client().await, house.client().await);
    let (mine, theirs) = (open(&one).await, open(&two).await);
    one.set_lock(&root(), lock(mine, 1, 0, 0), Some(EX))
        .await
        .unwrap();
    two.set_lock(&root(), lock(theirs, 1, 1, 1), Some(EX))
        .await
        .unwrap();
    let wait = waiting(&one, lock(mine, 1, 1, 1), pending());
    rest().await;
    let error = waiting(&two, lock(theirs, 1, 0, 0), pending())
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(error.errno(), libc::EDEADLK);
    two.set_lock(&root(), lock(theirs, 1, 1, 1), None)
        .await
        .unwrap();
    wait.await.unwrap().unwrap();
    one.close().await.unwrap();
    two.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_interrupted_leaves_nothing_behind() {
    let mut house = House::new().await;
    let ((one, _), (two, faults)) = (house.client().await, house.client().await);
    let (mine, theirs) = (open(&one).await, open(&two).await);
    one.set_lock(&root(), lock(mine, 1, 0, 9), Some(EX))
        .await
        .unwrap();
    let (interrupt, heard) = tokio::sync::oneshot::channel::<()>();
    let wait = waiting(&two, lock(theirs, 1, 0, 9), async { drop(heard.await) });
    rest().await;
    interrupt.send(()).unwrap();
    assert_eq!(wait.await.unwrap().unwrap_err().code, Code::Interrupted);
    one.set_lock(&root(), lock(mine, 1, 0, 9), None)
        .await
        .unwrap();
    one.set_lock(&root(), lock(mine, 2, 0, 9), Some(EX))
        .await
        .unwrap();

    // Also when the MRC cannot be asked at the time.
    faults.cut_off(Target::Mrc);
    let (interrupt, heard) = tokio::sync::oneshot::channel::<()>();
    let wait = waiting(&two, lock(theirs, 1, 20, 29), async { drop(heard.await) });
    rest().await;
    interrupt.send(()).unwrap();
    let began = tokio::time::Instant::now();
    assert_eq!(wait.await.unwrap().unwrap_err().code, Code::Interrupted);
    assert!(began.elapsed() <= Duration::from_secs(1));
    faults.join(Target::Mrc);
    tokio::time::sleep(Duration::from_secs(5)).await;
    one.set_lock(&root(), lock(mine, 1, 20, 29), Some(EX))
        .await
        .unwrap();
    one.close().await.unwrap();
    two.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn locks_and_waits_survive_a_restart_of_the_mrc() {
    let mut house = House::new().await;
    let ((one, _), (two, _)) = (house.client().await, house.client().await);
    let (mine, theirs) = (open(&one).await, open(&two).await);
    one.set_lock(&root(), lock(mine, 1, 0, 9), Some(EX))
        .await
        .unwrap();
    one.set_lock(&root(), lock(mine, 1, 3, 5), Some(SH))
        .await
        .unwrap();
    let wait = waiting(&two, lock(theirs, 1, 9, 9), pending());
    rest().await;
    house.restart().await;
    // The second client is heard of first; what the first one holds is not its to take.
    assert_eq!(refused(&two, lock(theirs, 2, 0, 9)).await, Code::WouldBlock);
    let held = two
        .get_lock(&root(), lock(theirs, 1, 4, 9), EX)
        .await
        .unwrap();
    assert_eq!(held.unwrap().range, LockRange { start: 3, end: 5 });
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(!wait.is_finished());
    one.set_lock(&root(), lock(mine, 1, 0, 9), None)
        .await
        .unwrap();
    wait.await.unwrap().unwrap();
    one.close().await.unwrap();
    two.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_lost_with_its_session_is_told_to_who_relies_on_it() {
    let mut house = House::new().await;
    let ((one, faults), (two, _)) = (house.client().await, house.client().await);
    let (mine, theirs) = (open(&one).await, open(&two).await);
    one.set_lock(&root(), lock(mine, 1, 0, 9), Some(EX))
        .await
        .unwrap();
    one.set_lock(&root(), lock(mine, 1, 20, 29), Some(EX))
        .await
        .unwrap();
    faults.cut_off(Target::Mrc);
    let wait = waiting(&two, lock(theirs, 1, 5, 5), pending());
    wait.await.unwrap().unwrap();
    faults.join(Target::Mrc);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(one.fsync(mine.handle).await.unwrap_err().code, Code::Io);
    // What nobody took it has back.
    assert_eq!(
        refused(&two, lock(theirs, 1, 25, 25)).await,
        Code::WouldBlock
    );
    let held = one
        .get_lock(&root(), lock(mine, 1, 0, 9), EX)
        .await
        .unwrap();
    assert_eq!(held.unwrap().range, LockRange { start: 5, end: 5 });
    one.close().await.unwrap();
    two.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_two_clients_hold_a_lock_at_once_over_a_bad_network() {
    let mut house = House::new().await;
    let mut workers = Vec::new();
    let inside = Arc::new(parking_lot::Mutex::new((0u32, 0u32)));
    for number in 0..3u64 {
        let (vfs, faults) = house.client().await;
        faults.set_plan(FaultPlan {
            delay_max: Duration::from_millis(20),
            lost_request_permille: 60,
            lost_reply_permille: 60,
            duplicate_permille: 100,
        });
        let inside = inside.clone();
        workers.push(tokio::spawn(async move {
            let file = open(&vfs).await;
            for round in 0..40 {
                let ask = lock(file, number * 2 + round % 2, 0, 9);
                vfs.wait_for_lock(&root(), ask, EX, pending())
                    .await
                    .unwrap();
                {
                    let mut inside = inside.lock();
                    inside.0 += 1;
                    assert_eq!(inside.0, 1, "two hold the lock");
                }
                tokio::time::sleep(Duration::from_millis(3)).await;
                {
                    let mut inside = inside.lock();
                    inside.0 -= 1;
                    inside.1 += 1;
                }
                vfs.set_lock(&root(), ask, None).await.unwrap();
            }
            vfs
        }));
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    house.restart().await;
    let mut clients = Vec::new();
    for worker in workers {
        clients.push(worker.await.unwrap());
    }
    assert_eq!(inside.lock().1, 120);
    drop(clients);
}
