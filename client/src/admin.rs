//! What administrators ask of a cell: services, volumes, files and objects, page by page.
//!
//! Every question changes nothing unless its name says so, has a deadline, and is asked again a
//! bounded number of times where the answer says that this can help.

mod catalog;

use std::sync::Arc;
use std::time::Duration;

use xtfs_layout::Layout;
use xtfs_protocol::directory::{DirectoryOp, DirectoryReply, ServiceInfo, ServiceKind};
use xtfs_protocol::ids::{Ino, ObjectId, ServiceId, VolumeId};
use xtfs_protocol::meta::{Caller, FileSummary, MetaOp, MetaReply, VolumeInfo};
use xtfs_protocol::object::{DamagedObject, ObjectOp, ObjectReply, ObjectSummary, OsdSpace};
use xtfs_protocol::quota::{QuotaEntry, QuotaLimits, QuotaMismatch, QuotaSubject};
use xtfs_protocol::transport::{Connection, Connector};
use xtfs_protocol::{Call, Code, Error, Reply, Request, Result, Retry};

pub use catalog::{Catalog, Verdict};

/// Times one question is asked before its error is final.
const ATTEMPTS_MAX: u32 = 5;

/// Longest pause between two attempts, whatever a service proposes, in milliseconds.
const PAUSE_MS_MAX: u32 = 2_000;

/// Time for everyday questions, in milliseconds.
const DEADLINE_MS: u32 = 15_000;

/// Time for one page of verified objects, in milliseconds.
const VERIFY_DEADLINE_MS: u32 = 120_000;

/// Time for a count of all inodes, in milliseconds.
const COUNT_DEADLINE_MS: u32 = 3_600_000;

/// An administrator's view of a cell. Cheap to clone.
#[derive(Clone)]
pub struct Admin {
    connector: Arc<dyn Connector>,
}

/// A page of verified objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedPage {
    /// The last object checked; the next page continues behind it.
    pub last: Option<ObjectId>,
    /// Objects checked.
    pub objects: u64,
    /// Stored bytes checked.
    pub bytes: u64,
    /// What is damaged.
    pub damaged: Vec<DamagedObject>,
    /// Nothing follows.
    pub end: bool,
}

impl Admin {
    /// Asks through `connector`.
    #[must_use]
    pub fn new(connector: Arc<dyn Connector>) -> Self {
        Self { connector }
    }

    /// All services of the cell, as the directory knows them.
    ///
    /// # Errors
    /// The MRC's, or those of the way to it.
    pub async fn services(&self) -> Result<Vec<ServiceInfo>> {
        let request = Request::Directory(DirectoryOp::List);
        match self.ask_mrc(request, "list services").await? {
            Reply::Directory(DirectoryReply::Services(services)) => Ok(services),
            _ => Err(unexpected("list services")),
        }
    }

    /// The OSDs of the cell, by identity.
    ///
    /// # Errors
    /// As [`services`](Self::services).
    pub async fn osds(&self) -> Result<Vec<ServiceInfo>> {
        let mut osds = self.services().await?;
        osds.retain(|service| service.kind == ServiceKind::Osd);
        osds.sort_by_key(|service| service.id);
        Ok(osds)
    }

    /// All volumes, by name.
    ///
    /// # Errors
    /// The MRC's, or those of the way to it.
    pub async fn volumes(&self) -> Result<Vec<VolumeInfo>> {
        match self.ask_meta(MetaOp::ListVolumes, "list volumes").await? {
            MetaReply::Volumes(volumes) => Ok(volumes),
            _ => Err(unexpected("list volumes")),
        }
    }

    /// Makes a volume whose root directory belongs to `uid` and `gid` with permission bits
    /// `mode`.
    ///
    /// # Errors
    /// [`Code::Exists`] when the name is taken, [`Code::Invalid`] for a bad name or layout.
    pub async fn create_volume(
        &self,
        name: &str,
        layout: Layout,
        (uid, gid): (u32, u32),
        mode: u16,
    ) -> Result<VolumeInfo> {
        let op = MetaOp::CreateVolume {
            name: name.to_owned(),
            layout,
            uid,
            gid,
            mode,
        };
        match self.ask_meta(op, "create volume").await? {
            MetaReply::Volume(volume) => Ok(volume),
            _ => Err(unexpected("create volume")),
        }
    }

    /// Removes a volume with everything in it.
    ///
    /// # Errors
    /// [`Code::NotFound`] when there is none of that name.
    pub async fn delete_volume(&self, name: &str) -> Result<()> {
        let op = MetaOp::DeleteVolume {
            name: name.to_owned(),
        };
        match self.ask_meta(op, "delete volume").await? {
            MetaReply::Done => Ok(()),
            _ => Err(unexpected("delete volume")),
        }
    }

    /// What the subjects of a volume use and may use.
    ///
    /// # Errors
    /// [`Code::NotFound`] when there is no volume of that name.
    pub async fn quotas(&self, volume: &str) -> Result<Vec<QuotaEntry>> {
        let mut all: Vec<QuotaEntry> = Vec::new();
        loop {
            let op = MetaOp::ListQuotas {
                volume: volume.to_owned(),
                after: all.last().map(|entry| entry.subject),
                limit: MetaOp::PAGE_ENTRIES_MAX,
            };
            match self.ask_meta(op, "list quotas").await? {
                MetaReply::Quotas { entries, end } => {
                    let done = end || entries.is_empty();
                    all.extend(entries);
                    if done {
                        return Ok(all);
                    }
                }
                _ => return Err(unexpected("list quotas")),
            }
        }
    }

    /// Sets what a subject may use, durably; empty limits remove them.
    ///
    /// # Errors
    /// [`Code::NotFound`] when there is no volume of that name.
    pub async fn set_quota(
        &self,
        volume: &str,
        subject: QuotaSubject,
        limits: QuotaLimits,
    ) -> Result<()> {
        let op = MetaOp::SetQuota {
            volume: volume.to_owned(),
            subject,
            limits,
        };
        match self.ask_meta(op, "set quota").await? {
            MetaReply::Done => Ok(()),
            _ => Err(unexpected("set quota")),
        }
    }

    /// Counts every inode of a volume. Returns how many there are, and the subjects whose recorded
    /// usage is wrong.
    ///
    /// # Errors
    /// [`Code::NotFound`] when there is no volume of that name, [`Code::Corrupt`] for an inode that
    /// cannot be read.
    pub async fn check_quotas(&self, volume: &str) -> Result<(u64, Vec<QuotaMismatch>)> {
        let op = MetaOp::CheckQuotas {
            volume: volume.to_owned(),
        };
        let caller = Caller::root();
        let request = Request::Meta { caller, op };
        match ask(self.connector.mrc().as_ref(), request, COUNT_DEADLINE_MS).await {
            Ok(Reply::Meta(MetaReply::QuotasChecked { inodes, wrong })) => Ok((inodes, wrong)),
            Ok(_) => Err(unexpected("check quotas")),
            Err(error) => Err(error.within("mrc: check quotas")),
        }
    }

    /// A page of the files of a volume behind inode `after` (0 starts), and whether it is the
    /// last.
    ///
    /// # Errors
    /// [`Code::NotFound`] when the volume is gone.
    pub async fn files(&self, volume: VolumeId, after: Ino) -> Result<(Vec<FileSummary>, bool)> {
        let op = MetaOp::ListFiles {
            volume,
            after,
            limit: MetaOp::PAGE_ENTRIES_MAX,
        };
        match self.ask_meta(op, "list files").await? {
            MetaReply::Files { files, end } => Ok((files, end)),
            _ => Err(unexpected("list files")),
        }
    }

    /// The way to an OSD.
    ///
    /// # Errors
    /// When the directory does not know it or it cannot be reached.
    pub async fn osd(&self, id: ServiceId) -> Result<OsdAdmin> {
        let connection = self.connector.osd(id).await?;
        Ok(OsdAdmin { id, connection })
    }

    async fn ask_meta(&self, op: MetaOp, what: &str) -> Result<MetaReply> {
        let caller = Caller::root();
        match self.ask_mrc(Request::Meta { caller, op }, what).await? {
            Reply::Meta(reply) => Ok(reply),
            _ => Err(unexpected(what)),
        }
    }

    async fn ask_mrc(&self, request: Request, what: &str) -> Result<Reply> {
        ask(self.connector.mrc().as_ref(), request, DEADLINE_MS)
            .await
            .map_err(|error| error.within(format_args!("mrc: {what}")))
    }
}

/// An administrator's view of one OSD.
#[derive(Clone)]
pub struct OsdAdmin {
    id: ServiceId,
    connection: Arc<dyn Connection>,
}

impl OsdAdmin {
    /// Most objects that one call of [`verify`](Self::verify) checks: small enough to end within
    /// its deadline on a slow disk.
    pub const VERIFY_OBJECTS: u32 = 32;

    /// Room and counts.
    ///
    /// # Errors
    /// The OSD's, or those of the way to it.
    pub async fn space(&self) -> Result<OsdSpace> {
        match self.ask(ObjectOp::Statfs, DEADLINE_MS, "statfs").await? {
            ObjectReply::Statfs(space) => Ok(space),
            _ => Err(unexpected("statfs")),
        }
    }

    /// A page of stored objects behind `after` (none starts), and whether it is the last.
    ///
    /// # Errors
    /// The OSD's, or those of the way to it.
    pub async fn objects(&self, after: Option<ObjectId>) -> Result<(Vec<ObjectSummary>, bool)> {
        let op = ObjectOp::List {
            after,
            limit: ObjectOp::PAGE_OBJECTS_MAX,
        };
        match self.ask(op, DEADLINE_MS, "list objects").await? {
            ObjectReply::Objects { objects, end } => Ok((objects, end)),
            _ => Err(unexpected("list objects")),
        }
    }

    /// Checks the stored bytes of the next objects behind `after` (none starts).
    ///
    /// # Errors
    /// The OSD's, or those of the way to it.
    pub async fn verify(&self, after: Option<ObjectId>) -> Result<VerifiedPage> {
        let op = ObjectOp::Verify {
            after,
            limit: Self::VERIFY_OBJECTS,
        };
        match self.ask(op, VERIFY_DEADLINE_MS, "verify objects").await? {
            ObjectReply::Verified {
                last,
                objects,
                bytes,
                damaged,
                end,
            } => Ok(VerifiedPage {
                last,
                objects,
                bytes,
                damaged,
                end,
            }),
            _ => Err(unexpected("verify objects")),
        }
    }

    /// The volumes that objects stored here belong to.
    ///
    /// # Errors
    /// The OSD's, or those of the way to it.
    pub async fn volumes(&self) -> Result<Vec<VolumeId>> {
        let op = ObjectOp::ListVolumes;
        match self.ask(op, DEADLINE_MS, "list volumes").await? {
            ObjectReply::Volumes(volumes) => Ok(volumes),
            _ => Err(unexpected("list volumes")),
        }
    }

    async fn ask(&self, op: ObjectOp, deadline_ms: u32, what: &str) -> Result<ObjectReply> {
        let within = |error: Error| error.within(format_args!("osd {}: {what}", self.id));
        match ask(self.connection.as_ref(), Request::Object(op), deadline_ms).await {
            Ok(Reply::Object(reply)) => Ok(reply),
            Ok(_) => Err(within(unexpected(what))),
            Err(error) => Err(within(error)),
        }
    }
}

/// Asks, and asks again while the answer says that it can help.
async fn ask(connection: &dyn Connection, request: Request, deadline_ms: u32) -> Result<Reply> {
    let mut attempt = 1;
    loop {
        let call = Call::new(request.clone(), deadline_ms);
        match connection.call(call).await.reply {
            Err(Error {
                retry: Retry::After(pause_ms),
                ..
            }) if attempt < ATTEMPTS_MAX => {
                attempt += 1;
                let pause = Duration::from_millis(u64::from(pause_ms.min(PAUSE_MS_MAX)));
                tokio::time::sleep(pause).await;
            }
            reply => return reply,
        }
    }
}

/// The answer is of a kind that the question does not have.
fn unexpected(what: &str) -> Error {
    Error::new(
        Code::Protocol,
        format!("{what}: answer of an unexpected kind"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use std::sync::atomic::{AtomicU32, Ordering};
    use xtfs_protocol::Answer;

    /// Is busy so many times before it answers.
    struct Busy(AtomicU32);

    #[async_trait]
    impl Connection for Busy {
        async fn call(&self, _: Call) -> Answer {
            let busy = self
                .0
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
            Answer::new(match busy {
                Ok(_) => Err(Error::retryable(Code::Busy, "full", 1)),
                Err(_) => Ok(Reply::Object(ObjectReply::Done)),
            })
        }
    }

    async fn ask_after(refusals: u32) -> Result<Reply> {
        let busy = Busy(AtomicU32::new(refusals));
        ask(&busy, Request::Object(ObjectOp::Statfs), 1_000).await
    }

    #[tokio::test]
    async fn a_busy_service_is_asked_again_but_not_for_ever() {
        assert!(ask_after(ATTEMPTS_MAX - 1).await.is_ok());
        let error = ask_after(ATTEMPTS_MAX).await.unwrap_err();
        assert_eq!(error.code, Code::Busy);
    }
}
