//! Recalls: a client hears of what another one changes.

use std::sync::Arc;

use async_trait::async_trait;
use babu_kv::fs::MemoryFs;
use tokio::sync::mpsc;
use xtfs_protocol::meta::{MetaOp, Push, SetAttr};
use xtfs_protocol::transport::Pusher;
use xtfs_protocol::{Code, Result};

use crate::osds::Osds;
use crate::support::{Client, with_volume};

struct Inbox(mpsc::UnboundedSender<Push>);

#[async_trait]
impl Pusher for Inbox {
    async fn push(&self, push: Push) -> Result<()> {
        self.0.send(push).map_err(|_| Code::Unreachable.into())
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_recalls_the_leases_of_the_others_and_not_ones_own() {
    let mrc = with_volume(&MemoryFs::new()).await;
    let _osds = Osds::start(&mrc);
    let inbox = || {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Arc::new(Inbox(sender)), receiver)
    };
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
    assert!(inbox_one.try_recv().is_err() && inbox_two.try_recv().is_err());
    mrc.shutdown().await.unwrap();
}
