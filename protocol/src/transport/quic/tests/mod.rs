//! Calls over real sockets of the loopback interface.

mod calls;
mod endings;
mod hostile;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Limits, QuicConnector, QuicServer};
use crate::cell::{Cell, Identity};
use crate::directory::{DirectoryOp, DirectoryReply, ServiceInfo, ServiceKind, ServiceState};
use crate::env::Env;
use crate::error::{Code, Error};
use crate::ids::{ServiceId, VolumeId};
use crate::message::{Answer, Call, Reply, Request};
use crate::meta::{Caller, MetaOp, MetaReply, Push};
use crate::object::OsdSpace;
use crate::time::Time;
use crate::transport::{Connector, Origin, Peer, Service};

/// A cell in a folder of its own.
struct TestCell {
    _dir: tempfile::TempDir,
    cell: Cell,
    env: Env,
}

impl TestCell {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let env = Env::real();
        let cell = Cell::init(dir.path(), &env).unwrap();
        Self {
            _dir: dir,
            cell,
            env,
        }
    }

    fn service(&self, id: ServiceId) -> Identity {
        self.cell.issue_service(id).unwrap()
    }

    fn serve(&self, id: ServiceId, service: Arc<TestService>) -> QuicServer {
        self.serve_as(&self.service(id), any_port(), service)
    }

    fn serve_as(
        &self,
        identity: &Identity,
        address: SocketAddr,
        service: Arc<TestService>,
    ) -> QuicServer {
        QuicServer::bind(address, identity, service, &self.env).unwrap()
    }

    fn connect(&self, mrc: &QuicServer) -> QuicConnector {
        self.connect_to(mrc.local_addr())
    }

    fn connect_to(&self, mrc: SocketAddr) -> QuicConnector {
        let host = self.cell.host().unwrap();
        QuicConnector::new(&host, vec![mrc.to_string()], &self.env).unwrap()
    }
}

const MRC: ServiceId = ServiceId([1; 16]);
const OSD: ServiceId = ServiceId([2; 16]);

fn any_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// What the test service does with an operation of the MRC:
/// - `Access { ino, .. }`: answers with a payload of `ino` bytes;
/// - `Statfs`: answers with the payload it got;
/// - `Sync`: says that it has begun, and answers when it is let go;
/// - `ReturnLease { ino }`: first pushes a recall of `ino`;
/// - `ListVolumes`: panics.
///
/// And of the directory: `Resolve` finds the addresses that a test put in.
#[derive(Default)]
struct TestService {
    addresses: Mutex<Vec<String>>,
    callers: Mutex<Vec<Peer>>,
    begun: Notify,
    let_go: Notify,
}

#[async_trait]
impl Service for TestService {
    async fn call(&self, origin: Origin, call: Call) -> Answer {
        self.callers.lock().push(origin.peer);
        let done = |payload| Answer {
            reply: Ok(Reply::Meta(MetaReply::Done)),
            payload,
        };
        match call.request {
            Request::Meta { op, .. } => match op {
                MetaOp::Access { ino, .. } => done(pattern(usize::try_from(ino).unwrap())),
                MetaOp::Statfs => done(call.payload),
                MetaOp::Sync => {
                    self.begun.notify_one();
                    self.let_go.notified().await;
                    done(Bytes::new())
                }
                MetaOp::ReturnLease { ino } => {
                    let pushed = origin.pusher.unwrap().push(recall(ino)).await;
                    Answer::new(pushed.map(|()| Reply::Meta(MetaReply::Done)))
                }
                MetaOp::ListVolumes => panic!("as the test wants"),
                _ => Answer::new(Err(Error::from(Code::NotFound))),
            },
            Request::Directory(DirectoryOp::Resolve { id }) => {
                let info = ServiceInfo {
                    id,
                    kind: ServiceKind::Osd,
                    addresses: self.addresses.lock().clone(),
                    state: ServiceState::Online,
                    space: OsdSpace::default(),
                    heard_at: Time::default(),
                    version: String::new(),
                };
                Answer::new(Ok(Reply::Directory(DirectoryReply::Services(vec![info]))))
            }
            _ => Answer::new(Err(Error::from(Code::Unsupported))),
        }
    }
}

fn recall(ino: u64) -> Push {
    Push::Recall {
        volume: VolumeId::default(),
        ino,
    }
}

/// Bytes that show when some are missing, doubled or moved.
fn pattern(length: usize) -> Bytes {
    let numbers = 0..u64::try_from(length.div_ceil(8)).unwrap();
    let mut bytes: Vec<u8> = numbers
        .flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect();
    bytes.truncate(length);
    bytes.into()
}

fn call(op: MetaOp, payload: Bytes) -> Call {
    let caller = Caller::root();
    Call {
        payload,
        ..Call::new(Request::Meta { caller, op }, 30_000)
    }
}

/// Calls the MRC.
async fn ask(connector: &QuicConnector, op: MetaOp, payload: Bytes) -> Answer {
    connector.mrc().call(call(op, payload)).await
}

/// Calls the MRC, at most for so long.
async fn ask_within(connector: &QuicConnector, op: MetaOp, deadline_ms: u32) -> Answer {
    let mut call = call(op, Bytes::new());
    call.header.deadline_ms = deadline_ms;
    connector.mrc().call(call).await
}

fn code(answer: &Answer) -> Option<Code> {
    answer.reply.as_ref().err().map(|error| error.code)
}

const SOON: Duration = Duration::from_secs(10);

/// Calls until it works, keeping the pauses that the errors ask for.
async fn until_ok(
    connection: &dyn crate::transport::Connection,
    call: impl Fn() -> Call,
) -> Answer {
    tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            let answer = connection.call(call()).await;
            match answer.reply.as_ref().map_err(|error| error.retry) {
                Err(crate::Retry::After(ms)) => {
                    tokio::time::sleep(Duration::from_millis(ms.into())).await;
                }
                Ok(_) => return answer,
                Err(_) => panic!("{:?}", answer.reply),
            }
        }
    })
    .await
    .unwrap()
}
