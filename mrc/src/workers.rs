//! What runs beside the calls: deletions, the end of sessions, and recalls. Three tasks, owned
//! here, woken by notification, ended by [`Workers::stop`].

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use xtfs_protocol::transport::Connector;

use crate::deletion::Deletion;
use crate::server::{Recall, Shared};

/// How long one recall may take to be sent, and how many are being sent at once.
const RECALL_TIME: Duration = Duration::from_secs(1);
const RECALLS_AT_ONCE: usize = 64;
/// Pause after housekeeping failed.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// Shortest pause between two looks at deadlines.
const DEADLINE_PAUSE: Duration = Duration::from_millis(1);
/// How long the tasks may take to end before they are cut off.
const STOP_TIME: Duration = Duration::from_secs(10);

/// The background tasks, before, while and after they run.
pub(crate) struct Workers {
    recalled: Option<mpsc::Receiver<Recall>>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Workers {
    pub fn idle(recalled: mpsc::Receiver<Recall>) -> Self {
        Self {
            recalled: Some(recalled),
            stop: watch::Sender::new(false),
            tasks: JoinSet::new(),
        }
    }

    /// Starts the tasks; does nothing the second time.
    pub fn start(&mut self, shared: &Arc<Shared>, connector: Arc<dyn Connector>) {
        let Some(recalled) = self.recalled.take() else {
            return;
        };
        let deletion = Deletion::new(shared.clone(), connector);
        self.tasks.spawn(until(
            self.stop.subscribe(),
            async move { deletion.run().await },
        ));
        self.tasks.spawn(until(
            self.stop.subscribe(),
            expire_sessions(shared.clone()),
        ));
        self.tasks
            .spawn(until(self.stop.subscribe(), send_recalls(recalled)));
    }

    /// Tells the tasks to end. The future is ready when they have.
    pub fn stop(&mut self) -> impl Future<Output = ()> + Send + use<> {
        self.stop.send_replace(true);
        let mut tasks = std::mem::take(&mut self.tasks);
        async move {
            if tasks.is_empty() {
                return;
            }
            let joined = timeout(STOP_TIME, async {
                while tasks.join_next().await.is_some() {}
            });
            if joined.await.is_err() {
                tracing::warn!("background work of the MRC did not end in time and was cut off");
                tasks.shutdown().await;
            }
        }
    }
}

/// Runs a task until it ends or is told to stop, at the next point where it waits.
async fn until(mut stop: watch::Receiver<bool>, task: impl Future<Output = ()>) {
    tokio::select! {
        _ = stop.wait_for(|stop| *stop) => {}
        () = task => {}
    }
}

/// Ends sessions whose time ran out, and reclaims what nobody has open any more.
async fn expire_sessions(shared: Arc<Shared>) {
    loop {
        let mut next: Option<Instant> = None;
        let mut sooner = |at: Instant| next = Some(next.map_or(at, |next| next.min(at)));
        for volume in shared.catalog.active() {
            let mut failed = false;
            for session in volume.overdue_sessions() {
                match volume.end_overdue_session(session) {
                    Ok(false) => {}
                    Ok(true) => {
                        tracing::info!(%session, volume = volume.record.name, "session ran out");
                        shared.catalog.remove_session(session);
                        shared.tell_given_locks(&volume);
                    }
                    Err(error) => {
                        tracing::warn!(%session, %error, "session could not be ended");
                        sooner(Instant::now() + RETRY_PAUSE);
                        failed = true;
                        break;
                    }
                }
            }
            volume.end_lingering();
            if volume.sweep_is_due() {
                match volume.sweep_orphans(shared.env.now()) {
                    Ok(true) => shared.deletions.notify_one(),
                    Ok(false) => {}
                    Err(error) => {
                        tracing::warn!(%error, "unlinked files could not be reclaimed");
                        sooner(Instant::now() + RETRY_PAUSE);
                    }
                }
            }
            if let Some(deadline) = volume.next_session_deadline() {
                // What failed is overdue still: it must not be tried without a pause.
                let pause = if failed { RETRY_PAUSE } else { DEADLINE_PAUSE };
                sooner(deadline.max(Instant::now() + pause));
            }
        }
        match next {
            None => shared.sessions.notified().await,
            Some(at) => {
                tokio::select! {
                    () = shared.sessions.notified() => {}
                    () = sleep_until(at) => {}
                }
            }
        }
    }
}

/// Sends recalls, several at once; one that hangs holds up nobody for long.
async fn send_recalls(mut recalled: mpsc::Receiver<Recall>) {
    let mut sending = JoinSet::new();
    while let Some(Recall { pusher, push }) = recalled.recv().await {
        while sending.len() >= RECALLS_AT_ONCE {
            sending.join_next().await;
        }
        while sending.try_join_next().is_some() {}
        sending.spawn(async move {
            // Nothing depends on its arrival: the lease ends with its time.
            let _ = timeout(RECALL_TIME, pusher.push(push)).await;
        });
    }
}
