//! Files, volumes, sessions and services.

use crate::support::{
    Client, MRC, ask, create_volume, directory, entry, error, heartbeat, host, open, osd,
    with_volume,
};
use babu_kv::fs::MemoryFs;
use xtfs_protocol::directory::{DirectoryOp, DirectoryReply, ServiceState};
use xtfs_protocol::ids::{ROOT_INO, SessionId};
use xtfs_protocol::meta::{Caller, MetaOp, MetaReply, Space};
use xtfs_protocol::transport::Peer;
use xtfs_protocol::{Code, KeyRing, Retry};

#[tokio::test(start_paused = true)]
async fn a_created_file_is_found_listed_and_gone_after_unlink() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let client = Client::new(&mrc).await;
    let made = client.create("notes").await;
    let ino = made.entry.attr.ino;
    assert_eq!(client.lookup("notes").await.unwrap().attr.ino, ino);
    assert!(made.entry.lease.duration_ms > 0);
    assert_eq!(made.placement.osds.len(), 2);

    let page = MetaOp::Readdir {
        ino: ROOT_INO,
        after: vec![],
        limit: 100,
        with_attr: true,
    };
    let MetaReply::Page { entries, end, .. } = client.send_as(page, 0, 0).await.unwrap() else {
        panic!("not a page");
    };
    assert!(end);
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].name, b"notes");
    assert_eq!(entries[0].attr.unwrap().ino, ino);

    client.unlink("notes").await.unwrap();
    assert_eq!(
        client.lookup("notes").await.unwrap_err().code,
        Code::NotFound
    );
    // It is still open here.
    let by_ino = client.send_as(MetaOp::Getattr { ino }, 0, 0).await.unwrap();
    assert_eq!(entry(&by_ino).attr.nlink, 0);
    client.send(MetaOp::Release { ino }).await.unwrap();
    let gone = client.send_as(MetaOp::Getattr { ino }, 0, 0).await;
    assert_eq!(error(gone).code, Code::Stale);
}

#[tokio::test(start_paused = true)]
async fn osds_verify_capabilities_with_the_keys_of_their_heartbeat() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let client = Client::new(&mrc).await;
    let made = client.create("file").await;
    let DirectoryReply::Registered {
        capability_keys, ..
    } = heartbeat(&mrc, 1, 1).await.unwrap()
    else {
        panic!("not registered");
    };
    let keys = KeyRing::from_keys(capability_keys);
    keys.verify(&made.capability, made.entry.attr.mtime)
        .unwrap();
    assert_eq!(made.capability.session, client.session);
    assert_eq!(made.capability.session_epoch, client.epoch);
    assert!(made.capability.read && made.capability.write);
}

#[tokio::test(start_paused = true)]
async fn volumes_sessions_and_files_outlive_a_restart() {
    let fs = MemoryFs::new();
    let mrc = with_volume(&fs).await;
    let client = Client::new(&mrc).await;
    let ino = client.create("kept").await.entry.attr.ino;
    let session = client.session;
    drop((client, mrc));

    let mrc = open(&fs);
    let client = Client::resume(&mrc, Some(session), vec![ino])
        .await
        .unwrap();
    assert_eq!(client.lookup("kept").await.unwrap().attr.ino, ino);
    // The OSDs are believed to be there until they have had time to say so.
    let next = client.create("next").await;
    assert_ne!(next.entry.attr.ino, ino);
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_session_is_told_to_open_one() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let mut client = Client::new(&mrc).await;
    client.session = SessionId([7; 16]);
    let error = client.lookup("x").await.unwrap_err();
    assert_eq!(error.code, Code::SessionExpired);
    assert_eq!(error.retry, Retry::Reopen);
}

#[tokio::test(start_paused = true)]
async fn a_user_acts_only_as_themself() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let mut client = Client::new(&mrc).await;
    client.origin.peer = Peer::User {
        uid: 1000,
        gids: vec![1000],
    };
    let refused = client.lookup("x").await.unwrap_err();
    assert_eq!(refused.code, Code::NotPermitted);
    client.caller = Caller {
        uid: 1000,
        gid: 1000,
        ..Caller::default()
    };
    // Even as themself not in the session of the host.
    let refused = client.lookup("x").await.unwrap_err();
    assert_eq!(refused.code, Code::NotPermitted);
}

#[tokio::test(start_paused = true)]
async fn room_is_the_sum_of_the_osds() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let client = Client::new(&mrc).await;
    let space = client.send_as(MetaOp::Statfs, 0, 0).await.unwrap();
    let expected = Space {
        total_bytes: 3000,
        free_bytes: 1800,
        used_inodes: 1,
        inodes_max: None,
    };
    assert_eq!(space, MetaReply::Statfs(expected));
}

#[tokio::test(start_paused = true)]
async fn services_fall_silent_and_come_back() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let state = |number| mrc.resolve(osd(number)).unwrap().state;
    assert_eq!(state(1), ServiceState::Online);
    tokio::time::advance(std::time::Duration::from_secs(7)).await;
    assert_eq!(state(1), ServiceState::Silent);
    heartbeat(&mrc, 1, 1).await.unwrap();
    assert_eq!(state(1), ServiceState::Online);
    assert_eq!(state(2), ServiceState::Silent);

    // One OSD answers, the layout wants two.
    let client = Client::new(&mrc).await;
    let open = xtfs_protocol::meta::OpenMode::default();
    let refused = client
        .send(crate::support::create_op("f", open))
        .await
        .unwrap_err();
    assert_eq!(refused.code, Code::Unreachable);
    assert!(refused.context.contains("needs 2 OSDs, 1 are online"));
}

#[tokio::test(start_paused = true)]
async fn the_same_identity_started_twice_is_refused_while_the_first_is_heard() {
    let mrc = with_volume(&MemoryFs::new()).await;
    assert_eq!(heartbeat(&mrc, 1, 2).await.unwrap_err().code, Code::Exists);
    tokio::time::advance(std::time::Duration::from_secs(5)).await;
    heartbeat(&mrc, 1, 2).await.unwrap();
    assert_eq!(heartbeat(&mrc, 1, 1).await.unwrap_err().code, Code::Exists);
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_must_come_from_the_service_itself() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let op = DirectoryOp::Heartbeat {
        id: osd(1),
        incarnation: 1,
        kind: xtfs_protocol::directory::ServiceKind::Osd,
        addresses: vec![],
        space: Default::default(),
        version: String::new(),
    };
    let refused = directory(&mrc, host(), op).await.unwrap_err();
    assert_eq!(refused.code, Code::NotPermitted);
}

#[tokio::test(start_paused = true)]
async fn the_directory_lists_the_mrc_and_knows_no_strangers() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let DirectoryReply::Services(list) = directory(&mrc, host(), DirectoryOp::List).await.unwrap()
    else {
        panic!("not a list");
    };
    let ids: Vec<_> = list.iter().map(|service| service.id).collect();
    assert_eq!(ids, [osd(1), osd(2), osd(3), MRC]);
    let op = DirectoryOp::Resolve { id: osd(9) };
    assert_eq!(
        directory(&mrc, host(), op).await.unwrap_err().code,
        Code::NotFound
    );
}

#[tokio::test(start_paused = true)]
async fn volumes_need_a_good_name_that_is_free() {
    let mrc = with_volume(&MemoryFs::new()).await;
    assert_eq!(
        error(ask(&mrc, create_volume("home")).await).code,
        Code::Exists
    );
    assert_eq!(
        error(ask(&mrc, create_volume("a/b")).await).code,
        Code::Invalid
    );
    assert_eq!(
        error(ask(&mrc, create_volume("")).await).code,
        Code::Invalid
    );
    ask(&mrc, create_volume("other")).await.unwrap();
    let MetaReply::Volumes(volumes) = ask(&mrc, MetaOp::ListVolumes).await.unwrap() else {
        panic!("no volumes");
    };
    let names: Vec<_> = volumes.iter().map(|volume| volume.name.as_str()).collect();
    assert_eq!(names, ["home", "other"]);
}

#[tokio::test(start_paused = true)]
async fn after_shutdown_calls_are_refused_and_the_folder_opens_again() {
    let fs = MemoryFs::new();
    let mrc = with_volume(&fs).await;
    let client = Client::new(&mrc).await;
    mrc.shutdown().await.unwrap();
    let refused = client.lookup("x").await.unwrap_err();
    assert_eq!(refused.code, Code::ShuttingDown);
    drop((client, mrc));
    let mrc = open(&fs);
    Client::new(&mrc).await;
}
