//! Integers and byte strings in files: little endian, LEB128 varints, and a reader that never
//! panics on hostile bytes.

/// Appends a varint: seven bits a byte, low bits first, high bit set on all but the last.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a length as varint, then the bytes.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Numbers of files and operations stay below this, so that counting on from one never overflows.
pub(crate) const NUMBER_MAX: u64 = 1 << 60;

/// The number between `prefix` and `suffix` of a file name.
pub(crate) fn number_in(name: &str, prefix: &str, suffix: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?.strip_suffix(suffix)?;
    digits.parse().ok().filter(|n| *n <= NUMBER_MAX)
}

/// The `N` bytes at `at`, if there are so many.
pub(crate) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array_at(bytes, at).map(u32::from_le_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array_at(bytes, at).map(u64::from_le_bytes)
}

/// Reads values from the front of a byte string; `None` when it ends too early or a varint is too
/// long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decoder<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(bytes: &'a [u8], at: usize) -> Decoder<'a> {
        Decoder {
            bytes,
            at: at.min(bytes.len()),
        }
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        let value = u32_at(self.bytes, self.at)?;
        self.at += 4;
        Some(value)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        let value = u64_at(self.bytes, self.at)?;
        self.at += 8;
        Some(value)
    }

    #[inline]
    pub(crate) fn varint(&mut self) -> Option<u64> {
        let first = self.u8()?;
        if first < 0x80 {
            return Some(u64::from(first));
        }
        let second = self.u8()?;
        let mut value = u64::from(first & 0x7f) | u64::from(second & 0x7f) << 7;
        if second < 0x80 {
            return Some(value);
        }
        for shift in (14..64).step_by(7) {
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

    /// A varint up to [`NUMBER_MAX`].
    pub(crate) fn number(&mut self) -> Option<u64> {
        self.varint().filter(|n| *n <= NUMBER_MAX)
    }

    /// A varint that fits `usize` and `u32`.
    #[inline]
    pub(crate) fn length(&mut self) -> Option<usize> {
        u32::try_from(self.varint()?).ok().map(|n| n as usize)
    }

    #[inline]
    pub(crate) fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(n)?;
        let bytes = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(bytes)
    }

    /// A length as varint, then so many bytes.
    #[inline]
    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let n = self.length()?;
        self.take(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_come_back() {
        for value in [
            0,
            1,
            127,
            128,
            300,
            u64::from(u32::MAX),
            u64::MAX - 1,
            u64::MAX,
        ] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(Decoder::new(&out, 0).varint(), Some(value));
            for cut in 0..out.len() {
                assert_eq!(Decoder::new(&out[..cut], 0).varint(), None);
            }
        }
        assert_eq!(Decoder::new(&[0xff; 11], 0).varint(), None);
    }
}
