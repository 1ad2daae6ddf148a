//! Names and manifests of a backup folder. The picture is at the head of the module.

use super::{Backup, BackupFile};
use crate::{
    coding::{Decoder, number_in, put_varint, u32_at, u64_at},
    manifest::edit::Edit,
};
use std::collections::BTreeSet;
use xxhash_rust::xxh3::xxh3_64;

pub(super) const LOCK: &str = "LOCK";
const MAGIC: [u8; 8] = *b"babuback";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 12;
/// Ending of the names of files on their way.
const PART: &str = ".part";

pub(super) fn manifest_name(number: u64) -> String {
    format!("{number:06}.backup")
}

pub(super) fn manifest_number(name: &str) -> Option<u64> {
    number_in(name, "", ".backup")
}

/// The name of a file until it is complete.
pub(super) fn part_name(name: &str) -> String {
    format!("{name}{PART}")
}

/// Whether a name belongs to a file on its way, and not to something that the user put here.
pub(super) fn is_part(name: &str) -> bool {
    name.strip_suffix(PART)
        .is_some_and(|name| is_content(name) || manifest_number(name).is_some())
}

/// What a content file is in a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Table,
    Log,
}

pub(super) fn content_name(kind: Kind, hash: u64, bytes: u64) -> String {
    let ending = match kind {
        Kind::Table => "table",
        Kind::Log => "log",
    };
    format!("{hash:016x}-{bytes}.{ending}")
}

pub(super) fn is_content(name: &str) -> bool {
    let parsed = || {
        let (stem, ending) = name.split_once('.')?;
        let kind = match ending {
            "table" => Kind::Table,
            "log" => Kind::Log,
            _ => return None,
        };
        let (hash, bytes) = stem.split_once('-')?;
        let hash = u64::from_str_radix(hash, 16).ok()?;
        (content_name(kind, hash, bytes.parse().ok()?) == name).then_some(())
    };
    parsed().is_some()
}

/// A closed segment of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogFile {
    pub number: u64,
    pub bytes: u64,
    pub hash: u64,
}

/// What one backup consists of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Manifest {
    pub number: u64,
    pub time: Option<u64>,
    pub sequence: u64,
    pub bytes_new: u64,
    pub logs: Vec<LogFile>,
    /// Tables, indices and counters, as the first record of the manifest of a database has them.
    pub edit: Edit,
}

impl Manifest {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSION.to_le_bytes());
        for number in [self.number, self.sequence, self.bytes_new] {
            put_varint(&mut out, number);
        }
        put_varint(&mut out, u64::from(self.time.is_some()));
        if let Some(time) = self.time {
            put_varint(&mut out, time);
        }
        put_varint(&mut out, self.logs.len() as u64);
        for log in &self.logs {
            for number in [log.number, log.bytes, log.hash] {
                put_varint(&mut out, number);
            }
        }
        out.extend_from_slice(&self.edit.encode());
        let hash = xxh3_64(&out);
        out.extend_from_slice(&hash.to_le_bytes());
        out
    }

    /// The manifest in these bytes; the error says what is wrong with them.
    pub(super) fn decode(bytes: &[u8]) -> Result<Manifest, &'static str> {
        let body = bytes.len().checked_sub(8).and_then(|end| bytes.get(..end));
        let body = body.filter(|body| body.len() >= HEADER_BYTES);
        let body = body.ok_or("it is too short")?;
        if u64_at(bytes, body.len()) != Some(xxh3_64(body)) {
            return Err("its checksum does not match");
        }
        if !body.starts_with(&MAGIC) || u32_at(body, MAGIC.len()) != Some(VERSION) {
            return Err("it is not the manifest of a backup of a known version");
        }
        Manifest::decode_body(body).ok_or("it is not well formed")
    }

    fn decode_body(body: &[u8]) -> Option<Manifest> {
        let mut d = Decoder::new(body, HEADER_BYTES);
        let (number, sequence, bytes_new) = (d.number()?, d.number()?, d.varint()?);
        let time = match d.u8()? {
            0 => None,
            1 => Some(d.varint()?),
            _ => return None,
        };
        let mut logs = Vec::new();
        for _ in 0..d.length()? {
            logs.push(LogFile {
                number: d.number()?,
                bytes: d.varint()?,
                hash: d.varint()?,
            });
        }
        let edit = Edit::decode(body.get(d.position()..)?)?;
        // Without these nothing can be made of the tables.
        edit.log_number.and(edit.flushed).and(edit.next_file)?;
        let mut numbers = BTreeSet::new();
        let once = edit.added.iter().all(|(_, t)| numbers.insert(t.number))
            && logs.windows(2).all(|pair| pair[0].number < pair[1].number);
        if !once {
            return None;
        }
        Some(Manifest {
            number,
            time,
            sequence,
            bytes_new,
            logs,
            edit,
        })
    }

    /// What users see of it.
    pub(super) fn backup(&self) -> Backup {
        let file = |kind, bytes, hash| BackupFile {
            name: content_name(kind, hash, bytes),
            bytes,
            hash,
        };
        let tables = self.edit.added.iter();
        let tables = tables.map(|(_, t)| file(Kind::Table, t.size, t.hash));
        let logs = self.logs.iter();
        let logs = logs.map(|log| file(Kind::Log, log.bytes, log.hash));
        Backup {
            number: self.number,
            time: self.time,
            sequence: self.sequence,
            bytes_new: self.bytes_new,
            files: tables.chain(logs).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(time: Option<u64>) -> Manifest {
        let log = |number| LogFile {
            number,
            bytes: 1 << 33,
            hash: u64::MAX - number,
        };
        Manifest {
            number: 7,
            time,
            sequence: 1 << 40,
            bytes_new: 300,
            logs: vec![log(3), log(4)],
            edit: Edit {
                log_number: Some(3),
                flushed: Some(9),
                next_file: Some(5),
                indices: vec![(1, "names".into())],
                ..Edit::default()
            },
        }
    }

    #[test]
    fn a_manifest_comes_back_or_fails() {
        for time in [None, Some(1_800_000_000)] {
            let bytes = sample(time).encode();
            assert_eq!(Manifest::decode(&bytes), Ok(sample(time)));
            for at in 0..bytes.len() {
                let mut harmed = bytes.clone();
                harmed[at] ^= 0x20;
                assert!(Manifest::decode(&harmed).is_err(), "byte {at}");
                assert!(Manifest::decode(&bytes[..at]).is_err(), "cut to {at}");
            }
        }
    }

    #[test]
    fn only_our_own_names_are_taken_for_ours() {
        for name in ["000000000000002a-7.table", "ffffffffffffffff-0.log"] {
            assert!(is_content(name) && is_part(&part_name(name)), "{name}");
        }
        for name in ["2a-7.table", "000000000000002A-7.table", "000001.log", "x"] {
            assert!(!is_content(name) && !is_part(&part_name(name)), "{name}");
        }
        assert_eq!(manifest_number(&manifest_name(12)), Some(12));
        assert!(is_part(&part_name(&manifest_name(12))));
    }

    proptest::proptest! {
        #[test]
        fn hostile_bytes_do_no_harm(bytes in proptest::collection::vec(0..12u8, 0..80)) {
            let body = [vec![0; HEADER_BYTES], bytes].concat();
            if let Some(manifest) = Manifest::decode_body(&body) {
                assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
            }
        }
    }
}
