//! Hostile log segments.

use crate::{corpus, mutate, trial};
use babu_kv::{Compression, fs::MemoryFs};
use rand::{Rng, rngs::StdRng};
use std::path::PathBuf;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const HEADER_BYTES: usize = 24;

/// A record without its checksums.
#[derive(Clone)]
struct Record {
    durable: u64,
    payload: Vec<u8>,
}

struct Segment {
    path: PathBuf,
    number: u64,
    header: Vec<u8>,
    records: Vec<Record>,
}

fn parse(fs: &MemoryFs, path: PathBuf) -> Segment {
    let bytes = corpus::read(fs, &path);
    let stem = path.file_stem().unwrap().to_str().unwrap();
    let number = stem.parse().unwrap();
    let (header, mut rest) = bytes.split_at(HEADER_BYTES);
    let mut records = Vec::new();
    // Zeros may follow, which were written ahead.
    while rest.iter().any(|byte| *byte != 0) {
        let length = u32::from_le_bytes(rest[4..8].try_into().unwrap()) as usize;
        records.push(Record {
            durable: u64::from_le_bytes(rest[8..16].try_into().unwrap()),
            payload: rest[HEADER_BYTES..HEADER_BYTES + length].to_vec(),
        });
        rest = &rest[HEADER_BYTES + length..];
    }
    let header = header.to_vec();
    Segment {
        path,
        number,
        header,
        records,
    }
}

impl Segment {
    /// The bytes of the segment with these records, all of which check.
    fn seal(&self, records: &[Record]) -> Vec<u8> {
        let mut out = self.header.clone();
        for record in records {
            let seed = (self.number << 40).wrapping_add(out.len() as u64);
            let mut sealed = (record.payload.len() as u32).to_le_bytes().to_vec();
            sealed.extend(record.durable.to_le_bytes());
            sealed.extend(xxh3_64_with_seed(&record.payload, seed).to_le_bytes());
            let check = xxh3_64_with_seed(&sealed, seed) as u32;
            out.extend(check.to_le_bytes());
            out.extend(sealed);
            out.extend(&record.payload);
        }
        out
    }
}

fn segments(fs: &MemoryFs) -> Vec<Segment> {
    let mut paths = corpus::files(fs, corpus::DIR, ".log");
    // Some were only made ahead.
    paths.retain(|path| corpus::read(fs, path).len() > HEADER_BYTES);
    let segments: Vec<Segment> = paths.into_iter().map(|path| parse(fs, path)).collect();
    for segment in &segments {
        let mut sealed = segment.seal(&segment.records);
        let bytes = corpus::read(fs, &segment.path);
        sealed.resize(bytes.len(), 0);
        assert!(
            sealed == bytes,
            "this file does not know the format any more"
        );
    }
    let restarts = |s: &&Segment| s.records.first().is_some_and(|r| r.payload[0] == 2);
    assert!(segments.iter().any(|s| restarts(&s)));
    segments
}

fn some<'a>(random: &mut StdRng, segments: &'a [Segment]) -> &'a Segment {
    loop {
        let segment = &segments[random.random_range(0..segments.len())];
        if !segment.records.is_empty() {
            return segment;
        }
    }
}

#[test]
fn records_of_any_content_do_no_harm() {
    let fs = corpus::database(Compression::Lz4);
    let segments = segments(&fs);
    trial::cases(1, |random| {
        let segment = some(random, &segments);
        let mut records = segment.records.clone();
        let at = random.random_range(0..records.len());
        if random.random_bool(0.1) {
            records[at].durable = random.random();
        } else {
            mutate::freely(random, &mut records[at].payload);
        }
        let changed = corpus::with(&fs, &segment.path, &segment.seal(&records));
        trial::everything(&changed, random);
    });
}

/// Whole records, each with checksums that match, in another order or number.
#[test]
fn missing_and_displaced_records_give_an_error_or_a_prefix() {
    let fs = corpus::database(Compression::Lz4);
    let segments = segments(&fs);
    trial::cases(4, |random| {
        let segment = some(random, &segments);
        let mut records = segment.records.clone();
        let at = random.random_range(0..records.len());
        let other = random.random_range(0..records.len());
        match random.random_range(0..4) {
            0 => drop(records.remove(at)),
            1 => records.insert(other, records[at].clone()),
            2 => records.swap(at, other),
            _ => drop(records.drain(at.min(other)..at.max(other))),
        }
        let changed = corpus::with(&fs, &segment.path, &segment.seal(&records));
        if let Ok(found) = trial::open_and_read(&changed, random) {
            let prefix = (1..=corpus::ROUNDS).find(|n| corpus::content(*n) == found);
            assert!(prefix.is_some(), "not what any prefix of the batches makes");
        }
    });
}

#[test]
fn bytes_that_do_not_check_give_an_error_or_a_prefix() {
    let fs = corpus::database(Compression::Lz4);
    let segments = segments(&fs);
    trial::cases(4, |random| {
        let segment = some(random, &segments);
        let mut bytes = segment.seal(&segment.records);
        mutate::freely(random, &mut bytes);
        let changed = corpus::with(&fs, &segment.path, &bytes);
        if let Ok(found) = trial::open_and_read(&changed, random) {
            let prefix = (1..=corpus::ROUNDS).find(|n| corpus::content(*n) == found);
            assert!(prefix.is_some(), "not what any prefix of the batches makes");
        }
    });
}
