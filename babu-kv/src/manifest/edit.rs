//! One atomic change of the manifest.

use super::format;
use crate::{
    coding::{Decoder, put_bytes, put_varint},
    log::seal::Seal,
    table::TableMeta,
};

/// Most indices over the life of a database.
pub(crate) const INDEX_MAX: u32 = 1 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edit {
    pub version: Option<u64>,
    pub indices: Vec<(u32, String)>,
    pub log_number: Option<u64>,
    pub flushed: Option<u64>,
    pub next_file: Option<u64>,
    pub added: Vec<(usize, TableMeta)>,
    pub removed: Vec<(usize, u64)>,
    pub sealed: Vec<Seal>,
    pub dropped: Vec<u32>,
    pub last_index: Option<u32>,
    /// For index numbers the length of the prefixes that go into filters.
    pub prefixes: Vec<(u32, u8)>,
}

impl Edit {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut number = |tag: u64, value: Option<u64>| {
            if let Some(value) = value {
                put_varint(&mut out, tag);
                put_varint(&mut out, value);
            }
        };
        number(1, self.version);
        number(3, self.log_number);
        number(4, self.flushed);
        number(5, self.next_file);
        number(10, self.last_index.map(u64::from));
        for id in &self.dropped {
            number(9, Some(u64::from(*id)));
        }
        for (id, name) in &self.indices {
            put_varint(&mut out, 2);
            put_varint(&mut out, u64::from(*id));
            put_bytes(&mut out, name.as_bytes());
        }
        for (id, bytes) in &self.prefixes {
            put_varint(&mut out, 11);
            put_varint(&mut out, u64::from(*id));
            put_varint(&mut out, u64::from(*bytes));
        }
        for (level, table) in &self.added {
            let numbers = [
                table.number,
                table.size,
                table.hash,
                table.entries,
                table.tombstones,
                table.sequence_max,
            ];
            put_varint(&mut out, 6);
            put_varint(&mut out, *level as u64);
            for number in numbers {
                put_varint(&mut out, number);
            }
            put_bytes(&mut out, &table.from);
            put_bytes(&mut out, &table.to);
        }
        for (level, number) in &self.removed {
            put_varint(&mut out, 7);
            put_varint(&mut out, *level as u64);
            put_varint(&mut out, *number);
        }
        for seal in &self.sealed {
            put_varint(&mut out, 8);
            seal.encode(&mut out);
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Edit> {
        let mut d = Decoder::new(bytes, 0);
        let mut edit = Edit::default();
        while !d.is_at_end() {
            match d.varint()? {
                1 => edit.version = Some(d.varint().filter(|v| *v == format::VERSION)?),
                2 => {
                    let id = u32::try_from(d.varint()?)
                        .ok()
                        .filter(|id| *id <= INDEX_MAX)?;
                    edit.indices
                        .push((id, String::from_utf8(d.bytes()?.to_vec()).ok()?));
                }
                3 => edit.log_number = Some(d.number()?),
                4 => edit.flushed = Some(d.number()?),
                5 => edit.next_file = Some(d.number()?),
                6 => edit.added.push((level(&mut d)?, table(&mut d)?)),
                7 => edit.removed.push((level(&mut d)?, d.number()?)),
                8 => edit.sealed.push(Seal::decode(&mut d)?),
                9 => edit.dropped.push(u32::try_from(d.varint()?).ok()?),
                10 => {
                    edit.last_index = Some(
                        u32::try_from(d.varint()?)
                            .ok()
                            .filter(|id| *id <= INDEX_MAX)?,
                    )
                }
                11 => {
                    let id = u32::try_from(d.varint()?).ok()?;
                    edit.prefixes.push((id, u8::try_from(d.varint()?).ok()?));
                }
                _ => return None,
            }
        }
        Some(edit)
    }
}

fn level(d: &mut Decoder<'_>) -> Option<usize> {
    d.length().filter(|level| *level < super::version::LEVELS)
}

/// No table has more bytes.
const SIZE_MAX: u64 = 1 << 40;

fn table(d: &mut Decoder<'_>) -> Option<TableMeta> {
    Some(TableMeta {
        number: d.number()?,
        size: d.varint().filter(|size| *size <= SIZE_MAX)?,
        hash: d.varint()?,
        entries: d.number()?,
        tombstones: d.number()?,
        sequence_max: d.number()?,
        from: d.bytes()?.to_vec(),
        to: d.bytes()?.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edit_comes_back() {
        let table = TableMeta {
            number: 9,
            size: 1 << 30,
            hash: u64::MAX,
            entries: 7,
            tombstones: 2,
            sequence_max: 1 << 50,
            from: b"a".to_vec(),
            to: b"b\0".to_vec(),
        };
        let edit = Edit {
            version: Some(format::VERSION),
            indices: vec![(1, "names".into())],
            log_number: Some(3),
            flushed: Some(4),
            next_file: Some(10),
            added: vec![(6, table)],
            removed: vec![(0, 8)],
            dropped: vec![2, 5],
            last_index: Some(6),
            prefixes: vec![(1, 8)],
            sealed: vec![Seal {
                segment: 3,
                bytes: 1 << 30,
                hash: u64::MAX,
            }],
        };
        let bytes = edit.encode();
        assert_eq!(Edit::decode(&bytes), Some(edit));
        for cut in 0..bytes.len() {
            let _ = Edit::decode(&bytes[..cut]);
        }
    }

    proptest::proptest! {
        #[test]
        fn hostile_bytes_do_no_harm(bytes in proptest::collection::vec(0..24u8, 0..60)) {
            if let Some(edit) = Edit::decode(&bytes) {
                assert_eq!(Edit::decode(&edit.encode()), Some(edit));
            }
        }
    }
}
