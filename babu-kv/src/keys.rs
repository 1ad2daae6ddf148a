//! Keys inside the engine.
//!
//! All indices live in one ordered map. A *full key* is the index number (u32, big endian, so that
//! order is kept) followed by the user's key. Ranges are half open; the full key right after `k` is
//! `k` followed by a zero byte.

use std::ops::Bound;

/// Bytes of the index number in front of a user's key.
pub(crate) const INDEX_BYTES: usize = 4;

pub(crate) fn full_key(index: u32, key: &[u8]) -> Vec<u8> {
    let mut full = Vec::with_capacity(INDEX_BYTES + key.len() + 1);
    full.extend_from_slice(&index.to_be_bytes());
    full.extend_from_slice(key);
    full
}

/// Calls `f` with a full key, which lies on the stack when it is short.
pub(crate) fn with_full_key<R>(index: u32, key: &[u8], f: impl FnOnce(&[u8]) -> R) -> R {
    const SHORT: usize = 128;
    let length = INDEX_BYTES + key.len();
    if length > SHORT {
        return f(&full_key(index, key));
    }
    let mut full = [0; SHORT];
    full[..INDEX_BYTES].copy_from_slice(&index.to_be_bytes());
    full[INDEX_BYTES..length].copy_from_slice(key);
    f(&full[..length])
}

/// The user's part of a full key.
pub(crate) fn user_key(full: &[u8]) -> &[u8] {
    full.get(INDEX_BYTES..).unwrap_or_default()
}

/// The index number of a full key.
pub(crate) fn index_of(full: &[u8]) -> Option<u32> {
    full.first_chunk::<INDEX_BYTES>()
        .map(|b| u32::from_be_bytes(*b))
}

/// The first key that does not start with `prefix`, if there is one.
pub(crate) fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|b| *b != 0xff)?;
    let mut after = prefix[..=last].to_vec();
    after[last] += 1;
    Some(after)
}

/// A half-open range of full keys; without `to` it has no end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub from: Vec<u8>,
    pub to: Option<Vec<u8>>,
}

impl Range {
    /// The range of all keys.
    pub(crate) fn all() -> Range {
        Range {
            from: Vec::new(),
            to: None,
        }
    }

    pub(crate) fn new(index: u32, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Range {
        let successor = |key: &[u8]| {
            let mut full = full_key(index, key);
            full.push(0);
            full
        };
        let from = match from {
            Bound::Included(key) => full_key(index, key),
            Bound::Excluded(key) => successor(key),
            Bound::Unbounded => full_key(index, &[]),
        };
        let to = match to {
            Bound::Included(key) => Some(successor(key)),
            Bound::Excluded(key) => Some(full_key(index, key)),
            Bound::Unbounded => after_prefix(&full_key(index, &[])),
        };
        Range { from, to }
    }

    pub(crate) fn prefix(index: u32, prefix: &[u8]) -> Range {
        let from = full_key(index, prefix);
        let to = after_prefix(&from);
        Range { from, to }
    }

    /// Whether all keys in it begin with `prefix`, with which `from` begins.
    pub(crate) fn is_within_prefix(&self, prefix: &[u8]) -> bool {
        self.to.as_ref().is_some_and(|to| {
            to.starts_with(prefix) || after_prefix(prefix).is_some_and(|after| *to <= after)
        })
    }

    /// Whether it shares a key with `from..to`.
    pub(crate) fn overlaps(&self, from: &[u8], to: &[u8]) -> bool {
        from < to && self.from.as_slice() < to && self.to.as_deref().is_none_or(|end| from < end)
    }
}

/// What is known of a key at a sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Put,
    Delete,
}

/// All keys in `from..to` written before `sequence` are deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RangeTombstone {
    pub from: Vec<u8>,
    pub to: Vec<u8>,
    pub sequence: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_end_where_they_should() {
        assert_eq!(after_prefix(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(after_prefix(b"a\xff"), Some(b"b".to_vec()));
        assert_eq!(after_prefix(b"\xff\xff"), None);
        let range = Range::prefix(u32::MAX, b"\xff");
        assert_eq!(range.to, None);
        for (from, to, prefix, expected) in [
            ("abc", Some("abd"), "abc", true),
            ("abc", Some("abd"), "ab", true),
            ("abc", Some("abd0"), "abc", false),
            ("abc", Some("abcz"), "abc", true),
            ("abc", None, "abc", false),
        ] {
            let from = from.as_bytes().to_vec();
            let to = to.map(|to| to.as_bytes().to_vec());
            let range = Range { from, to };
            assert_eq!(range.is_within_prefix(prefix.as_bytes()), expected);
        }
        let range = Range::new(7, Bound::Unbounded, Bound::Unbounded);
        assert!(range.overlaps(&full_key(7, b"x"), &full_key(7, b"y")));
        assert!(!range.overlaps(&full_key(8, b""), &full_key(8, b"y")));
    }
}
