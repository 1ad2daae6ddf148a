//! Bytes that keep alive what they lie in: a block of a table, or a record of the log.

use std::{cmp::Ordering, fmt, ops::Deref, sync::Arc};

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

macro_rules! guard {
    ($name:ident, $doc:literal) => {
        #[doc = $doc]
        ///
        /// Dereferences to `[u8]`. Cloning costs one atomic increment; the bytes live in a block or
        /// memtable that this keeps alive.
        #[derive(Clone)]
        pub struct $name(Slice);

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
                let buffer: Arc<[u8]> = bytes.into();
                let to = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
                $name(Slice {
                    buffer,
                    from: 0,
                    to,
                })
            }
        }
    };
}

guard!(Key, "The key of an entry, without its index.");
guard!(Value, "The value of an entry.");

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
