//! Hostile tables.
//!
//! All that this file knows of the format is that a table is a row of pieces, each of which ends in
//! the XXH3-64 of its other bytes with its offset as seed, and a footer with one without. It finds
//! them by trying.

use crate::{corpus, mutate, trial};
use babu_kv::{
    Compression, Database, Error,
    fs::{Fs, MemoryFs},
};
use rand::{Rng, rngs::StdRng};
use std::{
    ops::Range,
    path::{Path, PathBuf},
};
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

struct Table {
    path: PathBuf,
    bytes: Vec<u8>,
    /// The last is the footer.
    pieces: Vec<Range<usize>>,
}

/// The end of the piece that begins at `from`.
fn piece_end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut hasher = Xxh3::with_seed(from as u64);
    for end in from + 8..=bytes.len() {
        let hash = u64::from_le_bytes(bytes[end - 8..end].try_into().unwrap());
        if end > from + 8 && hasher.digest() == hash {
            return Some(end);
        }
        hasher.update(&bytes[end - 8..end - 7]);
    }
    None
}

fn parse(fs: &MemoryFs, path: PathBuf) -> Table {
    let bytes = corpus::read(fs, &path);
    let mut pieces = Vec::new();
    let mut from = 0;
    while let Some(end) = piece_end(&bytes, from) {
        pieces.push(from..end);
        from = end;
    }
    // Dictionary, tombstones, filter, index and properties beside the data.
    assert!(pieces.len() >= 6, "this file does not know the format");
    pieces.push(from..bytes.len());
    Table {
        path,
        bytes,
        pieces,
    }
}

impl Table {
    /// Changes bytes of a piece and makes its checksum match.
    fn harm(&self, random: &mut StdRng) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        // Data blocks are many; the others matter as much.
        let at = if random.random() {
            random.random_range(0..self.pieces.len())
        } else {
            self.pieces.len() - 1 - random.random_range(0..6)
        };
        let piece = self.pieces[at].clone();
        let seal_at = piece.end - 8;
        mutate::in_place(random, &mut bytes[piece.start..seal_at]);
        let content = &bytes[piece.start..seal_at];
        let hash = if piece.end == self.bytes.len() {
            xxh3_64(content)
        } else {
            xxh3_64_with_seed(content, piece.start as u64)
        };
        bytes[seal_at..piece.end].copy_from_slice(&hash.to_le_bytes());
        bytes
    }
}

fn tables(fs: &MemoryFs) -> Vec<Table> {
    let paths = corpus::files(fs, corpus::DIR, ".table");
    let tables: Vec<Table> = paths.into_iter().map(|path| parse(fs, path)).collect();
    assert!(tables.len() > 2);
    tables
}

/// Opens, verifies, and does everything else.
fn try_tables(compression: Compression) {
    let fs = corpus::database(compression);
    let tables = tables(&fs);
    trial::cases(1, |random| {
        let table = &tables[random.random_range(0..tables.len())];
        let bytes = table.harm(random);
        if bytes == table.bytes {
            return;
        }
        let changed = corpus::with(&fs, &table.path, &bytes);
        let options = corpus::options(&changed, compression);
        let database = Database::open(Path::new(corpus::DIR), options).unwrap();
        let error = database.verify().unwrap_err();
        let named = matches!(&error, Error::Corrupt { file, .. } if *file == table.path);
        assert!(named, "verify: {error}");
        drop(database);
        trial::everything(&changed, random);
    });
}

#[test]
fn plain_pieces_of_any_content_do_no_harm_and_are_found_by_verify() {
    try_tables(Compression::None);
}

#[test]
fn compressed_pieces_of_any_content_do_no_harm_and_are_found_by_verify() {
    try_tables(Compression::Lz4);
    try_tables(Compression::Zstd(1));
}

#[test]
fn bytes_that_do_not_check_give_an_error_or_the_right_answer() {
    let fs = corpus::database(Compression::Lz4);
    let (tables, right) = (tables(&fs), corpus::content(corpus::ROUNDS));
    trial::cases(2, |random| {
        let table = &tables[random.random_range(0..tables.len())];
        let mut bytes = table.bytes.clone();
        if random.random_bool(0.1) {
            // Another table in its place.
            let other = &tables[random.random_range(0..tables.len())];
            bytes.clone_from(&other.bytes);
        } else {
            mutate::freely(random, &mut bytes);
        }
        let changed = corpus::with(&fs, &table.path, &bytes);
        assert!(changed.exists(&table.path).unwrap());
        if let Ok(found) = trial::open_and_read(&changed, random) {
            assert!(found == right, "a wrong answer");
        }
    });
}
