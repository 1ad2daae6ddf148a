//! The end of the open segment, where every record goes.
//!
//! One thread at a time appends: it works out what the record changes, writes it with one call and
//! makes the change visible. Hashing and compression happened before. Because a record's place,
//! its sequence number and its visibility are decided under one lock, the order in the file is the
//! order of the sequence numbers is the order in which readers see changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use babu_kv::fs::File;
use xtfs_protocol::ids::FileId;

use super::Store;
use super::record::{Header, Prepared, SEGMENT_HEADER_BYTES, encode_segment_header};
use crate::error::{At, Result};

/// Most files remembered as having lost writes to a failed fsync.
const SUSPECTS_MAX: usize = 1 << 16;

/// A segment and its file.
pub(super) type SegmentFile = (u64, Arc<dyn File>);

/// The end of the log.
pub(crate) struct Appender {
    pub segment: u64,
    pub file: Arc<dyn File>,
    pub position: u64,
    pub next_sequence: u64,
    /// Sealed segments with records that were not synced yet.
    pub unsynced: Vec<SegmentFile>,
    /// Files with records that were not synced yet, with the last one's sequence number.
    pub dirty_files: BTreeMap<FileId, u64>,
    /// Files that lost records to a failed fsync, until somebody was told.
    pub suspects: BTreeSet<FileId>,
    /// Segments that may have lost records to a failed fsync, until what is alive in them is
    /// somewhere else.
    pub lost: BTreeSet<u64>,
    /// Attempts in a row to bring that about.
    pub rescues: u32,
    /// The open segment takes no more records.
    pub closed: bool,
    /// An fsync of the open segment failed: it must not be synced again.
    pub poisoned: bool,
}

/// A record that was written.
pub(crate) struct Committed {
    pub sequence: u64,
    /// Bytes of data that the objects gained or lost.
    pub delta: i64,
    /// Extents of the one object that it changed, before and after.
    pub extents: (usize, usize),
}

impl Store {
    /// Writes a record and makes its change visible, if `allowed` (asked when nothing can come
    /// between any more) says so.
    pub(super) fn commit(
        &self,
        mut prepared: Prepared,
        allowed: impl FnOnce() -> Result<bool>,
    ) -> Result<Option<Committed>> {
        let mut appender = self.appender.lock();
        if !allowed()? {
            return Ok(None);
        }
        if appender.closed || appender.position >= self.limits.segment_bytes {
            self.roll(&mut appender)?;
        }
        let header = Header {
            segment: appender.segment,
            position: appender.position,
            sequence: appender.next_sequence,
            durable: self.sync.durable(),
            change: prepared.change,
            blocks: std::mem::take(&mut prepared.blocks),
        };
        let plan = self.plan(&header)?;
        prepared.seal(&header, self.seed);
        self.append(&mut appender, &prepared.bytes)?;
        appender
            .dirty_files
            .insert(header.change.file(), header.sequence);
        let committed = Committed {
            sequence: header.sequence,
            delta: plan.ledger.total(),
            extents: plan.extents,
        };
        let raw = header.blocks.iter().map(|b| u64::from(b.raw)).sum();
        let bytes = prepared.bytes.len() as u64;
        self.layers
            .write()
            .publish(plan, header.segment, bytes, raw);
        Ok(Some(committed))
    }

    /// Writes the bytes of one record. After an error nothing of it is left, or the segment is
    /// closed.
    fn append(&self, appender: &mut Appender, bytes: &[u8]) -> Result<()> {
        let position = appender.position;
        if let Err(error) = appender.file.write_at(bytes, position) {
            let path = self.files.path(appender.segment);
            if let Err(cut) = appender.file.set_len(position) {
                tracing::warn!(path = %path.display(), %cut, "a failed write could not be cut off");
                appender.closed = true;
            }
            return Err(error).at("write", &path);
        }
        appender.position += bytes.len() as u64;
        appender.next_sequence += 1;
        Ok(())
    }

    /// Seals the open segment and goes on in a new one.
    pub(super) fn roll(&self, appender: &mut Appender) -> Result<()> {
        let next = appender.segment + 1;
        let file = self
            .files
            .create(next, &encode_segment_header(next, self.id))
            .at("create", &self.files.path(next))?;
        let sealed = std::mem::replace(&mut appender.file, file);
        if !appender.poisoned {
            appender.unsynced.push((appender.segment, sealed));
        }
        let mut layers = self.layers.write();
        layers.seal(appender.segment);
        layers.segments.entry(next).or_default().bytes = SEGMENT_HEADER_BYTES;
        layers.pending.touched.insert(next);
        appender.segment = next;
        appender.position = SEGMENT_HEADER_BYTES;
        appender.closed = false;
        appender.poisoned = false;
        Ok(())
    }
}

impl Appender {
    /// The sealed segments with unsynced records, and the file of the open one if it may be
    /// synced.
    pub(super) fn files_to_sync(&self) -> (Vec<SegmentFile>, Option<SegmentFile>) {
        let open = (!self.poisoned).then(|| (self.segment, self.file.clone()));
        (self.unsynced.clone(), open)
    }

    /// Everything up to a sequence number is durable, and so are all records of `sealed`.
    pub(super) fn synced(&mut self, target: u64, sealed: &[SegmentFile]) {
        self.unsynced
            .retain(|(segment, _)| !sealed.iter().any(|(synced, _)| synced == segment));
        self.dirty_files.retain(|_, sequence| *sequence > target);
    }

    /// Everything that was not synced may be lost; returns the last such sequence number.
    pub(super) fn poison(&mut self) -> u64 {
        let unsynced = std::mem::take(&mut self.unsynced);
        self.lost
            .extend(unsynced.iter().map(|(segment, _)| *segment));
        self.lost.insert(self.segment);
        self.poisoned = true;
        self.closed = true;
        self.suspects
            .extend(std::mem::take(&mut self.dirty_files).into_keys());
        while self.suspects.len() > SUSPECTS_MAX {
            self.suspects.pop_first();
        }
        self.next_sequence.saturating_sub(1)
    }
}
