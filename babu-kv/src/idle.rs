//! What is done for readers while nobody writes: deleted entries leave memory and tables, and
//! level 0 goes down.
//!
//! A listing steps over what was deleted until it is gone from every source. What is due anyway
//! (`compact::pick`) removes most of it soon; this removes the rest. Idle work comes to an end: a
//! flush empties the memtable, and each compaction takes tables down or ends tombstones. It gives
//! way to what is due.

use crate::{
    core::Core,
    error::{Error, Result},
    options::Background,
    state::State,
};

/// Deleted entries in memory are flushed when there is more than one for so many bytes that the
/// memtable may hold. Fewer cost readers less than a flush, and what follows it, would cost.
const BYTES_PER_DELETE: usize = 8 << 10;

impl Core {
    /// Whether so many deleted entries in memory are worth a flush while nobody writes.
    pub(crate) fn is_idle_flush_useful(&self, deletes: usize) -> bool {
        deletes > self.options.memtable_bytes / BYTES_PER_DELETE
    }

    fn has_deletes(&self, state: &State) -> bool {
        self.is_idle_flush_useful(state.active.deletes())
    }

    /// Whether there is something to do while nobody writes.
    pub(crate) fn has_idle_work(&self) -> bool {
        self.has_deletes(&self.state()) || self.is_compaction_useful()
    }

    fn is_settled(&self) -> bool {
        self.state().waiting.is_empty() && !self.is_compaction_due() && !self.has_idle_work()
    }

    /// Does a piece of idle work; `false` when there is none.
    pub(crate) fn work_idle(&self) -> Result<bool> {
        if self.has_deletes(&self.state()) {
            self.rotate_if_none_waits()?;
            self.flush_oldest()?;
            return Ok(true);
        }
        self.compact_idle()
    }

    /// Returns when no flush, no compaction and no idle work is left.
    pub(crate) fn settle(&self) -> Result<()> {
        self.check_writable()?;
        if self.options.background == Background::Threads {
            return self.work.settle(|| self.is_settled());
        }
        loop {
            while self.flush_oldest()? || self.compact_once()? {}
            if !self.work_idle()? {
                return Ok(());
            }
            if self.work.is_stopping() {
                return Err(Error::Closed);
            }
        }
    }
}
