//! Room on the disk that is kept for removing.
//!
//! The MRC may share its disk with OSDs, which stop writing while some room is left. What only
//! adds to a volume stops earlier than the rest too, so that a removal can always be recorded, and
//! with it what gives room back.

use std::path::PathBuf;
use std::sync::Arc;

use babu_kv::fs::{Fs, Space};
use xtfs_protocol::meta::MetaOp;
use xtfs_protocol::{Code, Error, Result};

use crate::keys::Table;
use crate::step::Changes;

/// Most bytes that are kept, and the part of a small disk that is.
const RESERVE_BYTES_MAX: u64 = 16 << 20;
const RESERVE_SHARE: u64 = 64;
/// Fewest bytes that a database's memtable is given.
const MEMTABLE_BYTES_MIN: u64 = 256 << 10;

/// The disk under a folder.
pub(crate) struct Disk {
    pub fs: Arc<dyn Fs>,
    pub dir: PathBuf,
}

const fn reserve_bytes(space: &Space) -> u64 {
    let share = space.total_bytes / RESERVE_SHARE;
    if share < RESERVE_BYTES_MAX {
        share
    } else {
        RESERVE_BYTES_MAX
    }
}

/// So much of `wanted` that a flush to a table fits into half of the reserve of the disk.
pub(crate) fn memtable_bytes(space: &Space, wanted: usize) -> usize {
    let most = (reserve_bytes(space) / 2).max(MEMTABLE_BYTES_MIN);
    wanted.min(usize::try_from(most).unwrap_or(usize::MAX))
}

impl Disk {
    /// Refuses a change that enters something new while the disk is nearly full.
    pub fn need_room(&self, op: &MetaOp, changes: &Changes) -> Result<()> {
        if !adds(op, changes) {
            return Ok(());
        }
        // A disk that does not tell its room is used until it refuses.
        let Ok(space) = self.fs.space(&self.dir) else {
            return Ok(());
        };
        if space.free_bytes >= reserve_bytes(&space) {
            return Ok(());
        }
        let context = format!(
            "{} bytes are free on the disk of the MRC; the rest is kept for removing",
            space.free_bytes
        );
        Err(Error::new(Code::NoSpace, context))
    }
}

/// Does the change enter a name or an attribute? Moving a name does not count.
fn adds(op: &MetaOp, changes: &Changes) -> bool {
    let enters = changes.changes.iter().any(|change| {
        let adding = matches!(change.table, Table::Dirents | Table::Xattrs | Table::Acls);
        change.value.is_some() && adding
    });
    enters && !matches!(op, MetaOp::Rename { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_a_small_disk_a_flush_fits_into_what_is_kept_free() {
        let disk = |total_bytes| Space {
            total_bytes,
            free_bytes: 0,
        };
        assert_eq!(memtable_bytes(&disk(1 << 40), 8 << 20), 8 << 20);
        assert_eq!(memtable_bytes(&disk(1 << 40), 1 << 20), 1 << 20);
        assert_eq!(memtable_bytes(&disk(256 << 20), 8 << 20), 2 << 20);
        assert_eq!(memtable_bytes(&disk(1 << 20), 8 << 20), 256 << 10);
    }
}
