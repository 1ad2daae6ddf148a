//! Reaches the services of a cell over QUIC.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use quinn::{ClientConfig, Endpoint};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::dial::{Destination, Dialer};
use super::link::{Common, Link};
use super::resolver::{DirectoryResolver, Resolver};
use super::settings;
use super::socket::DatagramSocket;
use super::stream::DONE;
use crate::cell::{Identity, server_name};
use crate::env::Env;
use crate::error::Result;
use crate::ids::ServiceId;
use crate::transport::{Connection, Connector, PushHandler};

/// How long goodbyes may take to reach the services.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);

/// Reaches the MRC by its addresses and OSDs by their identity, over one connection each.
///
/// Connections are made when they are first needed and made anew after they broke, with growing
/// pauses between tries that fail. A call never repeats itself: its error says whether the caller
/// may. Dropping the connector closes its connections; [`QuicConnector::shutdown`] also waits until
/// its tasks have ended.
pub struct QuicConnector {
    endpoint: Endpoint,
    config: ClientConfig,
    server_name: String,
    common: Arc<Common>,
    mrc: Arc<Link>,
    resolver: Arc<dyn Resolver>,
    services: Mutex<BTreeMap<ServiceId, Arc<Link>>>,
}

impl QuicConnector {
    /// A connector that asks the directory at the MRC for the addresses of OSDs. Needs a tokio
    /// runtime. `mrc_addresses` are `HOST:PORT`, best first.
    ///
    /// # Errors
    /// [`Code::Io`](crate::Code) when no socket can be had,
    /// [`Code::Invalid`](crate::Code) for a broken identity.
    pub fn new(identity: &Identity, mrc_addresses: Vec<String>, env: &Env) -> Result<Self> {
        Self::with_socket(
            DatagramSocket::bind_any()?,
            identity,
            mrc_addresses,
            None,
            env,
        )
    }

    /// A connector of a service that knows by itself where others are, such as an MRC.
    ///
    /// # Errors
    /// As [`QuicConnector::new`].
    pub fn with_resolver(
        identity: &Identity,
        mrc_addresses: Vec<String>,
        resolver: Arc<dyn Resolver>,
        env: &Env,
    ) -> Result<Self> {
        Self::with_socket(
            DatagramSocket::bind_any()?,
            identity,
            mrc_addresses,
            Some(resolver),
            env,
        )
    }

    /// A connector on a socket of one's own; without a resolver it asks the directory at the MRC.
    ///
    /// # Errors
    /// As [`QuicConnector::new`].
    pub fn with_socket(
        socket: DatagramSocket,
        identity: &Identity,
        mrc_addresses: Vec<String>,
        resolver: Option<Arc<dyn Resolver>>,
        env: &Env,
    ) -> Result<Self> {
        let (endpoint, config) = settings::client_endpoint(socket, identity, env)?;
        let common = Arc::new(Common {
            env: env.clone(),
            handler: Arc::default(),
            tasks: Mutex::new(Some(JoinSet::new())),
        });
        let server_name = server_name(identity.cell());
        let dialer = Dialer {
            endpoint: endpoint.clone(),
            config: config.clone(),
            server_name: server_name.clone(),
            destination: Destination::Mrc(mrc_addresses),
        };
        let mrc = Arc::new(Link::new(dialer, common.clone()));
        let resolver = resolver.unwrap_or_else(|| Arc::new(DirectoryResolver::new(mrc.clone())));
        Ok(Self {
            endpoint,
            config,
            server_name,
            common,
            mrc,
            resolver,
            services: Mutex::default(),
        })
    }

    /// Closes all connections and waits until every task has ended, at most for `limit`; calls in
    /// flight and later ones fail with [`Code::Unreachable`](crate::Code::Unreachable).
    pub async fn shutdown(&self, limit: Duration) {
        self.endpoint.close(DONE, b"goodbye");
        let tasks = self.common.tasks.lock().take();
        if let Some(mut tasks) = tasks {
            let ended = timeout(limit, async { while tasks.join_next().await.is_some() {} });
            if ended.await.is_err() {
                tasks.shutdown().await;
            }
        }
        let _ = timeout(limit.min(GOODBYE_LIMIT), self.endpoint.wait_idle()).await;
    }
}

impl Drop for QuicConnector {
    fn drop(&mut self) {
        self.endpoint.close(DONE, b"goodbye");
    }
}

#[async_trait]
impl Connector for QuicConnector {
    fn mrc(&self) -> Arc<dyn Connection> {
        self.mrc.clone()
    }

    async fn osd(&self, id: ServiceId) -> Result<Arc<dyn Connection>> {
        let mut services = self.services.lock();
        let link = services.entry(id).or_insert_with(|| {
            let dialer = Dialer {
                endpoint: self.endpoint.clone(),
                config: self.config.clone(),
                server_name: self.server_name.clone(),
                destination: Destination::Service {
                    id,
                    resolver: self.resolver.clone(),
                    known: Mutex::default(),
                },
            };
            Arc::new(Link::new(dialer, self.common.clone()))
        });
        Ok(link.clone())
    }

    fn set_push_handler(&self, handler: Arc<dyn PushHandler>) {
        *self.common.handler.write() = Some(handler);
    }
}
