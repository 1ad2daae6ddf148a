//! The work in the background: checkpoints, space, tombstones.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use xtfs_protocol::env::Env;

use crate::store::Store;

/// Time after which recent changes reach the index also when there are few.
const IDLE: Duration = Duration::from_secs(5);

/// Time in which deletions gather before a pass.
const GATHER: Duration = Duration::from_millis(200);

/// How long a deleted file is remembered: longer than any capability is valid.
const TOMBSTONE_SECS: i64 = 3600;

/// Why a pass is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// Something asked for it.
    Asked,
    /// It is time.
    Time,
}

/// Runs until `stop` becomes true.
pub(crate) async fn run(store: Arc<Store>, env: Env, mut stop: watch::Receiver<bool>) {
    let mut ticks = tokio::time::interval(IDLE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        let due = async {
            tokio::select! {
                () = store.work() => {
                    if !store.wants_checkpoint() {
                        tokio::time::sleep(GATHER).await;
                    }
                    Cause::Asked
                }
                _ = ticks.tick() => Cause::Time,
            }
        };
        let cause = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            cause = due => cause,
        };
        let (work, now) = (store.clone(), env.now().secs);
        if env
            .blocking(move || pass(&work, cause, now))
            .await
            .is_none()
        {
            tracing::error!("a pass of the background work ended without an answer");
        }
    }
}

/// One pass. What fails is tried again by the next.
fn pass(store: &Store, cause: Cause, now_secs: i64) {
    let outcome = if store.wants_reclaim() {
        store.reclaim()
    } else if cause == Cause::Time || store.wants_checkpoint() {
        store.checkpoint()
    } else {
        Ok(())
    };
    let outcome = outcome.and_then(|()| match cause {
        Cause::Asked => Ok(()),
        Cause::Time => store.forget_deleted(now_secs.saturating_sub(TOMBSTONE_SECS)),
    });
    if let Err(error) = outcome {
        tracing::warn!(%error, "background work of the store failed; trying again later");
    }
}
