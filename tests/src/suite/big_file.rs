//! One big file with a known checksum.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use sha2::{Digest, Sha256};

use super::Suite;
use crate::manifest::sha256_of;

/// Bytes without a pattern, written in 1 MiB pieces and synced.
pub struct BigFile {
    mebibytes: u64,
    sha256: Vec<u8>,
}

impl BigFile {
    /// So many MiB long.
    #[must_use]
    pub fn of(mebibytes: u64) -> Self {
        Self {
            mebibytes,
            sha256: Vec::new(),
        }
    }
}

impl Suite for BigFile {
    fn name(&self) -> &'static str {
        "big_file"
    }

    fn work(&mut self, at: &Path, _outside: &Path) {
        let mut rng = SmallRng::seed_from_u64(42);
        let mut hash = Sha256::new();
        let mut piece = vec![0; 1 << 20];
        let mut file = File::create(at.join("file")).expect("create the file");
        for _ in 0..self.mebibytes {
            rng.fill_bytes(&mut piece);
            hash.update(&piece);
            file.write_all(&piece).expect("write the file");
        }
        file.sync_all().expect("sync the file");
        self.sha256 = hash.finalize().to_vec();
    }

    fn verify(&self, at: &Path, _outside: &Path) {
        let path = at.join("file");
        let length = std::fs::metadata(&path).expect("look at the file").len();
        assert_eq!(length, self.mebibytes << 20, "length of the big file");
        let found = sha256_of(&path).expect("read the file");
        assert!(found == self.sha256, "the big file has another SHA-256");
    }
}
