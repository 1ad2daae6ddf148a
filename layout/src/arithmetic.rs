//! Byte ranges to objects and back.

use crate::Layout;

/// The part of a byte range that lies in one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Object number within the file.
    pub object: u64,
    /// First byte within the object.
    pub offset: u32,
    /// Bytes, never zero.
    pub length: u32,
}

/// What a truncation of a file to some size leaves of its objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Objects from this number on are removed.
    pub remove_from: u64,
    /// The last object that stays but is shortened, with the bytes that stay.
    pub shorten: Option<(u64, u32)>,
}

/// Cuts the byte range `offset .. offset + length` of a file at object boundaries, in order.
///
/// A range that would pass `u64::MAX` ends there.
pub fn spans(layout: &Layout, offset: u64, length: u64) -> impl Iterator<Item = Span> + use<> {
    let size = u64::from(layout.object_size.max(1));
    let end = offset.saturating_add(length);
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let within = at % size;
        let length = (size - within).min(end - at);
        let span = Span {
            object: at / size,
            offset: within as u32,
            length: length as u32,
        };
        at += length;
        Some(span)
    })
}

/// Number of objects that a file of `size` bytes reaches into.
#[must_use]
pub fn object_count(layout: &Layout, size: u64) -> u64 {
    size.div_ceil(u64::from(layout.object_size.max(1)))
}

/// What stays of a file's objects when it is truncated to `size` bytes.
#[must_use]
pub fn cut(layout: &Layout, size: u64) -> Cut {
    let object_size = u64::from(layout.object_size.max(1));
    let tail = (size % object_size) as u32;
    Cut {
        remove_from: object_count(layout, size),
        shorten: (tail != 0).then_some((size / object_size, tail)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn spans_cover_the_range_exactly_once_and_in_order(
            shift in 12u32..=24, offset in 0u64..1 << 40, length in 0u64..1 << 26,
        ) {
            let layout = Layout { object_size: 1 << shift, ..Layout::striped(3) };
            let mut at = offset;
            for span in spans(&layout, offset, length) {
                prop_assert!(span.length > 0);
                prop_assert!(u64::from(span.offset) + u64::from(span.length) <= 1 << shift);
                prop_assert_eq!((span.object << shift) + u64::from(span.offset), at);
                at += u64::from(span.length);
            }
            prop_assert_eq!(at, offset + length);
        }

        #[test]
        fn a_cut_keeps_exactly_the_bytes_below_the_size(shift in 12u32..=24, size in 0u64..1 << 40) {
            let layout = Layout { object_size: 1 << shift, ..Layout::striped(3) };
            let cut = cut(&layout, size);
            let kept = match cut.shorten {
                Some((object, bytes)) => {
                    prop_assert_eq!(object + 1, cut.remove_from);
                    (object << shift) + u64::from(bytes)
                }
                None => cut.remove_from << shift,
            };
            prop_assert_eq!(kept, size);
        }
    }

    #[test]
    fn the_end_of_the_address_space_ends_the_range() {
        let layout = Layout::striped(1);
        let total: u64 = spans(&layout, u64::MAX - 10, 100)
            .map(|span| u64::from(span.length))
            .sum();
        assert_eq!(total, 10);
    }
}
