//! Volumes and sessions: what is asked of the MRC as a whole rather than of a namespace.

use std::sync::Arc;

use xtfs_protocol::ids::{Ino, SessionId, VolumeId};
use xtfs_protocol::meta::{MetaOp, MetaReply, SessionInfo};
use xtfs_protocol::transport::Origin;
use xtfs_protocol::{Code, Error, Result};

use crate::catalog::NewVolume;
use crate::server::Shared;
use crate::step;
use crate::volume::{Root, Volume};

/// How a client wants its session.
pub(crate) struct Opening {
    /// What it calls itself across restarts, or nothing.
    pub client: String,
    /// The session to go on with.
    pub resume: Option<SessionId>,
    /// What it has open.
    pub open_files: Vec<Ino>,
}

impl Shared {
    pub(crate) async fn administer(
        self: &Arc<Self>,
        origin: &Origin,
        op: MetaOp,
    ) -> Result<MetaReply> {
        if matches!(op, MetaOp::ListVolumes) {
            let volumes = self.catalog.all()?;
            let infos = volumes.iter().map(|volume| volume.info());
            return infos.collect::<Result<_>>().map(MetaReply::Volumes);
        }
        if !origin.peer.is_trusted() {
            let context = "only hosts and services of the cell may do this";
            return Err(Error::new(Code::NotPermitted, context));
        }
        let shared = self.clone();
        match op {
            MetaOp::CreateVolume {
                name,
                layout,
                uid,
                gid,
                mode,
            } => {
                let root = Root {
                    uid,
                    gid,
                    mode,
                    time: self.env.now(),
                };
                let new = NewVolume {
                    id: VolumeId::from_random(self.env.random()),
                    name,
                    layout,
                    root,
                };
                self.blocking("making a volume", move || {
                    let volume = shared.catalog.create(&shared.directory, new)?;
                    volume.info().map(MetaReply::Volume)
                })
                .await
            }
            MetaOp::DeleteVolume { name } => {
                self.blocking("deleting a volume", move || {
                    shared.catalog.delete(&shared.directory, &name)
                })
                .await?;
                self.deletions.notify_one();
                Ok(MetaReply::Done)
            }
            MetaOp::SetQuota {
                volume,
                subject,
                limits,
            } => {
                let volume = self.catalog.by_name(&volume)?;
                self.blocking("setting a quota", move || volume.set_quota(subject, limits))
                    .await?;
                Ok(MetaReply::Done)
            }
            MetaOp::ListQuotas {
                volume,
                after,
                limit,
            } => {
                let volume = self.catalog.by_name(&volume)?;
                self.blocking("listing quotas", move || volume.quotas(after, limit))
                    .await
            }
            MetaOp::CheckQuotas { volume } => {
                let volume = self.catalog.by_name(&volume)?;
                self.blocking("counting inodes", move || volume.check_quotas())
                    .await
            }
            MetaOp::ListFiles {
                volume,
                after,
                limit,
            } => {
                let volume = self.catalog.by_id(volume)?;
                self.blocking("listing files", move || {
                    step::list_files(&volume.view(), after, limit)
                })
                .await
            }
            _ => Err(Error::new(
                Code::Protocol,
                "not an administrative operation",
            )),
        }
    }

    pub(crate) async fn open_session(
        self: &Arc<Self>,
        origin: &Origin,
        name: &str,
        opening: Opening,
    ) -> Result<MetaReply> {
        let Opening {
            client,
            resume,
            open_files,
        } = opening;
        let volume = self.catalog.by_name(name)?;
        let (peer, pusher) = (&origin.peer, origin.pusher.clone());
        let resumed = match resume {
            Some(id) => match volume.resume_session(id, peer, &open_files, pusher.clone()) {
                Ok(epoch) => Some((id, epoch)),
                // It ran out: the client goes on in a new one, whose identity tells it so.
                Err(error) if error.code == Code::SessionExpired => None,
                Err(error) => return Err(error),
            },
            None => {
                for ended in volume.end_earlier_sessions(peer, &client)? {
                    tracing::info!(session = %ended, %client, "its client was started anew");
                    self.catalog.remove_session(ended);
                    self.tell_given_locks(&volume);
                }
                None
            }
        };
        let (id, epoch) = match resumed {
            Some(resumed) => resumed,
            None => {
                let id = SessionId::from_random(self.env.random());
                let epoch = volume.open_session(id, peer, &client, &open_files, pusher)?;
                self.catalog.add_session(id, &volume)?;
                (id, epoch)
            }
        };
        let synced = volume.clone();
        // The epoch fences older sessions: it must never be given twice.
        self.blocking("opening a session", move || synced.sync())
            .await?;
        if !volume.is_alone(id) {
            // Who was alone before may rely on names for as long as a lease.
            tokio::time::sleep(volume.leases.duration()).await;
        }
        self.session_info(&volume, id, epoch)
    }

    fn session_info(&self, volume: &Volume, id: SessionId, epoch: u64) -> Result<MetaReply> {
        self.sessions.notify_one();
        Ok(MetaReply::Session(SessionInfo {
            id,
            epoch,
            boot: self.env.boot(),
            duration_ms: u32::try_from(self.session_duration.as_millis()).unwrap_or(u32::MAX),
            volume: volume.info()?,
        }))
    }
}
