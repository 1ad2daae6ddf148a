//! The parameters of a layout, and which of them are accepted.
//!
//! A layout is fixed when a file is created and travels with its inode. It is checked once, here,
//! where it enters the system; everything behind that check may rely on the bounds.

use rkyv::{Archive, Deserialize, Serialize};

/// How the bytes of a file are cut and spread.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
)]
pub struct Layout {
    /// Bytes of one object: a power of two from [`Layout::OBJECT_SIZE_MIN`] to
    /// [`Layout::OBJECT_SIZE_MAX`].
    pub object_size: u32,
    /// Data shards of an object, at least 1.
    pub data_shards: u8,
    /// Parity shards of an object (or further replicas when `data_shards` is 1).
    pub parity_shards: u8,
    /// Number of OSDs that the objects of one file rotate over, at least
    /// `data_shards + parity_shards`.
    pub width: u8,
}

/// Why a layout was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The object size is not a power of two within the bounds.
    #[error("object size {0} is not a power of two from 4 KiB to 16 MiB")]
    ObjectSize(u32),
    /// More than one shard an object: redundancy is not part of this version.
    #[error("{data}+{parity} shards an object: only 1+0 (striping) is supported")]
    Shards {
        /// Data shards asked for.
        data: u8,
        /// Parity shards asked for.
        parity: u8,
    },
    /// The width is zero or smaller than the number of shards.
    #[error("striping width {0} is smaller than the number of shards of an object")]
    Width(u8),
}

impl Layout {
    /// Smallest object size in bytes.
    pub const OBJECT_SIZE_MIN: u32 = 4 << 10;
    /// Largest object size in bytes.
    pub const OBJECT_SIZE_MAX: u32 = 16 << 20;
    /// Object size in bytes where nothing else is asked for.
    pub const OBJECT_SIZE_DEFAULT: u32 = 1 << 20;

    /// Plain striping with the default object size over `width` OSDs.
    #[must_use]
    pub const fn striped(width: u8) -> Self {
        Self {
            object_size: Self::OBJECT_SIZE_DEFAULT,
            data_shards: 1,
            parity_shards: 0,
            width,
        }
    }

    /// Checks the bounds of every parameter.
    ///
    /// # Errors
    /// A [`LayoutError`] that names the parameter out of bounds.
    pub fn check(&self) -> Result<(), LayoutError> {
        let size = self.object_size;
        if !size.is_power_of_two()
            || !(Self::OBJECT_SIZE_MIN..=Self::OBJECT_SIZE_MAX).contains(&size)
        {
            return Err(LayoutError::ObjectSize(size));
        }
        if (self.data_shards, self.parity_shards) != (1, 0) {
            return Err(LayoutError::Shards {
                data: self.data_shards,
                parity: self.parity_shards,
            });
        }
        if self.width == 0 {
            return Err(LayoutError::Width(self.width));
        }
        Ok(())
    }

    /// The position in the placement (0 to `width - 1`) that holds a shard of an object.
    #[must_use]
    pub fn position(&self, object: u64, shard: u8) -> usize {
        let width = u64::from(self.width.max(1));
        ((object % width + u64::from(shard)) % width) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_are_no_power_of_two_are_refused_with_their_value() {
        let mut layout = Layout::striped(1);
        layout.object_size = 5000;
        assert_eq!(layout.check(), Err(LayoutError::ObjectSize(5000)));
        layout.object_size = 2048;
        assert_eq!(layout.check(), Err(LayoutError::ObjectSize(2048)));
    }

    #[test]
    fn redundancy_and_zero_width_are_refused() {
        let mut layout = Layout::striped(3);
        layout.parity_shards = 1;
        assert!(matches!(
            layout.check(),
            Err(LayoutError::Shards { data: 1, parity: 1 })
        ));
        assert_eq!(Layout::striped(0).check(), Err(LayoutError::Width(0)));
    }

    #[test]
    fn consecutive_objects_lie_on_consecutive_osds() {
        let layout = Layout::striped(3);
        let row: Vec<_> = (0..7).map(|object| layout.position(object, 0)).collect();
        assert_eq!(row, [0, 1, 2, 0, 1, 2, 0]);
    }
}
