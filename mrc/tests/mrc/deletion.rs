//! Content that lost its file goes from the OSDs, whatever fails in between.

use std::path::Path;
use std::time::Duration;

use babu_kv::fs::{Fs, MemoryFs};
use xtfs_protocol::Code;
use xtfs_protocol::meta::{MetaOp, MetaReply, Opened};

use crate::osds::Osds;
use crate::support::{Client, ask, create_volume, error, open, with_volume};

/// A file that was written, closed and unlinked.
async fn unlinked(client: &Client, name: &str) -> Opened {
    let made = client.create(name).await;
    let ino = made.entry.attr.ino;
    client.send(MetaOp::Release { ino }).await.unwrap();
    client.unlink(name).await.unwrap();
    made
}

#[tokio::test(start_paused = true)]
async fn unlinked_content_is_deleted_on_every_osd_of_its_placement() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let osds = Osds::start(&mrc);
    let client = Client::new(&mrc).await;
    let made = unlinked(&client, "file").await;
    osds.deletion(made.capability.file, &made.placement.osds)
        .await;
    mrc.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_osd_that_fails_is_asked_again_with_growing_pauses_and_holds_up_nobody() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let osds = Osds::start(&mrc);
    let client = Client::new(&mrc).await;
    let made = client.create("file").await;
    let (bad, good) = (made.placement.osds[0], made.placement.osds[1]);
    osds.get(bad).fail(6);
    let ino = made.entry.attr.ino;
    client.send(MetaOp::Release { ino }).await.unwrap();
    client.unlink("file").await.unwrap();
    osds.get(good).deletion(made.capability.file).await;
    assert!(!osds.get(bad).has_deleted(made.capability.file));
    osds.get(bad).deletion(made.capability.file).await;
    assert_eq!(osds.get(bad).calls(), 7);
    mrc.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_queue_outlives_a_restart() {
    let fs = MemoryFs::new();
    let mrc = with_volume(&fs).await;
    let client = Client::new(&mrc).await;
    // Nobody works the queue off here.
    let mut made = vec![];
    for number in 0..600 {
        made.push(unlinked(&client, &format!("file{number}")).await);
    }
    drop((client, mrc));
    let mrc = open(&fs);
    let osds = Osds::start(&mrc);
    for made in &made {
        osds.deletion(made.capability.file, &made.placement.osds)
            .await;
    }
    // What is done is done once.
    let calls = |osds: &Osds| {
        (1..=3)
            .map(|n| osds.get(crate::support::osd(n)).calls())
            .sum()
    };
    let before: u32 = calls(&osds);
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(calls(&osds), before);
    mrc.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_deleted_volume_takes_its_content_along_even_over_a_restart() {
    let fs = MemoryFs::new();
    let mrc = with_volume(&fs).await;
    let client = Client::new(&mrc).await;
    let mut made = vec![];
    for number in 0..300 {
        made.push(client.create(&format!("file{number}")).await);
    }
    made.push(unlinked(&client, "gone").await);
    let delete = MetaOp::DeleteVolume {
        name: "home".into(),
    };
    ask(&mrc, delete.clone()).await.unwrap();
    assert_eq!(
        client.lookup("file0").await.unwrap_err().code,
        Code::SessionExpired
    );
    assert_eq!(error(ask(&mrc, delete).await).code, Code::NotFound);
    let volumes = ask(&mrc, MetaOp::ListVolumes).await.unwrap();
    assert_eq!(volumes, MetaReply::Volumes(vec![]));
    drop((client, mrc));

    let mrc = open(&fs);
    let osds = Osds::start(&mrc);
    osds.get(made[0].placement.osds[0]).fail(3);
    for made in &made {
        osds.deletion(made.capability.file, &made.placement.osds)
            .await;
    }
    while !fs.list(Path::new("/mrc/volumes")).unwrap().is_empty() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    mrc.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn all_files_are_listed_page_by_page() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let client = Client::new(&mrc).await;
    let mut expected = vec![];
    for number in 0..10 {
        let made = client.create(&format!("file{number}")).await;
        expected.push((made.entry.attr.ino, made.capability.file.data));
    }
    let MetaReply::Volumes(volumes) = ask(&mrc, MetaOp::ListVolumes).await.unwrap() else {
        panic!("no volumes");
    };
    let mut found = vec![];
    let mut after = 0;
    loop {
        let op = MetaOp::ListFiles {
            volume: volumes[0].id,
            after,
            limit: 4,
        };
        let MetaReply::Files { files, end } = ask(&mrc, op).await.unwrap() else {
            panic!("no files");
        };
        found.extend(files.iter().map(|file| (file.ino, file.data)));
        after = files.last().map_or(after, |file| file.ino);
        if end {
            break;
        }
    }
    assert_eq!(found, expected);
}

#[tokio::test(start_paused = true)]
async fn the_name_of_a_deleted_volume_is_free_while_its_osds_are_away() {
    let fs = MemoryFs::new();
    let mrc = with_volume(&fs).await;
    let client = Client::new(&mrc).await;
    let old = client.create("old").await;
    let delete = MetaOp::DeleteVolume {
        name: "home".into(),
    };
    for _ in 0..2 {
        ask(&mrc, delete.clone()).await.unwrap();
        ask(&mrc, create_volume("home")).await.unwrap();
    }
    drop((client, mrc));
    let mrc = open(&fs);
    let client = Client::new(&mrc).await;
    assert_eq!(
        error(client.lookup("old").await.map(|_| MetaReply::Done)).code,
        Code::NotFound
    );
    let new = client.create("new").await;
    let osds = Osds::start(&mrc);
    osds.deletion(old.capability.file, &old.placement.osds)
        .await;
    while fs.list(Path::new("/mrc/volumes")).unwrap().len() > 1 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    client.lookup("new").await.unwrap();
    assert!(
        !osds
            .get(new.placement.osds[0])
            .has_deleted(new.capability.file)
    );
    mrc.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_osd_that_has_deleted_is_not_asked_again_because_another_fails() {
    let fs = MemoryFs::new();
    let mrc = with_volume(&fs).await;
    let client = Client::new(&mrc).await;
    let osds = Osds::start(&mrc);
    let queued = client.create("queued").await;
    let kept = client.create("kept").await;
    let bad = queued.placement.osds[0];
    osds.get(bad).fail(20);
    let ino = queued.entry.attr.ino;
    client.send(MetaOp::Release { ino }).await.unwrap();
    client.unlink("queued").await.unwrap();
    osds.get(queued.placement.osds[1])
        .deletion(queued.capability.file)
        .await;
    let delete = MetaOp::DeleteVolume {
        name: "home".into(),
    };
    ask(&mrc, delete).await.unwrap();
    for made in [&queued, &kept] {
        osds.deletion(made.capability.file, &made.placement.osds)
            .await;
    }
    while !fs.list(Path::new("/mrc/volumes")).unwrap().is_empty() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    for number in 1..=3 {
        let id = crate::support::osd(number);
        let files = [&queued, &kept];
        let own = files
            .iter()
            .filter(|made| made.placement.osds.contains(&id));
        if id != bad {
            assert_eq!(osds.get(id).calls(), own.count() as u32, "{id}");
        }
    }
    mrc.shutdown().await.unwrap();
}
