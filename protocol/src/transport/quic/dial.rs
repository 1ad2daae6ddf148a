//! Makes one connection to a peer: finds its addresses, tries one after the other, and verifies
//! who answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quinn::{ClientConfig, Connection, Endpoint};
use tokio::time::timeout;

use super::resolver::Resolver;
use super::stream::{self, DONE};
use super::tls;
use crate::error::{Code, Error, Result};
use crate::ids::ServiceId;
use crate::transport::Peer;

/// How long one address may take to answer.
const ADDRESS_LIMIT: Duration = Duration::from_secs(3);

/// How long all addresses may take together.
const DIAL_LIMIT: Duration = Duration::from_secs(10);

/// Most addresses that are tried.
const ADDRESSES_MAX: usize = 16;

/// How long a caller should pause before another try.
const PAUSE_MS: u32 = 100;

/// Whom to reach.
pub(super) enum Destination {
    /// The MRC at one of these addresses.
    Mrc(Vec<String>),
    /// A service wherever the resolver finds it, with the addresses found last.
    Service {
        id: ServiceId,
        resolver: Arc<dyn Resolver>,
        known: Mutex<Vec<String>>,
    },
}

/// Connects to one destination.
pub(super) struct Dialer {
    pub(super) endpoint: Endpoint,
    pub(super) config: ClientConfig,
    /// The name in the certificates of the cell's services.
    pub(super) server_name: String,
    pub(super) destination: Destination,
}

impl Dialer {
    /// A connection whose other end is who it should be.
    pub(super) async fn dial(&self) -> Result<Connection> {
        timeout(DIAL_LIMIT, self.try_all())
            .await
            .unwrap_or_else(|_| Err(unreachable("no address answered in time")))
            .map_err(|error| error.within(self.who()))
    }

    /// Whom it reaches, for people.
    pub(super) fn who(&self) -> String {
        match &self.destination {
            Destination::Mrc(addresses) => format!("MRC at {}", addresses.join(", ")),
            Destination::Service { id, .. } => format!("service {id}"),
        }
    }

    async fn try_all(&self) -> Result<Connection> {
        let mut last = unreachable("no address is known");
        for address in self.addresses().await?.iter().take(ADDRESSES_MAX) {
            let about = |error: Error| error.within(address);
            match look_up(address).await {
                Ok(sockets) => {
                    for socket in sockets {
                        match self.try_one(socket).await {
                            Ok(connection) => return Ok(connection),
                            Err(error) => last = about(error),
                        }
                    }
                }
                Err(error) => last = about(error),
            }
        }
        Err(last)
    }

    async fn addresses(&self) -> Result<Vec<String>> {
        match &self.destination {
            Destination::Mrc(addresses) => Ok(addresses.clone()),
            Destination::Service {
                id,
                resolver,
                known,
            } => match resolver.resolve(*id).await {
                Ok(addresses) => {
                    known.lock().clone_from(&addresses);
                    Ok(addresses)
                }
                Err(error) => {
                    let known = known.lock().clone();
                    if known.is_empty() {
                        Err(error)
                    } else {
                        Ok(known)
                    }
                }
            },
        }
    }

    async fn try_one(&self, address: SocketAddr) -> Result<Connection> {
        let connecting = self
            .endpoint
            .connect_with(self.config.clone(), address, &self.server_name)
            .map_err(|error| unreachable(&error.to_string()))?;
        let connection = timeout(ADDRESS_LIMIT, connecting)
            .await
            .map_err(|_| unreachable("does not answer"))?
            .map_err(|error| stream::lost(&error))?;
        let found = tls::peer(&connection)?;
        let right = match &self.destination {
            Destination::Mrc(_) => matches!(found, Peer::Service(_)),
            Destination::Service { id, .. } => found == Peer::Service(*id),
        };
        if right {
            Ok(connection)
        } else {
            connection.close(DONE, b"another service was meant");
            Err(unreachable(&format!("another peer is there: {found:?}")))
        }
    }
}

async fn look_up(address: &str) -> Result<Vec<SocketAddr>> {
    if let Ok(address) = address.parse() {
        return Ok(vec![address]);
    }
    let found = timeout(ADDRESS_LIMIT, tokio::net::lookup_host(address)).await;
    match found {
        Ok(Ok(addresses)) => Ok(addresses.take(ADDRESSES_MAX).collect()),
        Ok(Err(error)) => Err(unreachable(&error.to_string())),
        Err(_) => Err(unreachable("the name was not found in time")),
    }
}

fn unreachable(why: &str) -> Error {
    Error::retryable(Code::Unreachable, why, PAUSE_MS)
}
