//! Keeps a session alive while the client runs.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use xtfs_protocol::meta::{Caller, MetaOp};

use super::Session;

/// Renews three times in the life of a session until told to stop.
pub(crate) async fn keep_alive(session: Arc<Session>, mut stop: watch::Receiver<bool>) {
    loop {
        let pause = (session.current().duration / 3).max(Duration::from_millis(50));
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(pause) => {}
        }
        let caller = Caller::root();
        let renewal = session.meta(&caller, MetaOp::RenewSession);
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            result = renewal => if let Err(error) = result {
                tracing::warn!(%error, "the session could not be renewed");
            }
        }
    }
}
