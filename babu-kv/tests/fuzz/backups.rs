//! Hostile backup folders.

use crate::{corpus, mutate, trial};
use babu_kv::{Compression, Database, Error, backup};
use rand::Rng;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

fn expect<T>(result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Error::Corrupt { .. }) => None,
        Err(error) => panic!("not an error of damage: {error}"),
    }
}

/// A manifest whose checksum matches may say anything.
#[test]
fn manifests_of_any_content_do_no_harm() {
    let fs = corpus::database(Compression::Lz4);
    let safe = Path::new(corpus::SAFE);
    let path = corpus::files(&fs, corpus::SAFE, ".backup").remove(0);
    let whole = corpus::read(&fs, &path);
    trial::cases(1, |random| {
        let mut bytes = whole[..whole.len() - 8].to_vec();
        mutate::freely(random, &mut bytes);
        if random.random_bool(0.9) {
            let hash = xxh3_64(&bytes);
            bytes.extend(hash.to_le_bytes());
        }
        let changed = corpus::with(&fs, &path, &bytes);
        for listed in backup::list(&changed, safe).unwrap() {
            expect(listed);
        }
        expect(backup::verify(&changed, safe, 1));
        let to = Path::new("/restored");
        if expect(backup::restore(&changed, safe, 1, to)).is_some() {
            let restored = Database::open(to, corpus::options(&changed, Compression::Lz4));
            if let Some(database) = expect(restored) {
                expect(database.verify());
            }
        }
        expect(backup::prune(&changed, safe, 1));
    });
}
