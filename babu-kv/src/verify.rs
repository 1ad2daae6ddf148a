//! Verification: reads all tables and checks whatever can be checked, beside readers and writers.

use crate::{
    core::Core,
    error::Result,
    progress::{Meter, Progress},
};

/// What [`Database::verify`](crate::Database::verify) looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// Tables read.
    pub tables: u64,
    /// Bytes of their files.
    pub bytes: u64,
    /// Entries in them.
    pub entries: u64,
}

impl Core {
    /// Reads every table of this moment from its file, not from the cache.
    pub(crate) fn verify(&self, observe: &mut dyn FnMut(Progress)) -> Result<Verified> {
        self.check_open()?;
        let state = self.state();
        let mut meter = Meter::new(observe);
        let tables = state.version.tables();
        tables.for_each(|table| meter.expect(table.meta.size));
        let mut verified = Verified::default();
        for table in state.version.tables() {
            table.verify()?;
            meter.add(table.meta.size);
            verified.tables += 1;
            verified.bytes += table.meta.size;
            verified.entries += table.meta.entries;
        }
        Ok(verified)
    }
}
