//! Stored bytes that do not check: said once in the log for each time they are met, counted once.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use xtfs_protocol::ids::ObjectId;

use super::extents::Extent;
use super::segment::place;
use crate::error::StoreError;

/// Most damaged blocks that are told apart; more are not counted.
const BLOCKS_MAX: usize = 1 << 16;

/// The damaged blocks met since the start.
#[derive(Default)]
pub(crate) struct DamageLog {
    blocks: Mutex<BTreeSet<(u64, u64)>>,
}

impl DamageLog {
    /// Logs and counts a damaged block; returns the error that names it.
    pub(crate) fn report(
        &self,
        object: ObjectId,
        extent: &Extent,
        what: &'static str,
    ) -> StoreError {
        let (segment, position) = (extent.place.segment, extent.place.position);
        {
            let mut blocks = self.blocks.lock();
            if blocks.len() < BLOCKS_MAX {
                blocks.insert((segment, position));
            }
        }
        let error = StoreError::Damaged {
            object,
            offset: extent.offset,
            length: extent.length,
            place: place(segment, position),
            what,
        };
        tracing::error!("damaged: {error}");
        error
    }

    /// Different blocks found damaged.
    pub(crate) fn count(&self) -> u64 {
        self.blocks.lock().len() as u64
    }
}
