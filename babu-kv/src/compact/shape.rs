//! How large each level may become: a pure function of how large the levels are.
//!
//! The deepest level is as large as it is, and each level above may hold an eighth of the one
//! below, so that whatever is stored twice, because a newer value waits above, is about an eighth
//! of all. (The idea and its reasons are described as *dynamic level sizes* in the publications on
//! RocksDB.) Levels whose share would be smaller than what level 0 brings at a time are not used:
//! level 0 is merged directly into the *base*, the first level that is used. A small database has
//! level 0 and the last level, nothing else.

use crate::manifest::version::LEVELS;

/// Each level holds so many times the bytes of the one above.
pub(crate) const FANOUT: u64 = 8;

/// The deepest level.
pub(crate) const LAST: usize = LEVELS - 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The first level that is used, apart from level 0.
    pub base: usize,
    /// Bytes that each level may hold; 0 for those before the base, no limit for the deepest.
    pub bytes_max: [u64; LEVELS],
}

impl Shape {
    /// `base_bytes_max`: more than this the base never holds.
    pub(crate) fn of(bytes: &[u64; LEVELS], base_bytes_max: u64) -> Shape {
        let mut share = bytes[1..].iter().copied().max().unwrap_or_default();
        let mut shape = Shape {
            base: LAST,
            bytes_max: [0; LEVELS],
        };
        shape.bytes_max[LAST] = u64::MAX;
        while share > base_bytes_max && shape.base > 1 {
            share /= FANOUT;
            shape.base -= 1;
            shape.bytes_max[shape.base] = share;
        }
        shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_database_has_one_level_and_a_large_one_gets_more() {
        let shape = |last| Shape::of(&[999, 0, 0, 0, 0, 0, last], 1000);
        assert_eq!(shape(0).base, 6);
        assert_eq!(shape(1000).base, 6);
        assert_eq!(shape(1001).base, 5);
        assert_eq!(shape(1001).bytes_max, [0, 0, 0, 0, 0, 125, u64::MAX]);
        assert_eq!(shape(64_000).base, 4);
        assert_eq!(shape(64_000).bytes_max, [0, 0, 0, 0, 1000, 8000, u64::MAX]);
        assert_eq!(shape(u64::MAX).base, 1);
    }

    /// The levels above the deepest hold less than a seventh of it together.
    #[test]
    fn little_is_stored_twice() {
        for last in (0..50_000_000).step_by(77_777) {
            let shape = Shape::of(&[0, 0, 0, 0, 0, 0, last], 1000);
            assert!(shape.bytes_max[..LAST].iter().sum::<u64>() * 7 <= last);
            assert!(
                shape.bytes_max[shape.base..]
                    .windows(2)
                    .all(|w| w[0] <= w[1] / FANOUT)
            );
        }
    }
}
