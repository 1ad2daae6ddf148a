//! What is unlinked and closed: from orphans to the deletion queue, and out of it.

use std::ops::Bound;
use std::sync::atomic::Ordering;

use babu_kv::{Batch, Durability};
use xtfs_protocol::Result;
use xtfs_protocol::ids::Ino;
use xtfs_protocol::meta::Caller;
use xtfs_protocol::time::Time;

use super::{ContextParts, Volume};
use crate::error::database;
use crate::keys::{self, Table};
use crate::quota::NO_LIMITS;
use crate::records::DeletedRecord;
use crate::step::Transaction;
use crate::view::View;

/// Sequences from here on are those of files of a deleted volume, with their inode numbers: no
/// volume counts so far.
const QUEUED_FILES: u64 = 1 << 63;
/// Most files reclaimed in one batch.
const RECLAIM_BATCH: usize = 256;

impl Volume {
    /// Is a look for orphans worth it?
    pub fn sweep_is_due(&self) -> bool {
        self.sweep_due.load(Ordering::Relaxed)
    }

    /// Reclaims the unlinked files that nobody has open any more. True when some were found.
    pub fn sweep_orphans(&self, time: Time) -> Result<bool> {
        self.sweep_due.store(false, Ordering::Relaxed);
        let swept = self.sweep(time);
        if swept.is_err() {
            self.sweep_due.store(true, Ordering::Relaxed);
        }
        swept
    }

    fn sweep(&self, time: Time) -> Result<bool> {
        let caller = Caller::root();
        let parts = ContextParts::of_the_mrc(&caller, time);
        let mut found = false;
        let mut after = 0;
        loop {
            let inos = self.orphans(after)?;
            let Some(last) = inos.last() else {
                return Ok(found);
            };
            after = *last;
            let _writer = self.writer.lock();
            let asking = self.asking(parts.session);
            let context = self.context(&parts, &asking, &NO_LIMITS);
            let view = self.view();
            let mut transaction = Transaction::new(&view, &context);
            transaction.reclaim_unheld(&inos)?;
            let changes = transaction.finish()?;
            if changes.changes.is_empty() {
                continue;
            }
            let mut batch = Batch::new();
            self.tables.add(&mut batch, &changes.changes)?;
            self.database
                .write(batch, Durability::Buffered)
                .map_err(database)?;
            found |= changes.reclaims;
        }
    }

    fn orphans(&self, after: Ino) -> Result<Vec<Ino>> {
        let mut inos = Vec::new();
        let from = keys::number(after);
        self.view().scan(
            Table::Orphans,
            Bound::Excluded(&from),
            Bound::Unbounded,
            &mut |key, _| {
                inos.push(keys::ino(key)?);
                Ok(inos.len() < RECLAIM_BATCH)
            },
        )?;
        Ok(inos)
    }

    /// The next contents to delete, behind a sequence.
    pub fn deletions(&self, after: u64, limit: usize) -> Result<Vec<(u64, DeletedRecord)>> {
        let mut found = Vec::new();
        let from = keys::number(after);
        self.view().scan(
            Table::Deleted,
            Bound::Excluded(&from),
            Bound::Unbounded,
            &mut |key, value| {
                found.push((keys::split(key)?.0, DeletedRecord::decode(value)?));
                Ok(found.len() < limit)
            },
        )?;
        Ok(found)
    }

    /// Notes in the deletion queue on which OSDs objects are left; entries without any go.
    pub fn settle_deletions(&self, entries: &[(u64, DeletedRecord)]) -> Result<()> {
        let index = self.tables.index(Table::Deleted)?;
        let mut batch = Batch::new();
        for (sequence, left) in entries {
            let key = keys::number(*sequence);
            if left.osds.is_empty() {
                batch.delete(index, &key);
            } else {
                batch.put(index, &key, &left.encode());
            }
        }
        self.write_settled(batch)
    }

    /// Takes files out of a volume that is being deleted; those of which objects are left go to
    /// the deletion queue. The rest of the volume is not kept consistent any more.
    pub fn settle_files(&self, files: &[(Ino, DeletedRecord)]) -> Result<()> {
        let inodes = self.tables.index(Table::Inodes)?;
        let deleted = self.tables.index(Table::Deleted)?;
        let mut batch = Batch::new();
        for (ino, left) in files {
            batch.delete(inodes, &keys::number(*ino));
            if !left.osds.is_empty() {
                batch.put(deleted, &keys::number(QUEUED_FILES | *ino), &left.encode());
            }
        }
        self.write_settled(batch)
    }

    fn write_settled(&self, batch: Batch) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        self.database
            .write(batch, Durability::Buffered)
            .map_err(database)?;
        Ok(())
    }
}
