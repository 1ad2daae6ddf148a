//! Tasks that somebody owns: every one is counted, and awaited or ended at shutdown.

use std::future::Future;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// A set of running tasks.
pub(crate) struct Tasks {
    runtime: Handle,
    set: Mutex<JoinSet<()>>,
}

impl Tasks {
    pub(crate) fn new(runtime: Handle) -> Self {
        Self {
            runtime,
            set: Mutex::new(JoinSet::new()),
        }
    }

    /// Starts a task. The caller bounds how many there are.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut set = self.set.lock();
        while set.try_join_next().is_some() {}
        set.spawn_on(task, &self.runtime);
    }

    /// Waits for every task, at most for `limit`; then ends those that are left.
    pub(crate) async fn finish(&self, limit: Duration) {
        let mut set = std::mem::take(&mut *self.set.lock());
        let all = async { while set.join_next().await.is_some() {} };
        if tokio::time::timeout(limit, all).await.is_err() {
            tracing::warn!(left = set.len(), "tasks did not end in time");
            set.shutdown().await;
        }
    }
}
