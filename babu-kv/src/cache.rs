//! Blocks of tables in memory, up to a number of bytes.
//!
//! Sixteen shards, each a clock: a block that was used since the hand passed it last gets another
//! round.

use crate::table::block::Block;
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

const SHARDS: usize = 16;
/// Estimated bytes of bookkeeping for each block.
const OVERHEAD_BYTES: usize = 128;

type Id = (u64, u64);

/// Mixes two integers; the keys are our own numbers, so that no attacker chooses them.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(26) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

struct Slot {
    id: Id,
    block: Option<Block>,
    used: bool,
}

#[derive(Default)]
struct Shard {
    places: HashMap<Id, usize, BuildHasherDefault<Mixer>>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    hand: usize,
    bytes: usize,
}

pub(crate) struct Cache {
    shards: Vec<Mutex<Shard>>,
    shard_bytes: usize,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
}

impl Cache {
    pub(crate) fn new(bytes: usize) -> Cache {
        Cache {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            shard_bytes: bytes / SHARDS,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    fn shard(&self, id: Id) -> &Mutex<Shard> {
        let mut mixer = Mixer::default();
        mixer.write_u64(id.0);
        mixer.write_u64(id.1);
        &self.shards[(mixer.0 >> 60) as usize % SHARDS]
    }

    pub(crate) fn get(&self, table: u64, offset: u64) -> Option<Block> {
        let id = (table, offset);
        let mut shard = self.shard(id).lock();
        let found = shard.places.get(&id).copied().and_then(|at| {
            let slot = shard.slots.get_mut(at)?;
            slot.used = true;
            slot.block.clone()
        });
        drop(shard);
        let counter = if found.is_some() {
            &self.hits
        } else {
            &self.misses
        };
        counter.fetch_add(1, Relaxed);
        found
    }

    pub(crate) fn insert(&self, table: u64, offset: u64, block: &Block) {
        let id = (table, offset);
        let size = block.bytes() + OVERHEAD_BYTES;
        let mut shard = self.shard(id).lock();
        if size > self.shard_bytes || shard.places.contains_key(&id) {
            return;
        }
        while shard.bytes + size > self.shard_bytes {
            shard.evict();
        }
        shard.bytes += size;
        let slot = Slot {
            id,
            block: Some(block.clone()),
            used: false,
        };
        let at = match shard.free.pop() {
            Some(at) => {
                shard.slots[at] = slot;
                at
            }
            None => {
                shard.slots.push(slot);
                shard.slots.len() - 1
            }
        };
        shard.places.insert(id, at);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.shards.iter().map(|s| s.lock().bytes).sum()
    }
}

impl Shard {
    /// Removes one block. Ends because each round of the hand clears the marks that it passes.
    fn evict(&mut self) {
        if self.places.is_empty() {
            self.bytes = 0;
            return;
        }
        loop {
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[self.hand];
            if std::mem::take(&mut slot.used) {
                continue;
            }
            if let Some(block) = slot.block.take() {
                let id = slot.id;
                self.bytes = self.bytes.saturating_sub(block.bytes() + OVERHEAD_BYTES);
                self.places.remove(&id);
                self.free.push(self.hand);
                return;
            }
        }
    }
}
