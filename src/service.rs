//! One service as a process of its own: `xtfs mrc` and `xtfs osd`.
//!
//! ```text
//! DATA/identity.pem   who the service is; made at its first start
//! DATA/listen         the address it listened on last, so that it is found there again
//! DATA/store/         its data
//! DATA/lock, run.json as in every data folder
//! ```

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use clap::Args;
use xtfs_mrc::{Mrc, MrcOptions};
use xtfs_osd::{Osd, OsdOptions};
use xtfs_protocol::env::Env;
use xtfs_protocol::ids::ServiceId;
use xtfs_protocol::transport::quic::{DatagramSocket, Limits, QuicConnector, QuicServer, Resolver};
use xtfs_protocol::transport::{Peer, Service};
use xtfs_protocol::{Cell, Code, Error, Identity};

use crate::background;
use crate::data_dir::{DataDir, RunInfo};
use crate::reach;
use crate::serving::Signals;

/// Time for running calls to end at a shutdown.
const SERVER_LIMIT: Duration = Duration::from_secs(10);

/// Time for an OSD to register before it says that it is ready anyway.
const REGISTER_LIMIT: Duration = Duration::from_secs(10);

/// Time for the first MRC of the cell to start, when both are started at once.
const MRC_LIMIT: Duration = Duration::from_secs(60);

/// Where a service is.
#[derive(Debug, Args)]
pub struct Place {
    /// Folder of the cell
    #[arg(long, value_name = "DIR", env = "XTFS_CELL")]
    cell: PathBuf,
    /// Folder that keeps everything of this service; made at its first start
    #[arg(long, value_name = "DIR", env = "XTFS_DATA")]
    data: PathBuf,
    /// Address to listen on; port 0 takes the port of the last start, or a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Address under which others reach it [default: the one it listens on]
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
}

/// What both kinds of service have open.
struct Opened {
    data: DataDir,
    cell: Cell,
    identity: Identity,
    id: ServiceId,
    env: Env,
}

/// Runs an MRC until it is told to end.
pub async fn run_mrc(place: &Place) -> Result<()> {
    let mut signals = Signals::new()?;
    let Opened {
        data,
        mut cell,
        identity,
        id,
        env,
    } = place.open()?;
    let listener = place.listen(&data)?;
    let address = listener.address.clone();
    let mut options = MrcOptions::new(data.path().join("store"), id, env.clone());
    options.addresses = vec![address.clone()];
    let mrc = open_blocking(&env, move || Mrc::open(options))
        .await
        .with_context(|| format!("MRC in {}", data.path().display()))?;
    let server = listener.serve(&identity, mrc.clone(), &env)?;
    cell.set_mrc_addresses(vec![address.clone()])?;
    let resolver = Arc::new(Own(Arc::downgrade(&mrc)));
    let connector = QuicConnector::with_resolver(&identity, vec![address], resolver, &env)?;
    let connector = Arc::new(connector);
    mrc.start(connector.clone());

    let served = wait("mrc", id, &server, &data, &mut signals).await;
    server.shutdown(SERVER_LIMIT).await;
    let closed = mrc.shutdown().await.context("MRC: shutdown");
    connector.shutdown(SERVER_LIMIT).await;
    served.and(closed).and(data.retract())
}

/// Runs an OSD until it is told to end.
pub async fn run_osd(place: &Place, mrc: Option<&str>) -> Result<()> {
    let mut signals = Signals::new()?;
    let Opened {
        data,
        identity,
        id,
        env,
        ..
    } = place.open()?;
    let mrc_addresses = match mrc {
        Some(address) => vec![address.to_owned()],
        None => tokio::select! {
            addresses = reach::mrc_addresses(&place.cell, MRC_LIMIT) => {
                addresses?
            }
            name = signals.next() => bail!("ended by {name} before there was an MRC"),
        },
    };
    let listener = place.listen(&data)?;
    let address = listener.address.clone();
    let options = OsdOptions::new(data.path().join("store"), id, env.clone());
    let osd = open_blocking(&env, move || Osd::open(options))
        .await
        .with_context(|| format!("OSD in {}", data.path().display()))?;
    let server = listener.serve(&identity, osd.clone(), &env)?;
    let connector = Arc::new(QuicConnector::new(&identity, mrc_addresses, &env)?);
    osd.start(connector.clone(), vec![address]);
    if !osd.wait_registered(REGISTER_LIMIT).await {
        tracing::warn!("the MRC does not answer; this OSD serves and goes on trying");
    }

    let served = wait("osd", id, &server, &data, &mut signals).await;
    server.shutdown(SERVER_LIMIT).await;
    osd.shutdown().await;
    connector.shutdown(SERVER_LIMIT).await;
    served.and(data.retract())
}

/// Says that the service is ready and waits for the signal to end.
async fn wait(
    role: &str,
    id: ServiceId,
    server: &QuicServer,
    data: &DataDir,
    signals: &mut Signals,
) -> Result<()> {
    let address = server.local_addr();
    data.publish(&RunInfo {
        pid: std::process::id(),
        role: role.to_owned(),
        mountpoint: None,
        volume: None,
        address: Some(address.to_string()),
    })?;
    let _ = background::report_ready(&format!("{role} {id} ready at {address}"));
    let name = signals.next().await;
    tracing::info!(signal = name, "ending");
    Ok(())
}

impl Place {
    fn open(&self) -> Result<Opened> {
        let env = Env::real();
        let cell = reach::open_cell(&self.cell)?;
        let data = DataDir::take(&self.data)?;
        let identity = service_identity(&cell, data.path(), &env)?;
        let id = id_of(&identity)?;
        Ok(Opened {
            data,
            cell,
            identity,
            id,
            env,
        })
    }

    /// Takes the address to serve on.
    fn listen(&self, data: &DataDir) -> Result<Listener> {
        let socket = bind(data.path(), self.listen)?;
        let local = socket.local_addr()?;
        let address = match &self.advertise {
            Some(advertised) => advertised.clone(),
            None if local.ip().is_unspecified() => bail!(
                "address {local}: stands for all addresses of this machine; \
                 say with --advertise HOST:PORT how others reach it"
            ),
            None => local.to_string(),
        };
        Ok(Listener { socket, address })
    }
}

/// A socket to serve on.
struct Listener {
    socket: DatagramSocket,
    /// Where others reach it.
    address: String,
}

impl Listener {
    fn serve(
        self,
        identity: &Identity,
        service: Arc<dyn Service>,
        env: &Env,
    ) -> Result<QuicServer> {
        let limits = Limits::default();
        QuicServer::with_socket(self.socket, identity, service, env, limits)
            .with_context(|| format!("service at {}", self.address))
    }
}

/// Opens a store away from the threads that answer calls: it may have to replay a log.
pub async fn open_blocking<T: Send + 'static, E>(
    env: &Env,
    open: impl FnOnce() -> std::result::Result<T, E> + Send + 'static,
) -> Result<T>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let opened = env.blocking(open).await;
    Ok(opened.context("the store could not be opened: its thread ended")??)
}

/// Takes the address `asked` for the service in `dir`; for port 0 the port of its last start, so
/// that who knows it from then finds it again, or a free one.
pub fn bind(dir: &Path, asked: SocketAddr) -> Result<DatagramSocket> {
    let remembered = dir.join("listen");
    let last = (asked.port() == 0)
        .then(|| last_address(&remembered, asked))
        .flatten();
    // The port of the last start may have been taken by someone else.
    let socket = match last.map(DatagramSocket::bind) {
        Some(Ok(socket)) => socket,
        _ => DatagramSocket::bind(asked).with_context(|| format!("address {asked}"))?,
    };
    fs::write(&remembered, socket.local_addr()?.to_string())
        .with_context(|| format!("{}", remembered.display()))?;
    Ok(socket)
}

/// The address of the last start, if it fits what is asked for now.
fn last_address(remembered: &Path, asked: SocketAddr) -> Option<SocketAddr> {
    let text = fs::read_to_string(remembered).ok()?;
    let last: SocketAddr = text.trim().parse().ok()?;
    (last.ip() == asked.ip()).then_some(last)
}

/// The identity of the service in `dir`, made at its first start.
pub fn service_identity(cell: &Cell, dir: &Path, env: &Env) -> Result<Identity> {
    fs::create_dir_all(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
    let path = dir.join("identity.pem");
    let identity = match Identity::load(&path) {
        Err(error) if error.code == Code::NotFound => {
            let identity = cell.issue_service(ServiceId::from_random(env.random()))?;
            identity.save(&path)?;
            identity
        }
        result => result.context("identity of the service")?,
    };
    if identity.cell() != cell.id() {
        bail!(
            "{}: belongs to cell {}, not to {}; name the right --cell or an empty --data",
            path.display(),
            identity.cell(),
            cell.id()
        );
    }
    Ok(identity)
}

/// The service that an identity speaks for.
pub fn id_of(identity: &Identity) -> Result<ServiceId> {
    match identity.peer() {
        Peer::Service(id) => Ok(*id),
        other => bail!("identity of the service: speaks for {other:?}"),
    }
}

/// The MRC finds OSDs in its own directory.
struct Own(Weak<Mrc>);

#[async_trait]
impl Resolver for Own {
    async fn resolve(&self, id: ServiceId) -> xtfs_protocol::Result<Vec<String>> {
        let mrc = self.0.upgrade();
        let mrc = mrc.ok_or_else(|| Error::from(Code::ShuttingDown))?;
        Ok(mrc.resolve(id)?.addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn a_service_keeps_its_identity_and_is_not_taken_by_another_cell() {
        let dir = tempfile::tempdir().unwrap();
        let env = Env::real();
        let cell = Cell::init(&dir.path().join("cell"), &env).unwrap();
        let place = dir.path().join("osd");
        let first = id_of(&service_identity(&cell, &place, &env).unwrap()).unwrap();
        let again = id_of(&service_identity(&cell, &place, &env).unwrap()).unwrap();
        assert_eq!(first, again);
        let other = Cell::init(&dir.path().join("other"), &env).unwrap();
        let error = service_identity(&other, &place, &env).unwrap_err();
        assert!(error.to_string().contains("belongs to cell"), "{error}");
    }

    #[test]
    fn the_last_port_is_taken_again_on_the_same_address_only() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("listen");
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        assert_eq!(last_address(&file, any), None);
        fs::write(&file, "127.0.0.1:4711\n").unwrap();
        assert_eq!(last_address(&file, any).map(|a| a.port()), Some(4711));
        assert_eq!(
            last_address(&file, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))),
            None
        );
    }
}
