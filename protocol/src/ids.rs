//! Identities. All are random 128-bit numbers, written as UUIDs; file numbers are 64 bits.

use std::fmt;
use std::str::FromStr;

use rkyv::{Archive, Deserialize, Serialize};

/// Bytes of a UUID that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a UUID: {0:?}")]
pub struct ParseIdError(String);

macro_rules! identity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Archive, Serialize, Deserialize, serde::Serialize, serde::Deserialize, Clone, Copy,
            PartialEq, Eq, Hash, PartialOrd, Ord, Default,
        )]
        #[serde(into = "uuid::Uuid", from = "uuid::Uuid")]
        pub struct $name(pub [u8; 16]);

        impl $name {
            /// A new random identity (version 4 UUID) made from 16 random bytes.
            #[must_use]
            pub fn from_random(bytes: [u8; 16]) -> Self {
                Self(*uuid::Builder::from_random_bytes(bytes).as_uuid().as_bytes())
            }
        }

        impl From<$name> for uuid::Uuid {
            fn from(id: $name) -> Self { uuid::Uuid::from_bytes(id.0) }
        }

        impl From<uuid::Uuid> for $name {
            fn from(id: uuid::Uuid) -> Self { Self(*id.as_bytes()) }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                uuid::Uuid::from_bytes(self.0).as_hyphenated().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                uuid::Uuid::parse_str(text)
                    .map(Self::from)
                    .map_err(|_| ParseIdError(text.to_owned()))
            }
        }
    };
}

identity!(
    /// An installation with its own certificate authority.
    CellId
);
identity!(
    /// A volume: one namespace with its files.
    VolumeId
);
identity!(
    /// A service (MRC or OSD); kept on its disk.
    ServiceId
);
identity!(
    /// A client's session at an MRC.
    SessionId
);

/// Inode number within a volume. 1 is the root directory.
pub type Ino = u64;

/// Inode number of a volume's root directory.
pub const ROOT_INO: Ino = 1;

/// Longest name of a directory entry in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Longest symbolic link target in bytes.
pub const TARGET_BYTES_MAX: usize = 4095;

/// The content of a regular file: what object keys and capabilities name.
///
/// It starts with the inode's own number. Truncation to nothing gives the file fresh, empty
/// content under a new number, and the old content is deleted only when that is durable: a crash
/// leaves either the old bytes or none, never a mixture.
#[derive(
    Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord,
)]
pub struct FileId {
    /// The volume.
    pub volume: VolumeId,
    /// Number of the content within the volume; never used twice.
    pub data: u64,
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.volume, self.data)
    }
}

/// One stored shard of one object of a file.
#[derive(
    Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord,
)]
pub struct ObjectId {
    /// The file.
    pub file: FileId,
    /// Object number within the file.
    pub object: u64,
    /// Shard of the object; 0 for plain striping.
    pub shard: u8,
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}.{}", self.file, self.object, self.shard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_reads_back_from_its_text() {
        let id = ServiceId::from_random([7; 16]);
        assert_eq!(id.to_string().parse::<ServiceId>(), Ok(id));
        assert!("no such thing".parse::<ServiceId>().is_err());
    }
}
