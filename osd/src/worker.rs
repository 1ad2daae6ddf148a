//! The work in the background: checkpoints, space, tombstones.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use xtfs_protocol::env::Env;

use crate::store::Store;

/// Time after which recent changes reach the index also when there are few.
const IDLE: Duration = Duration::from_secs(5);

/// Time in which changes gather before a pass.
const GATHER: Duration = Duration::from_millis(200);

/// How long a deleted file is remembered: longer than any capability is valid.
const TOMBSTONE_SECS: i64 = 3600;

/// Runs until `stop` becomes true.
pub(crate) async fn run(store: Arc<Store>, env: Env, mut stop: watch::Receiver<bool>) {
    loop {
        let due = async {
            tokio::select! {
                () = store.work() => if !store.wants_checkpoint() { tokio::time::sleep(GATHER).await },
                () = tokio::time::sleep(IDLE) => {}
            }
        };
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            () = due => {}
        }
        let (work, now) = (store.clone(), env.now().secs);
        if env.blocking(move || pass(&work, now)).await.is_none() {
            tracing::error!("a pass of the background work ended without an answer");
        }
    }
}

/// One pass. What fails is tried again by the next.
fn pass(store: &Store, now_secs: i64) {
    let reclaim = store.wants_reclaim();
    let outcome = if reclaim {
        store.reclaim()
    } else {
        store.checkpoint()
    };
    let outcome = outcome.and_then(|()| store.forget_deleted(now_secs - TOMBSTONE_SECS));
    if let Err(error) = outcome {
        tracing::warn!(%error, "background work of the store failed; trying again later");
    }
}
