//! An OSD as its callers see it: calls in, answers out.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use xtfs_osd::{Osd, OsdOptions};
use xtfs_protocol::capability::Capability;
use xtfs_protocol::directory::{DirectoryOp, DirectoryReply};
use xtfs_protocol::env::Env;
use xtfs_protocol::ids::{FileId, ObjectId, ServiceId, SessionId, VolumeId};
use xtfs_protocol::object::{ObjectOp, ObjectReply, OsdSpace, Stability};
use xtfs_protocol::time::Time;
use xtfs_protocol::transport::{LocalConnector, Origin, Peer, Service};
use xtfs_protocol::{Answer, Call, Code, Error, KeyRing, Reply, Request, Retry};

const ID: ServiceId = ServiceId([7; 16]);

/// An OSD in a temporary folder, and the ring that signs what it accepts.
struct TestOsd {
    osd: Arc<Osd>,
    ring: KeyRing,
    env: Env,
}

type Outcome = Result<(ObjectReply, Bytes), Error>;

impl TestOsd {
    fn open(dir: &Path) -> Self {
        Self::open_with(dir, Env::real())
    }

    fn open_with(dir: &Path, env: Env) -> Self {
        let ring = KeyRing::from_keys([(1, [9; 32])]);
        let osd = Osd::open(OsdOptions::new(dir, ID, env.clone())).unwrap();
        osd.set_keys(ring.clone());
        Self { osd, ring, env }
    }

    fn capability(&self, file: FileId) -> Capability {
        let now = self.env.now();
        self.ring.sign(Capability {
            file,
            read: true,
            write: true,
            session: SessionId([1; 16]),
            session_epoch: 1,
            view: 1,
            truncate_epoch: 1,
            expires: Time {
                secs: now.secs + 60,
                ..now
            },
            key_id: 0,
            mac: [0; 32],
        })
    }

    async fn call_as(&self, peer: Peer, op: ObjectOp, payload: &[u8]) -> Outcome {
        let mut call = Call::new(Request::Object(op), 30_000);
        call.payload = Bytes::copy_from_slice(payload);
        let origin = Origin { peer, pusher: None };
        let answer = self.osd.call(origin, call).await;
        match answer.reply? {
            Reply::Object(reply) => Ok((reply, answer.payload)),
            other => panic!("unexpected reply {other:?}"),
        }
    }

    async fn call(&self, op: ObjectOp, payload: &[u8]) -> Outcome {
        self.call_as(Peer::Host("test".into()), op, payload).await
    }

    async fn write(&self, object: ObjectId, offset: u32, bytes: &[u8]) -> Result<i64, Error> {
        let op = ObjectOp::Write {
            capability: self.capability(object.file),
            object,
            offset,
            stability: Stability::Written,
        };
        match self.call(op, bytes).await?.0 {
            ObjectReply::Written {
                allocated_delta, ..
            } => Ok(allocated_delta),
            other => panic!("unexpected reply {other:?}"),
        }
    }

    /// The first `length` bytes of an object, holes as zeros.
    async fn read(&self, object: ObjectId, length: u32) -> Result<Vec<u8>, Error> {
        let op = ObjectOp::Read {
            capability: self.capability(object.file),
            object,
            offset: 0,
            length,
        };
        let (reply, payload) = self.call(op, &[]).await?;
        let ObjectReply::Data { ranges } = reply else {
            panic!("unexpected reply {reply:?}");
        };
        let mut bytes = vec![0; length as usize];
        let mut rest = &payload[..];
        for range in ranges {
            let (piece, behind) = rest.split_at(range.length as usize);
            let from = range.offset as usize;
            bytes[from..from + piece.len()].copy_from_slice(piece);
            rest = behind;
        }
        assert!(rest.is_empty());
        Ok(bytes)
    }

    async fn truncate(&self, file: FileId, epoch: u64, size: u32) -> Result<i64, Error> {
        let op = ObjectOp::Truncate {
            capability: self.capability(file),
            file,
            epoch,
            remove_from: 1,
            shorten: Some((0, size)),
        };
        match self.call(op, &[]).await?.0 {
            ObjectReply::Written {
                allocated_delta, ..
            } => Ok(allocated_delta),
            other => panic!("unexpected reply {other:?}"),
        }
    }

    async fn space(&self) -> OsdSpace {
        match self.call(ObjectOp::Statfs, &[]).await.unwrap().0 {
            ObjectReply::Statfs(space) => space,
            other => panic!("unexpected reply {other:?}"),
        }
    }
}

fn file(data: u64) -> FileId {
    FileId {
        volume: VolumeId([3; 16]),
        data,
    }
}

fn object(data: u64, object: u64) -> ObjectId {
    ObjectId {
        file: file(data),
        object,
        shard: 0,
    }
}

/// Bytes without a pattern.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..length).map(|_| next()).collect()
}

#[tokio::test]
async fn what_is_written_reads_back_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut expected = noise(1, 300_000);
    {
        let osd = TestOsd::open(dir.path());
        assert_eq!(
            osd.write(object(1, 0), 0, &expected).await.unwrap(),
            300_000
        );
        assert_eq!(osd.write(object(1, 0), 5_000, &[5; 70]).await.unwrap(), 0);
        expected[5_000..5_070].fill(5);
        assert_eq!(osd.read(object(1, 0), 300_000).await.unwrap(), expected);
        osd.osd.shutdown().await;
    }
    let osd = TestOsd::open(dir.path());
    assert_eq!(osd.read(object(1, 0), 300_000).await.unwrap(), expected);
    assert_eq!(osd.space().await.objects, 1);
}

#[tokio::test]
async fn what_was_only_written_survives_the_end_of_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = noise(2, 100_000);
    {
        // Dropped without a shutdown: nothing reaches the index.
        let osd = TestOsd::open(dir.path());
        osd.write(object(1, 0), 0, &bytes).await.unwrap();
        osd.truncate(file(1), 2, 60_000).await.unwrap();
    }
    let osd = TestOsd::open(dir.path());
    let read = osd.read(object(1, 0), 100_000).await.unwrap();
    assert_eq!(read[..60_000], bytes[..60_000]);
    assert!(read[60_000..].iter().all(|byte| *byte == 0));
}

#[tokio::test]
async fn a_flush_tells_on_which_start_of_the_machine_it_ran() {
    let dir = tempfile::tempdir().unwrap();
    let mut seen = Vec::new();
    for boot in [5, 5, 6] {
        let osd = TestOsd::open_with(dir.path(), Env::real().with_boot(boot));
        osd.write(object(1, 0), 0, b"bytes").await.unwrap();
        let op = ObjectOp::Flush {
            capability: osd.capability(file(1)),
            file: file(1),
        };
        match osd.call(op, &[]).await.unwrap().0 {
            ObjectReply::Flushed { boot } => seen.push(boot),
            other => panic!("unexpected reply {other:?}"),
        }
        osd.osd.shutdown().await;
    }
    assert_eq!(seen, [5, 5, 6]);
}

#[tokio::test]
async fn zeros_and_gaps_are_holes_and_cost_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let osd = TestOsd::open(dir.path());
    let mut bytes = noise(3, 64 << 10);
    bytes[8192..32768].fill(0);
    let gained = osd.write(object(1, 0), 65536, &bytes).await.unwrap();
    assert_eq!(gained, (64 << 10) - 24_576);
    let read = osd.read(object(1, 0), 131_072).await.unwrap();
    assert!(read[..65536].iter().all(|byte| *byte == 0));
    assert_eq!(read[65536..], bytes);
    let op = ObjectOp::PunchHole {
        capability: osd.capability(file(1)),
        object: object(1, 0),
        offset: 65536,
        length: 65536,
    };
    let (reply, _) = osd.call(op, &[]).await.unwrap();
    assert!(
        matches!(reply, ObjectReply::Written { allocated_delta, .. } if allocated_delta == -gained)
    );
    let (objects, end) = match osd
        .call(
            ObjectOp::List {
                after: None,
                limit: 10,
            },
            &[],
        )
        .await
        .unwrap()
    {
        (ObjectReply::Objects { objects, end }, _) => (objects, end),
        other => panic!("unexpected reply {other:?}"),
    };
    assert!(end);
    assert_eq!((objects[0].length, objects[0].stored_bytes), (131_072, 0));
}

#[tokio::test]
async fn a_truncation_happens_once_and_overtaken_writes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let osd = TestOsd::open(dir.path());
    for number in 0..3 {
        osd.write(object(1, number), 0, &noise(number, 1000))
            .await
            .unwrap();
    }
    assert_eq!(osd.truncate(file(1), 1, 400).await.unwrap(), -2600);
    assert_eq!(osd.write(object(1, 0), 400, &[1; 600]).await.unwrap(), 600);
    assert_eq!(osd.truncate(file(1), 1, 400).await.unwrap(), 0);
    assert_eq!(osd.truncate(file(1), 2, 400).await.unwrap(), -600);
    let refused = osd.write(object(1, 0), 0, b"late").await.unwrap_err();
    assert_eq!(
        (refused.code, refused.retry),
        (Code::BadCapability, Retry::Reopen)
    );
}

#[tokio::test]
async fn a_deleted_file_is_gone_and_stays_gone() {
    let dir = tempfile::tempdir().unwrap();
    {
        let osd = TestOsd::open(dir.path());
        osd.write(object(1, 0), 0, &noise(1, 5000)).await.unwrap();
        osd.write(object(2, 0), 0, &noise(2, 5000)).await.unwrap();
        let op = ObjectOp::Delete { file: file(1) };
        osd.call(op.clone(), &[]).await.unwrap();
        osd.call(op, &[]).await.unwrap();
        assert_eq!(osd.space().await.objects, 1);
    }
    let osd = TestOsd::open(dir.path());
    let write = osd.write(object(1, 0), 0, b"late").await.unwrap_err();
    let read = osd.read(object(1, 0), 10).await.unwrap_err();
    assert_eq!(write.code, Code::BadCapability);
    assert_eq!(read.code, Code::BadCapability);
    assert_eq!(osd.read(object(2, 0), 5000).await.unwrap(), noise(2, 5000));
}

#[tokio::test]
async fn capabilities_bound_what_a_client_can_do() {
    let dir = tempfile::tempdir().unwrap();
    let osd = TestOsd::open(dir.path());
    osd.write(object(1, 0), 0, b"secret").await.unwrap();
    let good = osd.capability(file(1));
    let forged = Capability {
        write: true,
        session_epoch: 2,
        ..good.clone()
    };
    let foreign = osd.capability(file(2));
    let read_only = osd.ring.sign(Capability {
        write: false,
        ..good.clone()
    });
    let expired = osd.ring.sign(Capability {
        expires: Time::default(),
        ..good
    });
    for capability in [forged, foreign, read_only, expired] {
        let op = ObjectOp::Write {
            capability,
            object: object(1, 0),
            offset: 0,
            stability: Stability::Written,
        };
        let refused = osd.call(op, b"broken").await.unwrap_err();
        assert_eq!(refused.code, Code::BadCapability, "{refused}");
    }
    assert_eq!(osd.read(object(1, 0), 6).await.unwrap(), b"secret");
}

#[tokio::test]
async fn users_may_not_use_what_is_for_services_and_administrators() {
    let dir = tempfile::tempdir().unwrap();
    let osd = TestOsd::open(dir.path());
    let user = Peer::User {
        uid: 1000,
        gids: vec![],
    };
    let page = (None, 10);
    for op in [
        ObjectOp::Delete { file: file(1) },
        ObjectOp::List {
            after: page.0,
            limit: page.1,
        },
        ObjectOp::Verify {
            after: page.0,
            limit: page.1,
        },
        ObjectOp::ListVolumes,
    ] {
        let refused = osd.call_as(user.clone(), op, &[]).await.unwrap_err();
        assert_eq!(refused.code, Code::NotPermitted);
    }
}

#[tokio::test]
async fn requests_out_of_their_bounds_get_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let osd = TestOsd::open(dir.path());
    let behind = osd.write(object(1, 0), u32::MAX, b"x").await.unwrap_err();
    assert_eq!(behind.code, Code::Invalid);
    for limit in [0, ObjectOp::PAGE_OBJECTS_MAX + 1] {
        let op = ObjectOp::List { after: None, limit };
        assert_eq!(osd.call(op, &[]).await.unwrap_err().code, Code::Invalid);
    }
}

#[tokio::test]
async fn lists_go_page_by_page_and_name_the_volumes() {
    let dir = tempfile::tempdir().unwrap();
    let osd = TestOsd::open(dir.path());
    let mut wanted = Vec::new();
    for volume in [1u8, 2, 0xff] {
        for number in 0..4 {
            let mut id = object(u64::from(volume) * 10, number);
            id.file.volume = VolumeId([volume; 16]);
            osd.write(id, 0, b"some bytes").await.unwrap();
            wanted.push(id);
        }
    }
    let mut seen = Vec::new();
    loop {
        let op = ObjectOp::List {
            after: seen.last().copied(),
            limit: 5,
        };
        let (ObjectReply::Objects { objects, end }, _) = osd.call(op, &[]).await.unwrap() else {
            panic!("no objects");
        };
        seen.extend(objects.iter().map(|o| o.object));
        if end {
            break;
        }
    }
    assert_eq!(seen, wanted);
    let (volumes, _) = osd.call(ObjectOp::ListVolumes, &[]).await.unwrap();
    let wanted = [1, 2, 0xff].map(|volume| VolumeId([volume; 16]));
    assert_eq!(volumes, ObjectReply::Volumes(wanted.to_vec()));
}

#[tokio::test]
async fn a_flipped_byte_gives_an_error_that_names_it_and_hurts_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let osd = TestOsd::open(dir.path());
    let (bad, good) = (noise(1, 200_000), noise(2, 1000));
    osd.write(object(1, 0), 0, &bad).await.unwrap();
    osd.write(object(2, 0), 0, &good).await.unwrap();
    let path = dir.path().join("segments/00000001.seg");
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes
        .windows(64)
        .position(|window| window == &bad[100_000..100_064])
        .unwrap();
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();

    let error = osd.read(object(1, 0), 200_000).await.unwrap_err();
    assert_eq!((error.code, error.errno()), (Code::Corrupt, libc::EIO));
    assert!(error.context.contains("00000001.seg"), "{error}");
    assert!(error.context.contains(&object(1, 0).to_string()), "{error}");
    assert_eq!(osd.read(object(1, 0), 60_000).await.unwrap(), bad[..60_000]);
    assert_eq!(osd.read(object(2, 0), 1000).await.unwrap(), good);

    let op = ObjectOp::Verify {
        after: None,
        limit: 100,
    };
    let (
        ObjectReply::Verified {
            objects,
            damaged,
            end,
            ..
        },
        _,
    ) = osd.call(op, &[]).await.unwrap()
    else {
        panic!("not verified");
    };
    assert_eq!((objects, end, damaged.len()), (2, true, 1));
    assert_eq!(damaged[0].object, object(1, 0));
    assert!((damaged[0].damage[0].offset..damaged[0].damage[0].offset + 65536).contains(&100_000));
    assert_eq!(osd.space().await.damaged_blocks, 1);
}

#[tokio::test]
async fn one_folder_belongs_to_one_identity_and_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let osd = TestOsd::open(dir.path());
    let env = Env::real();
    let again = Osd::open(OsdOptions::new(dir.path(), ID, env.clone())).err();
    assert!(again.unwrap().to_string().contains("in use"));
    drop(osd);
    let other = Osd::open(OsdOptions::new(dir.path(), ServiceId([8; 16]), env)).err();
    assert!(other.unwrap().to_string().contains("belongs to OSD"));
}

/// A directory that hands out keys and keeps the last heartbeat.
struct TestDirectory {
    ring: KeyRing,
    heard: tokio::sync::watch::Sender<Option<DirectoryOp>>,
}

#[async_trait::async_trait]
impl Service for TestDirectory {
    async fn call(&self, _origin: Origin, call: Call) -> Answer {
        let Request::Directory(op) = call.request else {
            return Answer::new(Err(Code::Protocol.into()));
        };
        self.heard.send_replace(Some(op));
        Answer::new(Ok(Reply::Directory(DirectoryReply::Registered {
            interval_ms: 50,
            capability_keys: self.ring.keys(),
        })))
    }
}

#[tokio::test]
async fn heartbeats_make_it_known_and_bring_the_keys() {
    let dir = tempfile::tempdir().unwrap();
    let osd = TestOsd::open(dir.path());
    osd.osd.set_keys(KeyRing::default());
    let early = osd.write(object(1, 0), 0, b"early").await.unwrap_err();
    assert_eq!(early.code, Code::Busy);
    assert!(matches!(early.retry, Retry::After(_)));

    let directory = Arc::new(TestDirectory {
        ring: osd.ring.clone(),
        heard: tokio::sync::watch::Sender::new(None),
    });
    let mut heard = directory.heard.subscribe();
    let connector = LocalConnector::new(Peer::Service(ID));
    connector.set_mrc(directory);
    osd.osd
        .start(Arc::new(connector), vec!["osd.example:5000".into()]);
    assert!(osd.osd.wait_registered(Duration::from_secs(20)).await);
    osd.write(object(1, 0), 0, b"now").await.unwrap();
    let with_object = |op: &Option<DirectoryOp>| {
        matches!(op, Some(DirectoryOp::Heartbeat { id, addresses, space, .. })
            if *id == ID && addresses.len() == 1 && space.objects == 1)
    };
    let told = tokio::time::timeout(Duration::from_secs(20), heard.wait_for(with_object));
    assert!(
        told.await.is_ok(),
        "the directory never heard of the object"
    );
    osd.osd.shutdown().await;
}

#[tokio::test]
async fn deleted_bytes_come_back_without_being_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let osd = TestOsd::open(dir.path());
    let connector = LocalConnector::new(Peer::Service(ID));
    osd.osd.start(Arc::new(connector), vec![]);
    for number in 0..8 {
        let bytes = noise(number, 1 << 20);
        osd.write(object(1, number), 0, &bytes).await.unwrap();
    }
    assert!(osd.space().await.segment_bytes > 8 << 20);
    osd.call(ObjectOp::Delete { file: file(1) }, &[])
        .await
        .unwrap();
    let given_back = async {
        while osd.space().await.segment_bytes > 100_000 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let outcome = tokio::time::timeout(Duration::from_secs(30), given_back).await;
    assert!(outcome.is_ok(), "{:?}", osd.space().await);
    osd.osd.shutdown().await;
    let left: u64 = std::fs::read_dir(dir.path().join("segments"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert!(left < 100_000, "{left} bytes of segments are left");
}

#[tokio::test]
async fn after_a_shutdown_calls_are_refused_in_words_that_allow_a_retry() {
    let dir = tempfile::tempdir().unwrap();
    let osd = TestOsd::open(dir.path());
    osd.osd.shutdown().await;
    let refused = osd.write(object(1, 0), 0, b"late").await.unwrap_err();
    assert_eq!(refused.code, Code::ShuttingDown);
    assert!(matches!(refused.retry, Retry::After(_)));
    assert!(!osd.osd.wait_registered(Duration::from_millis(1)).await);
}
