//! Locks between clients: waiting, retries, restarts, and clients that die.

use std::time::Duration;

use babu_kv::fs::MemoryFs;
use xtfs_protocol::ids::{Ino, ROOT_INO};
use xtfs_protocol::lock::{FileLock, LockKind, LockRange, LockSpace, LockState, LockTarget};
use xtfs_protocol::meta::{Caller, MetaOp, MetaReply, Push, SetAttr};
use xtfs_protocol::transport::Peer;
use xtfs_protocol::{Code, Result};

use crate::osds::Osds;
use crate::support::{Client, error, inbox, open, with_volume};

const INO: Ino = 77;

fn target(owner: u64) -> LockTarget {
    LockTarget {
        ino: INO,
        space: LockSpace::Record,
        owner,
        pid: 1,
    }
}

fn lock(owner: u64, wait: Option<u64>) -> MetaOp {
    MetaOp::SetLock {
        target: target(owner),
        range: LockRange::ALL,
        kind: Some(LockKind::Exclusive),
        wait,
    }
}

fn unlock(owner: u64) -> MetaOp {
    MetaOp::SetLock {
        target: target(owner),
        range: LockRange::ALL,
        kind: None,
        wait: None,
    }
}

fn held(owner: u64) -> FileLock {
    FileLock {
        target: target(owner),
        range: LockRange::ALL,
        kind: LockKind::Exclusive,
    }
}

fn state(answer: Result<MetaReply>) -> LockState {
    match answer {
        Ok(MetaReply::Lock(state)) => state,
        other => panic!("{other:?}"),
    }
}

async fn reclaim(client: &Client, locks: Vec<FileLock>) -> MetaReply {
    let op = MetaOp::ReclaimLocks { locks, end: true };
    client.send(op).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_is_told_when_the_lock_is_its_own() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let _osds = Osds::start(&mrc);
    let (one, mut two) = (Client::new(&mrc).await, Client::new(&mrc).await);
    let (pusher, mut told) = inbox();
    two.origin.pusher = Some(pusher);
    assert_eq!(state(one.send(lock(1, None)).await), LockState::Held);
    assert_eq!(state(two.send(lock(1, Some(4))).await), LockState::Waiting);
    one.send(unlock(1)).await.unwrap();
    let Some(Push::LockHeld { wait, .. }) = told.recv().await else {
        panic!("not told");
    };
    assert_eq!(wait, 4);
    assert_eq!(error(one.send(lock(1, None)).await).code, Code::WouldBlock);
    mrc.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_locks_of_a_client_that_dies_go_to_who_waits_for_them() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let _osds = Osds::start(&mrc);
    let (one, mut two) = (Client::new(&mrc).await, Client::new(&mrc).await);
    let (pusher, mut told) = inbox();
    two.origin.pusher = Some(pusher);
    one.send(lock(1, None)).await.unwrap();
    assert_eq!(state(two.send(lock(1, Some(1))).await), LockState::Waiting);
    for _ in 0..4 {
        // The one that waits is heard of, the other is not.
        tokio::time::sleep(Duration::from_secs(20)).await;
        two.send_as(MetaOp::RenewSession, 0, 0).await.unwrap();
    }
    assert!(matches!(told.recv().await, Some(Push::LockHeld { .. })));
    // One that says good-bye is not waited for.
    let three = Client::new(&mrc).await;
    assert_eq!(state(two.send(lock(1, Some(1))).await), LockState::Held);
    assert_eq!(
        state(three.send(lock(1, Some(1))).await),
        LockState::Waiting
    );
    two.send_as(MetaOp::CloseSession, 0, 0).await.unwrap();
    assert_eq!(state(three.send(lock(1, Some(1))).await), LockState::Held);
    mrc.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_twice_locks_once() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let (one, two) = (Client::new(&mrc).await, Client::new(&mrc).await);
    assert_eq!(
        state(one.send_as(lock(1, None), 5, 0).await),
        LockState::Held
    );
    assert_eq!(state(one.send_as(unlock(1), 6, 0).await), LockState::Held);
    // The first one again, late: its answer, without its effect.
    assert_eq!(
        state(one.send_as(lock(1, None), 5, 0).await),
        LockState::Held
    );
    assert_eq!(state(two.send(lock(1, None)).await), LockState::Held);
    let refused = error(one.send_as(lock(1, None), 7, 0).await);
    assert_eq!(refused.code, Code::WouldBlock);
    two.send(unlock(1)).await.unwrap();
    let again = error(one.send_as(lock(1, None), 7, 0).await);
    assert_eq!(again.code, Code::WouldBlock, "it was answered so");
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_locks_are_their_holders_and_nothing_new_is_given_before() {
    let fs = MemoryFs::new();
    let mrc = with_volume(&fs).await;
    let (one, two) = (Client::new(&mrc).await, Client::new(&mrc).await);
    one.send(lock(1, None)).await.unwrap();
    let (first, second) = (one.session, two.session);
    drop((one, two, mrc));

    let mrc = open(&fs);
    let _osds = Osds::start(&mrc);
    let two = Client::resume(&mrc, Some(second), vec![]).await.unwrap();
    reclaim(&two, vec![]).await;
    let mut three = Client::new(&mrc).await;
    let (pusher, mut told) = inbox();
    three.origin.pusher = Some(pusher);
    assert_eq!(error(two.send(lock(2, None)).await).code, Code::Busy);
    assert_eq!(
        state(three.send(lock(2, Some(1))).await),
        LockState::Waiting
    );
    let one = Client::resume(&mrc, Some(first), vec![]).await.unwrap();
    assert_eq!(error(one.send(unlock(1)).await).code, Code::Busy);
    assert_eq!(
        reclaim(&one, vec![held(1)]).await,
        MetaReply::LostLocks(vec![])
    );
    assert_eq!(error(two.send(lock(2, None)).await).code, Code::WouldBlock);
    one.send(unlock(1)).await.unwrap();
    assert!(matches!(
        told.recv().await,
        Some(Push::LockHeld { wait: 1, .. })
    ));
    mrc.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_return_after_a_restart_is_waited_for_until_it_ran_out() {
    let fs = MemoryFs::new();
    let mrc = with_volume(&fs).await;
    let (one, two) = (Client::new(&mrc).await, Client::new(&mrc).await);
    let second = two.session;
    drop((one, two, mrc));

    let mrc = open(&fs);
    let _osds = Osds::start(&mrc);
    let mut two = Client::resume(&mrc, Some(second), vec![]).await.unwrap();
    let (pusher, mut told) = inbox();
    two.origin.pusher = Some(pusher);
    reclaim(&two, vec![]).await;
    assert_eq!(state(two.send(lock(1, Some(1))).await), LockState::Waiting);
    for _ in 0..4 {
        assert!(told.try_recv().is_err());
        tokio::time::sleep(Duration::from_secs(19)).await;
        two.send_as(MetaOp::RenewSession, 0, 0).await.unwrap();
    }
    assert!(matches!(
        told.recv().await,
        Some(Push::LockHeld { wait: 1, .. })
    ));
    mrc.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_user_locks_only_what_they_may_read() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let client = Client::new(&mrc).await;
    let ino = client.create("file").await.entry.attr.ino;
    let op = MetaOp::OpenSession {
        volume: "home".into(),
        client: String::new(),
        resume: None,
        open_files: vec![],
    };
    let peer = Peer::User {
        uid: 7,
        gids: vec![7],
    };
    let caller = Caller {
        uid: 7,
        gid: 7,
        ..Caller::root()
    };
    let mut user = Client::new(&mrc).await;
    user.origin.peer = peer;
    user.caller = caller;
    let MetaReply::Session(info) = user.send_as(op, 0, 0).await.unwrap() else {
        panic!("no session");
    };
    user.session = info.id;
    let lock = MetaOp::SetLock {
        target: LockTarget { ino, ..target(1) },
        range: LockRange::ALL,
        kind: Some(LockKind::Shared),
        wait: None,
    };
    assert_eq!(state(user.send(lock.clone()).await), LockState::Held);
    let set = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    let chmod = MetaOp::Setattr {
        ino,
        set,
        by_handle: false,
    };
    client.send(chmod).await.unwrap();
    assert_eq!(error(user.send(lock).await).code, Code::AccessDenied);
    assert_ne!(ino, ROOT_INO);
}
