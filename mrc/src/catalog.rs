//! The volumes of this MRC: which are open, which go away, and which session belongs to which.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use xtfs_layout::Layout;
use xtfs_protocol::ids::{SessionId, VolumeId};
use xtfs_protocol::{Code, Error, Result};

use crate::directory::{Directory, VolumeEntry, VolumeState};
use crate::error;
use crate::records::VolumeRecord;
use crate::volume::{Root, Times, Volume};

const NAME_BYTES_MAX: usize = 64;

/// All volumes.
pub(crate) struct Catalog {
    dir: PathBuf,
    options: babu_kv::Options,
    times: Times,
    boot: u64,
    maps: RwLock<Maps>,
    /// One volume is made or removed at a time. Held by threads that may wait for the disk.
    administration: Mutex<()>,
}

#[derive(Default)]
struct Maps {
    by_name: BTreeMap<String, Arc<Volume>>,
    by_id: BTreeMap<VolumeId, Arc<Volume>>,
    sessions: BTreeMap<SessionId, Arc<Volume>>,
    /// By the name under which they were put aside.
    deleting: BTreeMap<String, Arc<Volume>>,
    /// Volumes that could not be opened, with the reason. The others are served.
    broken: BTreeMap<String, Error>,
}

/// What a new volume is to be.
pub(crate) struct NewVolume {
    pub id: VolumeId,
    pub name: String,
    pub layout: Layout,
    pub root: Root,
}

impl Catalog {
    /// Opens every volume of the directory, and ends removals that a restart interrupted. A
    /// volume that cannot be opened does not keep the others from being served.
    pub fn open(
        dir: &Path,
        options: babu_kv::Options,
        times: Times,
        boot: u64,
        directory: &Directory,
    ) -> Result<Self> {
        let catalog = Self {
            dir: dir.join("volumes"),
            options,
            times,
            boot,
            maps: RwLock::default(),
            administration: Mutex::new(()),
        };
        for (name, entry) in directory.volumes()? {
            if entry.state == VolumeState::Removing {
                let removed = catalog.remove_files(entry.id);
                if let Err(error) = removed.and_then(|()| directory.set_volume(&name, None)) {
                    let error = error.within(format_args!("volume {name}, which was deleted"));
                    tracing::error!(%error, "files are left; the next start tries again");
                }
                continue;
            }
            let volume = match catalog.open_volume(entry.id) {
                Ok(volume) => volume,
                Err(error) => {
                    let error = error.within(format_args!("volume {name}"));
                    tracing::error!(%error, "volume is not served");
                    catalog.maps.write().broken.insert(name, error);
                    continue;
                }
            };
            let volume = Arc::new(volume);
            let mut maps = catalog.maps.write();
            if entry.state == VolumeState::Deleting {
                maps.deleting.insert(name, volume);
                continue;
            }
            for session in volume.session_ids() {
                maps.sessions.insert(session, volume.clone());
            }
            maps.by_id.insert(entry.id, volume.clone());
            maps.by_name.insert(name, volume);
        }
        Ok(catalog)
    }

    fn open_volume(&self, id: VolumeId) -> Result<Volume> {
        let volume = Volume::open(
            &self.folder(id),
            self.options.clone(),
            self.times,
            self.boot,
        )?;
        if volume.id() != id {
            let context = format!("the folder holds volume {}", volume.id());
            return Err(Error::new(Code::Corrupt, context));
        }
        Ok(volume)
    }

    fn folder(&self, id: VolumeId) -> PathBuf {
        self.dir.join(id.to_string())
    }

    /// Makes a volume, durably. May wait for the disk.
    pub fn create(&self, directory: &Directory, new: NewVolume) -> Result<Arc<Volume>> {
        check_name(&new.name)?;
        new.layout
            .check()
            .map_err(|error| Error::new(Code::Invalid, error.to_string()))?;
        let _administration = self.administration.lock();
        let taken = {
            let maps = self.maps.read();
            maps.by_name.contains_key(&new.name)
                || maps.deleting.contains_key(&new.name)
                || maps.broken.contains_key(&new.name)
        };
        if taken {
            return Err(Error::new(Code::Exists, format!("volume {}", new.name)));
        }
        let record = VolumeRecord {
            id: new.id,
            name: new.name.clone(),
            layout: new.layout,
        };
        let folder = self.folder(new.id);
        let options = self.options.clone();
        let volume = Volume::create(&folder, options, record, new.root, self.times, self.boot)?;
        let volume = Arc::new(volume);
        let entry = VolumeEntry {
            id: new.id,
            state: VolumeState::Active,
        };
        directory.set_volume(&new.name, Some(entry))?;
        let mut maps = self.maps.write();
        maps.by_id.insert(new.id, volume.clone());
        maps.by_name.insert(new.name, volume.clone());
        Ok(volume)
    }

    /// Begins to delete a volume, durably: nobody reaches it any more. May wait for the disk.
    pub fn delete(&self, directory: &Directory, name: &str) -> Result<()> {
        let _administration = self.administration.lock();
        let volume = self.by_name(name)?;
        let entry = VolumeEntry {
            id: volume.id(),
            state: VolumeState::Deleting,
        };
        // Nobody may call a volume so: the name is free for another one at once.
        let aside = format!("{name}/{}", volume.id());
        directory.move_volume(name, &aside, entry)?;
        let mut maps = self.maps.write();
        maps.by_name.remove(name);
        maps.by_id.remove(&volume.id());
        maps.sessions.retain(|_, of| of.id() != volume.id());
        volume.retire();
        maps.deleting.insert(aside, volume);
        Ok(())
    }

    /// Ends the deletion of a volume whose objects are gone. May wait for the disk.
    pub fn remove(&self, directory: &Directory, name: &str) -> Result<()> {
        let _administration = self.administration.lock();
        let Some(volume) = self.maps.read().deleting.get(name).cloned() else {
            return Ok(());
        };
        let id = volume.id();
        let entry = VolumeEntry {
            id,
            state: VolumeState::Removing,
        };
        directory.set_volume(name, Some(entry))?;
        volume.close()?;
        self.remove_files(id)?;
        directory.set_volume(name, None)?;
        self.maps.write().deleting.remove(name);
        Ok(())
    }

    fn remove_files(&self, id: VolumeId) -> Result<()> {
        let folder = self.folder(id);
        let fs = &self.options.fs;
        let failed = |error: std::io::Error| error::file(&folder, &error);
        if !fs.exists(&folder).map_err(failed)? {
            return Ok(());
        }
        for name in fs.list(&folder).map_err(failed)? {
            let path = folder.join(name);
            fs.remove(&path)
                .map_err(|error| error::file(&path, &error))?;
        }
        fs.remove_dir(&folder).map_err(failed)?;
        fs.sync_dir(&self.dir).map_err(failed)
    }

    pub fn by_name(&self, name: &str) -> Result<Arc<Volume>> {
        let maps = self.maps.read();
        if let Some(volume) = maps.by_name.get(name) {
            return Ok(volume.clone());
        }
        let missing = || Error::new(Code::NotFound, format!("volume {name}"));
        Err(maps.broken.get(name).cloned().unwrap_or_else(missing))
    }

    pub fn by_id(&self, id: VolumeId) -> Result<Arc<Volume>> {
        let found = self.maps.read().by_id.get(&id).cloned();
        found.ok_or_else(|| Error::new(Code::NotFound, format!("volume {id}")))
    }

    pub fn of_session(&self, id: SessionId) -> Result<Arc<Volume>> {
        let found = self.maps.read().sessions.get(&id).cloned();
        found.ok_or_else(|| {
            let context = format!("session {id}: it does not exist any more");
            Error::reopen(Code::SessionExpired, context)
        })
    }

    /// Enters a new session, unless its volume was deleted meanwhile.
    pub fn add_session(&self, id: SessionId, volume: &Arc<Volume>) -> Result<()> {
        let mut maps = self.maps.write();
        if !maps.by_id.contains_key(&volume.id()) {
            let context = format!("volume {}", volume.record.name);
            return Err(Error::new(Code::NotFound, context));
        }
        maps.sessions.insert(id, volume.clone());
        Ok(())
    }

    pub fn remove_session(&self, id: SessionId) {
        self.maps.write().sessions.remove(&id);
    }

    /// The volumes in use, by name, or why one of them is not: whoever compares objects with
    /// files must not take those of a volume that is not served for orphans.
    pub fn all(&self) -> Result<Vec<Arc<Volume>>> {
        match self.maps.read().broken.values().next() {
            Some(error) => Err(error.clone()),
            None => Ok(self.active()),
        }
    }

    /// The volumes in use, by name.
    pub fn active(&self) -> Vec<Arc<Volume>> {
        self.maps.read().by_name.values().cloned().collect()
    }

    /// The volumes that are being deleted, with their names.
    pub fn deleting(&self) -> Vec<(String, Arc<Volume>)> {
        let maps = self.maps.read();
        let deleting = maps.deleting.iter();
        deleting
            .map(|(name, volume)| (name.clone(), volume.clone()))
            .collect()
    }

    /// Closes every volume; the first error is told, all are closed. May wait for the disk.
    pub fn close(&self) -> Result<()> {
        let maps = std::mem::take(&mut *self.maps.write());
        let volumes = maps
            .by_name
            .into_values()
            .chain(maps.deleting.into_values());
        let mut result = Ok(());
        for volume in volumes {
            result = result.and(volume.close());
        }
        result
    }
}

fn check_name(name: &str) -> Result<()> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(allowed) {
        let context = format!("volume name {name:?}: 1 to 64 of A-Z a-z 0-9 . _ - are accepted");
        return Err(Error::new(Code::Invalid, context));
    }
    Ok(())
}
