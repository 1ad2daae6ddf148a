//! A cell in virtual time: one MRC, two OSDs and one client on four hosts of a simulated network,
//! with disks in memory that forget what was not synced when the power goes.
//!
//! Everything that happens follows from one seed: the delays of the network, the identities, the
//! clock. So the same seed gives the same [`Trace`], message by message.
//!
//! - [`host`] — the MRC and the OSDs on their hosts;
//! - [`user`] — what the client does with the volume.

pub mod host;
pub mod user;

use std::sync::Arc;
use std::time::Duration;

use babu_kv::fs::{Crash, MemoryFs};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use xtfs_protocol::Cell;
use xtfs_protocol::env::{Blocking, Clock, Env, Random};
use xtfs_protocol::ids::ServiceId;
use xtfs_protocol::time::Time;

/// Where every service of the simulation listens.
pub const PORT: u16 = 7000;
/// Name of the volume.
pub const VOLUME: &str = "simulated";
/// Longest virtual time of a simulation.
const LIMIT: Duration = Duration::from_secs(600);
/// How long a host stays without power.
const DARK_STEPS: u32 = 700;

/// What happened, in order: virtual time, where, and what.
#[derive(Clone, Default)]
pub struct Trace(Arc<Mutex<Vec<String>>>);

impl Trace {
    /// Notes something that happens now.
    pub fn note(&self, place: &str, what: &str) {
        let now = turmoil::sim_elapsed().unwrap_or_default();
        self.0.lock().push(format!("{now:?} {place} {what}"));
    }

    /// All of it.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

/// A disk in memory.
#[derive(Clone, Default)]
pub struct Disk(Arc<Mutex<MemoryFs>>);

impl Disk {
    /// What is on it now.
    #[must_use]
    pub fn files(&self) -> MemoryFs {
        self.0.lock().clone()
    }

    /// Forgets what was not synced.
    fn lose_power(&self) {
        let mut files = self.0.lock();
        let left = files.crash(Crash::Lost);
        *files = left;
    }
}

/// The time of the simulation as a time of day.
struct SimulatedClock;

impl Clock for SimulatedClock {
    fn now(&self) -> Time {
        let start = Duration::from_secs(1_700_000_000);
        Time::since_epoch(start + turmoil::sim_elapsed().unwrap_or_default())
    }
}

/// Bytes that follow from a seed.
struct Seeded(Mutex<StdRng>);

impl Random for Seeded {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().fill_bytes(bytes);
    }
}

/// Surroundings for one part of the simulation.
fn surroundings(seed: u64) -> Env {
    let random = Seeded(Mutex::new(StdRng::seed_from_u64(seed)));
    Env::new(Arc::new(SimulatedClock), Arc::new(random), Blocking::Inline)
}

/// The client asks for power to be cut at a host, and waits until it is back.
#[derive(Clone, Default)]
pub struct Switch(Arc<Mutex<Option<String>>>);

impl Switch {
    /// Cuts the power of a host; what its disk had not synced is gone.
    pub fn cut(&self, host: &str) {
        *self.0.lock() = Some(host.to_owned());
    }

    fn take(&self) -> Option<String> {
        self.0.lock().take()
    }
}

/// Runs the whole story with a seed and returns what happened.
///
/// # Panics
/// When something is not as it has to be.
#[must_use]
pub fn run(seed: u64) -> Vec<String> {
    let trace = Trace::default();
    let switch = Switch::default();
    let folder = tempfile::tempdir().expect("a folder for the cell");
    let cell = Cell::init(folder.path(), &surroundings(seed)).expect("make the cell");
    let mut simulation = turmoil::Builder::new()
        .rng_seed(seed)
        .udp_capacity(8192)
        .simulation_duration(LIMIT)
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(5))
        .build();
    let mut disks = Vec::new();
    for (number, name) in ["mrc", "osd0", "osd1"].into_iter().enumerate() {
        let id = ServiceId([u8::try_from(number).expect("a small number") + 1; 16]);
        let machine = Arc::new(host::Machine {
            name,
            id,
            identity: cell.issue_service(id).expect("an identity"),
            disk: Disk::default(),
            seed: Mutex::new(seed.wrapping_mul(31).wrapping_add(number as u64)),
            trace: trace.clone(),
        });
        disks.push((name, machine.disk.clone()));
        simulation.host(name, move || host::serve(Arc::clone(&machine)));
    }
    let identity = cell.host().expect("the identity of the client");
    let env = surroundings(seed.wrapping_add(1_000_000));
    simulation.client(
        "client",
        user::story(identity, env, trace.clone(), switch.clone()),
    );
    while !simulation.step().expect("the simulation goes on") {
        let Some(host) = switch.take() else {
            continue;
        };
        simulation.crash(host.as_str());
        trace.note(&host, "loses power");
        for (_, disk) in disks.iter().filter(|(name, _)| *name == host) {
            disk.lose_power();
        }
        for _ in 0..DARK_STEPS {
            let ended = simulation.step().expect("the simulation goes on");
            assert!(!ended, "the client ended while {host} was without power");
        }
        simulation.bounce(host.as_str());
    }
    trace.lines()
}
