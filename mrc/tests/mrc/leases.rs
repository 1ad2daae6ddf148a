//! Recalls: a client hears of what another one changes.

use babu_kv::fs::MemoryFs;
use xtfs_protocol::meta::{MetaOp, Push, SetAttr};

use crate::osds::Osds;
use crate::support::{Client, inbox, with_volume};

#[tokio::test(start_paused = true)]
async fn a_change_recalls_the_leases_of_the_others_and_not_ones_own() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let _osds = Osds::start(&mrc);
    let (mut one, mut two) = (Client::new(&mrc).await, Client::new(&mrc).await);
    let (pusher_one, mut inbox_one) = inbox();
    let (pusher_two, mut inbox_two) = inbox();
    one.origin.pusher = Some(pusher_one);
    two.origin.pusher = Some(pusher_two);
    let file = one.create("file").await.entry.attr.ino;
    two.lookup("file").await.unwrap();

    let chmod = MetaOp::Setattr {
        ino: file,
        set: SetAttr {
            mode: Some(0o600),
            ..SetAttr::default()
        },
        by_handle: false,
    };
    one.send(chmod.clone()).await.unwrap();
    let Some(Push::Recall { ino, .. }) = inbox_two.recv().await else {
        panic!("no recall");
    };
    assert_eq!(ino, file);
    // The other's lease ended with the recall; the first one's own runs.
    one.send(chmod.clone()).await.unwrap();
    two.send(chmod).await.unwrap();
    let Some(Push::Recall { ino, .. }) = inbox_one.recv().await else {
        panic!("no recall");
    };
    assert_eq!(ino, file);
    // Who has the file open and did not answer is told again.
    while let Ok(Push::Recall { ino, .. }) = inbox_one.try_recv() {
        assert_eq!(ino, file);
    }
    assert!(inbox_two.try_recv().is_err());
    mrc.shutdown().await.unwrap();
}
