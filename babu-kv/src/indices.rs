//! Creating and dropping indices.
//!
//! The manifest names the indices. Numbers ascend and are never used again, so that what is left of
//! a dropped index can never show up in another one.
//!
//! An index is dropped by one record in the log, which deletes the range of all its keys: before it
//! in the order of batches the index is whole, after it nothing is left, and no crash gives anything
//! in between. Replay takes such a range for what it is and removes the name; so do, in an edit of
//! their own or one that comes by, a running database once the record is durable, and the flush
//! after which the log no longer holds it.
//!
//! A batch was checked before it queued up. Whoever leads therefore compares the number of drops
//! with that at the check, and checks again when there was one.

use crate::{
    batch::Batch,
    core::Core,
    error::{Error, Result},
    log::{format, reader::Drops, writer::Request},
    manifest::edit::{Edit, INDEX_MAX},
    threads::{
        Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Release},
    },
};
use std::collections::{BTreeMap, BTreeSet};

/// Longest name of an index in bytes.
const NAME_BYTES_MAX: usize = 255;

pub(crate) struct Indices {
    /// The number of the last index.
    last: AtomicU32,
    /// How many were dropped.
    drops: AtomicU64,
    dropped: Mutex<Dropped>,
    /// Held by whoever creates or drops an index, also over its syncs. Nobody else takes it.
    naming: Mutex<()>,
}

#[derive(Default)]
struct Dropped {
    all: BTreeSet<u32>,
    /// Those that the manifest may still name, each with the number of the record that drops it.
    named: BTreeMap<u32, u64>,
}

impl Indices {
    /// `numbers` are those of all indices, `last` is the last that was ever given to one.
    pub(crate) fn new(numbers: impl Iterator<Item = u32>, last: u32) -> Indices {
        let numbers: BTreeSet<u32> = numbers.collect();
        let all: BTreeSet<u32> = (1..=last).filter(|n| !numbers.contains(n)).collect();
        Indices {
            last: AtomicU32::new(last),
            drops: AtomicU64::new(all.len() as u64),
            dropped: Mutex::new(Dropped {
                all,
                named: BTreeMap::new(),
            }),
            naming: Mutex::default(),
        }
    }

    pub(crate) fn is_dropped(&self, index: u32) -> bool {
        self.drops.load(Acquire) > 0 && self.dropped.lock().all.contains(&index)
    }

    /// Turns a batch into a request to write it, if all its indices are there.
    pub(crate) fn request(&self, batch: Batch) -> Result<Request> {
        let drops = self.drops.load(Acquire);
        let (record, count) = batch.into_record(self.last.load(Acquire))?;
        let request = Request {
            record,
            count,
            drops,
        };
        if drops > 0 {
            self.check(&request)?;
        }
        Ok(request)
    }

    /// Whether nothing was dropped since the request was checked.
    pub(crate) fn is_fresh(&self, request: &Request) -> bool {
        request.drops == self.drops.load(Acquire)
    }

    /// Whether all its indices are still there.
    pub(crate) fn check(&self, request: &Request) -> Result<()> {
        let dropped = self.dropped.lock();
        match format::indices(&request.record, request.count) {
            Some(indices) if indices.is_disjoint(&dropped.all) => Ok(()),
            _ => Err(Error::invalid("the batch names an index that was dropped")),
        }
    }

    /// Records of the log drop these, as replay found.
    pub(crate) fn replayed(&self, drops: &Drops) {
        drops.iter().for_each(|(index, n)| self.drop(*index, *n));
    }

    fn drop(&self, index: u32, sequence: u64) {
        let mut dropped = self.dropped.lock();
        dropped.all.insert(index);
        dropped.named.insert(index, sequence);
        self.drops.store(dropped.all.len() as u64, Release);
    }

    /// The dropped indices that the manifest may still name, of those that records up to `sequence`
    /// drop.
    pub(crate) fn still_named(&self, sequence: u64) -> Vec<u32> {
        let dropped = self.dropped.lock();
        let named = dropped.named.iter().filter(|(_, drop)| **drop <= sequence);
        named.map(|(index, _)| *index).collect()
    }

    pub(crate) fn forgotten(&self, index: u32) {
        self.dropped.lock().named.remove(&index);
    }

    fn dropped_at(&self, index: u32) -> Option<u64> {
        self.dropped.lock().named.get(&index).copied()
    }
}

impl Core {
    /// The number of the index of this name, created durably when missing.
    pub(crate) fn index(&self, name: &str) -> Result<u32> {
        self.check_open()?;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Error::invalid("the name of an index has 1 to 255 bytes"));
        }
        let named = self.manifest.lock().indices.get(name).copied();
        if let Some(id) = named.filter(|id| !self.indices.is_dropped(*id)) {
            return Ok(id);
        }
        self.check_writable()?;
        let _naming = self.indices.naming.lock();
        let named = self.manifest.lock().indices.get(name).copied();
        match named {
            Some(id) if !self.indices.is_dropped(id) => return Ok(id),
            Some(id) => self.finish_drop(id)?,
            None => {}
        }
        let id = self.indices.last.load(Acquire) + 1;
        if id > INDEX_MAX {
            return Err(Error::invalid(
                "a database has at most 1048576 indices in its life",
            ));
        }
        let edit = Edit {
            indices: vec![(id, name.to_string())],
            ..Edit::default()
        };
        self.install(&edit, |_| ())?;
        self.indices.last.store(id, Release);
        Ok(id)
    }

    /// Drops the index of this name durably; `false` when there is none.
    pub(crate) fn drop_index(&self, name: &str) -> Result<bool> {
        self.check_writable()?;
        let _naming = self.indices.naming.lock();
        let named = self.manifest.lock().indices.get(name).copied();
        let Some(id) = named else { return Ok(false) };
        if !self.indices.is_dropped(id) {
            self.write_drop(id)?;
        }
        self.finish_drop(id)?;
        self.maintain_inline();
        Ok(true)
    }

    fn write_drop(&self, id: u32) -> Result<()> {
        let request = Request {
            record: format::drop_index(id),
            count: 1,
            drops: 0,
        };
        let _lead = self.lead()?;
        let (written, _) = self.write(request, Vec::new())?;
        self.indices.drop(id, written.last());
        Ok(())
    }

    /// Removes the name of an index that a record in the log drops.
    fn finish_drop(&self, id: u32) -> Result<()> {
        let Some(sequence) = self.indices.dropped_at(id) else {
            return Ok(());
        };
        self.syncs.wait(self, sequence)?;
        let edit = Edit {
            dropped: vec![id],
            ..Edit::default()
        };
        self.install(&edit, |_| ())?;
        self.indices.forgotten(id);
        Ok(())
    }
}
