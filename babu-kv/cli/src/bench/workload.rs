//! Keys and values as a metadata server has them: a file is a record under (directory, name), and
//! its number leads back to that key.

use anyhow::Result;
use babu_kv::{Batch, Database, Index, Options};
use std::path::Path;

/// Files in each directory.
pub const FILES: u64 = 100;
/// Bytes of the record of a file.
const RECORD_BYTES: usize = 160;
/// Bytes of keys and values of one create.
pub const CREATE_BYTES: u64 = 24 + RECORD_BYTES as u64 + 16 + 24;

pub struct Files {
    pub database: Database,
    pub records: Index,
    pub names: Index,
}

/// A number that looks random; different for different `n`.
fn scatter(n: u64) -> u64 {
    let n = (n ^ (n >> 31)).wrapping_mul(0x7fb5_d329_728e_a185);
    (n ^ (n >> 27)).wrapping_mul(0x81da_def4_bc2d_d44d)
}

/// The directory that file `n` is in.
pub fn directory(n: u64) -> u64 {
    scatter(n / FILES) | 1 << 63
}

/// The key of file `n` of a directory.
pub fn key(directory: u64, n: u64) -> [u8; 24] {
    let mut key = [0; 24];
    key[..8].copy_from_slice(&directory.to_be_bytes());
    for (at, byte) in key[8..].iter_mut().enumerate() {
        let digit = (scatter(n) >> (4 * at)) as u8 & 15;
        *byte = b'a' + digit;
    }
    key
}

/// About half of it compresses, as times, modes and owners do.
pub fn record(n: u64) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    for (at, word) in record.as_chunks_mut().0.iter_mut().enumerate() {
        *word = match at % 2 {
            0 => scatter(n ^ (at as u64) << 40).to_le_bytes(),
            _ => (at as u64).to_le_bytes(),
        };
    }
    record
}

/// Time that all threads of this process ran, in microseconds.
pub fn cpu_us() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

impl Files {
    pub fn open(dir: &Path, options: Options) -> Result<Files> {
        let database = Database::open(dir, options)?;
        Ok(Files {
            records: database.index("records")?,
            names: database.index("names")?,
            database,
        })
    }

    /// The batch that creates file `n` of a directory.
    pub fn create(&self, directory: u64, n: u64) -> Batch {
        let key = key(directory, n);
        let mut reverse = [0; 16];
        reverse[..8].copy_from_slice(&n.to_be_bytes());
        reverse[8..].copy_from_slice(&directory.to_be_bytes());
        let mut batch = Batch::new();
        batch.put(&self.records, &key, &record(n));
        batch.put(&self.names, &reverse, &key);
        batch
    }

    /// The batch that removes it.
    pub fn unlink(&self, directory: u64, n: u64) -> Batch {
        let mut reverse = [0; 16];
        reverse[..8].copy_from_slice(&n.to_be_bytes());
        reverse[8..].copy_from_slice(&directory.to_be_bytes());
        let mut batch = Batch::new();
        batch.delete(&self.records, &key(directory, n));
        batch.delete(&self.names, &reverse);
        batch
    }

    /// Lists a directory with its records; the number of entries.
    pub fn list(&self, directory: u64) -> Result<u64> {
        let mut entries = 0;
        for entry in self
            .database
            .prefix(&self.records, &directory.to_be_bytes())
        {
            let (key, value) = entry?;
            std::hint::black_box((&*key, &*value));
            entries += 1;
        }
        Ok(entries)
    }
}
