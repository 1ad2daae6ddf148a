//! The search: list, suspect, wait, list again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use xtfs_client::admin::{Admin, Catalog, Verdict};
use xtfs_protocol::Result;
use xtfs_protocol::ids::{FileId, ServiceId};
use xtfs_protocol::object::ObjectSummary;
use xtfs_protocol::transport::Connector;

use crate::report::{OrphanFile, OsdError, Report};

/// Looks for orphans in the cell that `connector` leads to. What looks orphaned is looked at again
/// after `grace`, which leaves the MRC time to delete the objects of files just removed.
///
/// # Errors
/// Only when the MRC cannot say which services and files exist; an OSD's trouble is part of the
/// report.
pub async fn find(connector: Arc<dyn Connector>, grace: Duration) -> Result<Report> {
    let admin = Admin::new(connector);
    let osds: Vec<_> = admin.osds().await?.iter().map(|osd| osd.id).collect();
    let catalog = Catalog::load(&admin).await?;
    let walks = osds.iter().map(|&osd| first_look(&admin, &catalog, osd));
    let mut report = Report::default();
    let mut suspects = BTreeSet::new();
    for look in join_all(walks).await {
        match look {
            Ok(look) => {
                report.objects = report.objects.saturating_add(look.objects);
                report.more_files |= look.more;
                suspects.extend(look.files);
            }
            // The second look meets the same trouble and reports it.
            Err(error) => tracing::debug!(%error, "first look for orphans"),
        }
    }
    let catalog = if suspects.is_empty() {
        catalog
    } else {
        tokio::time::sleep(grace).await;
        Catalog::load(&admin).await?
    };
    let walks = osds
        .iter()
        .map(|&osd| second_look(&admin, &catalog, osd, &suspects));
    let mut files = BTreeMap::new();
    for (&osd, look) in osds.iter().zip(join_all(walks).await) {
        match look {
            Ok(look) => {
                report.osds = report.osds.saturating_add(1);
                merge(&mut files, &catalog, osd, look);
            }
            Err(error) => report.errors.push(OsdError {
                osd,
                error: error.to_string(),
            }),
        }
    }
    report.files = files.into_values().collect();
    for file in &report.files {
        report.orphaned_objects = report.orphaned_objects.saturating_add(file.objects);
        report.orphaned_bytes = report.orphaned_bytes.saturating_add(file.bytes);
    }
    Ok(report)
}

#[derive(Default)]
struct FirstLook {
    objects: u64,
    files: BTreeSet<FileId>,
    more: bool,
}

/// Objects and bytes of each suspicious file on one OSD.
type SecondLook = BTreeMap<FileId, (u64, u64)>;

async fn first_look(admin: &Admin, catalog: &Catalog, osd: ServiceId) -> Result<FirstLook> {
    let mut look = FirstLook::default();
    walk(admin, osd, |object| {
        look.objects = look.objects.saturating_add(1);
        if is_orphan(catalog, osd, object) {
            if look.files.len() < Report::FILES_MAX {
                look.files.insert(object.object.file);
            } else {
                look.more |= !look.files.contains(&object.object.file);
            }
        }
    })
    .await?;
    Ok(look)
}

async fn second_look(
    admin: &Admin,
    catalog: &Catalog,
    osd: ServiceId,
    suspects: &BTreeSet<FileId>,
) -> Result<SecondLook> {
    let mut look = SecondLook::new();
    walk(admin, osd, |object| {
        let file = object.object.file;
        if suspects.contains(&file) && is_orphan(catalog, osd, object) {
            let (objects, bytes) = look.entry(file).or_default();
            *objects = objects.saturating_add(1);
            *bytes = bytes.saturating_add(u64::from(object.stored_bytes));
        }
    })
    .await?;
    Ok(look)
}

/// Shows every object of an OSD to `see`.
async fn walk(admin: &Admin, osd: ServiceId, mut see: impl FnMut(&ObjectSummary)) -> Result<()> {
    let osd = admin.osd(osd).await?;
    let mut after = None;
    loop {
        let (objects, end) = osd.objects(after).await?;
        objects.iter().for_each(&mut see);
        let last = objects.last().map(|object| object.object);
        if end || last.is_none() || last <= after {
            return Ok(());
        }
        after = last;
    }
}

fn is_orphan(catalog: &Catalog, osd: ServiceId, object: &ObjectSummary) -> bool {
    matches!(
        catalog.judge(osd, object),
        Verdict::UnknownFile | Verdict::UnknownVolume
    )
}

fn merge(
    files: &mut BTreeMap<FileId, OrphanFile>,
    catalog: &Catalog,
    osd: ServiceId,
    look: SecondLook,
) {
    for (id, (objects, bytes)) in look {
        let file = files.entry(id).or_insert_with(|| OrphanFile {
            volume: id.volume,
            volume_name: catalog.volume_name(id.volume).map(str::to_owned),
            content: id.data,
            objects: 0,
            bytes: 0,
            osds: BTreeSet::new(),
        });
        file.objects = file.objects.saturating_add(objects);
        file.bytes = file.bytes.saturating_add(bytes);
        file.osds.insert(osd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use std::sync::atomic::{AtomicU32, Ordering};
    use xtfs_protocol::directory::{
        DirectoryOp, DirectoryReply, ServiceInfo, ServiceKind, ServiceState,
    };
    use xtfs_protocol::ids::{ObjectId, VolumeId};
    use xtfs_protocol::layout::Layout;
    use xtfs_protocol::meta::{FileSummary, MetaOp, MetaReply, Placement, VolumeInfo};
    use xtfs_protocol::object::{ObjectOp, ObjectReply, OsdSpace};
    use xtfs_protocol::transport::{Connection, PushHandler};
    use xtfs_protocol::{Answer, Call, Code, Error, Reply, Request};

    const VOLUME: VolumeId = VolumeId([1; 16]);
    const OSD: ServiceId = ServiceId([2; 16]);

    /// What each listing of files and of objects answers, by content number; the last answer
    /// stays. No objects: the OSD is down.
    struct Cell {
        files: [&'static [u64]; 2],
        objects: [&'static [u64]; 2],
        down: bool,
        file_listings: AtomicU32,
        object_listings: AtomicU32,
    }

    impl Cell {
        fn new(files: [&'static [u64]; 2], objects: [&'static [u64]; 2]) -> Self {
            Self {
                files,
                objects,
                down: false,
                file_listings: AtomicU32::new(0),
                object_listings: AtomicU32::new(0),
            }
        }

        fn next<'a>(count: &AtomicU32, answers: &'a [&'static [u64]; 2]) -> &'a [u64] {
            let index = count.fetch_add(1, Ordering::Relaxed).min(1);
            answers[index as usize]
        }

        fn answer(&self, request: Request) -> Result<Reply> {
            match request {
                Request::Directory(DirectoryOp::List) => {
                    let osd = ServiceInfo {
                        id: OSD,
                        kind: ServiceKind::Osd,
                        addresses: Vec::new(),
                        state: ServiceState::Online,
                        space: OsdSpace::default(),
                        heard_at: Default::default(),
                        version: String::new(),
                    };
                    Ok(Reply::Directory(DirectoryReply::Services(vec![osd])))
                }
                Request::Meta { op, .. } => Ok(Reply::Meta(self.meta(op))),
                Request::Object(_) if self.down => Err(Code::Unreachable.into()),
                Request::Object(ObjectOp::List { .. }) => {
                    let contents = Self::next(&self.object_listings, &self.objects);
                    let objects = contents.iter().map(|&data| summary(data)).collect();
                    Ok(Reply::Object(ObjectReply::Objects { objects, end: true }))
                }
                other => Err(Error::new(Code::Unsupported, format!("{other:?}"))),
            }
        }

        fn meta(&self, op: MetaOp) -> MetaReply {
            let layout = Layout::striped(1);
            if op == MetaOp::ListVolumes {
                return MetaReply::Volumes(vec![VolumeInfo {
                    id: VOLUME,
                    name: "main".to_owned(),
                    layout,
                    used_bytes: 0,
                    used_inodes: 0,
                }]);
            }
            let file = |&data: &u64| FileSummary {
                ino: data,
                data,
                size: 1,
                placement: Placement {
                    layout,
                    view: 1,
                    osds: vec![OSD],
                },
            };
            let files = Self::next(&self.file_listings, &self.files);
            MetaReply::Files {
                files: files.iter().map(file).collect(),
                end: true,
            }
        }
    }

    fn summary(data: u64) -> ObjectSummary {
        let file = FileId {
            volume: VOLUME,
            data,
        };
        ObjectSummary {
            object: ObjectId {
                file,
                object: 0,
                shard: 0,
            },
            length: 1,
            stored_bytes: 100,
        }
    }

    struct Ways(Arc<Cell>);

    #[async_trait]
    impl Connector for Ways {
        fn mrc(&self) -> Arc<dyn Connection> {
            Arc::new(Ways(Arc::clone(&self.0)))
        }
        async fn osd(&self, _: ServiceId) -> Result<Arc<dyn Connection>> {
            Ok(self.mrc())
        }
        fn set_push_handler(&self, _: Arc<dyn PushHandler>) {}
    }

    #[async_trait]
    impl Connection for Ways {
        async fn call(&self, call: Call) -> Answer {
            Answer::new(self.0.answer(call.request))
        }
    }

    async fn search(cell: Cell) -> Report {
        let connector = Arc::new(Ways(Arc::new(cell)));
        find(connector, Duration::ZERO).await.unwrap()
    }

    #[tokio::test]
    async fn an_object_without_a_file_is_reported_with_its_bytes_and_volume() {
        let report = search(Cell::new([&[5], &[5]], [&[5, 6], &[5, 6]])).await;
        assert_eq!((report.objects, report.orphaned_bytes), (2, 100));
        let orphan = &report.files[0];
        assert_eq!((orphan.content, orphan.objects), (6, 1));
        assert_eq!(orphan.volume_name.as_deref(), Some("main"));
        assert_eq!(orphan.osds, BTreeSet::from([OSD]));
    }

    #[tokio::test]
    async fn a_file_created_during_the_first_look_is_no_orphan() {
        let report = search(Cell::new([&[5], &[5, 6]], [&[5, 6], &[5, 6]])).await;
        assert_eq!(report.files, []);
    }

    #[tokio::test]
    async fn objects_that_the_mrc_deletes_meanwhile_are_no_orphans() {
        let report = search(Cell::new([&[5], &[5]], [&[5, 6], &[5]])).await;
        assert_eq!((report.files.len(), report.orphaned_objects), (0, 0));
    }

    #[tokio::test]
    async fn an_osd_that_is_down_makes_the_search_incomplete() {
        let mut cell = Cell::new([&[], &[]], [&[], &[]]);
        cell.down = true;
        let report = search(cell).await;
        assert_eq!((report.exit_code(), report.errors[0].osd), (3, OSD));
    }
}
