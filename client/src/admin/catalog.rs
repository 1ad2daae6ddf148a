//! Which file an object belongs to, and whether it lies where that file has it.
//!
//! A catalog is a picture of every file that the MRC knows, taken page by page while the cell
//! works on. What looks wrong against one picture is therefore only a suspicion: callers take a
//! second picture and judge again. It costs about 100 bytes of memory a file.

use std::collections::{BTreeMap, HashMap, HashSet};

use xtfs_layout::Layout;
use xtfs_protocol::ids::{FileId, Ino, ObjectId, ServiceId, VolumeId};
use xtfs_protocol::meta::{FileSummary, Placement};
use xtfs_protocol::object::ObjectSummary;
use xtfs_protocol::{Code, Result};

use super::Admin;

/// What an object is to the files that the MRC knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It belongs to a file and lies where the file has it.
    Fine,
    /// It reaches beyond the end of its file: written, but the size was never reported.
    BeyondEnd {
        /// Bytes of the file.
        size: u64,
    },
    /// It lies on an OSD where its file does not look for it.
    Misplaced {
        /// Where the file looks for it.
        expected: Option<ServiceId>,
    },
    /// The MRC knows its volume, but no such file.
    UnknownFile,
    /// The MRC does not know its volume.
    UnknownVolume,
}

/// What is kept of a file.
struct FileFacts {
    ino: Ino,
    size: u64,
    /// Index into the catalog's placements.
    placement: usize,
}

struct VolumeFacts {
    name: String,
    files: HashMap<u64, FileFacts>,
}

/// A picture of the files of all volumes.
#[derive(Default)]
pub struct Catalog {
    volumes: BTreeMap<VolumeId, VolumeFacts>,
    placements: Vec<(Layout, Vec<ServiceId>)>,
    placement_index: HashMap<(Layout, Vec<ServiceId>), usize>,
}

impl Catalog {
    /// Takes a picture. A volume that is deleted meanwhile is left out.
    ///
    /// # Errors
    /// The MRC's, or those of the way to it.
    pub async fn load(admin: &Admin) -> Result<Self> {
        let mut catalog = Self::default();
        for volume in admin.volumes().await? {
            catalog.add_volume(volume.id, &volume.name);
            let mut after = 0;
            loop {
                let (files, end) = match admin.files(volume.id, after).await {
                    Err(error) if error.code == Code::NotFound => {
                        catalog.volumes.remove(&volume.id);
                        break;
                    }
                    page => page?,
                };
                let last = files.last().map(|file| file.ino);
                for file in files {
                    catalog.add_file(volume.id, file);
                }
                match last {
                    Some(last) if !end && last > after => after = last,
                    _ => break,
                }
            }
        }
        Ok(catalog)
    }

    /// Adds a volume.
    pub fn add_volume(&mut self, id: VolumeId, name: &str) {
        let facts = VolumeFacts {
            name: name.to_owned(),
            files: HashMap::new(),
        };
        self.volumes.insert(id, facts);
    }

    /// Adds a file to a volume that was added.
    pub fn add_file(&mut self, volume: VolumeId, file: FileSummary) {
        let placement = self.intern(file.placement);
        let facts = FileFacts {
            ino: file.ino,
            size: file.size,
            placement,
        };
        if let Some(volume) = self.volumes.get_mut(&volume) {
            volume.files.insert(file.data, facts);
        }
    }

    /// Files in all volumes.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.volumes.values().map(|v| v.files.len() as u64).sum()
    }

    /// Every OSD that some file's placement names.
    #[must_use]
    pub fn osds(&self) -> HashSet<ServiceId> {
        let lists = self.placements.iter().map(|(_, osds)| osds);
        lists.flatten().copied().collect()
    }

    /// The name of a volume.
    #[must_use]
    pub fn volume_name(&self, id: VolumeId) -> Option<&str> {
        self.volumes.get(&id).map(|volume| volume.name.as_str())
    }

    /// The inode whose content this is.
    #[must_use]
    pub fn ino(&self, file: FileId) -> Option<Ino> {
        self.facts(file).map(|facts| facts.ino)
    }

    /// Judges an object that `osd` stores.
    #[must_use]
    pub fn judge(&self, osd: ServiceId, object: &ObjectSummary) -> Verdict {
        let ObjectId {
            file,
            object: number,
            shard,
        } = object.object;
        if !self.volumes.contains_key(&file.volume) {
            return Verdict::UnknownVolume;
        }
        let Some(facts) = self.facts(file) else {
            return Verdict::UnknownFile;
        };
        let Some((layout, osds)) = self.placements.get(facts.placement) else {
            return Verdict::UnknownFile;
        };
        let expected = osds.get(layout.position(number, shard)).copied();
        if expected != Some(osd) {
            return Verdict::Misplaced { expected };
        }
        let end = number
            .saturating_mul(u64::from(layout.object_size))
            .saturating_add(u64::from(object.length));
        if end > facts.size {
            return Verdict::BeyondEnd { size: facts.size };
        }
        Verdict::Fine
    }

    fn facts(&self, file: FileId) -> Option<&FileFacts> {
        self.volumes.get(&file.volume)?.files.get(&file.data)
    }

    /// Most files share a placement, so each is kept once.
    fn intern(&mut self, placement: Placement) -> usize {
        let key = (placement.layout, placement.osds);
        if let Some(&index) = self.placement_index.get(&key) {
            return index;
        }
        let index = self.placements.len();
        self.placements.push(key.clone());
        self.placement_index.insert(key, index);
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: VolumeId = VolumeId([1; 16]);
    const FIRST: ServiceId = ServiceId([10; 16]);
    const SECOND: ServiceId = ServiceId([20; 16]);

    fn catalog_with_one_file(size: u64) -> Catalog {
        let mut catalog = Catalog::default();
        catalog.add_volume(VOLUME, "main");
        let placement = Placement {
            layout: Layout::striped(2),
            view: 1,
            osds: vec![FIRST, SECOND],
        };
        let (ino, data) = (7, 70);
        catalog.add_file(
            VOLUME,
            FileSummary {
                ino,
                data,
                size,
                placement,
            },
        );
        catalog
    }

    fn object(volume: VolumeId, data: u64, object: u64, length: u32) -> ObjectSummary {
        let file = FileId { volume, data };
        ObjectSummary {
            object: ObjectId {
                file,
                object,
                shard: 0,
            },
            length,
            stored_bytes: length,
        }
    }

    #[test]
    fn an_object_is_fine_only_on_the_osd_where_its_file_looks_for_it() {
        let catalog = catalog_with_one_file(3 << 20);
        let second_object = object(VOLUME, 70, 1, 1 << 20);
        assert_eq!(catalog.judge(SECOND, &second_object), Verdict::Fine);
        assert_eq!(
            catalog.judge(FIRST, &second_object),
            Verdict::Misplaced {
                expected: Some(SECOND)
            }
        );
    }

    #[test]
    fn bytes_behind_the_end_are_seen_to_the_byte() {
        let catalog = catalog_with_one_file((1 << 20) + 5);
        assert_eq!(
            catalog.judge(SECOND, &object(VOLUME, 70, 1, 5)),
            Verdict::Fine
        );
        assert_eq!(
            catalog.judge(SECOND, &object(VOLUME, 70, 1, 6)),
            Verdict::BeyondEnd {
                size: (1 << 20) + 5
            }
        );
    }

    #[test]
    fn old_content_and_foreign_volumes_are_told_apart() {
        let catalog = catalog_with_one_file(1);
        let old = object(VOLUME, 69, 0, 1);
        assert_eq!(catalog.judge(FIRST, &old), Verdict::UnknownFile);
        let foreign = object(VolumeId([9; 16]), 70, 0, 1);
        assert_eq!(catalog.judge(FIRST, &foreign), Verdict::UnknownVolume);
        assert_eq!(
            catalog.ino(FileId {
                volume: VOLUME,
                data: 70
            }),
            Some(7)
        );
    }
}
