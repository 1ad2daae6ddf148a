//! Faults on purpose: wraps any [`Connector`] and delays, loses and repeats its calls, or cuts a
//! peer off. What happens is drawn from the surroundings' random numbers and waits on tokio's
//! time, so a seeded [`Env`] under virtual time gives the same faults for the same seed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::{Connection, Connector, PushHandler};
use crate::env::Env;
use crate::error::Result;
use crate::ids::ServiceId;
use crate::message::{Answer, Call};
use crate::meta::Push;

/// How often a fault strikes, in thousandths of all calls. The default is no fault at all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Each call is held up by a random time up to this; calls overtake each other.
    pub delay_max: Duration,
    /// The request does not arrive.
    pub lost_request_permille: u32,
    /// The request takes effect, its answer does not come back.
    pub lost_reply_permille: u32,
    /// The request arrives twice; the first answer counts.
    pub duplicate_permille: u32,
}

/// A peer, as a client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// The MRC.
    Mrc,
    /// An OSD.
    Osd(ServiceId),
}

/// The switches, shared by a [`FaultyConnector`] and its connections.
pub struct Faults {
    env: Env,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    plan: FaultPlan,
    cut_off: BTreeSet<Target>,
}

/// What happens to one call.
struct Fate {
    delay: Duration,
    lost_request: bool,
    lost_reply: bool,
    duplicate: bool,
}

impl Faults {
    /// Replaces the plan; calls that began before keep their fate.
    pub fn set_plan(&self, plan: FaultPlan) {
        self.state.lock().plan = plan;
    }

    /// Cuts a peer off: neither calls nor answers nor pushes pass until it is joined again.
    pub fn cut_off(&self, target: Target) {
        self.state.lock().cut_off.insert(target);
    }

    /// Ends a partition.
    pub fn join(&self, target: Target) {
        self.state.lock().cut_off.remove(&target);
    }

    /// Is the peer cut off?
    #[must_use]
    pub fn is_cut_off(&self, target: Target) -> bool {
        self.state.lock().cut_off.contains(&target)
    }

    /// Always draws the same count of numbers, so that a changed plan does not shift later fates.
    fn draw(&self) -> Fate {
        let plan = self.state.lock().plan;
        let strikes = |permille: u32| self.env.random_u64() % 1000 < u64::from(permille);
        let lost_request = strikes(plan.lost_request_permille);
        let lost_reply = strikes(plan.lost_reply_permille);
        let duplicate = strikes(plan.duplicate_permille);
        let delay_max = u64::try_from(plan.delay_max.as_micros()).unwrap_or(u64::MAX);
        let delay = self.env.random_u64() % delay_max.saturating_add(1).max(1);
        Fate {
            delay: Duration::from_micros(delay),
            lost_request,
            lost_reply,
            duplicate,
        }
    }
}

/// A [`Connector`] with faults.
pub struct FaultyConnector {
    inner: Arc<dyn Connector>,
    faults: Arc<Faults>,
}

impl FaultyConnector {
    /// Wraps a connector; without a plan every call passes untouched.
    #[must_use]
    pub fn new(inner: Arc<dyn Connector>, env: Env) -> Self {
        let faults = Arc::new(Faults {
            env,
            state: Mutex::default(),
        });
        Self { inner, faults }
    }

    /// The switches.
    #[must_use]
    pub fn faults(&self) -> Arc<Faults> {
        self.faults.clone()
    }

    fn wrap(&self, inner: Arc<dyn Connection>, target: Target) -> Arc<dyn Connection> {
        Arc::new(FaultyConnection {
            inner,
            target,
            faults: self.faults.clone(),
        })
    }
}

#[async_trait]
impl Connector for FaultyConnector {
    fn mrc(&self) -> Arc<dyn Connection> {
        self.wrap(self.inner.mrc(), Target::Mrc)
    }

    async fn osd(&self, id: ServiceId) -> Result<Arc<dyn Connection>> {
        Ok(self.wrap(self.inner.osd(id).await?, Target::Osd(id)))
    }

    fn set_push_handler(&self, handler: Arc<dyn PushHandler>) {
        self.inner.set_push_handler(Arc::new(FaultyPushHandler {
            inner: handler,
            faults: self.faults.clone(),
        }));
    }
}

/// A [`Connection`] with faults.
struct FaultyConnection {
    inner: Arc<dyn Connection>,
    target: Target,
    faults: Arc<Faults>,
}

impl FaultyConnection {
    async fn pass(&self, call: Call) -> Option<Answer> {
        let fate = self.faults.draw();
        if !fate.delay.is_zero() {
            tokio::time::sleep(fate.delay).await;
        }
        if fate.lost_request || self.faults.is_cut_off(self.target) {
            return None;
        }
        let again = fate.duplicate.then(|| call.clone());
        let answer = self.inner.call(call).await;
        if let Some(again) = again {
            self.inner.call(again).await;
        }
        let lost = fate.lost_reply || self.faults.is_cut_off(self.target);
        (!lost).then_some(answer)
    }
}

#[async_trait]
impl Connection for FaultyConnection {
    async fn call(&self, call: Call) -> Answer {
        let deadline_ms = call.header.deadline_ms;
        let limit = Duration::from_millis(u64::from(deadline_ms));
        let answered = tokio::time::timeout(limit, async {
            match self.pass(call).await {
                Some(answer) => answer,
                None => std::future::pending().await,
            }
        });
        answered
            .await
            .unwrap_or_else(|_| Answer::new(Err(super::timed_out(deadline_ms))))
    }
}

struct FaultyPushHandler {
    inner: Arc<dyn PushHandler>,
    faults: Arc<Faults>,
}

#[async_trait]
impl PushHandler for FaultyPushHandler {
    async fn handle(&self, push: Push) {
        if !self.faults.is_cut_off(Target::Mrc) {
            self.inner.handle(push).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::{DirectoryOp, DirectoryReply};
    use crate::error::Code;
    use crate::message::{Reply, Request};
    use crate::transport::{LocalConnector, Origin, Peer, Service};
    use std::sync::atomic::{AtomicU32, Ordering};

    #[derive(Default)]
    struct Counter(AtomicU32);

    #[async_trait]
    impl Service for Counter {
        async fn call(&self, _: Origin, _: Call) -> Answer {
            self.0.fetch_add(1, Ordering::Relaxed);
            Answer::new(Ok(Reply::Directory(DirectoryReply::Services(Vec::new()))))
        }
    }

    fn faulty(seed: u64) -> (Arc<Counter>, FaultyConnector) {
        let counter = Arc::new(Counter::default());
        let local = LocalConnector::new(Peer::Host("here".into()));
        local.set_mrc(counter.clone());
        let connector = FaultyConnector::new(Arc::new(local), Env::simulated(seed));
        (counter, connector)
    }

    async fn call(connector: &FaultyConnector) -> std::result::Result<(), Code> {
        let call = Call::new(Request::Directory(DirectoryOp::List), 100);
        let answer = connector.mrc().call(call).await;
        answer.reply.map(drop).map_err(|error| error.code)
    }

    async fn under(plan: FaultPlan) -> (std::result::Result<(), Code>, u32) {
        let (counter, connector) = faulty(1);
        connector.faults().set_plan(plan);
        let outcome = call(&connector).await;
        (outcome, counter.0.load(Ordering::Relaxed))
    }

    #[tokio::test(start_paused = true)]
    async fn each_fault_has_its_effect() {
        let none = FaultPlan::default();
        assert_eq!(under(none).await, (Ok(()), 1));
        let lost_request = FaultPlan {
            lost_request_permille: 1000,
            ..none
        };
        assert_eq!(under(lost_request).await, (Err(Code::TimedOut), 0));
        let lost_reply = FaultPlan {
            lost_reply_permille: 1000,
            ..none
        };
        assert_eq!(under(lost_reply).await, (Err(Code::TimedOut), 1));
        let duplicate = FaultPlan {
            duplicate_permille: 1000,
            ..none
        };
        assert_eq!(under(duplicate).await, (Ok(()), 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_was_cut_off_answers_when_joined_again() {
        let (counter, connector) = faulty(1);
        connector.faults().cut_off(Target::Mrc);
        assert_eq!(call(&connector).await, Err(Code::TimedOut));
        connector.faults().join(Target::Mrc);
        assert_eq!(call(&connector).await, Ok(()));
        assert_eq!(counter.0.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_seed_brings_the_same_faults() {
        let mut runs = Vec::new();
        for seed in [3, 3, 4] {
            let (_, connector) = faulty(seed);
            connector.faults().set_plan(FaultPlan {
                delay_max: Duration::from_millis(30),
                lost_request_permille: 200,
                lost_reply_permille: 200,
                duplicate_permille: 200,
            });
            let start = tokio::time::Instant::now();
            let mut trace = Vec::new();
            for _ in 0..50 {
                trace.push((call(&connector).await, start.elapsed()));
            }
            runs.push(trace);
        }
        assert_eq!(runs[0], runs[1]);
        assert_ne!(runs[0], runs[2]);
    }
}
