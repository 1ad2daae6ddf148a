//! A whole cell in this process: the MRC and the OSDs of a data folder.
//!
//! Calls between the parts are plain values. Each service is also served over QUIC on the loopback
//! device, so that tools reach a running `xtfs up`.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use xtfs_client::admin::Admin;
use xtfs_layout::Layout;
use xtfs_mrc::{Mrc, MrcOptions};
use xtfs_osd::{Osd, OsdOptions};
use xtfs_protocol::env::Env;
use xtfs_protocol::ids::ServiceId;
use xtfs_protocol::transport::quic::{DatagramSocket, Limits, QuicServer};
use xtfs_protocol::transport::{Connector, LocalConnector, Peer, Service};
use xtfs_protocol::{Cell, Code, Identity};

use crate::data_dir::{DataDir, RunInfo, UpConfig};
use crate::service::{self, open_blocking, service_identity};

/// Time for running calls of tools to end.
const SERVER_LIMIT: Duration = Duration::from_secs(5);

/// Time for the OSDs to register at the start.
const REGISTER_LIMIT: Duration = Duration::from_secs(30);

/// An open cell in this process. [`close`](Cluster::close) it.
pub struct Cluster {
    data: DataDir,
    peer: Peer,
    mrc: Arc<Mrc>,
    osds: Vec<(ServiceId, Arc<Osd>)>,
    servers: Vec<QuicServer>,
    address: SocketAddr,
}

impl Cluster {
    /// Opens the cell of a data folder, and makes what is missing. `osds` is the number of OSDs
    /// asked for; it only counts at the first start.
    pub async fn open(data: DataDir, osds: Option<u8>, env: &Env) -> Result<Self> {
        let config = decide(&data, osds)?;
        let cell = Cell::open_or_init(&data.cell(), env)
            .with_context(|| format!("cell {}", data.cell().display()))?;
        let peer = cell.host().context("identity of this host")?.peer().clone();
        let mrc_identity = service_identity(&cell, &data.mrc(), env)?;
        let mrc_id = service::id_of(&mrc_identity)?;
        // Other mounts of this data folder know only the address of the MRC.
        let socket = service::bind(&data.mrc(), SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let address = socket.local_addr()?;
        let mut options = MrcOptions::new(data.mrc().join("store"), mrc_id, env.clone());
        options.addresses = vec![address.to_string()];
        let mrc = open_blocking(env, move || Mrc::open(options))
            .await
            .with_context(|| format!("MRC in {}", data.mrc().display()))?;
        let server = serve(socket, &mrc_identity, mrc.clone(), env)?;
        let mut this = Self {
            address,
            data,
            peer,
            mrc,
            osds: Vec::new(),
            servers: vec![server],
        };
        match this.open_osds(&cell, config, mrc_id, env).await {
            Ok(()) => Ok(this),
            Err(error) => {
                // What is open already is closed in order; the first error is the one to tell.
                let _ = this.close().await;
                Err(error)
            }
        }
    }

    async fn open_osds(
        &mut self,
        cell: &Cell,
        config: UpConfig,
        mrc_id: ServiceId,
        env: &Env,
    ) -> Result<()> {
        let mut addresses = Vec::new();
        for number in 1..=config.osds {
            let dir = self.data.osd(number);
            let identity = service_identity(cell, &dir, env)?;
            let id = service::id_of(&identity)?;
            let options = OsdOptions::new(dir.join("store"), id, env.clone());
            let osd = open_blocking(env, move || Osd::open(options))
                .await
                .with_context(|| format!("OSD in {}", dir.display()))?;
            self.osds.push((id, osd.clone()));
            let socket = DatagramSocket::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
            addresses.push(socket.local_addr()?.to_string());
            let server = serve(socket, &identity, osd, env)?;
            self.servers.push(server);
        }
        self.mrc.start(self.connector_as(Peer::Service(mrc_id)));
        for ((id, osd), address) in self.osds.iter().zip(addresses) {
            osd.start(self.connector_as(Peer::Service(*id)), vec![address]);
        }
        for (id, osd) in &self.osds {
            // New files need OSDs that the directory knows.
            if !osd.wait_registered(REGISTER_LIMIT).await {
                bail!("OSD {id}: did not register with the MRC within {REGISTER_LIMIT:?}");
            }
        }
        Ok(())
    }

    /// The way to the services from inside this process.
    pub fn connector(&self) -> Arc<dyn Connector> {
        self.connector_as(self.peer.clone())
    }

    /// Address of the MRC for other processes of this machine.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes a volume that is striped over all OSDs, unless there is one of that name.
    pub async fn ensure_volume(&self, name: &str) -> Result<()> {
        let admin = Admin::new(self.connector());
        let volumes = admin.volumes().await?;
        if volumes.iter().any(|volume| volume.name == name) {
            return Ok(());
        }
        let layout = Layout::striped(u8::try_from(self.osds.len()).unwrap_or(u8::MAX));
        let owner = (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        match admin.create_volume(name, layout, owner, 0o755).await {
            Err(error) if error.code != Code::Exists => {
                Err(error).with_context(|| format!("volume {name}"))
            }
            _ => Ok(()),
        }
    }

    /// Says what this process does with the data folder.
    pub fn publish(&self, info: &RunInfo) -> Result<()> {
        self.data.publish(info)
    }

    /// Closes everything in order. Everything is on disk when it returns without an error.
    pub async fn close(self) -> Result<()> {
        for server in self.servers {
            server.shutdown(SERVER_LIMIT).await;
        }
        // The MRC first: it still asks the OSDs.
        let closed = self.mrc.shutdown().await.context("MRC: shutdown");
        for (_, osd) in self.osds {
            osd.shutdown().await;
        }
        closed.and(self.data.retract())
    }

    fn connector_as(&self, peer: Peer) -> Arc<LocalConnector> {
        let connector = LocalConnector::new(peer);
        connector.set_mrc(self.mrc.clone());
        for (id, osd) in &self.osds {
            connector.add_osd(*id, osd.clone());
        }
        Arc::new(connector)
    }
}

/// Number of OSDs: what the first start decided.
fn decide(data: &DataDir, osds: Option<u8>) -> Result<UpConfig> {
    match (data.up_config()?, osds) {
        (Some(config), Some(osds)) if config.osds != osds => bail!(
            "data folder {}: was made with --osds {}, which cannot become {osds} now; \
             leave --osds away, or choose another folder with --data",
            data.path().display(),
            config.osds
        ),
        (Some(config), _) => Ok(config),
        (None, osds) => {
            let config = UpConfig {
                osds: osds.unwrap_or(1),
            };
            data.set_up_config(config)?;
            Ok(config)
        }
    }
}

fn serve(
    socket: DatagramSocket,
    identity: &Identity,
    service: Arc<dyn Service>,
    env: &Env,
) -> Result<QuicServer> {
    QuicServer::with_socket(socket, identity, service, env, Limits::default())
        .context("service on the loopback device")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_osds_is_decided_once_and_a_change_is_refused_clearly() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::take(dir.path()).unwrap();
        assert_eq!(decide(&data, Some(3)).unwrap(), UpConfig { osds: 3 });
        assert_eq!(decide(&data, None).unwrap(), UpConfig { osds: 3 });
        assert_eq!(decide(&data, Some(3)).unwrap(), UpConfig { osds: 3 });
        let error = decide(&data, Some(2)).unwrap_err().to_string();
        assert!(error.contains("was made with --osds 3"), "{error}");
    }
}
