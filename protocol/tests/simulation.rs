//! Calls over QUIC through a simulated network in virtual time: partitions, a crash, and the same
//! trace for the same seed.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use xtfs_protocol::directory::{DirectoryOp, DirectoryReply};
use xtfs_protocol::env::Env;
use xtfs_protocol::ids::ServiceId;
use xtfs_protocol::transport::quic::{Limits, QuicConnector, QuicServer, simulated};
use xtfs_protocol::transport::{Connector, Origin, Service};
use xtfs_protocol::{Answer, Call, Cell, Code, Identity, Reply, Request};

const PORT: u16 = 7000;

struct Echo;

#[async_trait]
impl Service for Echo {
    async fn call(&self, _: Origin, call: Call) -> Answer {
        Answer {
            reply: Ok(Reply::Directory(DirectoryReply::Services(Vec::new()))),
            payload: call.payload,
        }
    }
}

/// What the client saw, each with its time since the start.
type Trace = Vec<(Duration, String)>;

async fn call(client: &QuicConnector, bytes: usize) -> Result<usize, Code> {
    let call = Call {
        payload: Bytes::from(vec![7; bytes]),
        ..Call::new(Request::Directory(DirectoryOp::List), 10_000)
    };
    let answer = client.mrc().call(call).await;
    answer
        .reply
        .map(|_| answer.payload.len())
        .map_err(|error| error.code)
}

async fn serve(identity: Arc<Identity>, env: Env) -> turmoil::Result {
    let socket = simulated::bind(PORT).await?;
    let service = Arc::new(Echo);
    let _server = QuicServer::with_socket(socket, &identity, service, &env, Limits::default())?;
    std::future::pending().await
}

fn run(seed: u64) -> Trace {
    let env = Env::simulated(seed);
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::init(dir.path(), &env).unwrap();
    let service = Arc::new(cell.issue_service(ServiceId([1; 16])).unwrap());
    let host = cell.host().unwrap();
    let trace = Arc::new(Mutex::new(Trace::new()));

    let mut sim = turmoil::Builder::new()
        .rng_seed(seed)
        .udp_capacity(4096)
        .simulation_duration(Duration::from_secs(120))
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(5))
        .build();
    let server_env = env.clone();
    sim.host("mrc", move || serve(service.clone(), server_env.clone()));
    let seen = trace.clone();
    sim.client("client", async move {
        let note = |what: String| {
            let now = turmoil::elapsed();
            seen.lock().push((now, what));
        };
        let address = format!("{}:{PORT}", turmoil::lookup("mrc"));
        let socket = simulated::bind(0).await?;
        let client = QuicConnector::with_socket(socket, &host, vec![address], None, &env)?;
        for bytes in [0, 64, 100_000, 1 << 20] {
            note(format!("call: {:?}", call(&client, bytes).await));
        }
        turmoil::partition("client", "mrc");
        note(format!("cut off: {:?}", call(&client, 64).await));
        turmoil::repair("client", "mrc");
        for _ in 0..20 {
            let outcome = call(&client, 64).await;
            note(format!("joined: {outcome:?}"));
            if outcome.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        client.shutdown(Duration::from_secs(1)).await;
        note("end".to_owned());
        Ok(())
    });
    sim.run().unwrap();
    trace.lock().clone()
}

#[test]
fn calls_pass_a_simulated_network_and_a_partition() {
    let trace = run(1);
    let what: Vec<&str> = trace.iter().map(|(_, what)| what.as_str()).collect();
    assert_eq!(
        what[..5],
        [
            "call: Ok(0)",
            "call: Ok(64)",
            "call: Ok(100000)",
            "call: Ok(1048576)",
            "cut off: Err(TimedOut)",
        ]
    );
    assert_eq!(what[what.len() - 2..], ["joined: Ok(64)", "end"]);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let first = run(5);
    assert_eq!(first, run(5));
    assert_ne!(first, run(6), "another seed, other delays");
}

#[test]
fn a_crashed_service_answers_again_when_it_is_back() {
    let env = Env::simulated(3);
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::init(dir.path(), &env).unwrap();
    let service = Arc::new(cell.issue_service(ServiceId([1; 16])).unwrap());
    let host = cell.host().unwrap();
    let mut sim = turmoil::Builder::new()
        .rng_seed(3)
        .udp_capacity(4096)
        .simulation_duration(Duration::from_secs(120))
        .build();
    let server_env = env.clone();
    sim.host("mrc", move || serve(service.clone(), server_env.clone()));
    let answered = Arc::new(Mutex::new(0));
    let count = answered.clone();
    sim.client("client", async move {
        let address = format!("{}:{PORT}", turmoil::lookup("mrc"));
        let socket = simulated::bind(0).await?;
        let client = QuicConnector::with_socket(socket, &host, vec![address], None, &env)?;
        while *count.lock() < 20 {
            if call(&client, 64).await.is_ok() {
                *count.lock() += 1;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    });
    while *answered.lock() < 5 {
        sim.step().unwrap();
    }
    sim.crash("mrc");
    sim.bounce("mrc");
    sim.run().unwrap();
    assert_eq!(*answered.lock(), 20);
}
