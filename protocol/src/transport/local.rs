//! Calls within one process: a call is handed to its service as a value and runs on the caller's
//! thread. Nothing is serialised, no task and no channel lies between.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::RwLock;

use super::{Connection, Connector, Origin, Peer, PushHandler, Pusher, Service};
use crate::error::{Code, Error, Result};
use crate::ids::ServiceId;
use crate::message::{Answer, Call};
use crate::meta::Push;

/// Reaches the services of its own process. One for each client, as each has its own peer
/// identity and push handler; they may share the services.
///
/// Services hold their way back to the client weakly, so a client that is dropped does not live
/// on in a service. A push handler should in turn hold its client weakly.
pub struct LocalConnector {
    shared: Arc<Shared>,
    mrc: Arc<LocalConnection>,
}

struct Shared {
    origin: Origin,
    services: RwLock<Services>,
    handler: Arc<HandlerSlot>,
}

#[derive(Default)]
struct Services {
    mrc: Option<Arc<dyn Service>>,
    osds: BTreeMap<ServiceId, Arc<dyn Service>>,
}

#[derive(Default)]
struct HandlerSlot(RwLock<Option<Arc<dyn PushHandler>>>);

impl LocalConnector {
    /// A connector whose calls come from `peer`, without services yet.
    #[must_use]
    pub fn new(peer: Peer) -> Self {
        let handler = Arc::new(HandlerSlot::default());
        let origin = Origin {
            peer,
            pusher: Some(Arc::new(LocalPusher(Arc::downgrade(&handler)))),
        };
        let shared = Arc::new(Shared {
            origin,
            services: RwLock::default(),
            handler,
        });
        let mrc = Arc::new(LocalConnection {
            shared: shared.clone(),
            target: Target::Mrc,
        });
        Self { shared, mrc }
    }

    /// Says which MRC takes the calls from now on, also those of connections made before.
    pub fn set_mrc(&self, service: Arc<dyn Service>) {
        self.shared.services.write().mrc = Some(service);
    }

    /// Adds or replaces an OSD.
    pub fn add_osd(&self, id: ServiceId, service: Arc<dyn Service>) {
        self.shared.services.write().osds.insert(id, service);
    }

    /// Removes an OSD; calls on its connections fail from now on.
    pub fn remove_osd(&self, id: ServiceId) {
        self.shared.services.write().osds.remove(&id);
    }
}

#[async_trait]
impl Connector for LocalConnector {
    fn mrc(&self) -> Arc<dyn Connection> {
        self.mrc.clone()
    }

    async fn osd(&self, id: ServiceId) -> Result<Arc<dyn Connection>> {
        let connection = LocalConnection {
            shared: self.shared.clone(),
            target: Target::Osd(id),
        };
        connection.service()?;
        Ok(Arc::new(connection))
    }

    fn set_push_handler(&self, handler: Arc<dyn PushHandler>) {
        *self.shared.handler.0.write() = Some(handler);
    }
}

#[derive(Clone, Copy)]
enum Target {
    Mrc,
    Osd(ServiceId),
}

struct LocalConnection {
    shared: Arc<Shared>,
    target: Target,
}

impl LocalConnection {
    fn service(&self) -> Result<Arc<dyn Service>> {
        let services = self.shared.services.read();
        let (found, who) = match self.target {
            Target::Mrc => (services.mrc.clone(), "MRC".to_owned()),
            Target::Osd(id) => (services.osds.get(&id).cloned(), format!("OSD {id}")),
        };
        found.ok_or_else(|| {
            Error::retryable(
                Code::Unreachable,
                format!("{who}: not in this process"),
                1000,
            )
        })
    }
}

#[async_trait]
impl Connection for LocalConnection {
    async fn call(&self, call: Call) -> Answer {
        match self.service() {
            Ok(service) => {
                let deadline_ms = call.header.deadline_ms;
                let origin = self.shared.origin.clone();
                within_deadline(deadline_ms, service.call(origin, call)).await
            }
            Err(error) => Answer::new(Err(error)),
        }
    }
}

/// Awaits the answer for at most `deadline_ms`. On a thread without a tokio runtime nothing can
/// wait for time, and services then answer without waiting.
async fn within_deadline(deadline_ms: u32, answer: impl Future<Output = Answer>) -> Answer {
    if tokio::runtime::Handle::try_current().is_err() {
        return answer.await;
    }
    let limit = Duration::from_millis(u64::from(deadline_ms));
    tokio::time::timeout(limit, answer)
        .await
        .unwrap_or_else(|_| Answer::new(Err(super::timed_out(deadline_ms))))
}

struct LocalPusher(Weak<HandlerSlot>);

#[async_trait]
impl Pusher for LocalPusher {
    async fn push(&self, push: Push) -> Result<()> {
        let handler = self.0.upgrade().and_then(|slot| slot.0.read().clone());
        match handler {
            Some(handler) => {
                handler.handle(push).await;
                Ok(())
            }
            None => Err(Error::new(Code::Unreachable, "client is gone")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::{DirectoryOp, DirectoryReply};
    use crate::ids::VolumeId;
    use crate::message::{Reply, Request};
    use parking_lot::Mutex;

    /// Answers after it has pushed to its caller; never when the payload says so.
    struct Echo;

    #[async_trait]
    impl Service for Echo {
        async fn call(&self, origin: Origin, call: Call) -> Answer {
            if &call.payload[..] == b"never" {
                std::future::pending::<()>().await;
            }
            let push = Push::Recall {
                volume: VolumeId([1; 16]),
                ino: 9,
            };
            if let Some(pusher) = origin.pusher {
                let _ = pusher.push(push).await;
            }
            Answer {
                reply: Ok(Reply::Directory(DirectoryReply::Services(Vec::new()))),
                payload: call.payload,
            }
        }
    }

    #[derive(Default)]
    struct Seen(Mutex<Vec<Push>>);

    #[async_trait]
    impl PushHandler for Seen {
        async fn handle(&self, push: Push) {
            self.0.lock().push(push);
        }
    }

    fn call(payload: &'static [u8]) -> Call {
        Call {
            payload: payload.into(),
            ..Call::new(Request::Directory(DirectoryOp::List), 50)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_reaches_its_service_and_a_push_comes_back() {
        let connector = LocalConnector::new(Peer::Host("here".into()));
        let seen = Arc::new(Seen::default());
        connector.set_push_handler(seen.clone());
        let mrc = connector.mrc();
        let absent = mrc.call(call(b"")).await.reply.unwrap_err();
        assert_eq!(absent.code, Code::Unreachable);

        connector.set_mrc(Arc::new(Echo));
        let answer = mrc.call(call(b"bytes")).await;
        assert!(answer.reply.is_ok());
        assert_eq!(&answer.payload[..], b"bytes");
        assert_eq!(seen.0.lock().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_never_answers_is_given_up_at_the_deadline() {
        let connector = LocalConnector::new(Peer::Host("here".into()));
        let id = ServiceId([2; 16]);
        assert!(connector.osd(id).await.is_err());
        connector.add_osd(id, Arc::new(Echo));
        let osd = connector.osd(id).await.unwrap();
        let error = osd.call(call(b"never")).await.reply.unwrap_err();
        assert_eq!(error.code, Code::TimedOut);
        connector.remove_osd(id);
        let error = osd.call(call(b"")).await.reply.unwrap_err();
        assert_eq!(error.code, Code::Unreachable);
    }
}
