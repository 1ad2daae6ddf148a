//! The small records of a volume: directory entries, deletions, sessions, usage and counters.
//!
//! ```text
//! DirentRecord   version 1 | inode u64 | kind u8
//! DeletedRecord  version 1 | data u64 | OSD count u8 | OSD ids 16 bytes each
//! SessionRecord  version 2 | epoch u64 | owner: length u32, text | client: length u32, text | lost u8
//!                (client and lost from version 2)
//! Usage          version 1 | bytes u128 | inodes u64
//! Counters       version 2 | next number u64 | next deleted u64 | last session epoch u64 | closed u8
//!                | boot u64 | remembered from u64 | lost before u64 (these three from version 2)
//! VolumeRecord   version 1 | id 16 bytes | layout 7 bytes | name: length u32, text
//! layout         object size u32 | data shards u8 | parity shards u8 | width u8
//! ```
//!
//! Every record starts with its version; a newer one is refused, never guessed at.

use xtfs_layout::Layout;
use xtfs_protocol::Result;
use xtfs_protocol::ids::{Ino, ServiceId, VolumeId};
use xtfs_protocol::meta::FileKind;

use crate::codec::{Reader, Writer};

const VERSION: u8 = 1;
const SESSION_VERSION: u8 = 2;
const COUNTERS_VERSION: u8 = 2;

/// What a name leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirentRecord {
    pub ino: Ino,
    pub kind: FileKind,
}

impl DirentRecord {
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::versioned(VERSION);
        writer.u64(self.ino).u8(encode_kind(self.kind));
        writer.finish()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::versioned("directory entry", bytes, VERSION)?;
        let record = Self {
            ino: reader.u64()?,
            kind: decode_kind(&mut reader)?,
        };
        reader.end().map(|()| record)
    }
}

/// Content whose objects have to be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeletedRecord {
    pub data: u64,
    pub osds: Vec<ServiceId>,
}

impl DeletedRecord {
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::versioned(VERSION);
        writer.u64(self.data);
        encode_osds(&mut writer, &self.osds);
        writer.finish()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::versioned("deletion", bytes, VERSION)?;
        let record = Self {
            data: reader.u64()?,
            osds: decode_osds(&mut reader)?,
        };
        reader.end().map(|()| record)
    }
}

/// A session that a client opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionRecord {
    pub epoch: u64,
    /// Who opened it, as its certificate said; nobody else may use it.
    pub owner: String,
    /// What its client calls itself across restarts, or nothing.
    pub client: String,
    /// It ended without its client's word: what that client wrote last may never have been told.
    /// Nobody can use it any more.
    pub lost: bool,
}

impl SessionRecord {
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::versioned(SESSION_VERSION);
        writer
            .u64(self.epoch)
            .bytes(self.owner.as_bytes())
            .bytes(self.client.as_bytes())
            .u8(u8::from(self.lost));
        writer.finish()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::versioned("session", bytes, SESSION_VERSION)?;
        let mut record = Self {
            epoch: reader.u64()?,
            owner: reader.text()?,
            client: String::new(),
            lost: false,
        };
        if reader.version() == SESSION_VERSION {
            record.client = reader.text()?;
            record.lost = reader.u8()? != 0;
        }
        reader.end().map(|()| record)
    }
}

/// What a volume holds. Changes in the batch that changes what it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Usage {
    /// Sum of the sizes of regular files and symbolic link targets; wide, because sparse files
    /// may claim more than 64 bits together.
    pub bytes: u128,
    /// Inodes, those of unlinked but open files too.
    pub inodes: u64,
}

impl Usage {
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::versioned(VERSION);
        writer.u128(self.bytes).u64(self.inodes);
        writer.finish()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::versioned("usage", bytes, VERSION)?;
        let record = Self {
            bytes: reader.u128()?,
            inodes: reader.u64()?,
        };
        reader.end().map(|()| record)
    }
}

/// Where the numbers of a volume go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Next number for inodes and contents; never handed out twice.
    pub next_number: u64,
    /// Next sequence of the deletion queue.
    pub next_deleted: u64,
    /// Epoch of the session opened last.
    pub session_epoch: u64,
    /// The database was closed in order: everything handed out is in it.
    pub closed: bool,
    /// The start of the machine on which the database was opened last.
    pub boot: u64,
    /// What sessions of earlier epochs did may have been forgotten when the machine lost power.
    pub remembered_from: u64,
    /// Sessions of earlier epochs that are not open count as lost.
    pub lost_before: u64,
}

impl Counters {
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::versioned(COUNTERS_VERSION);
        writer
            .u64(self.next_number)
            .u64(self.next_deleted)
            .u64(self.session_epoch)
            .u8(u8::from(self.closed))
            .u64(self.boot)
            .u64(self.remembered_from)
            .u64(self.lost_before);
        writer.finish()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::versioned("counters", bytes, COUNTERS_VERSION)?;
        let mut record = Self {
            next_number: reader.u64()?,
            next_deleted: reader.u64()?,
            session_epoch: reader.u64()?,
            closed: reader.u8()? != 0,
            boot: 0,
            remembered_from: 0,
            lost_before: 0,
        };
        if reader.version() == COUNTERS_VERSION {
            record.boot = reader.u64()?;
            record.remembered_from = reader.u64()?;
            record.lost_before = reader.u64()?;
        }
        reader.end().map(|()| record)
    }
}

/// Identity and defaults of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeRecord {
    pub id: VolumeId,
    pub name: String,
    /// Layout of new files.
    pub layout: Layout,
}

impl VolumeRecord {
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::versioned(VERSION);
        writer.raw(&self.id.0);
        encode_layout(&mut writer, &self.layout);
        writer.bytes(self.name.as_bytes());
        writer.finish()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::versioned("volume", bytes, VERSION)?;
        let record = Self {
            id: VolumeId(reader.array()?),
            layout: decode_layout(&mut reader)?,
            name: reader.text()?,
        };
        reader.end().map(|()| record)
    }
}

pub(crate) fn encode_layout(writer: &mut Writer, layout: &Layout) {
    writer
        .u32(layout.object_size)
        .u8(layout.data_shards)
        .u8(layout.parity_shards)
        .u8(layout.width);
}

pub(crate) fn decode_layout(reader: &mut Reader<'_>) -> Result<Layout> {
    let layout = Layout {
        object_size: reader.u32()?,
        data_shards: reader.u8()?,
        parity_shards: reader.u8()?,
        width: reader.u8()?,
    };
    layout
        .check()
        .map_err(|error| reader.damaged(&error.to_string()))?;
    Ok(layout)
}

pub(crate) fn encode_osds(writer: &mut Writer, osds: &[ServiceId]) {
    let count = u8::try_from(osds.len()).unwrap_or(u8::MAX);
    writer.u8(count);
    for osd in osds.iter().take(usize::from(count)) {
        writer.raw(&osd.0);
    }
}

pub(crate) fn decode_osds(reader: &mut Reader<'_>) -> Result<Vec<ServiceId>> {
    let count = reader.u8()?;
    (0..count).map(|_| reader.array().map(ServiceId)).collect()
}

/// The kinds by their number in records.
const KINDS: [FileKind; 7] = [
    FileKind::File,
    FileKind::Directory,
    FileKind::Symlink,
    FileKind::Fifo,
    FileKind::Socket,
    FileKind::CharDevice,
    FileKind::BlockDevice,
];

pub(crate) const fn encode_kind(kind: FileKind) -> u8 {
    match kind {
        FileKind::File => 0,
        FileKind::Directory => 1,
        FileKind::Symlink => 2,
        FileKind::Fifo => 3,
        FileKind::Socket => 4,
        FileKind::CharDevice => 5,
        FileKind::BlockDevice => 6,
    }
}

pub(crate) fn decode_kind(reader: &mut Reader<'_>) -> Result<FileKind> {
    let number = reader.u8()?;
    KINDS
        .get(usize::from(number))
        .copied()
        .ok_or_else(|| reader.damaged(&format!("kind {number} is unknown")))
}

#[cfg(test)]
mod tests {
    use xtfs_protocol::Code;

    use super::*;

    #[test]
    fn every_kind_reads_back() {
        for kind in KINDS {
            let record = DirentRecord { ino: 77, kind };
            assert_eq!(DirentRecord::decode(&record.encode()).unwrap(), record);
        }
    }

    #[test]
    fn records_read_back_as_they_were_written() {
        let deleted = DeletedRecord {
            data: 5,
            osds: vec![ServiceId([1; 16]), ServiceId([2; 16])],
        };
        assert_eq!(DeletedRecord::decode(&deleted.encode()).unwrap(), deleted);
        let volume = VolumeRecord {
            id: VolumeId([3; 16]),
            name: "home".into(),
            layout: Layout::striped(3),
        };
        assert_eq!(VolumeRecord::decode(&volume.encode()).unwrap(), volume);
        let usage = Usage {
            bytes: u128::from(u64::MAX) * 3,
            inodes: 4,
        };
        assert_eq!(Usage::decode(&usage.encode()).unwrap(), usage);
        let session = SessionRecord {
            epoch: 8,
            owner: "host a".into(),
            client: "/mnt".into(),
            lost: true,
        };
        assert_eq!(SessionRecord::decode(&session.encode()).unwrap(), session);
    }

    #[test]
    fn newer_cut_and_lengthened_records_are_refused() {
        let record = DirentRecord {
            ino: 1,
            kind: FileKind::File,
        };
        let mut bytes = record.encode();
        bytes.push(0);
        assert_eq!(
            DirentRecord::decode(&bytes).unwrap_err().code,
            Code::Corrupt
        );
        assert_eq!(
            DirentRecord::decode(&bytes[..5]).unwrap_err().code,
            Code::Corrupt
        );
        bytes[0] = 2;
        assert_eq!(
            DirentRecord::decode(&bytes).unwrap_err().code,
            Code::Version
        );
    }
}
