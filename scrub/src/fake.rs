//! A cell made of maps, for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use xtfs_protocol::directory::{
    DirectoryOp, DirectoryReply, ServiceInfo, ServiceKind, ServiceState,
};
use xtfs_protocol::ids::{FileId, Ino, ObjectId, ServiceId, VolumeId};
use xtfs_protocol::layout::Layout;
use xtfs_protocol::meta::{FileSummary, MetaOp, MetaReply, Placement, VolumeInfo};
use xtfs_protocol::object::{
    Damage, DamagedObject, ObjectOp, ObjectReply, ObjectSummary, OsdSpace,
};
use xtfs_protocol::time::Time;
use xtfs_protocol::transport::{Connection, Connector, PushHandler};
use xtfs_protocol::{Answer, Call, Code, Error, Reply, Request, Result};

const VOLUME: VolumeId = VolumeId([1; 16]);

/// Identity of the OSD at this place.
pub(crate) fn osd_id(index: usize) -> ServiceId {
    ServiceId([10 + index as u8; 16])
}

/// One volume `main`, files striped over all OSDs.
pub(crate) struct FakeCell {
    osds: usize,
    files: Vec<FileSummary>,
    late_files: Vec<FileSummary>,
    stored: BTreeMap<ServiceId, BTreeSet<ObjectId>>,
    damaged: BTreeSet<(ServiceId, ObjectId)>,
    down: BTreeSet<ServiceId>,
    forgotten: BTreeSet<ServiceId>,
    listings: AtomicU32,
}

impl FakeCell {
    pub(crate) fn new(osds: usize) -> Self {
        Self {
            osds,
            files: Vec::new(),
            late_files: Vec::new(),
            stored: BTreeMap::new(),
            damaged: BTreeSet::new(),
            down: BTreeSet::new(),
            forgotten: BTreeSet::new(),
            listings: AtomicU32::new(0),
        }
    }

    pub(crate) fn file(&mut self, ino: Ino, data: u64, size: u64) {
        let file = self.summary(ino, data, size);
        self.files.push(file);
    }

    pub(crate) fn file_in_second_listing(&mut self, ino: Ino, data: u64, size: u64) {
        let file = self.summary(ino, data, size);
        self.late_files.push(file);
    }

    pub(crate) fn store(&mut self, osd: usize, data: u64, number: u64) {
        let objects = self.stored.entry(osd_id(osd)).or_default();
        objects.insert(object(data, number));
    }

    pub(crate) fn damage(&mut self, osd: usize, data: u64, number: u64) {
        self.damaged.insert((osd_id(osd), object(data, number)));
    }

    pub(crate) fn take_down(&mut self, osd: usize) {
        self.down.insert(osd_id(osd));
    }

    pub(crate) fn forget(&mut self, osd: usize) {
        self.forgotten.insert(osd_id(osd));
    }

    pub(crate) fn connector(self) -> Arc<dyn Connector> {
        Arc::new(FakeConnector(Arc::new(self)))
    }

    fn summary(&self, ino: Ino, data: u64, size: u64) -> FileSummary {
        let placement = Placement {
            layout: Layout::striped(self.osds as u8),
            view: 1,
            osds: (0..self.osds).map(osd_id).collect(),
        };
        FileSummary {
            ino,
            data,
            size,
            placement,
        }
    }

    fn services(&self) -> Vec<ServiceInfo> {
        let ids = (0..self.osds).map(osd_id);
        ids.filter(|id| !self.forgotten.contains(id))
            .map(|id| ServiceInfo {
                id,
                kind: ServiceKind::Osd,
                addresses: Vec::new(),
                state: ServiceState::Online,
                space: OsdSpace::default(),
                heard_at: Time::default(),
                version: String::new(),
            })
            .collect()
    }

    fn meta(&self, op: MetaOp) -> MetaReply {
        match op {
            MetaOp::ListVolumes => MetaReply::Volumes(vec![VolumeInfo {
                id: VOLUME,
                name: "main".to_owned(),
                layout: Layout::striped(self.osds as u8),
                used_bytes: 0,
                used_inodes: 0,
            }]),
            MetaOp::ListFiles { after, .. } => {
                let mut files = self.files.clone();
                if after == 0 && self.listings.fetch_add(1, Ordering::Relaxed) > 0 {
                    files.extend(self.late_files.clone());
                }
                files.retain(|file| file.ino > after);
                MetaReply::Files { files, end: true }
            }
            other => panic!("a scrub has no business with {other:?}"),
        }
    }

    fn object(&self, osd: ServiceId, op: ObjectOp) -> ObjectReply {
        let empty = BTreeSet::new();
        let stored = self.stored.get(&osd).unwrap_or(&empty);
        let page = |after: Option<ObjectId>, limit: u32| -> (Vec<ObjectId>, bool) {
            let mut rest = stored.iter().filter(|&&id| Some(id) > after).copied();
            let page: Vec<_> = rest.by_ref().take(limit as usize).collect();
            (page, rest.next().is_none())
        };
        match op {
            ObjectOp::Statfs => ObjectReply::Statfs(OsdSpace {
                objects: stored.len() as u64,
                ..OsdSpace::default()
            }),
            ObjectOp::List { after, limit } => {
                let (page, end) = page(after, limit);
                let summary = |object| ObjectSummary {
                    object,
                    length: 1,
                    stored_bytes: 1,
                };
                ObjectReply::Objects {
                    objects: page.into_iter().map(summary).collect(),
                    end,
                }
            }
            ObjectOp::Verify { after, limit } => {
                let (page, end) = page(after, limit);
                let bad = page.iter().filter(|&&id| self.damaged.contains(&(osd, id)));
                ObjectReply::Verified {
                    last: page.last().copied(),
                    objects: page.len() as u64,
                    bytes: page.len() as u64,
                    damaged: bad.copied().map(damaged).collect(),
                    end,
                }
            }
            other => panic!("a scrub has no business with {other:?}"),
        }
    }
}

fn object(data: u64, number: u64) -> ObjectId {
    ObjectId {
        file: FileId {
            volume: VOLUME,
            data,
        },
        object: number,
        shard: 0,
    }
}

fn damaged(object: ObjectId) -> DamagedObject {
    let damage = Damage {
        offset: 0,
        length: 1,
        place: "segment 1 at 512".to_owned(),
        what: "checksum".to_owned(),
    };
    DamagedObject {
        object,
        damage: vec![damage],
    }
}

struct FakeConnector(Arc<FakeCell>);

#[async_trait]
impl Connector for FakeConnector {
    fn mrc(&self) -> Arc<dyn Connection> {
        Arc::new(FakeConnection(Arc::clone(&self.0), None))
    }
    async fn osd(&self, id: ServiceId) -> Result<Arc<dyn Connection>> {
        Ok(Arc::new(FakeConnection(Arc::clone(&self.0), Some(id))))
    }
    fn set_push_handler(&self, _: Arc<dyn PushHandler>) {}
}

struct FakeConnection(Arc<FakeCell>, Option<ServiceId>);

#[async_trait]
impl Connection for FakeConnection {
    async fn call(&self, call: Call) -> Answer {
        Answer::new(match (call.request, self.1) {
            (_, Some(osd)) if self.0.down.contains(&osd) => Err(Error::from(Code::Unreachable)),
            (Request::Meta { op, .. }, None) => Ok(Reply::Meta(self.0.meta(op))),
            (Request::Object(op), Some(osd)) => Ok(Reply::Object(self.0.object(osd, op))),
            (Request::Directory(DirectoryOp::List), None) => Ok(Reply::Directory(
                DirectoryReply::Services(self.0.services()),
            )),
            (other, at) => panic!("{other:?} does not belong to {at:?}"),
        })
    }
}
