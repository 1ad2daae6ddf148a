//! Deletes on OSDs what is gone from the namespace.
//!
//! The queue lies in each volume's database. An entry is acted upon only after the database was
//! made durable, so that no loss of power brings back a file whose objects are gone; it leaves
//! the queue only when every OSD of its placement has acknowledged. An OSD that has acknowledged
//! leaves the entry, so that it is not asked again. OSDs that fail are left alone for a while, each
//! longer than the last time; the entries of the others go on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use xtfs_protocol::ids::{FileId, ServiceId, VolumeId};
use xtfs_protocol::meta::MetaReply;
use xtfs_protocol::object::ObjectOp;
use xtfs_protocol::transport::Connector;
use xtfs_protocol::{Call, Code, Error, Request, Result};

use crate::records::DeletedRecord;
use crate::server::Shared;
use crate::step;
use crate::volume::Volume;

const PAGE: usize = 256;
const FILES_AT_ONCE: usize = 16;
const CALL_TIME_MS: u32 = 10_000;
/// How long deletions gather before they are carried out together, and how long while some are
/// left because an OSD fails: each round looks at all that is left.
const GATHER_TIME: Duration = Duration::from_millis(50);
const GATHER_TIME_IN_TROUBLE: Duration = Duration::from_secs(1);
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The worker.
pub(crate) struct Deletion {
    shared: Arc<Shared>,
    connector: Arc<dyn Connector>,
    trouble: Mutex<BTreeMap<ServiceId, Trouble>>,
}

/// An OSD that failed and is left alone for a while.
#[derive(Clone, Copy)]
struct Trouble {
    until: Instant,
    pause: Duration,
}

impl Deletion {
    pub fn new(shared: Arc<Shared>, connector: Arc<dyn Connector>) -> Self {
        Self {
            shared,
            connector,
            trouble: Mutex::default(),
        }
    }

    /// Works the queues of all volumes off whenever they grow, and again when something failed.
    pub async fn run(&self) {
        loop {
            let retry_at = self.round().await;
            match retry_at {
                None => self.shared.deletions.notified().await,
                Some(at) => {
                    tokio::select! {
                        () = self.shared.deletions.notified() => {}
                        () = sleep_until(at) => {}
                    }
                }
            }
            // Each round costs a flush of the disk: one for all that is removed in a row.
            sleep(match retry_at {
                None => GATHER_TIME,
                Some(_) => GATHER_TIME_IN_TROUBLE,
            })
            .await;
        }
    }

    /// One look at everything. Returns when to look again, if something is left.
    async fn round(&self) -> Option<Instant> {
        let mut left = false;
        for volume in self.shared.catalog.active() {
            left |= !self.or_report(&volume, self.drain_queue(&volume).await);
        }
        for (name, volume) in self.shared.catalog.deleting() {
            left |= !self.or_report(&volume, self.drain_volume(&name, &volume).await);
        }
        left.then(|| self.next_look())
    }

    fn or_report(&self, volume: &Volume, done: Result<bool>) -> bool {
        done.unwrap_or_else(|error| {
            let volume = &volume.record.name;
            tracing::warn!(volume, %error, "deletions are put off");
            false
        })
    }

    /// The end of the first pause of an OSD, or a pause of our own.
    fn next_look(&self) -> Instant {
        let soonest = Instant::now() + PAUSE_MIN;
        let trouble = self.trouble.lock();
        let ends = trouble.values().map(|trouble| trouble.until);
        let first = ends.filter(|until| *until > soonest).min();
        match (trouble.is_empty(), first) {
            (true, _) => Instant::now() + PAUSE_MAX.min(PAUSE_MIN * 25),
            (false, Some(first)) => first,
            (false, None) => soonest,
        }
    }

    /// Works a volume's queue off once. True when nothing is left of it.
    async fn drain_queue(&self, volume: &Arc<Volume>) -> Result<bool> {
        let mut after = 0;
        let mut all = true;
        loop {
            let page = volume.deletions(after, PAGE)?;
            let Some((last, _)) = page.last() else {
                return Ok(all);
            };
            after = *last;
            let is_due = |record: &DeletedRecord| {
                record.osds.is_empty() || !record.osds.iter().all(|osd| self.is_left_alone(*osd))
            };
            let (due, later): (Vec<_>, Vec<_>) =
                page.into_iter().partition(|(_, record)| is_due(record));
            all &= later.is_empty();
            if due.is_empty() {
                continue;
            }
            self.make_durable(volume).await?;
            let settled = self.delete_all(volume.id(), due).await;
            all &= settled.iter().all(|(_, left)| left.osds.is_empty());
            volume.settle_deletions(&settled)?;
        }
    }

    /// Works a whole volume off that is being deleted. True when it is gone.
    async fn drain_volume(&self, name: &str, volume: &Arc<Volume>) -> Result<bool> {
        let mut all = self.drain_queue(volume).await?;
        let mut after = 0;
        loop {
            let MetaReply::Files { files, end } =
                step::list_files(&volume.view(), after, PAGE as u32)?
            else {
                return Err(Error::new(Code::Io, "list of files"));
            };
            after = files.last().map_or(after, |file| file.ino);
            let contents = files.into_iter().map(|file| {
                let record = DeletedRecord {
                    data: file.data,
                    osds: file.placement.osds,
                };
                (file.ino, record)
            });
            let settled = self.delete_all(volume.id(), contents.collect()).await;
            all &= settled.iter().all(|(_, left)| left.osds.is_empty());
            volume.settle_files(&settled)?;
            if end {
                break;
            }
        }
        if all {
            let shared = self.shared.clone();
            let name = name.to_owned();
            self.shared
                .blocking("removing a volume", move || {
                    shared.catalog.remove(&shared.directory, &name)
                })
                .await?;
        }
        Ok(all)
    }

    async fn make_durable(&self, volume: &Arc<Volume>) -> Result<()> {
        let volume = volume.clone();
        self.shared
            .blocking("sync before deletion", move || volume.sync())
            .await
    }

    /// Deletes contents, several at once. Returns them with the OSDs on which they are left.
    async fn delete_all(
        &self,
        volume: VolumeId,
        contents: Vec<(u64, DeletedRecord)>,
    ) -> Vec<(u64, DeletedRecord)> {
        let work = contents.into_iter().map(|(number, record)| async move {
            let data = record.data;
            let file = FileId { volume, data };
            let osds = self.delete_everywhere(file, &record.osds).await;
            (number, DeletedRecord { data, osds })
        });
        let results = stream::iter(work).buffer_unordered(FILES_AT_ONCE);
        results.collect().await
    }

    /// Returns the OSDs that have not acknowledged.
    async fn delete_everywhere(&self, file: FileId, osds: &[ServiceId]) -> Vec<ServiceId> {
        let mut left = Vec::new();
        for osd in osds {
            if self.is_left_alone(*osd) {
                left.push(*osd);
                continue;
            }
            match self.delete_on(*osd, file).await {
                Ok(()) => {
                    self.trouble.lock().remove(osd);
                }
                Err(error) => {
                    left.push(*osd);
                    tracing::warn!(%osd, %file, %error, "objects could not be deleted yet");
                    self.leave_alone(*osd);
                }
            }
        }
        left
    }

    async fn delete_on(&self, osd: ServiceId, file: FileId) -> Result<()> {
        let deleting = async {
            let connection = self.connector.osd(osd).await?;
            let request = Request::Object(ObjectOp::Delete { file });
            let answer = connection.call(Call::new(request, CALL_TIME_MS)).await;
            answer.reply.map(|_| ())
        };
        let limit = Duration::from_millis(u64::from(CALL_TIME_MS));
        timeout(limit, deleting)
            .await
            .unwrap_or_else(|_| Err(Code::TimedOut.into()))
    }

    fn is_left_alone(&self, osd: ServiceId) -> bool {
        let trouble = self.trouble.lock().get(&osd).copied();
        trouble.is_some_and(|trouble| trouble.until > Instant::now())
    }

    fn leave_alone(&self, osd: ServiceId) {
        let mut trouble = self.trouble.lock();
        let now = Instant::now();
        let entry = trouble.entry(osd).or_insert(Trouble {
            until: now,
            pause: Duration::ZERO,
        });
        if entry.until > now {
            return;
        }
        entry.pause = (entry.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        entry.until = now + entry.pause;
    }
}
