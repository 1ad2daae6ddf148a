//! Reading and writing numbers in byte strings: little endian in files, big endian in keys.

use xtfs_protocol::ids::{FileId, ObjectId, VolumeId};

/// Reads values from the front of a byte string; every step is `None` when it ends too early.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    pub(crate) fn u64_be(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Seven bits a byte, low bits first, the high bit set on all but the last.
    pub(crate) fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    pub(crate) fn varint_u32(&mut self) -> Option<u32> {
        self.varint().and_then(|value| u32::try_from(value).ok())
    }

    pub(crate) fn file(&mut self) -> Option<FileId> {
        let volume = VolumeId(self.array()?);
        let data = self.u64_be()?;
        Some(FileId { volume, data })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Appends a number as [`Reader::varint`] reads it.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The key of a file: volume, then content number, so that a volume's files are neighbours.
pub(crate) fn file_key(file: FileId) -> [u8; 24] {
    let mut key = [0; 24];
    key[..16].copy_from_slice(&file.volume.0);
    key[16..].copy_from_slice(&file.data.to_be_bytes());
    key
}

/// The key of an object: its file's key, its number, its shard. Keys sort as identities do.
pub(crate) fn object_key(object: ObjectId) -> [u8; 33] {
    let mut key = [0; 33];
    key[..24].copy_from_slice(&file_key(object.file));
    key[24..32].copy_from_slice(&object.object.to_be_bytes());
    key[32] = object.shard;
    key
}

/// The identity behind a key of [`object_key`].
pub(crate) fn object_of_key(key: &[u8]) -> Option<ObjectId> {
    let mut reader = Reader(key);
    let object = ObjectId {
        file: reader.file()?,
        object: reader.u64_be()?,
        shard: reader.u8()?,
    };
    reader.is_empty().then_some(object)
}

/// The first key behind every object of a file.
pub(crate) fn behind_file(file: FileId) -> Vec<u8> {
    let mut key = file_key(file).to_vec();
    key.extend([0xff; 10]);
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn any_object() -> impl Strategy<Value = ObjectId> {
        (any::<[u8; 16]>(), any::<u64>(), any::<u64>(), any::<u8>()).prop_map(|(v, d, o, s)| {
            ObjectId {
                file: FileId {
                    volume: VolumeId(v),
                    data: d,
                },
                object: o,
                shard: s,
            }
        })
    }

    proptest! {
        #[test]
        fn keys_sort_as_identities_and_lead_back(a in any_object(), b in any_object()) {
            prop_assert_eq!(object_key(a).cmp(&object_key(b)), a.cmp(&b));
            prop_assert_eq!(object_of_key(&object_key(a)), Some(a));
            prop_assert!(object_key(a).as_slice() < behind_file(a.file).as_slice());
        }

        #[test]
        fn varints_come_back(value in any::<u64>()) {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            prop_assert_eq!(Reader(&out).varint(), Some(value));
            prop_assert_eq!(Reader(&out[..out.len() - 1]).varint(), None);
        }
    }
}
