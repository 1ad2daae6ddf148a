//! Bytes that keep alive what they lie in: a block of a table, or a record of the log.

use std::{cmp::Ordering, fmt, ops::Deref, sync::Arc};

/// Longest key that is held in place.
const SHORT_BYTES: usize = 30;

/// A part of a buffer.
#[derive(Clone)]
struct Slice {
    buffer: Arc<[u8]>,
    from: u32,
    to: u32,
}

impl Slice {
    fn bytes(&self) -> &[u8] {
        self.buffer
            .get(self.from as usize..self.to as usize)
            .unwrap_or_default()
    }
}

impl From<&[u8]> for Slice {
    fn from(bytes: &[u8]) -> Slice {
        let buffer: Arc<[u8]> = bytes.into();
        let to = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
        Slice {
            buffer,
            from: 0,
            to,
        }
    }
}

#[derive(Clone)]
enum Bytes {
    Short(u8, [u8; SHORT_BYTES]),
    Long(Slice),
}

impl Bytes {
    fn bytes(&self) -> &[u8] {
        match self {
            Bytes::Short(length, bytes) => bytes.get(..usize::from(*length)).unwrap_or_default(),
            Bytes::Long(slice) => slice.bytes(),
        }
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Bytes {
        let mut short = [0; SHORT_BYTES];
        match short.get_mut(..bytes.len()) {
            Some(place) => {
                place.copy_from_slice(bytes);
                Bytes::Short(bytes.len() as u8, short)
            }
            None => Bytes::Long(bytes.into()),
        }
    }
}

/// The key of an entry, without its index.
///
/// Dereferences to `[u8]`. A key of up to 30 bytes is held in place, a longer one is shared by its
/// clones.
#[derive(Clone)]
pub struct Key(Bytes);

/// The value of an entry.
///
/// Dereferences to `[u8]`. Cloning costs one atomic increment; the bytes live in a block or in what
/// a batch wrote, which this keeps alive.
#[derive(Clone)]
pub struct Value(Slice);

macro_rules! guard {
    ($name:ident) => {
        impl Deref for $name {
            type Target = [u8];
            fn deref(&self) -> &[u8] {
                self.0.bytes()
            }
        }

        impl AsRef<[u8]> for $name {
            fn as_ref(&self) -> &[u8] {
                self
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"{}\"", self.escape_ascii())
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &$name) -> bool {
                **self == **other
            }
        }

        impl Eq for $name {}

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &$name) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Ord for $name {
            fn cmp(&self, other: &$name) -> Ordering {
                (**self).cmp(&**other)
            }
        }

        impl From<&[u8]> for $name {
            fn from(bytes: &[u8]) -> $name {
                $name(bytes.into())
            }
        }
    };
}

guard!(Key);
guard!(Value);

impl Value {
    /// Bytes `from..to` of `buffer`.
    pub(crate) fn within(buffer: &Arc<[u8]>, from: usize, to: usize) -> Value {
        debug_assert!(from <= to && to <= buffer.len() && to <= u32::MAX as usize);
        Value(Slice {
            buffer: buffer.clone(),
            from: from as u32,
            to: to as u32,
        })
    }
}
