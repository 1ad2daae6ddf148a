//! The file that says what must be in the database.
//!
//! ```text
//! slot      = now u32 | next u32         little endian; one for each key
//! id        = 0: never written
//!           | number << 1                written with the value of this number
//!           | number << 1 | 1            deleted
//! slot (thread, index, key) is at 8 * ((thread * INDICES + index) * KEYS + key)
//! ```
//!
//! Before a batch is committed, `next` of its keys says what it will make of them; afterwards `now`
//! says the same. The writes go to the page cache, which survives `kill -9`. Each key belongs to
//! one thread, so that after a kill at most one batch of each thread may or may not be there.

use anyhow::{Context, Result};
use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
};

/// Threads that write.
pub const THREADS: u8 = 4;
/// Indices that they write to.
pub const INDICES: u8 = 3;
/// Keys of a thread in an index.
pub const KEYS: u16 = 1_000;
/// The highest number of an id.
pub const NUMBER_MAX: u32 = u32::MAX >> 1;
const SLOT_BYTES: u64 = 8;

/// What is under a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Id(u32);

impl Id {
    pub fn put(number: u32) -> Id {
        Id(number << 1)
    }

    pub fn delete(number: u32) -> Id {
        Id(number << 1 | 1)
    }

    pub fn number(self) -> u32 {
        self.0 >> 1
    }

    /// The value, or `None` when nothing is there.
    pub fn value(self) -> Option<Vec<u8>> {
        if self.0 == 0 || self.0 & 1 == 1 {
            return None;
        }
        let number = self.number();
        let words = number.wrapping_mul(0x9e37_79b1) >> 25;
        let mut value = number.to_le_bytes().to_vec();
        for word in 0..words {
            value.extend((number ^ word.wrapping_mul(0x85eb_ca6b)).to_le_bytes());
        }
        Some(value)
    }
}

/// A key of the database, by the thread that owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub thread: u8,
    pub index: u8,
    pub key: u16,
}

impl Place {
    /// The bytes of the key.
    pub fn bytes(self) -> [u8; 24] {
        let mut bytes = [b'k'; 24];
        bytes[0] = self.thread;
        bytes[22..].copy_from_slice(&self.key.to_be_bytes());
        bytes
    }

    fn offset(self) -> u64 {
        let table = u64::from(self.thread) * u64::from(INDICES) + u64::from(self.index);
        SLOT_BYTES * (table * u64::from(KEYS) + u64::from(self.key))
    }
}

/// All keys of a thread in an index.
pub fn places(thread: u8, index: u8) -> impl Iterator<Item = Place> {
    (0..KEYS).map(move |key| Place { thread, index, key })
}

/// What is said of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub now: Id,
    pub next: Id,
}

pub struct Expected(File);

/// Makes a file that expects nothing.
pub fn create(path: &Path) -> Result<()> {
    let file = File::create_new(path).with_context(|| format!("create {}", path.display()))?;
    let slots = u64::from(THREADS) * u64::from(INDICES) * u64::from(KEYS);
    file.set_len(slots * SLOT_BYTES)?;
    Ok(())
}

impl Expected {
    pub fn open(path: &Path) -> Result<Expected> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        Ok(Expected(
            file.with_context(|| format!("open {}", path.display()))?,
        ))
    }

    pub fn get(&self, place: Place) -> Result<Slot> {
        let mut bytes = [0; SLOT_BYTES as usize];
        self.0.read_exact_at(&mut bytes, place.offset())?;
        let word = u64::from_le_bytes(bytes);
        Ok(Slot {
            now: Id(word as u32),
            next: Id((word >> 32) as u32),
        })
    }

    pub fn set(&self, place: Place, slot: Slot) -> Result<()> {
        let word = u64::from(slot.next.0) << 32 | u64::from(slot.now.0);
        self.0.write_all_at(&word.to_le_bytes(), place.offset())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_read_as_it_was_written_and_its_neighbours_are_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("expected");
        create(&path).unwrap();
        let expected = Expected::open(&path).unwrap();
        let slot = Slot {
            now: Id::put(7),
            next: Id::delete(9),
        };
        let place = Place {
            thread: THREADS - 1,
            index: INDICES - 1,
            key: KEYS - 1,
        };
        expected.set(place, slot).unwrap();
        assert_eq!(expected.get(place).unwrap(), slot);
        assert_eq!(slot.now.value().unwrap()[..4], 7u32.to_le_bytes());
        assert_eq!(slot.next.value(), None);
        let others = (0..THREADS).flat_map(|t| (0..INDICES).flat_map(move |i| places(t, i)));
        for other in others.filter(|other| *other != place) {
            assert_eq!(expected.get(other).unwrap().next, Id::default());
        }
    }
}
