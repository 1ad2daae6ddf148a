//! Deletes on OSDs what is gone from the namespace.
//!
//! The queue lies in each volume's database. An entry is acted upon only after the database was
//! made durable, so that no loss of power brings back a file whose objects are gone; it leaves
//! the queue only when every OSD of its placement has acknowledged. OSDs that fail are left alone
//! for a while, each longer than the last time; the entries of the others go on.

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

use crate::server::Shared;
use crate::step;
use crate::volume::Volume;

const PAGE: usize = 256;
const FILES_AT_ONCE: usize = 16;
const CALL_TIME_MS: u32 = 10_000;
/// How long deletions gather before they are carried out together.
const GATHER_TIME: Duration = Duration::from_millis(50);
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

/// Content on OSDs, with the number under which it is queued.
struct Content {
    number: u64,
    data: u64,
    osds: Vec<ServiceId>,
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
            sleep(GATHER_TIME).await;
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
            let contents = page.into_iter().map(|(number, record)| Content {
                number,
                data: record.data,
                osds: record.osds,
            });
            let contents: Vec<_> = contents.collect();
            let count = contents.len();
            self.make_durable(volume).await?;
            let done = self.delete_all(volume.id(), contents).await;
            all &= done.len() == count;
            volume.forget_deletions(&done)?;
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
            let count = files.len();
            let contents = files.into_iter().map(|file| Content {
                number: file.ino,
                data: file.data,
                osds: file.placement.osds,
            });
            let done = self.delete_all(volume.id(), contents.collect()).await;
            all &= done.len() == count;
            volume.forget_files(&done)?;
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

    /// Deletes contents, several at once. Returns the numbers of those that are gone everywhere.
    async fn delete_all(&self, volume: VolumeId, contents: Vec<Content>) -> Vec<u64> {
        let work = contents.into_iter().map(|content| async move {
            let file = FileId {
                volume,
                data: content.data,
            };
            let gone = self.delete_everywhere(file, &content.osds).await;
            gone.then_some(content.number)
        });
        let results = stream::iter(work).buffer_unordered(FILES_AT_ONCE);
        results.filter_map(std::future::ready).collect().await
    }

    async fn delete_everywhere(&self, file: FileId, osds: &[ServiceId]) -> bool {
        let mut gone = true;
        for osd in osds {
            if self.is_left_alone(*osd) {
                gone = false;
                continue;
            }
            match self.delete_on(*osd, file).await {
                Ok(()) => {
                    self.trouble.lock().remove(osd);
                }
                Err(error) => {
                    gone = false;
                    tracing::warn!(%osd, %file, %error, "objects could not be deleted yet");
                    self.leave_alone(*osd);
                }
            }
        }
        gone
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
