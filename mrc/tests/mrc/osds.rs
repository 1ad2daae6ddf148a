//! OSDs that only take note of what is deleted on them, and fail when told to.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Notify;
use xtfs_mrc::Mrc;
use xtfs_protocol::ids::{FileId, ServiceId};
use xtfs_protocol::object::{ObjectOp, ObjectReply};
use xtfs_protocol::transport::{LocalConnector, Origin, Peer, Service};
use xtfs_protocol::{Answer, Call, Code, Error, Reply, Request};

use crate::support::{MRC, osd};

#[derive(Default)]
struct State {
    /// Calls that still fail.
    failures: u32,
    calls: u32,
    deleted: BTreeSet<FileId>,
}

/// One OSD.
#[derive(Default)]
pub struct Osd {
    state: Mutex<State>,
    changed: Notify,
}

#[async_trait]
impl Service for Osd {
    async fn call(&self, origin: Origin, call: Call) -> Answer {
        assert_eq!(origin.peer, Peer::Service(MRC));
        let reply = match call.request {
            Request::Object(ObjectOp::Delete { file }) => self.delete(file),
            other => panic!("{other:?}"),
        };
        self.changed.notify_waiters();
        Answer::new(reply)
    }
}

impl Osd {
    fn delete(&self, file: FileId) -> xtfs_protocol::Result<Reply> {
        let mut state = self.state.lock();
        state.calls += 1;
        if state.failures > 0 {
            state.failures -= 1;
            return Err(Error::retryable(Code::Unreachable, "made to fail", 10));
        }
        state.deleted.insert(file);
        Ok(Reply::Object(ObjectReply::Done))
    }

    pub fn fail(&self, failures: u32) {
        self.state.lock().failures = failures;
    }

    pub fn has_deleted(&self, file: FileId) -> bool {
        self.state.lock().deleted.contains(&file)
    }

    pub fn calls(&self) -> u32 {
        self.state.lock().calls
    }

    /// Waits until the content is deleted here.
    pub async fn deletion(&self, file: FileId) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.has_deleted(file) {
                return;
            }
            changed.await;
        }
    }
}

/// Three OSDs, as the MRC reaches them.
pub struct Osds {
    osds: Vec<Arc<Osd>>,
}

impl Osds {
    /// Starts the MRC's background work on three OSDs.
    pub fn start(mrc: &Mrc) -> Self {
        let connector = LocalConnector::new(Peer::Service(MRC));
        let osds: Vec<_> = (1..=3).map(|_| Arc::new(Osd::default())).collect();
        for (number, service) in (1..).zip(&osds) {
            connector.add_osd(osd(number), service.clone());
        }
        mrc.start(Arc::new(connector));
        Self { osds }
    }

    pub fn get(&self, id: ServiceId) -> &Osd {
        &self.osds[usize::from(id.0[0]) - 1]
    }

    /// Waits until the content is deleted on all of these.
    pub async fn deletion(&self, file: FileId, osds: &[ServiceId]) {
        for id in osds {
            self.get(*id).deletion(file).await;
        }
    }
}
