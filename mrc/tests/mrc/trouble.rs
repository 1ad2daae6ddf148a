//! Many clients at once, a full disk, and a damaged one.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use babu_kv::fs::{Fault, FaultyFs, Fs, MemoryFs};
use xtfs_protocol::Code;
use xtfs_protocol::ids::ROOT_INO;
use xtfs_protocol::meta::{MetaOp, MetaReply, RenameFlags, Space};

use crate::osds::Osds;
use crate::support::{
    Client, MRC, ask, create_op, create_volume, open, open_on, opened, with_volume,
};

fn rename(from: String, to: String) -> MetaOp {
    MetaOp::Rename {
        parent: ROOT_INO,
        name: from.into(),
        new_parent: ROOT_INO,
        new_name: to.into(),
        flags: RenameFlags::default(),
    }
}

async fn used_inodes(client: &Client) -> u64 {
    match client.send_as(MetaOp::Statfs, 0, 0).await.unwrap() {
        MetaReply::Statfs(Space { used_inodes, .. }) => used_inodes,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_on_many_threads_see_every_change_once() {
    let fs = MemoryFs::new();
    let mrc = with_volume(&fs).await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..8 {
        let mrc = mrc.clone();
        tasks.spawn(async move {
            let client = Client::new(&mrc).await;
            for round in 0..50 {
                let name = format!("{number}-{round}");
                let ino = client.create(&name).await.entry.attr.ino;
                client.send(MetaOp::Release { ino }).await.unwrap();
                client
                    .send(rename(name, format!("moved-{number}-{round}")))
                    .await
                    .unwrap();
                if round % 2 == 0 {
                    client
                        .unlink(&format!("moved-{number}-{round}"))
                        .await
                        .unwrap();
                }
                // All of them fight for one name; whoever loses finds the winner's.
                client
                    .send(create_op("shared", Default::default()))
                    .await
                    .unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let client = Client::new(&mrc).await;
    let page = MetaOp::Readdir {
        ino: ROOT_INO,
        after: vec![],
        limit: 4096,
        with_attr: true,
    };
    let MetaReply::Page { entries, .. } = client.send_as(page, 0, 0).await.unwrap() else {
        panic!("not a page");
    };
    assert_eq!(entries.len(), 8 * 25 + 1);
    assert!(entries.iter().all(|entry| entry.attr.is_some()));
    assert_eq!(used_inodes(&client).await, 8 * 25 + 2);
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_is_told_loses_nothing_and_is_over_when_there_is_room() {
    let fs = MemoryFs::new();
    let mrc = with_volume(&fs).await;
    let client = Client::new(&mrc).await;
    client.create("before").await;
    fs.set_capacity(Some(fs.used_bytes() + 50_000));
    let mut made = 0;
    let refused = loop {
        let op = create_op(&format!("file{made}"), Default::default());
        match client.send(op).await {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.code, Code::NoSpace);
    assert_eq!(used_inodes(&client).await, made + 2);
    client.lookup("before").await.unwrap();
    let failed = format!("file{made}");
    assert_eq!(
        client.lookup(&failed).await.unwrap_err().code,
        Code::NotFound
    );

    fs.set_capacity(None);
    client.create(&failed).await;
    drop((client, mrc));
    let mrc = open(&fs);
    let client = Client::new(&mrc).await;
    assert_eq!(used_inodes(&client).await, made + 3);
    client.lookup(&failed).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_is_full_of_names_can_be_emptied() {
    let fs = MemoryFs::new();
    let mrc = with_volume(&fs).await;
    let client = Client::new(&mrc).await;
    fs.set_capacity(Some(fs.used_bytes() + (1 << 20)));
    let mut made = 0;
    let refused = loop {
        match client
            .send(create_op(&format!("file{made}"), Default::default()))
            .await
        {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.code, Code::NoSpace);
    // Nothing that only adds is accepted; what is there is opened, moved and removed.
    let xattr = MetaOp::Setxattr {
        ino: ROOT_INO,
        name: b"user.name".to_vec(),
        value: vec![],
        mode: xtfs_protocol::meta::XattrMode::Set,
    };
    assert_eq!(client.send(xattr).await.unwrap_err().code, Code::NoSpace);
    let again = client.send(create_op("file0", Default::default())).await;
    let ino = opened(again.unwrap()).entry.attr.ino;
    client.send(MetaOp::Release { ino }).await.unwrap();
    client
        .send(rename("file0".into(), "moved".into()))
        .await
        .unwrap();
    client
        .send(rename("moved".into(), "file0".into()))
        .await
        .unwrap();
    for number in 0..10 {
        let ino = client
            .lookup(&format!("file{number}"))
            .await
            .unwrap()
            .attr
            .ino;
        client.send(MetaOp::Release { ino }).await.unwrap();
        client.unlink(&format!("file{number}")).await.unwrap();
    }
    assert_eq!(used_inodes(&client).await, made + 1 - 10);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_cannot_be_ended_on_a_full_disk_is_tried_again_with_pauses() {
    let faulty = FaultyFs::new(Arc::new(MemoryFs::new()));
    let shared: Arc<dyn Fs> = Arc::new(faulty.clone());
    let mrc = open_on(shared);
    ask(&mrc, create_volume("home")).await.unwrap();
    let client = Client::new(&mrc).await;
    let osds = Osds::start(&mrc);
    faulty.arm(Some(Fault {
        at: 0,
        count: u64::MAX,
        kind: std::io::ErrorKind::StorageFull,
        changes_only: true,
    }));
    tokio::time::sleep(Duration::from_secs(120)).await;
    let tries = faulty.changes();
    assert!((1..1000).contains(&tries), "{tries}");
    faulty.arm(None);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let ended = client.lookup("file").await.unwrap_err();
    assert_eq!(ended.code, Code::SessionExpired);
    drop(osds);
    mrc.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_folder_of_another_mrc_is_refused() {
    let fs = MemoryFs::new();
    drop(with_volume(&fs).await);
    let other = xtfs_protocol::ids::ServiceId([0xdd; 16]);
    let env = xtfs_protocol::env::Env::simulated(1);
    let mut options = xtfs_mrc::MrcOptions::new("/mrc", other, env);
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    options.kv = babu_kv::Options::simulated(shared);
    let refused = xtfs_mrc::Mrc::open(options).err().unwrap();
    assert_eq!(refused.code, Code::Invalid);
    assert!(refused.context.contains(&MRC.to_string()), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_damaged_volume_is_named_and_the_others_are_served() {
    let fs = MemoryFs::new();
    let mrc = with_volume(&fs).await;
    let client = Client::new(&mrc).await;
    for number in 0..20 {
        client.create(&format!("file{number}")).await;
    }
    let MetaReply::Volumes(volumes) = ask(&mrc, MetaOp::ListVolumes).await.unwrap() else {
        panic!("no volumes");
    };
    ask(&mrc, create_volume("other")).await.unwrap();
    mrc.shutdown().await.unwrap();
    drop((client, mrc));
    let folder = Path::new("/mrc/volumes").join(volumes[0].id.to_string());
    for name in fs.list(&folder).unwrap() {
        let path = folder.join(name);
        let middle = fs.file_len(&path).unwrap() / 2;
        if middle > 0 {
            fs.corrupt(&path, middle as usize, 0x10).unwrap();
        }
    }

    let mrc = open(&fs);
    let session = |volume: &str| MetaOp::OpenSession {
        volume: volume.into(),
        client: String::new(),
        resume: None,
        open_files: vec![],
    };
    ask(&mrc, session("other")).await.unwrap();
    // Nobody may take its objects for orphans, and nobody its name.
    for op in [session("home"), MetaOp::ListVolumes] {
        let refused = ask(&mrc, op).await.unwrap_err();
        assert_eq!(refused.code, Code::Corrupt);
        assert!(refused.context.contains("volume home"), "{refused}");
    }
    let refused = ask(&mrc, create_volume("home")).await.unwrap_err();
    assert_eq!(refused.code, Code::Exists);
}
