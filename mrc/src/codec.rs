//! Writing and reading the fields of records, little-endian, without trust in what is read.

use xtfs_protocol::time::Time;
use xtfs_protocol::{Code, Error, Result};

/// Collects the fields of one record.
#[derive(Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    /// Starts a record with its version.
    pub fn versioned(version: u8) -> Self {
        let mut bytes = Vec::with_capacity(192);
        bytes.push(version);
        Self(bytes)
    }

    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub fn u128(&mut self, value: u128) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub fn time(&mut self, time: Time) -> &mut Self {
        self.raw(&time.secs.to_le_bytes()).u32(time.nanos)
    }

    /// Bytes whose length the reader knows.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Bytes after their length.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.u32(length);
        self.raw(bytes.get(..length as usize).unwrap_or_default())
    }

    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// Takes the fields of one record apart; every error names the kind of record.
pub(crate) struct Reader<'a> {
    what: &'static str,
    version: u8,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts a record that must be of `version` or older.
    pub fn versioned(what: &'static str, bytes: &'a [u8], version: u8) -> Result<Self> {
        let mut reader = Self {
            what,
            version: 0,
            rest: bytes,
        };
        let found = reader.u8()?;
        if found == 0 || found > version {
            return Err(Error::new(
                Code::Version,
                format!("{what} record of version {found}; this program reads up to {version}"),
            ));
        }
        reader.version = found;
        Ok(reader)
    }

    /// The version of the record.
    pub const fn version(&self) -> u8 {
        self.version
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        match self.rest.split_first_chunk::<N>() {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(*head)
            }
            None => Err(self.damaged("it ends too early")),
        }
    }

    pub fn u8(&mut self) -> Result<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn u128(&mut self) -> Result<u128> {
        Ok(u128::from_le_bytes(self.array()?))
    }

    pub fn time(&mut self) -> Result<Time> {
        Ok(Time {
            secs: i64::from_le_bytes(self.array()?),
            nanos: self.u32()?,
        })
    }

    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let length = self.u32()? as usize;
        match self.rest.split_at_checked(length) {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(head)
            }
            None => Err(self.damaged("it ends too early")),
        }
    }

    pub fn text(&mut self) -> Result<String> {
        let bytes = self.bytes()?.to_vec();
        String::from_utf8(bytes).map_err(|_| self.damaged("text is not UTF-8"))
    }

    /// Everything must have been read.
    pub fn end(self) -> Result<()> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(self.damaged("bytes follow its end"))
        }
    }

    pub fn damaged(&self, why: &str) -> Error {
        Error::new(Code::Corrupt, format!("{} record: {why}", self.what))
    }
}
