//! Tells the directory that this OSD is there, and learns the keys of capabilities.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::watch;
use xtfs_protocol::directory::{DirectoryOp, DirectoryReply, ServiceKind};
use xtfs_protocol::ids::ServiceId;
use xtfs_protocol::transport::Connector;
use xtfs_protocol::{Call, Code, Error, KeyRing, Reply, Request, Result};

use crate::store::Store;

/// Longest wait for the answer to one heartbeat.
const DEADLINE_MS: u32 = 5_000;

/// Pause after a heartbeat that failed.
const RETRY: Duration = Duration::from_millis(500);

/// Bounds of the interval that the directory asks for.
const INTERVAL_MS: std::ops::RangeInclusive<u32> = 50..=60_000;

/// The loop and what it needs.
pub(crate) struct Heartbeat {
    pub id: ServiceId,
    pub incarnation: u64,
    pub addresses: Vec<String>,
    pub connector: Arc<dyn Connector>,
    pub store: Arc<Store>,
    pub keys: Arc<RwLock<KeyRing>>,
    pub registered: watch::Sender<bool>,
}

impl Heartbeat {
    /// Runs until `stop` becomes true.
    pub(crate) async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut failing = false;
        loop {
            let beat = async {
                let pause = match self.beat().await {
                    Ok(interval) => {
                        failing = false;
                        self.registered.send_replace(true);
                        interval
                    }
                    Err(error) => {
                        if !failing {
                            tracing::warn!(osd = %self.id, %error, "heartbeat failed; trying on");
                        }
                        failing = true;
                        RETRY
                    }
                };
                tokio::time::sleep(pause).await;
            };
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                () = beat => {}
            }
        }
    }

    /// One heartbeat; returns the time to the next.
    async fn beat(&self) -> Result<Duration> {
        let op = DirectoryOp::Heartbeat {
            id: self.id,
            incarnation: self.incarnation,
            kind: ServiceKind::Osd,
            addresses: self.addresses.clone(),
            space: self.store.space()?,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let call = Call::new(Request::Directory(op), DEADLINE_MS);
        let limit = Duration::from_millis(DEADLINE_MS.into()) + RETRY;
        let mrc = self.connector.mrc();
        let answer = tokio::time::timeout(limit, mrc.call(call))
            .await
            .map_err(|_| Error::retryable(Code::TimedOut, "heartbeat", 500))?;
        match answer.reply? {
            Reply::Directory(DirectoryReply::Registered {
                interval_ms,
                capability_keys,
            }) => {
                *self.keys.write() = KeyRing::from_keys(capability_keys);
                let interval = interval_ms.clamp(*INTERVAL_MS.start(), *INTERVAL_MS.end());
                Ok(Duration::from_millis(interval.into()))
            }
            other => Err(Error::new(
                Code::Protocol,
                format!("a heartbeat was answered with {other:?}"),
            )),
        }
    }
}
