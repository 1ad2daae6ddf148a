//! Finds the addresses of services.

use std::sync::Arc;

use async_trait::async_trait;

use crate::directory::{DirectoryOp, DirectoryReply};
use crate::error::{Code, Error, Result};
use crate::ids::ServiceId;
use crate::message::{Call, Reply, Request};
use crate::transport::Connection;

/// Knows where services are.
#[async_trait]
pub trait Resolver: Send + Sync + 'static {
    /// The addresses of a service, `HOST:PORT`, best first. Asked whenever a connection has to be
    /// made.
    async fn resolve(&self, id: ServiceId) -> Result<Vec<String>>;
}

/// Asks the directory at the MRC.
pub struct DirectoryResolver {
    mrc: Arc<dyn Connection>,
}

impl DirectoryResolver {
    /// How long the directory may take, in milliseconds.
    const DEADLINE_MS: u32 = 5000;

    /// Asks over this connection.
    #[must_use]
    pub fn new(mrc: Arc<dyn Connection>) -> Self {
        Self { mrc }
    }
}

#[async_trait]
impl Resolver for DirectoryResolver {
    async fn resolve(&self, id: ServiceId) -> Result<Vec<String>> {
        let request = Request::Directory(DirectoryOp::Resolve { id });
        let answer = self.mrc.call(Call::new(request, Self::DEADLINE_MS)).await;
        let about = |error: Error| error.within(format_args!("address of service {id}"));
        match answer.reply.map_err(about)? {
            Reply::Directory(DirectoryReply::Services(services)) => services
                .into_iter()
                .find(|service| service.id == id)
                .map(|service| service.addresses)
                .ok_or_else(|| about(Error::from(Code::NotFound))),
            _ => Err(about(Error::new(Code::Protocol, "unexpected reply"))),
        }
    }
}
