//! The directory of services, and the list of volumes of this MRC.
//!
//! Its database (`DIR/directory/`) holds what must outlive a restart; what was heard when lives
//! in memory. After a restart every known service counts as heard of at the start.
//!
//! ```text
//! index     key              value
//! services  id 16 bytes      version 1 | kind u8 | address count u8 | addresses: text | program version: text
//! volumes   name             version 1 | id 16 bytes | state u8 (0 active, 1 deleting, 2 removing)
//! keys      key id u32 BE    version 1 | key 32 bytes
//!           (deleted volumes: name | '/' | id as text)
//! settings  "identity"       version 1 | id 16 bytes
//! ```

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use babu_kv::{Batch, Database, Durability, Index};
use parking_lot::Mutex;
use tokio::time::Instant;
use xtfs_protocol::directory::{
    DirectoryOp, DirectoryReply, ServiceInfo, ServiceKind, ServiceState,
};
use xtfs_protocol::env::Env;
use xtfs_protocol::ids::{ServiceId, VolumeId};
use xtfs_protocol::object::OsdSpace;
use xtfs_protocol::time::Time;
use xtfs_protocol::transport::Peer;
use xtfs_protocol::{Code, Error, KeyRing, Result};

use crate::codec::{Reader, Writer};
use crate::error::database;
use crate::placement::Candidate;

const VERSION: u8 = 1;
const SETTING_IDENTITY: &[u8] = b"identity";
const SERVICES_MAX: usize = 65_536;
const ADDRESSES_MAX: usize = 16;
const TEXT_BYTES_MAX: usize = 256;
/// A service is silent when it was not heard of for so many intervals.
const SILENT_INTERVALS: u32 = 3;
/// Another incarnation may take an identity over after so many intervals of silence.
const TAKEOVER_INTERVALS: u32 = 2;

/// What a service says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ServiceRecord {
    kind: ServiceKind,
    addresses: Vec<String>,
    version: String,
}

struct Known {
    record: ServiceRecord,
    /// `None`: not heard of since the start of this MRC.
    incarnation: Option<u64>,
    heard: Instant,
    heard_at: Time,
    space: OsdSpace,
}

/// How far the removal of a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VolumeState {
    Active,
    /// Its files' objects are being deleted.
    Deleting,
    /// Only its database is left to be removed.
    Removing,
}

/// A volume as the directory lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VolumeEntry {
    pub id: VolumeId,
    pub state: VolumeState,
}

/// A heartbeat as it arrived.
struct Heartbeat {
    id: ServiceId,
    incarnation: u64,
    record: ServiceRecord,
    space: OsdSpace,
}

pub(crate) struct Directory {
    database: Database,
    services_index: Index,
    volumes_index: Index,
    own_id: ServiceId,
    own: ServiceRecord,
    interval: Duration,
    services: Mutex<BTreeMap<ServiceId, Known>>,
    pub keys: KeyRing,
}

impl Directory {
    /// Opens the database and makes identity and keys on first use. May wait for the disk.
    pub fn open(
        dir: &Path,
        options: babu_kv::Options,
        own_id: ServiceId,
        addresses: Vec<String>,
        interval: Duration,
        env: &Env,
    ) -> Result<Self> {
        let opened = Database::open(dir, options).map_err(database)?;
        let services_index = opened.index("services").map_err(database)?;
        let volumes_index = opened.index("volumes").map_err(database)?;
        check_identity(&opened, own_id)?;
        let keys = open_keys(&opened, env)?;
        let mut services = BTreeMap::new();
        for item in opened.prefix(&services_index, b"") {
            let (key, value) = item.map_err(database)?;
            let id = <[u8; 16]>::try_from(&key[..])
                .map_err(|_| Error::new(Code::Corrupt, "key of a service"))?;
            let known = Known {
                record: ServiceRecord::decode(&value)?,
                incarnation: None,
                heard: Instant::now(),
                heard_at: env.now(),
                space: OsdSpace::default(),
            };
            services.insert(ServiceId(id), known);
        }
        Ok(Self {
            database: opened,
            services_index,
            volumes_index,
            own_id,
            own: ServiceRecord {
                kind: ServiceKind::Mrc,
                addresses,
                version: env!("CARGO_PKG_VERSION").to_owned(),
            },
            interval,
            services: Mutex::new(services),
            keys,
        })
    }

    /// Everything that was registered is durable when it returns. May wait for the disk.
    pub fn sync(&self) -> Result<()> {
        self.database.sync().map_err(database)
    }

    /// Closes the database; every later access fails. May wait for the disk.
    pub fn close(&self) -> Result<()> {
        self.database.clone().close().map_err(database)
    }

    /// Answers an operation. The flag says that the answer must wait for [`Directory::sync`].
    pub fn answer(
        &self,
        peer: &Peer,
        op: DirectoryOp,
        now: Time,
    ) -> Result<(DirectoryReply, bool)> {
        match op {
            DirectoryOp::Heartbeat {
                id,
                incarnation,
                kind,
                addresses,
                space,
                version,
            } => {
                let record = ServiceRecord {
                    kind,
                    addresses,
                    version,
                };
                let heartbeat = Heartbeat {
                    id,
                    incarnation,
                    record,
                    space,
                };
                self.heartbeat(peer, heartbeat, now)
            }
            DirectoryOp::List => Ok((DirectoryReply::Services(self.list(now)), false)),
            DirectoryOp::Resolve { id } => {
                let service = self.resolve(id, now)?;
                Ok((DirectoryReply::Services(vec![service]), false))
            }
        }
    }

    fn heartbeat(
        &self,
        peer: &Peer,
        heartbeat: Heartbeat,
        now: Time,
    ) -> Result<(DirectoryReply, bool)> {
        let id = heartbeat.id;
        if *peer != Peer::Service(id) {
            let context = format!("heartbeat of service {id} from another peer");
            return Err(Error::new(Code::NotPermitted, context));
        }
        heartbeat.record.check()?;
        let mut services = self.services.lock();
        let known = services.get(&id);
        if let Some(known) = known {
            self.need_same_or_silent(id, known, &heartbeat)?;
        } else if services.len() >= SERVICES_MAX {
            let context = format!("the cell has {SERVICES_MAX} services, no more are accepted");
            return Err(Error::new(Code::NoSpace, context));
        }
        let changed = known.is_none_or(|known| known.record != heartbeat.record);
        if changed {
            let mut batch = Batch::new();
            batch.put(&self.services_index, &id.0, &heartbeat.record.encode());
            self.database
                .write(batch, Durability::Buffered)
                .map_err(database)?;
        }
        let capability_keys = match heartbeat.record.kind {
            ServiceKind::Osd => self.keys.keys(),
            ServiceKind::Mrc => Vec::new(),
        };
        let known = Known {
            record: heartbeat.record,
            incarnation: Some(heartbeat.incarnation),
            heard: Instant::now(),
            heard_at: now,
            space: heartbeat.space,
        };
        services.insert(id, known);
        let reply = DirectoryReply::Registered {
            interval_ms: u32::try_from(self.interval.as_millis()).unwrap_or(u32::MAX),
            capability_keys,
        };
        Ok((reply, changed))
    }

    /// The same identity started twice is refused while the first is heard. One that comes back
    /// under the address of the first is the first started anew: two cannot listen there.
    fn need_same_or_silent(
        &self,
        id: ServiceId,
        known: &Known,
        heartbeat: &Heartbeat,
    ) -> Result<()> {
        let Some(incarnation) = known.incarnation else {
            return Ok(());
        };
        let same_place = !known.record.addresses.is_empty()
            && known.record.addresses == heartbeat.record.addresses;
        let silent = known.heard.elapsed() >= self.interval * TAKEOVER_INTERVALS;
        if incarnation == heartbeat.incarnation || same_place || silent {
            return Ok(());
        }
        let context = format!(
            "service {id} runs already at {}; the same identity cannot be started twice",
            known.record.addresses.join(", ")
        );
        let pause = u32::try_from(self.interval.as_millis()).unwrap_or(u32::MAX);
        Err(Error::retryable(Code::Exists, context, pause))
    }

    fn info(&self, id: ServiceId, known: &Known) -> ServiceInfo {
        let silent = known.heard.elapsed() >= self.interval * SILENT_INTERVALS;
        ServiceInfo {
            id,
            kind: known.record.kind,
            addresses: known.record.addresses.clone(),
            state: if silent {
                ServiceState::Silent
            } else {
                ServiceState::Online
            },
            space: known.space,
            heard_at: known.heard_at,
            version: known.record.version.clone(),
        }
    }

    fn own_info(&self, now: Time) -> ServiceInfo {
        ServiceInfo {
            id: self.own_id,
            kind: ServiceKind::Mrc,
            addresses: self.own.addresses.clone(),
            state: ServiceState::Online,
            space: OsdSpace::default(),
            heard_at: now,
            version: self.own.version.clone(),
        }
    }

    /// Every service, this MRC too, by identity.
    pub fn list(&self, now: Time) -> Vec<ServiceInfo> {
        let services = self.services.lock();
        let mut list: Vec<_> = services
            .iter()
            .filter(|(id, _)| **id != self.own_id)
            .map(|(id, known)| self.info(*id, known))
            .collect();
        drop(services);
        list.push(self.own_info(now));
        list.sort_by_key(|service| service.id);
        list
    }

    pub fn resolve(&self, id: ServiceId, now: Time) -> Result<ServiceInfo> {
        if id == self.own_id {
            return Ok(self.own_info(now));
        }
        match self.services.lock().get(&id) {
            Some(known) => Ok(self.info(id, known)),
            None => Err(Error::new(
                Code::NotFound,
                format!("service {id} is not registered"),
            )),
        }
    }

    /// The OSDs that answer.
    pub fn online_osds(&self) -> Vec<Candidate> {
        let limit = self.interval * SILENT_INTERVALS;
        let services = self.services.lock();
        services
            .iter()
            .filter(|(_, known)| {
                known.record.kind == ServiceKind::Osd && known.heard.elapsed() < limit
            })
            .map(|(id, known)| Candidate {
                id: *id,
                space: known.space,
            })
            .collect()
    }

    /// Room of all OSDs together, silent ones too: their disks are still there.
    pub fn space(&self) -> (u64, u64) {
        let services = self.services.lock();
        let osds = services
            .values()
            .filter(|known| known.record.kind == ServiceKind::Osd);
        osds.fold((0u64, 0u64), |(total, free), known| {
            (
                total.saturating_add(known.space.total_bytes),
                free.saturating_add(known.space.free_bytes),
            )
        })
    }

    /// The volumes by name.
    pub fn volumes(&self) -> Result<BTreeMap<String, VolumeEntry>> {
        let mut volumes = BTreeMap::new();
        for item in self.database.prefix(&self.volumes_index, b"") {
            let (key, value) = item.map_err(database)?;
            let name = String::from_utf8(key.to_vec())
                .map_err(|_| Error::new(Code::Corrupt, "name of a volume is not UTF-8"))?;
            volumes.insert(name, VolumeEntry::decode(&value)?);
        }
        Ok(volumes)
    }

    /// Moves a volume to another name with another entry, durably and at once. May wait for the
    /// disk.
    pub fn move_volume(&self, from: &str, to: &str, entry: VolumeEntry) -> Result<()> {
        let mut batch = Batch::new();
        batch.delete(&self.volumes_index, from.as_bytes());
        batch.put(&self.volumes_index, to.as_bytes(), &entry.encode());
        self.database
            .write(batch, Durability::Synced)
            .map_err(database)?;
        Ok(())
    }

    /// Enters, changes or removes a volume, durably. May wait for the disk.
    pub fn set_volume(&self, name: &str, entry: Option<VolumeEntry>) -> Result<()> {
        let mut batch = Batch::new();
        match entry {
            Some(entry) => batch.put(&self.volumes_index, name.as_bytes(), &entry.encode()),
            None => batch.delete(&self.volumes_index, name.as_bytes()),
        }
        self.database
            .write(batch, Durability::Synced)
            .map_err(database)?;
        Ok(())
    }
}

/// One folder is one MRC: its identity is written down at the first start.
fn check_identity(opened: &Database, own_id: ServiceId) -> Result<()> {
    let settings = opened.index("settings").map_err(database)?;
    let Some(value) = opened.get(&settings, SETTING_IDENTITY).map_err(database)? else {
        let mut writer = Writer::versioned(VERSION);
        writer.raw(&own_id.0);
        let mut batch = Batch::new();
        batch.put(&settings, SETTING_IDENTITY, &writer.finish());
        opened.write(batch, Durability::Synced).map_err(database)?;
        return Ok(());
    };
    let mut reader = Reader::versioned("identity", &value, VERSION)?;
    let found = ServiceId(reader.array()?);
    reader.end()?;
    if found == own_id {
        Ok(())
    } else {
        let context = format!("the folder belongs to MRC {found}, this one is {own_id}");
        Err(Error::new(Code::Invalid, context))
    }
}

/// The capability keys; the first one is made at the first start.
fn open_keys(opened: &Database, env: &Env) -> Result<KeyRing> {
    let index = opened.index("keys").map_err(database)?;
    let mut keys = Vec::new();
    for item in opened.prefix(&index, b"") {
        let (key, value) = item.map_err(database)?;
        let id = <[u8; 4]>::try_from(&key[..])
            .map_err(|_| Error::new(Code::Corrupt, "id of a capability key"))?;
        let mut reader = Reader::versioned("capability key", &value, VERSION)?;
        keys.push((u32::from_be_bytes(id), reader.array()?));
        reader.end()?;
    }
    if !keys.is_empty() {
        return Ok(KeyRing::from_keys(keys));
    }
    let ring = KeyRing::generate(env);
    let mut batch = Batch::new();
    for (id, key) in ring.keys() {
        let mut writer = Writer::versioned(VERSION);
        writer.raw(&key);
        batch.put(&index, &id.to_be_bytes(), &writer.finish());
    }
    opened.write(batch, Durability::Synced).map_err(database)?;
    Ok(ring)
}

impl ServiceRecord {
    fn check(&self) -> Result<()> {
        let too_long = self.version.len() > TEXT_BYTES_MAX
            || self.addresses.len() > ADDRESSES_MAX
            || self.addresses.iter().any(|a| a.len() > TEXT_BYTES_MAX);
        if too_long {
            return Err(Error::new(Code::Invalid, "heartbeat with too much text"));
        }
        Ok(())
    }

    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::versioned(VERSION);
        writer.u8(match self.kind {
            ServiceKind::Mrc => 0,
            ServiceKind::Osd => 1,
        });
        writer.u8(self.addresses.len().min(ADDRESSES_MAX) as u8);
        for address in self.addresses.iter().take(ADDRESSES_MAX) {
            writer.bytes(address.as_bytes());
        }
        writer.bytes(self.version.as_bytes());
        writer.finish()
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::versioned("service", bytes, VERSION)?;
        let kind = match reader.u8()? {
            0 => ServiceKind::Mrc,
            1 => ServiceKind::Osd,
            other => return Err(reader.damaged(&format!("kind {other} is unknown"))),
        };
        let count = reader.u8()?;
        let addresses = (0..count).map(|_| reader.text()).collect::<Result<_>>()?;
        let record = Self {
            kind,
            addresses,
            version: reader.text()?,
        };
        reader.end().map(|()| record)
    }
}

impl VolumeEntry {
    fn encode(self) -> Vec<u8> {
        let mut writer = Writer::versioned(VERSION);
        writer.raw(&self.id.0).u8(match self.state {
            VolumeState::Active => 0,
            VolumeState::Deleting => 1,
            VolumeState::Removing => 2,
        });
        writer.finish()
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::versioned("volume entry", bytes, VERSION)?;
        let id = VolumeId(reader.array()?);
        let state = match reader.u8()? {
            0 => VolumeState::Active,
            1 => VolumeState::Deleting,
            2 => VolumeState::Removing,
            other => return Err(reader.damaged(&format!("state {other} is unknown"))),
        };
        reader.end().map(|()| Self { id, state })
    }
}
