//! Measures calls over QUIC on the loopback interface: the time of a small call, and the rate of
//! writes and reads of 1 MiB with four in flight.
//!
//! ```text
//! cargo run --release -p xtfs-protocol --example loopback
//! ```

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;
use xtfs_protocol::env::Env;
use xtfs_protocol::ids::ServiceId;
use xtfs_protocol::meta::{Caller, MetaOp, MetaReply};
use xtfs_protocol::transport::quic::{QuicConnector, QuicServer};
use xtfs_protocol::transport::{Connection, Connector, Origin, Service};
use xtfs_protocol::{Answer, Call, Cell, Reply, Request};

const MIB: usize = 1 << 20;
const SMALL_CALLS: u32 = 20_000;
const LARGE_CALLS: usize = 2_000;
const IN_FLIGHT: usize = 4;

/// Answers with as many bytes as the `ino` of a `Getattr` says.
struct Store(Bytes);

#[async_trait]
impl Service for Store {
    async fn call(&self, _: Origin, call: Call) -> Answer {
        let length = match call.request {
            Request::Meta {
                op: MetaOp::Getattr { ino },
                ..
            } => usize::try_from(ino).unwrap_or_default(),
            _ => 0,
        };
        Answer {
            reply: Ok(Reply::Meta(MetaReply::Done)),
            payload: self.0.slice(..length.min(self.0.len())),
        }
    }
}

fn call(answer: usize, payload: Bytes) -> Call {
    let request = Request::Meta {
        caller: Caller::root(),
        op: MetaOp::Getattr { ino: answer as u64 },
    };
    Call {
        payload,
        ..Call::new(request, 30_000)
    }
}

async fn large(mrc: &Arc<dyn Connection>, answer: usize, payload: &Bytes) -> f64 {
    let start = Instant::now();
    let workers: Vec<_> = (0..IN_FLIGHT)
        .map(|_| {
            let (mrc, payload) = (mrc.clone(), payload.clone());
            tokio::spawn(async move {
                for _ in 0..LARGE_CALLS / IN_FLIGHT {
                    let done = mrc.call(call(answer, payload.clone())).await;
                    assert!(done.reply.is_ok(), "{:?}", done.reply);
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.expect("a worker broke down");
    }
    (LARGE_CALLS * MIB) as f64 / start.elapsed().as_secs_f64() / 1e6
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("xtfs-loopback-{}", std::process::id()));
    let env = Env::real();
    let cell = Cell::init(&dir, &env)?;
    let service = cell.issue_service(ServiceId([1; 16]))?;
    let host = cell.host()?;
    std::fs::remove_dir_all(&dir)?;

    let megabyte = Bytes::from(vec![7; MIB]);
    let (servers, clients) = (runtime()?, runtime()?);
    let server = {
        let _inside = servers.enter();
        let store = Arc::new(Store(megabyte.clone()));
        QuicServer::bind((Ipv4Addr::LOCALHOST, 0).into(), &service, store, &env)?
    };
    let address = server.local_addr().to_string();
    clients.block_on(async {
        let client = QuicConnector::new(&host, vec![address], &env)?;
        let mrc = client.mrc();
        mrc.call(call(0, megabyte.clone())).await.reply?;
        let start = Instant::now();
        for _ in 0..SMALL_CALLS {
            mrc.call(call(0, Bytes::new())).await.reply?;
        }
        let each = start.elapsed() / SMALL_CALLS;
        println!("small call    {:7.1} µs", each.as_secs_f64() * 1e6);
        let written = large(&mrc, 0, &megabyte).await;
        println!("1 MiB writes  {written:7.0} MB/s");
        let read = large(&mrc, MIB, &Bytes::new()).await;
        println!("1 MiB reads   {read:7.0} MB/s");
        client.shutdown(Duration::from_secs(1)).await;
        Ok::<_, xtfs_protocol::Error>(())
    })?;
    servers.block_on(server.shutdown(Duration::from_secs(5)));
    Ok(())
}
