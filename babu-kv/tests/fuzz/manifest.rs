//! Hostile manifests, and CURRENT.

use crate::{corpus, mutate, trial};
use babu_kv::{
    Compression,
    fs::{Fs, MemoryFs},
};
use rand::Rng;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const HEADER_BYTES: usize = 16;

/// Path, number and edits of the manifest.
pub fn parse(fs: &MemoryFs) -> (PathBuf, u64, Vec<Vec<u8>>) {
    let names = fs.list(Path::new(corpus::DIR)).unwrap();
    let name = names.iter().find(|n| n.starts_with("MANIFEST-")).unwrap();
    let number = name["MANIFEST-".len()..].parse().unwrap();
    let path = Path::new(corpus::DIR).join(name);
    let bytes = corpus::read(fs, &path);
    let (mut edits, mut rest) = (Vec::new(), &bytes[..]);
    while !rest.is_empty() {
        let length = u32::from_le_bytes(rest[4..8].try_into().unwrap()) as usize;
        edits.push(rest[HEADER_BYTES..HEADER_BYTES + length].to_vec());
        rest = &rest[HEADER_BYTES + length..];
    }
    let known = seal(number, &edits) == bytes;
    assert!(known, "this file does not know the format any more");
    (path, number, edits)
}

pub fn seal(number: u64, edits: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    for edit in edits {
        let seed = (number << 40).wrapping_add(out.len() as u64);
        let mut sealed = (edit.len() as u32).to_le_bytes().to_vec();
        sealed.extend(xxh3_64_with_seed(edit, seed).to_le_bytes());
        out.extend((xxh3_64_with_seed(&sealed, seed) as u32).to_le_bytes());
        out.extend(sealed);
        out.extend(edit);
    }
    out
}

#[test]
fn edits_of_any_content_do_no_harm() {
    let fs = corpus::database(Compression::Lz4);
    let (path, number, edits) = parse(&fs);
    trial::cases(1, |random| {
        let mut edits = edits.clone();
        let at = random.random_range(0..edits.len());
        match random.random_range(0..10) {
            0 => drop(edits.remove(at)),
            1 => edits.insert(at, edits[at].clone()),
            _ => mutate::freely(random, &mut edits[at]),
        }
        let changed = corpus::with(&fs, &path, &seal(number, &edits));
        trial::everything(&changed, random);
    });
}

#[test]
fn bytes_that_do_not_check_give_an_error_or_the_right_answer() {
    let fs = corpus::database(Compression::Lz4);
    let (path, number, edits) = parse(&fs);
    let (whole, right) = (seal(number, &edits), corpus::content(corpus::ROUNDS));
    trial::cases(4, |random| {
        let mut bytes = whole.clone();
        mutate::in_place(random, &mut bytes);
        let changed = corpus::with(&fs, &path, &bytes);
        if let Ok(found) = trial::open_and_read(&changed, random) {
            // A torn last record is cut: nothing depends on it.
            assert!(found == right, "a wrong answer");
        }
    });
}

#[test]
fn current_may_say_anything() {
    let fs = corpus::database(Compression::Lz4);
    let path = Path::new(corpus::DIR).join("CURRENT");
    let whole = corpus::read(&fs, &path);
    let right = corpus::content(corpus::ROUNDS);
    trial::cases(10, |random| {
        let mut bytes = whole.clone();
        mutate::freely(random, &mut bytes);
        if random.random() {
            // A name that checks.
            let name = String::from_utf8_lossy(&bytes)
                .split(' ')
                .next()
                .map(String::from);
            let name = name.unwrap_or_default();
            bytes = format!("{name} {:016x}\n", xxh3_64(name.as_bytes())).into_bytes();
        }
        let changed = corpus::with(&fs, &path, &bytes);
        if let Ok(found) = trial::open_and_read(&changed, random) {
            assert!(found == right, "a wrong answer");
        }
    });
}
