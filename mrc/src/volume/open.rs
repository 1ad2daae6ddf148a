//! Making, opening and closing a volume's database.
//!
//! Numbers of inodes and contents must never be used twice, also not after a loss of power that
//! made the volume forget that it handed some out: OSDs may know them. So a database that was not
//! closed in order goes on far behind the last number that it remembers. In the same way a loss of
//! power may have made it forget which sessions became writers of which files: see `step::tails`.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use babu_kv::{Batch, Database, Durability};
use parking_lot::{Mutex, RwLock};
use xtfs_protocol::ids::ROOT_INO;
use xtfs_protocol::time::Time;
use xtfs_protocol::{Code, Error, Result};

use super::reserve::Disk;
use super::{Times, Volume};
use crate::database::{DatabaseView, Tables};
use crate::error::{self, database};
use crate::inode::{Acls, Body, Directory, Inode};
use crate::keys::{self, Table};
use crate::lease::Leases;
use crate::locks::Locks;
use crate::quota;
use crate::records::{Counters, SessionRecord, Usage, VolumeRecord};
use crate::session::{EpochLimits, Sessions};
use crate::step;
use crate::view::View;

/// Numbers that are passed over when the database was not closed in order: more than can have
/// been handed out since it was last made durable.
const NUMBERS_SKIPPED: u64 = 1 << 32;

/// The root directory of a new volume.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Root {
    pub uid: u32,
    pub gid: u32,
    pub mode: u16,
    pub time: Time,
}

impl Volume {
    /// Makes the database of a new volume, durably.
    pub fn create(
        dir: &Path,
        options: babu_kv::Options,
        record: VolumeRecord,
        root: Root,
        times: Times,
        boot: u64,
    ) -> Result<Self> {
        let disk = disk(dir, &options);
        let opened = Database::open(dir, options).map_err(database)?;
        let tables = Tables::open(&opened)?;
        let inode = Inode {
            ino: ROOT_INO,
            mode: root.mode & 0o7777,
            nlink: 2,
            uid: root.uid,
            gid: root.gid,
            rdev: 0,
            size: 0,
            allocated: 0,
            atime: root.time,
            mtime: root.time,
            ctime: root.time,
            btime: root.time,
            data_version: 0,
            xattr_names: 0,
            acls: Acls::default(),
            body: Body::Directory(Directory {
                parent: ROOT_INO,
                run_next: 0,
                run_end: 0,
                run_length: 0,
            }),
        };
        let counters = Counters {
            next_number: ROOT_INO + 1,
            next_deleted: 1,
            session_epoch: 0,
            closed: true,
            boot,
            remembered_from: 0,
            lost_before: 0,
        };
        let one = Usage {
            bytes: 0,
            inodes: 1,
        };
        let mut batch = Batch::new();
        let root_key = keys::number(ROOT_INO);
        batch.put(tables.index(Table::Inodes)?, &root_key, &inode.encode());
        let usage = tables.index(Table::Usage)?;
        for subject in quota::subjects(&inode) {
            batch.put(usage, &quota::usage_key(subject), &one.encode());
        }
        let settings = tables.index(Table::Settings)?;
        batch.put(settings, keys::SETTING_COUNTERS, &counters.encode());
        batch.put(settings, keys::SETTING_VOLUME, &record.encode());
        opened.write(batch, Durability::Synced).map_err(database)?;
        Self::prepare(opened, disk, tables, times, boot)
    }

    /// Opens the database of a volume, on a start of the machine that `boot` identifies.
    pub fn open(dir: &Path, options: babu_kv::Options, times: Times, boot: u64) -> Result<Self> {
        let disk = disk(dir, &options);
        let opened = Database::open(dir, options).map_err(database)?;
        let tables = Tables::open(&opened)?;
        Self::prepare(opened, disk, tables, times, boot)
    }

    fn prepare(
        opened: Database,
        disk: Disk,
        tables: Tables,
        times: Times,
        boot: u64,
    ) -> Result<Self> {
        let view = DatabaseView {
            snapshot: opened.snapshot(),
            tables: &tables,
        };
        let record = view
            .get(Table::Settings, keys::SETTING_VOLUME)?
            .ok_or_else(|| Error::new(Code::Corrupt, "the volume has no settings"))?;
        let record = VolumeRecord::decode(&record)?;
        let mut counters = step::counters(&view)?;
        if !counters.closed && counters.boot != boot {
            // The machine lost power: who became a writer of what may be forgotten.
            counters.remembered_from = counters.session_epoch + 1;
            counters.lost_before = counters.remembered_from;
        }
        counters.boot = boot;
        let limits = EpochLimits {
            remembered_from: counters.remembered_from,
            lost_before: counters.lost_before,
        };
        let (usages, subject_limits) = step::all(&view)?;
        if usages.len() == 1 {
            // Made when only the volume as a whole was counted.
            count_anew(&opened, &tables, &view)?;
        }
        let sessions = restore_sessions(&view, times.session, limits)?;
        drop(view);
        let number_floor = if counters.closed {
            0
        } else {
            counters.next_number = counters.next_number.saturating_add(NUMBERS_SKIPPED);
            counters.next_number
        };
        counters.closed = false;
        let volume = Self {
            record,
            database: opened,
            disk,
            tables,
            number_floor,
            writer: Mutex::new(()),
            locks: Mutex::new(Locks::restored(sessions.ids())),
            limits: RwLock::new(Arc::new(subject_limits)),
            sessions: Mutex::new(sessions),
            leases: Leases::new(times.lease),
            sweep_due: AtomicBool::new(true),
        };
        volume.write_counters(&counters, Durability::Synced)?;
        Ok(volume)
    }

    fn write_counters(&self, counters: &Counters, durability: Durability) -> Result<()> {
        let mut batch = Batch::new();
        let settings = self.tables.index(Table::Settings)?;
        batch.put(settings, keys::SETTING_COUNTERS, &counters.encode());
        self.database.write(batch, durability).map_err(database)?;
        Ok(())
    }

    /// Closes the database in order; every later access fails. May wait for the disk.
    pub fn close(&self) -> Result<()> {
        {
            let _writer = self.writer.lock();
            let mut counters = step::counters(&self.view())?;
            counters.closed = true;
            // Without sessions no call that is still under way hands out numbers behind it.
            self.sessions.lock().clear();
            self.locks.lock().clear();
            self.write_counters(&counters, Durability::Buffered)?;
        }
        self.database.clone().close().map_err(database)
    }
}

fn count_anew(database: &Database, tables: &Tables, view: &dyn View) -> Result<()> {
    let mut batch = Batch::new();
    let index = tables.index(Table::Usage)?;
    for (subject, usage) in step::recount(view)? {
        batch.put(index, &quota::usage_key(subject), &usage.encode());
    }
    let written = database.write(batch, Durability::Synced);
    written.map(|_| ()).map_err(error::database)
}

fn disk(dir: &Path, options: &babu_kv::Options) -> Disk {
    Disk {
        fs: options.fs.clone(),
        dir: dir.to_path_buf(),
    }
}

fn restore_sessions(view: &dyn View, duration: Duration, limits: EpochLimits) -> Result<Sessions> {
    let mut records = BTreeMap::new();
    let mut kept = Vec::new();
    view.scan(
        Table::Sessions,
        Bound::Unbounded,
        Bound::Unbounded,
        &mut |key, value| {
            match keys::split_session(key)? {
                (id, None) => {
                    records.insert(id, SessionRecord::decode(value)?);
                }
                (id, Some(sequence)) => kept.push((id, sequence)),
            }
            Ok(true)
        },
    )?;
    Ok(Sessions::restored(duration, limits, records, kept))
}
