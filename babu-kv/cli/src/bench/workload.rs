//! Keys and values as a metadata server has them: a file is a record under (directory, name), and
//! its number leads back to that key.

use crate::engine::{DIRECTORY_BYTES, Durability, Index, Operation, Store};
use anyhow::Result;
use std::ops::Deref;

/// Files in each directory.
pub const FILES: u64 = 100;
/// Bytes of the record of a file.
const RECORD_BYTES: usize = 160;
/// Bytes of keys and values of one create.
pub const CREATE_BYTES: u64 = 24 + RECORD_BYTES as u64 + 16 + 24;

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
    key[..DIRECTORY_BYTES].copy_from_slice(&directory.to_be_bytes());
    for (at, byte) in key[DIRECTORY_BYTES..].iter_mut().enumerate() {
        let digit = (scatter(n) >> (4 * at)) as u8 & 15;
        *byte = b'a' + digit;
    }
    key
}

/// What leads from file `n` back to its key.
fn reverse(directory: u64, n: u64) -> [u8; 16] {
    let mut reverse = [0; 16];
    reverse[..8].copy_from_slice(&n.to_be_bytes());
    reverse[8..].copy_from_slice(&directory.to_be_bytes());
    reverse
}

/// About half of it compresses, as times, modes and owners do.
fn record(n: u64) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    for (at, word) in record.as_chunks_mut().0.iter_mut().enumerate() {
        *word = match at % 2 {
            0 => scatter(n ^ (at as u64) << 40).to_le_bytes(),
            _ => (at as u64).to_le_bytes(),
        };
    }
    record
}

/// A store of files, and the name of its engine.
pub struct Files {
    /// Name of the engine.
    pub engine: &'static str,
    /// The store.
    pub store: Box<dyn Store>,
}

impl Deref for Files {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        &*self.store
    }
}

impl Files {
    /// Creates file `n` of a directory: a batch of two puts.
    pub fn create(&self, directory: u64, n: u64, durability: Durability) -> Result<()> {
        let (key, reverse, record) = (key(directory, n), reverse(directory, n), record(n));
        let batch = [
            Operation::Put(Index::Records, &key, &record),
            Operation::Put(Index::Names, &reverse, &key),
        ];
        self.store.commit(&batch, durability)
    }

    /// Removes it: a batch of two deletes.
    pub fn unlink(&self, directory: u64, n: u64) -> Result<()> {
        let (key, reverse) = (key(directory, n), reverse(directory, n));
        let batch = [
            Operation::Delete(Index::Records, &key),
            Operation::Delete(Index::Names, &reverse),
        ];
        self.store.commit(&batch, Durability::Buffered)
    }

    /// Gives file `n` the name that file `to` would have: a batch of a delete and two puts.
    pub fn rename(&self, directory: u64, n: u64, to: u64) -> Result<()> {
        let (from, to) = (key(directory, n), key(directory, to));
        let (reverse, record) = (reverse(directory, n), record(n));
        let batch = [
            Operation::Delete(Index::Records, &from),
            Operation::Put(Index::Records, &to, &record),
            Operation::Put(Index::Names, &reverse, &to),
        ];
        self.store.commit(&batch, Durability::Buffered)
    }

    /// Lists a directory with its records; the number of entries.
    pub fn list(&self, directory: u64) -> Result<u64> {
        let mut entries = 0;
        let prefix = directory.to_be_bytes();
        self.store
            .scan(Index::Records, &prefix, &mut |key, value| {
                std::hint::black_box((key, value));
                entries += 1;
            })?;
        Ok(entries)
    }
}
