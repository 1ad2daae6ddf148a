//! A service of the cell on its simulated host.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use xtfs_mrc::{Mrc, MrcOptions};
use xtfs_osd::{Osd, OsdOptions};
use xtfs_protocol::env::Env;
use xtfs_protocol::ids::ServiceId;
use xtfs_protocol::transport::quic::{Limits, QuicConnector, QuicServer, Resolver, simulated};
use xtfs_protocol::transport::{Origin, Service};
use xtfs_protocol::{Answer, Call, Code, Error, Identity};

use super::{Disk, PORT, Trace, surroundings};

/// A host with one service; what is in here outlives a crash.
pub struct Machine {
    /// Name of the host: `mrc` or `osd...`.
    pub name: &'static str,
    /// The service.
    pub id: ServiceId,
    /// Its certificate.
    pub identity: Identity,
    /// Its disk.
    pub disk: Disk,
    /// Seed of the next start.
    pub seed: Mutex<u64>,
    /// Where its messages are noted.
    pub trace: Trace,
}

/// Notes every call and its answer.
struct Noted {
    name: &'static str,
    service: Arc<dyn Service>,
    trace: Trace,
}

#[async_trait]
impl Service for Noted {
    async fn call(&self, origin: Origin, call: Call) -> Answer {
        let number = call.header.sequence;
        let asked = format!("asked {number} {:?}", call.request);
        self.trace.note(self.name, &asked);
        let answer = self.service.call(origin, call).await;
        let answered = format!("answers {number} {:?}", answer.reply);
        self.trace.note(self.name, &answered);
        answer
    }
}

/// The MRC finds OSDs in its own directory.
struct Own(Weak<Mrc>);

#[async_trait]
impl Resolver for Own {
    async fn resolve(&self, id: ServiceId) -> xtfs_protocol::Result<Vec<String>> {
        let mrc = self
            .0
            .upgrade()
            .ok_or_else(|| Error::from(Code::ShuttingDown))?;
        mrc.resolve(id).map(|service| service.addresses)
    }
}

/// Runs the service of a machine until the host crashes.
///
/// # Errors
/// When it cannot be opened.
pub async fn serve(machine: Arc<Machine>) -> turmoil::Result {
    let env = {
        let mut seed = machine.seed.lock();
        *seed = seed.wrapping_add(7919);
        surroundings(*seed)
    };
    let own = format!("{}:{PORT}", turmoil::lookup(machine.name));
    if machine.name == "mrc" {
        serve_mrc(&machine, &env, own).await
    } else {
        serve_osd(&machine, &env, own).await
    }
}

async fn serve_mrc(machine: &Machine, env: &Env, own: String) -> turmoil::Result {
    let mut options = MrcOptions::new("/store", machine.id, env.clone());
    options.kv = babu_kv::Options::simulated(Arc::new(machine.disk.files()));
    let mrc = Mrc::open(options)?;
    let _server = listen(machine, env, Arc::clone(&mrc) as Arc<dyn Service>).await?;
    let resolver = Arc::new(Own(Arc::downgrade(&mrc)));
    let connector = QuicConnector::with_socket(
        simulated::bind(0).await?,
        &machine.identity,
        vec![own],
        Some(resolver),
        env,
    )?;
    mrc.start(Arc::new(connector));
    machine.trace.note(machine.name, "is up");
    std::future::pending().await
}

async fn serve_osd(machine: &Machine, env: &Env, own: String) -> turmoil::Result {
    let options = OsdOptions::new("/store", machine.id, env.clone());
    let osd = Osd::open(options.on(Arc::new(machine.disk.files())))?;
    let _server = listen(machine, env, Arc::clone(&osd) as Arc<dyn Service>).await?;
    let mrc = format!("{}:{PORT}", turmoil::lookup("mrc"));
    let socket = simulated::bind(0).await?;
    let connector = QuicConnector::with_socket(socket, &machine.identity, vec![mrc], None, env)?;
    osd.start(Arc::new(connector), vec![own]);
    let registered = osd.wait_registered(Duration::from_secs(30)).await;
    machine
        .trace
        .note(machine.name, &format!("is up, registered: {registered}"));
    std::future::pending().await
}

async fn listen(
    machine: &Machine,
    env: &Env,
    service: Arc<dyn Service>,
) -> Result<QuicServer, Box<dyn std::error::Error>> {
    let noted = Noted {
        name: machine.name,
        service,
        trace: machine.trace.clone(),
    };
    let socket = simulated::bind(PORT).await?;
    let server = QuicServer::with_socket(
        socket,
        &machine.identity,
        Arc::new(noted),
        env,
        Limits::default(),
    )?;
    Ok(server)
}
