//! Hostile streams of a backup.

use crate::{corpus, mutate, trial};
use babu_kv::{
    Compression, Database, Error, backup,
    fs::{Fs, MemoryFs},
};
use rand::Rng;
use std::{collections::BTreeSet, path::Path};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Magic and version.
const START_BYTES: usize = 12;
const HEADER_BYTES: usize = 17;

/// Kind and payload.
type Frame = (u8, Vec<u8>);

fn parse(bytes: &[u8]) -> (Vec<u8>, Vec<Frame>) {
    let (start, mut rest) = bytes.split_at(START_BYTES);
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let length = u32::from_le_bytes(rest[5..9].try_into().unwrap()) as usize;
        let payload = rest[HEADER_BYTES..HEADER_BYTES + length].to_vec();
        frames.push((rest[4], payload));
        rest = &rest[HEADER_BYTES + length..];
    }
    (start.to_vec(), frames)
}

fn seal(start: &[u8], frames: &[Frame]) -> Vec<u8> {
    let mut out = start.to_vec();
    for (seed, (kind, payload)) in (0..).zip(frames) {
        let mut sealed = vec![*kind];
        sealed.extend((payload.len() as u32).to_le_bytes());
        sealed.extend(xxh3_64_with_seed(payload, seed).to_le_bytes());
        out.extend((xxh3_64_with_seed(&sealed, seed) as u32).to_le_bytes());
        out.extend(sealed);
        out.extend(payload);
    }
    out
}

/// Damage, or a stream that leaves out what is not there.
fn is_fitting(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. } | Error::InvalidArgument(_))
}

/// What comes of an attempt to take in a stream: nothing, or all of it.
fn take_in(stream: &[u8], is_whole: bool) {
    let fs = MemoryFs::new();
    let (safe, to) = (Path::new("/safe"), Path::new("/restored"));
    match backup::receive(&fs, &mut &*stream, safe, &mut |_| {}) {
        Ok(received) => {
            let report = backup::verify(&fs, safe, received.number).unwrap();
            assert!(report.damage.is_empty(), "{:?}", report.damage);
        }
        Err(error) => {
            assert!(!is_whole, "{error}");
            assert!(is_fitting(&error), "{error}");
            let names = fs.list(safe).unwrap_or_default();
            assert!(!names.iter().any(|name| name.ends_with(".backup")));
        }
    }
    let restored = backup::restore_stream(&fs, &mut &*stream, to, &mut |_| {});
    match restored {
        Ok(_) => {
            let database = Database::open(to, corpus::options(&fs, Compression::Lz4));
            match database.and_then(|database| database.verify()) {
                Ok(_) | Err(Error::Corrupt { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        Err(error) => assert!(is_fitting(&error), "{error}"),
    }
}

#[test]
fn streams_of_any_content_do_no_harm() {
    let fs = corpus::database(Compression::Lz4);
    let database = Database::open(
        Path::new(corpus::DIR),
        corpus::options(&fs, Compression::Lz4),
    )
    .unwrap();
    let mut whole = Vec::new();
    let have = BTreeSet::new();
    database
        .backup_to(&mut whole, &have, Some(7), &mut |_| {})
        .unwrap();
    let (start, frames) = parse(&whole);
    let known = seal(&start, &frames) == whole;
    assert!(known, "this file does not know the format any more");
    take_in(&whole, true);
    trial::cases(1, |random| {
        let (mut start, mut frames) = (start.clone(), frames.clone());
        // The manifest is one frame of many, and the one with most to say.
        let at = match random.random_range(0..3) {
            0 => 0,
            _ => random.random_range(0..frames.len()),
        };
        let other = random.random_range(0..frames.len());
        match random.random_range(0..12) {
            0 => drop(frames.remove(at)),
            1 => frames.insert(other, frames[at].clone()),
            2 => frames.swap(at, other),
            3 => frames[at].0 = random.random_range(0..6),
            4 => mutate::in_place(random, &mut start),
            _ => mutate::freely(random, &mut frames[at].1),
        }
        let mut changed = seal(&start, &frames);
        if random.random_bool(0.2) {
            mutate::freely(random, &mut changed);
        }
        take_in(&changed, changed == whole);
    });
}
