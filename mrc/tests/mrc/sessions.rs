//! Retries, restarts, loss of power, open files and the end of sessions.

use std::time::Duration;

use babu_kv::fs::{Crash, MemoryFs};
use xtfs_protocol::ids::ROOT_INO;
use xtfs_protocol::meta::{FileUpdate, MetaOp, OpenMode, RenameFlags, SetAttr};
use xtfs_protocol::transport::Peer;
use xtfs_protocol::{Code, Retry};

use crate::osds::Osds;
use crate::support::{Client, create_op, entry, error, open, open_after_boot, opened, with_volume};

fn mkdir(name: &str) -> MetaOp {
    MetaOp::Mkdir {
        parent: ROOT_INO,
        name: name.into(),
        mode: 0o755,
    }
}

fn truncate(ino: u64, size: u64) -> MetaOp {
    MetaOp::Setattr {
        ino,
        set: SetAttr {
            size: Some(size),
            ..SetAttr::default()
        },
        by_handle: true,
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeated_request_gets_its_first_answer_and_has_one_effect() {
    let fs = MemoryFs::new();
    let mrc = with_volume(&fs).await;
    let client = Client::new(&mrc).await;
    let first = entry(&client.send_as(mkdir("dir"), 7, 0).await.unwrap()).attr;
    let again = entry(&client.send_as(mkdir("dir"), 7, 0).await.unwrap()).attr;
    assert_eq!(first, again);
    let root = MetaOp::Getattr { ino: ROOT_INO };
    let root = client.send_as(root, 0, 0).await.unwrap();
    assert_eq!(entry(&root).attr.nlink, 3);

    let session = client.session;
    drop((client, mrc));
    let mrc = open(&fs);
    let client = Client::resume(&mrc, Some(session), vec![]).await.unwrap();
    let again = entry(&client.send_as(mkdir("dir"), 7, 0).await.unwrap()).attr;
    assert_eq!(first, again);
    // Once the client has said that it knows the answer, it is forgotten.
    client.send_as(mkdir("other"), 8, 7).await.unwrap();
    let late = error(client.send_as(mkdir("dir"), 7, 7).await);
    assert_eq!(late.code, Code::Protocol);
}

#[tokio::test(start_paused = true)]
async fn a_repeated_failure_stays_a_failure() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let client = Client::new(&mrc).await;
    client.send_as(mkdir("dir"), 1, 0).await.unwrap();
    let refused = error(client.send_as(mkdir("dir"), 2, 0).await);
    assert_eq!(refused.code, Code::Exists);
    let rmdir = MetaOp::Rmdir {
        parent: ROOT_INO,
        name: b"dir".to_vec(),
    };
    client.send_as(rmdir, 3, 0).await.unwrap();
    // It would work now, but it was answered.
    let again = error(client.send_as(mkdir("dir"), 2, 0).await);
    assert_eq!(again.code, Code::Exists);
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_a_session_is_resumed_and_only_by_its_owner() {
    let fs = MemoryFs::new();
    let mrc = with_volume(&fs).await;
    let client = Client::new(&mrc).await;
    let session = client.session;
    drop((client, mrc));
    let mrc = open(&fs);
    let mut client = Client::new(&mrc).await;
    client.session = session;
    let refused = client.lookup("x").await.unwrap_err();
    assert_eq!(
        (refused.code, refused.retry),
        (Code::SessionExpired, Retry::Reopen)
    );
    Client::resume(&mrc, Some(session), vec![]).await.unwrap();
    assert_eq!(client.lookup("x").await.unwrap_err().code, Code::NotFound);
    client.origin.peer = Peer::Host("another".into());
    let refused = client.lookup("x").await.unwrap_err();
    assert_eq!(refused.code, Code::NotPermitted);
}

#[tokio::test(start_paused = true)]
async fn every_session_has_a_higher_epoch_also_after_loss_of_power() {
    let fs = MemoryFs::new();
    let mrc = with_volume(&fs).await;
    let first = Client::new(&mrc).await.epoch;
    let second = Client::new(&mrc).await.epoch;
    assert!(second > first);
    let mrc = open(&fs.crash(Crash::Lost));
    assert!(Client::new(&mrc).await.epoch > second);
}

#[tokio::test(start_paused = true)]
async fn what_sync_answered_survives_loss_of_power() {
    let fs = MemoryFs::new();
    let mrc = with_volume(&fs).await;
    let client = Client::new(&mrc).await;
    let kept = client.create("kept").await.entry.attr.ino;
    client.send_as(MetaOp::Sync, 0, 0).await.unwrap();
    let lost = client.create("lost").await.entry.attr.ino;

    let mrc = open(&fs.crash(Crash::Lost));
    let client = Client::new(&mrc).await;
    assert_eq!(client.lookup("kept").await.unwrap().attr.ino, kept);
    assert_eq!(
        client.lookup("lost").await.unwrap_err().code,
        Code::NotFound
    );
    // The number of the file that is forgotten may be known to OSDs: it is not used again.
    let next = client.create("next").await;
    assert_ne!(next.entry.attr.ino, lost);
    assert_ne!(next.capability.file.data, lost);
}

#[tokio::test(start_paused = true)]
async fn a_truncation_to_less_is_durable_before_it_is_answered() {
    let fs = MemoryFs::new();
    let mrc = with_volume(&fs).await;
    let client = Client::new(&mrc).await;
    let made = client.create("file").await;
    let ino = made.entry.attr.ino;
    let update = FileUpdate {
        appended: 0,
        size_at_least: 100,
        truncate_epoch: 0,
        allocated_delta: 100,
        written_at: Some(made.entry.attr.mtime),
        read_at: None,
    };
    client.send(MetaOp::Update { ino, update }).await.unwrap();
    let cut = opened(client.send(truncate(ino, 10)).await.unwrap());
    assert!(cut.pending_cut.is_some());

    let mrc = open(&fs.crash(Crash::Lost));
    let client = Client::new(&mrc).await;
    let again = client.create("file").await;
    assert_eq!(again.entry.attr.size, 10);
    assert_eq!(again.pending_cut, cut.pending_cut);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_not_heard_of_ends_with_its_open_files() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let osds = Osds::start(&mrc);
    let client = Client::new(&mrc).await;
    let made = client.create("file").await;
    client.unlink("file").await.unwrap();
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(40)).await;
        client.send_as(MetaOp::RenewSession, 0, 0).await.unwrap();
    }
    let file = made.capability.file;
    assert!(!osds.get(made.placement.osds[0]).has_deleted(file));
    osds.deletion(file, &made.placement.osds).await;
    let refused = client.lookup("x").await.unwrap_err();
    assert_eq!(refused.code, Code::SessionExpired);
    mrc.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_whose_session_ran_out_goes_on_in_a_new_one_with_its_open_files() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let osds = Osds::start(&mrc);
    let client = Client::new(&mrc).await;
    let made = client.create("file").await;
    let ino = made.entry.attr.ino;
    tokio::time::sleep(Duration::from_secs(100)).await;
    let old = client.session;
    let client = Client::resume(&mrc, Some(old), vec![ino]).await.unwrap();
    assert_ne!(client.session, old);
    client.unlink("file").await.unwrap();
    let alive = client.send_as(MetaOp::Getattr { ino }, 0, 0).await.unwrap();
    assert_eq!(entry(&alive).attr.nlink, 0);
    client.send(MetaOp::Release { ino }).await.unwrap();
    osds.deletion(made.capability.file, &made.placement.osds)
        .await;
    mrc.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn closing_a_session_closes_its_files() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let osds = Osds::start(&mrc);
    let client = Client::new(&mrc).await;
    let made = client.create("file").await;
    client.unlink("file").await.unwrap();
    client.send_as(MetaOp::CloseSession, 0, 0).await.unwrap();
    osds.deletion(made.capability.file, &made.placement.osds)
        .await;
    mrc.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_an_open_unlinked_file_waits_for_its_holder() {
    let fs = MemoryFs::new();
    let mrc = with_volume(&fs).await;
    let (client, other) = (Client::new(&mrc).await, Client::new(&mrc).await);
    let kept = client.create("kept").await;
    let left = client.create("left").await;
    client.unlink("kept").await.unwrap();
    client.unlink("left").await.unwrap();
    let (first, second) = (client.session, other.session);
    drop((client, other, mrc));

    let mrc = open(&fs);
    let osds = Osds::start(&mrc);
    let ino = kept.entry.attr.ino;
    let client = Client::resume(&mrc, Some(first), vec![ino]).await.unwrap();
    // The other session might have had it open: nothing goes before that is known.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let left_on = osds.get(left.placement.osds[0]);
    assert!(!left_on.has_deleted(left.capability.file));
    Client::resume(&mrc, Some(second), vec![]).await.unwrap();
    osds.deletion(left.capability.file, &left.placement.osds)
        .await;
    let alive = client.send_as(MetaOp::Getattr { ino }, 0, 0).await.unwrap();
    assert_eq!(entry(&alive).attr.nlink, 0);
    client.send(MetaOp::Release { ino }).await.unwrap();
    osds.deletion(kept.capability.file, &kept.placement.osds)
        .await;
    mrc.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn orphans_of_a_session_that_never_comes_back_go_when_its_time_is_over() {
    let fs = MemoryFs::new();
    let mrc = with_volume(&fs).await;
    let client = Client::new(&mrc).await;
    let made = client.create("file").await;
    client.unlink("file").await.unwrap();
    drop((client, mrc));
    let mrc = open(&fs);
    let osds = Osds::start(&mrc);
    osds.deletion(made.capability.file, &made.placement.osds)
        .await;
    mrc.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_file_replaced_by_a_rename_stays_openable_for_a_moment_and_then_goes() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let osds = Osds::start(&mrc);
    let (client, other) = (Client::new(&mrc).await, Client::new(&mrc).await);
    let old = client.create("file").await;
    let ino = old.entry.attr.ino;
    client.send(MetaOp::Release { ino }).await.unwrap();
    let new = client.create("new").await.entry.attr.ino;
    client.send(MetaOp::Release { ino: new }).await.unwrap();
    let rename = MetaOp::Rename {
        parent: ROOT_INO,
        name: b"new".to_vec(),
        new_parent: ROOT_INO,
        new_name: b"file".to_vec(),
        flags: RenameFlags::default(),
    };
    client.send(rename).await.unwrap();
    let open = MetaOp::Open {
        ino,
        open: OpenMode {
            read: true,
            ..OpenMode::default()
        },
    };
    for session in [&client, &other] {
        session.send(open.clone()).await.unwrap();
        session.send(MetaOp::Release { ino }).await.unwrap();
    }
    osds.deletion(old.capability.file, &old.placement.osds)
        .await;
    assert_eq!(client.lookup("file").await.unwrap().attr.ino, new);
    mrc.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_whose_requests_only_fail_is_not_locked_out() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let client = Client::new(&mrc).await;
    client.create("file").await;
    for _ in 0..9000 {
        assert_eq!(error(client.unlink("none").await).code, Code::NotFound);
    }
    client.unlink("file").await.unwrap();
    // Who never says what has arrived is held up, and goes on when it does.
    for sequence in 20_000..28_192 {
        let refused = error(client.send_as(mkdir(""), sequence, 10_000).await);
        assert_eq!(refused.code, Code::Invalid);
    }
    let busy = error(client.send_as(mkdir("dir"), 30_000, 10_000).await);
    assert_eq!(busy.code, Code::Busy);
    client.send_as(mkdir("dir"), 30_000, 29_999).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_file_is_open_when_its_creation_is_answered_after_a_restart_only() {
    let fs = MemoryFs::new();
    let mrc = with_volume(&fs).await;
    let client = Client::new(&mrc).await;
    let session = client.session;
    let open_mode = OpenMode {
        read: true,
        write: true,
        truncate: false,
    };
    let create = create_op("file", open_mode);
    let made = opened(client.send_as(create.clone(), 7, 0).await.unwrap());
    let ino = made.entry.attr.ino;

    // The answer was lost with the MRC, so the client does not know yet that it has a file open.
    drop((client, mrc));
    let mrc = open(&fs);
    let client = Client::resume(&mrc, Some(session), vec![]).await.unwrap();
    let again = opened(client.send_as(create, 7, 0).await.unwrap());
    assert_eq!(again.entry.attr.ino, ino);
    client.unlink("file").await.unwrap();
    let getattr = MetaOp::Getattr { ino };
    let alive = client.send_as(getattr.clone(), 0, 0).await.unwrap();
    assert_eq!(entry(&alive).attr.nlink, 0);

    // The same with closing: it still counts as open when the client resumes.
    client.create("second").await;
    let second = client.lookup("second").await.unwrap().attr.ino;
    let release = MetaOp::Release { ino: second };
    client.send_as(release.clone(), 2000, 1500).await.unwrap();
    drop((client, mrc));
    let mrc = open(&fs);
    let client = Client::resume(&mrc, Some(session), vec![ino, second])
        .await
        .unwrap();
    client.send_as(release, 2000, 1500).await.unwrap();
    let unlink = MetaOp::Unlink {
        parent: ROOT_INO,
        name: b"second".to_vec(),
    };
    client.send_as(unlink, 2001, 2000).await.unwrap();
    let getattr = MetaOp::Getattr { ino: second };
    let gone = error(client.send_as(getattr, 0, 0).await);
    assert_eq!(gone.code, Code::Stale);
}

#[tokio::test(start_paused = true)]
async fn a_late_copy_of_a_close_does_not_close_what_was_opened_since() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let client = Client::new(&mrc).await;
    let ino = client.create("file").await.entry.attr.ino;
    let release = MetaOp::Release { ino };
    client.send_as(release.clone(), 50, 40).await.unwrap();
    let open_mode = OpenMode {
        read: true,
        ..OpenMode::default()
    };
    let again = MetaOp::Open {
        ino,
        open: open_mode,
    };
    client.send_as(again.clone(), 51, 40).await.unwrap();
    client.send_as(release.clone(), 50, 40).await.unwrap();
    client.send_as(again, 52, 51).await.unwrap();
    for sequence in 100..400 {
        let refused = error(client.send_as(mkdir(""), sequence, 52).await);
        assert_eq!(refused.code, Code::Invalid);
    }
    let late = error(client.send_as(release, 50, 40).await);
    assert_eq!(late.code, Code::Protocol);
    let unlink = MetaOp::Unlink {
        parent: ROOT_INO,
        name: b"file".to_vec(),
    };
    client.send_as(unlink, 500, 499).await.unwrap();
    let getattr = MetaOp::Getattr { ino };
    let alive = client.send_as(getattr, 0, 0).await.unwrap();
    assert_eq!(entry(&alive).attr.nlink, 0);
}

fn open_to_write(ino: u64) -> MetaOp {
    let open = OpenMode {
        read: true,
        write: true,
        truncate: false,
    };
    MetaOp::Open { ino, open }
}

/// What has to be cut before a session may write to a file.
async fn cut_for(client: &Client, ino: u64) -> Option<u64> {
    let answer = client.send(open_to_write(ino)).await.unwrap();
    opened(answer).pending_cut.map(|cut| cut.size)
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_started_anew_ends_its_earlier_session() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let name = "machine /mnt";
    let killed = Client::start(&mrc, name, None, vec![]).await.unwrap();
    let ino = killed.create("file").await.entry.attr.ino;
    let other = Client::start(&mrc, "machine /srv", None, vec![])
        .await
        .unwrap();
    assert_eq!(cut_for(&other, ino).await, None, "the writer is alive");
    let closed = MetaOp::Release { ino };
    other.send(closed).await.unwrap();

    let anew = Client::start(&mrc, name, None, vec![]).await.unwrap();
    let gone = killed.lookup("file").await.unwrap_err();
    assert_eq!(gone.code, Code::SessionExpired);
    assert_eq!(cut_for(&anew, ino).await, Some(0), "nobody told its end");
    other.lookup("file").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn only_the_same_host_ends_a_clients_earlier_session() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let client = Client::start(&mrc, "name", None, vec![]).await.unwrap();
    let mut stranger = Client::new(&mrc).await;
    stranger.origin.peer = Peer::Host("another".into());
    let op = MetaOp::OpenSession {
        volume: "home".into(),
        client: "name".into(),
        resume: None,
        open_files: vec![],
    };
    stranger.send_as(op, 0, 0).await.unwrap();
    assert_eq!(client.lookup("x").await.unwrap_err().code, Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_lost_writer_is_remembered_over_a_restart_and_a_closed_session_is_not_lost() {
    let fs = MemoryFs::new();
    let mrc = with_volume(&fs).await;
    let killed = Client::start(&mrc, "killed", None, vec![]).await.unwrap();
    let lost = killed.create("lost").await.entry.attr.ino;
    let orderly = Client::new(&mrc).await;
    let kept = orderly.create("kept").await.entry.attr.ino;
    orderly.send_as(MetaOp::CloseSession, 0, 0).await.unwrap();
    Client::start(&mrc, "killed", None, vec![]).await.unwrap();
    drop((killed, orderly, mrc));

    let mrc = open(&fs);
    let anew = Client::start(&mrc, "killed", None, vec![]).await.unwrap();
    assert_eq!(cut_for(&anew, lost).await, Some(0));
    assert_eq!(cut_for(&anew, kept).await, None);
}

#[tokio::test(start_paused = true)]
async fn after_a_loss_of_power_no_writer_from_before_counts_as_remembered() {
    let fs = MemoryFs::new();
    let mrc = with_volume(&fs).await;
    let client = Client::new(&mrc).await;
    let ino = client.create("file").await.entry.attr.ino;
    client.send(MetaOp::Release { ino }).await.unwrap();
    client.send(MetaOp::Sync).await.unwrap();
    let (session, epoch) = (client.session, client.epoch);
    drop((client, mrc));

    let mrc = open_after_boot(&fs.crash(Crash::Lost), 77);
    let resumed = Client::resume(&mrc, Some(session), vec![]).await.unwrap();
    assert!(resumed.epoch > epoch);
    assert_eq!(cut_for(&resumed, ino).await, Some(0));
    let done = MetaOp::TruncateDone { ino, epoch: 1 };
    resumed.send(done).await.unwrap();
    resumed.send(MetaOp::Release { ino }).await.unwrap();
    assert_eq!(cut_for(&resumed, ino).await, None, "once is enough");
}

#[tokio::test(start_paused = true)]
async fn very_many_lost_sessions_are_remembered_together() {
    let fs = MemoryFs::new();
    let mrc = with_volume(&fs).await;
    let first = Client::start(&mrc, "client", None, vec![]).await.unwrap();
    let ino = first.create("file").await.entry.attr.ino;
    let orderly = Client::new(&mrc).await;
    let kept = orderly.create("kept").await.entry.attr.ino;
    orderly.send_as(MetaOp::CloseSession, 0, 0).await.unwrap();
    for _ in 0..4100 {
        Client::start(&mrc, "client", None, vec![]).await.unwrap();
    }
    let last = Client::start(&mrc, "client", None, vec![]).await.unwrap();
    assert_eq!(cut_for(&last, ino).await, Some(0));
    assert_eq!(cut_for(&last, kept).await, Some(0), "too old to be known");
}

#[tokio::test(start_paused = true)]
async fn a_new_size_spares_what_a_client_told_before_the_mrc_lost_power() {
    let fs = MemoryFs::new();
    let mrc = with_volume(&fs).await;
    let client = Client::new(&mrc).await;
    let ino = client.create("file").await.entry.attr.ino;
    client.send(MetaOp::Sync).await.unwrap();
    let update = xtfs_protocol::meta::FileUpdate {
        appended: 0,
        size_at_least: 300,
        truncate_epoch: 0,
        allocated_delta: 0,
        written_at: None,
        read_at: None,
    };
    client.send(MetaOp::Update { ino, update }).await.unwrap();
    let session = client.session;
    drop((client, mrc));

    let mrc = open_after_boot(&fs.crash(Crash::Lost), 77);
    let resumed = Client::resume(&mrc, Some(session), vec![ino])
        .await
        .unwrap();
    let grow = MetaOp::Setattr {
        ino,
        set: xtfs_protocol::meta::SetAttr {
            size: Some(500),
            ..xtfs_protocol::meta::SetAttr::default()
        },
        by_handle: true,
    };
    let grown = opened(resumed.send(grow).await.unwrap());
    assert_eq!(grown.pending_cut.map(|cut| cut.size), Some(500));
}
