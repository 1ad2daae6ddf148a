//! A table is written and asked for everything, with each codec, one and two levels of index.

use super::{
    Prefixes, Table, TableMeta, Tables,
    builder::TableBuilder,
    cursor::TableCursor,
    filter,
    reader::{Reader, Reading},
};
use crate::{
    fs::MemoryFs,
    iter::{Cursor, Entry},
    keys::{Kind, Range, full_key},
    options::{Compression, Options},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{collections::BTreeMap, path::Path, sync::Arc};

/// Sequence number, kind, value.
type Content = (u64, Kind, Vec<u8>);
/// By full key.
type Model = BTreeMap<Vec<u8>, Content>;

/// Directories of names; every other directory is absent.
fn model() -> Model {
    let mut random = StdRng::seed_from_u64(5);
    let mut model = Model::new();
    for n in 0..3000u64 {
        let index = 1 + u32::from(n % 5 == 0);
        let directory = n / 40 * 2;
        let name = format!("file-{:x}", random.random::<u32>() >> (n % 20));
        let key = full_key(index, &[&directory.to_be_bytes(), name.as_bytes()].concat());
        let kind = if n % 7 == 0 { Kind::Delete } else { Kind::Put };
        let value = match kind {
            Kind::Put => format!("owner={} mode=755 size={n} ", n % 3).repeat(1 + n as usize % 4),
            Kind::Delete => String::new(),
        };
        model.insert(key, (random.random::<u64>() >> 5, kind, value.into_bytes()));
    }
    model
}

fn tables() -> Arc<Tables> {
    let fs = Arc::new(MemoryFs::new());
    let tables = Tables::new(fs, Path::new("/"), &Options::default());
    *tables.prefixes.write() = Prefixes::new(BTreeMap::from([(1, 8)]));
    Arc::new(tables)
}

fn write(tables: &Arc<Tables>, number: u64, options: &Options, model: &Model) -> TableMeta {
    let mut builder = TableBuilder::new(tables, number, 2, options).unwrap();
    for (key, (sequence, kind, value)) in model {
        let entry = Entry {
            key,
            sequence: *sequence,
            kind: *kind,
        };
        builder.add(&entry, value).unwrap();
    }
    builder.finish().unwrap()
}

/// Small blocks make an index of two levels.
fn variants() -> impl Iterator<Item = (Options, bool)> {
    let compressions = [Compression::None, Compression::Lz4, Compression::Zstd(1)];
    let all =
        compressions.map(|compression| [(128, true), (4096, false)].map(|s| (s, compression)));
    all.into_iter()
        .flatten()
        .map(|((block_bytes, two_levels), compression)| {
            let options = Options {
                block_bytes,
                compression,
                ..Options::default()
            };
            (options, two_levels)
        })
}

fn here(cursor: &TableCursor) -> Option<(Vec<u8>, Content)> {
    let entry = cursor.entry()?;
    let value = cursor.value().to_vec();
    Some((entry.key.to_vec(), (entry.sequence, entry.kind, value)))
}

#[test]
fn a_table_gives_back_what_was_written() {
    let model = model();
    let all: Vec<_> = model.clone().into_iter().collect();
    let mut random = StdRng::seed_from_u64(6);
    for (options, two_levels) in variants() {
        let tables = tables();
        let meta = write(&tables, 1, &options, &model);
        assert_eq!(meta.entries, model.len() as u64);
        let table = Table::new(tables, meta);
        assert_eq!(table.reader().unwrap().has_index_parts(), two_levels);
        table.verify().unwrap();
        for (key, (sequence, kind, value)) in &model {
            let found = table.get(key, filter::hash(key)).unwrap().0.unwrap();
            assert_eq!((found.sequence, found.kind), (*sequence, *kind));
            assert_eq!(&*found.value, value.as_slice());
            let absent = [key.as_slice(), b"\0"].concat();
            let reader = table.reader().unwrap();
            // The filter answers for nearly all of these; here the blocks are asked too.
            let known = filter::hash(key);
            assert!(reader.get(&absent, known).unwrap().is_none());
            let shorter = &key[..key.len() - 1];
            let found = reader.get(shorter, known).unwrap().is_some();
            assert_eq!(found, model.contains_key(shorter));
        }
        let mut cursor = TableCursor::new(table.clone(), true);
        cursor.seek(&[]).unwrap();
        for expected in &all {
            assert_eq!(here(&cursor).as_ref(), Some(expected));
            cursor.next().unwrap();
        }
        assert!(here(&cursor).is_none());
        cursor.seek_back(None).unwrap();
        for expected in all.iter().rev() {
            assert_eq!(here(&cursor).as_ref(), Some(expected));
            cursor.prev().unwrap();
        }
        assert!(here(&cursor).is_none());
        for _ in 0..300 {
            let n = random.random_range(0..all.len());
            let mut sought = all[n].0.clone();
            if random.random() {
                let at = random.random_range(0..sought.len());
                sought[at] = random.random();
            }
            cursor.seek(&sought).unwrap();
            let mut after = model.range(sought.clone()..);
            for _ in 0..random.random_range(1..40) {
                assert_eq!(
                    here(&cursor).map(|e| e.0).as_ref(),
                    after.next().map(|e| e.0)
                );
                cursor.next().unwrap();
            }
            cursor.seek_back(Some(&sought)).unwrap();
            let mut before = model.range(..sought.clone()).rev();
            for _ in 0..random.random_range(1..40) {
                assert_eq!(
                    here(&cursor).map(|e| e.0).as_ref(),
                    before.next().map(|e| e.0)
                );
                cursor.prev().unwrap();
            }
        }
    }
}

#[test]
fn a_table_without_a_prefix_is_not_looked_into() {
    let model = model();
    for (options, _) in variants() {
        let tables = tables();
        let table = Table::new(tables.clone(), write(&tables, 1, &options, &model));
        let asked = |index: u32, directories: std::ops::Range<u64>| {
            let may_share = |n: &u64| table.may_share(&Range::prefix(index, &n.to_be_bytes()));
            directories.filter(|n| may_share(n).unwrap()).count()
        };
        let present = |index| {
            let has = |n: &u64| {
                let prefix = full_key(index, &n.to_be_bytes());
                model.keys().any(|k| k.starts_with(&prefix))
            };
            (0..150).filter(has).count()
        };
        assert_eq!(present(1), 75);
        assert!((75..80).contains(&asked(1, 0..150)));
        // Nothing was declared for the other index.
        assert_eq!(asked(2, 1..149), 148);
        // A range of more than one prefix.
        let from = full_key(1, &3u64.to_be_bytes());
        let to = Some(full_key(1, &4u64.to_be_bytes()));
        let mut range = Range { from, to };
        assert!(!table.may_share(&range).unwrap());
        range.to.as_mut().unwrap().push(0);
        assert!(table.may_share(&range).unwrap());
    }
}

#[test]
fn a_dictionary_makes_a_table_smaller() {
    let model = model();
    let tables = tables();
    let size = |number, compression| {
        let options = Options {
            compression,
            block_bytes: 512,
            ..Options::default()
        };
        write(&tables, number, &options, &model).size
    };
    let sizes = [Compression::None, Compression::Lz4, Compression::Zstd(1)];
    let sizes = [size(1, sizes[0]), size(2, sizes[1]), size(3, sizes[2])];
    assert!(sizes[1] < sizes[0] * 3 / 5, "{sizes:?}");
    assert!(sizes[2] < sizes[1] * 9 / 10, "{sizes:?}");
}

/// Each byte that is flipped is found where it is read; nothing but the checksum of the whole file
/// is needed for that.
#[test]
fn a_flipped_byte_is_found_by_whoever_reads_it() {
    let model: Model = model().into_iter().take(400).collect();
    for (options, _) in variants() {
        let tables = tables();
        let meta = write(&tables, 1, &options, &model);
        let path = tables.path(1);
        let file = tables.fs.open(&path, crate::fs::Open::Write).unwrap();
        let mut bytes = vec![0; meta.size as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        for at in (0..bytes.len()).step_by(5) {
            file.write_at(&[bytes[at] ^ 0x10], at as u64).unwrap();
            let read = Reader::open(tables.clone(), 1, meta.size).and_then(|reader| {
                let mut index = super::index::IndexCursor::default();
                let mut place = index.first(&reader, Reading::Fresh)?;
                while let Some(at) = place {
                    reader.block(at.handle, Reading::Fresh)?;
                    place = index.next(&reader, Reading::Fresh)?;
                }
                Ok(())
            });
            assert!(
                matches!(read, Err(crate::Error::Corrupt { .. })),
                "{at}: {read:?}"
            );
            file.write_at(&bytes[at..=at], at as u64).unwrap();
        }
    }
}
