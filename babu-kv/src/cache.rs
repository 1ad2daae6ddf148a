//! Blocks of tables in memory, up to a number of bytes that may change at any time.
//!
//! Each shard follows S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction",
//! SOSP 2023): a new block enters a small queue, and only one that was used again there goes on to
//! the main queue. So a scan of everything passes through a tenth of the cache and leaves what is
//! read often where it is. Identities of blocks that left the small queue are kept for a while; a
//! block that comes back soon goes straight to the main queue.
//!
//! What always holds: the bytes of a shard are those of the blocks in its queues, and of *pinned*
//! blocks, which lost their place but are still held by a value or an iterator. Pinned blocks take
//! room from the others until their holders are gone.

use crate::table::block::Block;
use parking_lot::Mutex;
use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::{BuildHasherDefault, Hasher},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

const SHARDS_MAX: usize = 16;
/// Below so many bytes for each, there are fewer shards.
const SHARD_BYTES_MIN: usize = 64 << 10;
/// Bytes of a block beside its content: the allocation, the place in map and queue, and a kept
/// identity. Maps and queues double when they are full, so this is a mean.
const OVERHEAD_BYTES: usize = 192;
/// The small queue holds one part in so many.
const SMALL_PART: usize = 10;
/// Uses of a block that count.
const USES_MAX: u8 = 3;
/// Pinned blocks that each insertion looks at.
const SWEEP_STEP: usize = 2;

type Id = (u64, u64);
type Mixed = BuildHasherDefault<Mixer>;

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
    block: Block,
    uses: u8,
}

#[derive(Default)]
struct Shard {
    slots: HashMap<Id, Slot, Mixed>,
    /// Each block is in exactly one of the two queues.
    small: VecDeque<Id>,
    main: VecDeque<Id>,
    small_bytes: usize,
    bytes: usize,
    ghosts: Ghosts,
    pinned: Vec<Block>,
    pinned_bytes: usize,
    sweep: usize,
    hits: u64,
    misses: u64,
}

pub(crate) struct Cache {
    shards: Vec<Mutex<Shard>>,
    shard_bytes: AtomicUsize,
}

/// A cache in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheStats {
    /// Without the pinned ones.
    pub bytes: usize,
    pub pinned_bytes: usize,
    pub hits: u64,
    pub misses: u64,
}

impl Cache {
    pub(crate) fn new(bytes: usize) -> Cache {
        let shards = (bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        Cache {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            shard_bytes: AtomicUsize::new(bytes / shards),
        }
    }

    fn shard(&self, id: Id) -> &Mutex<Shard> {
        let mut mixer = Mixer::default();
        mixer.write_u64(id.0);
        mixer.write_u64(id.1);
        &self.shards[(mixer.0 >> 56) as usize % self.shards.len()]
    }

    pub(crate) fn get(&self, table: u64, offset: u64) -> Option<Block> {
        let id = (table, offset);
        let mut shard = self.shard(id).lock();
        match shard.slots.get_mut(&id) {
            Some(slot) => {
                slot.uses = (slot.uses + 1).min(USES_MAX);
                let block = slot.block.clone();
                shard.hits += 1;
                Some(block)
            }
            None => {
                shard.misses += 1;
                None
            }
        }
    }

    pub(crate) fn insert(&self, table: u64, offset: u64, block: &Block) {
        let id = (table, offset);
        let bytes_max = self.shard_bytes.load(Relaxed);
        let mut shard = self.shard(id).lock();
        if !shard.slots.contains_key(&id) {
            shard.insert(id, block, bytes_max);
        }
    }

    /// Changes the size; what no longer fits is gone when this returns.
    pub(crate) fn resize(&self, bytes: usize) {
        let bytes_max = bytes / self.shards.len();
        if self.shard_bytes.swap(bytes_max, Relaxed) > bytes_max {
            for shard in &self.shards {
                shard.lock().shrink(bytes_max);
            }
        }
    }

    pub(crate) fn stats(&self) -> CacheStats {
        let mut stats = CacheStats::default();
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.sweep(usize::MAX);
            stats.bytes += shard.bytes - shard.pinned_bytes;
            stats.pinned_bytes += shard.pinned_bytes;
            stats.hits += shard.hits;
            stats.misses += shard.misses;
        }
        stats
    }
}

fn size(block: &Block) -> usize {
    block.bytes() + OVERHEAD_BYTES
}

impl Shard {
    fn insert(&mut self, id: Id, block: &Block, bytes_max: usize) {
        let size = size(block);
        self.sweep(SWEEP_STEP);
        if size > bytes_max {
            return;
        }
        self.evict_to(bytes_max - size, bytes_max);
        if self.bytes + size > bytes_max {
            return;
        }
        self.bytes += size;
        if self.ghosts.take(id) {
            self.main.push_back(id);
        } else {
            self.small.push_back(id);
            self.small_bytes += size;
        }
        let block = block.clone();
        self.slots.insert(id, Slot { block, uses: 0 });
    }

    fn shrink(&mut self, bytes_max: usize) {
        self.sweep(usize::MAX);
        self.evict_to(bytes_max, bytes_max);
        if self.slots.capacity() / 4 > self.slots.len() {
            self.slots.shrink_to_fit();
            self.small.shrink_to_fit();
            self.main.shrink_to_fit();
            self.ghosts.limit(self.slots.len());
            self.ghosts.shrink();
        }
    }

    fn evict_to(&mut self, bytes: usize, bytes_max: usize) {
        while self.bytes > bytes && self.evict(bytes_max / SMALL_PART) {}
    }

    /// Takes its place from one block; `false` when there is none. Ends because each block that
    /// stays loses a use.
    fn evict(&mut self, small_bytes_max: usize) -> bool {
        loop {
            let from_small = self.small_bytes > small_bytes_max || self.main.is_empty();
            let queue = if from_small {
                &mut self.small
            } else {
                &mut self.main
            };
            let Some(id) = queue.pop_front() else {
                return false;
            };
            let Some(slot) = self.slots.get_mut(&id) else {
                debug_assert!(false, "a queue names a block that is not there");
                continue;
            };
            if from_small {
                self.small_bytes -= size(&slot.block);
            }
            if slot.uses > 0 {
                slot.uses = if from_small { 0 } else { slot.uses - 1 };
                self.main.push_back(id);
                continue;
            }
            if from_small {
                self.ghosts.put(id);
                self.ghosts.limit(self.slots.len());
            }
            if let Some(slot) = self.slots.remove(&id) {
                self.release(slot.block);
            }
            return true;
        }
    }

    fn release(&mut self, block: Block) {
        let size = size(&block);
        if block.is_shared() {
            self.pinned_bytes += size;
            self.pinned.push(block);
        } else {
            self.bytes -= size;
        }
    }

    /// Lets go of those of the next `count` pinned blocks that nobody else holds any more.
    fn sweep(&mut self, count: usize) {
        for _ in 0..count.min(self.pinned.len()) {
            if self.sweep >= self.pinned.len() {
                self.sweep = 0;
            }
            if self.pinned[self.sweep].is_shared() {
                self.sweep += 1;
            } else {
                let size = size(&self.pinned.swap_remove(self.sweep));
                self.pinned_bytes -= size;
                self.bytes -= size;
            }
        }
        if self.pinned.is_empty() {
            self.pinned.shrink_to_fit();
        }
    }
}

/// Identities of blocks that left the small queue, as many as there are blocks.
#[derive(Default)]
struct Ghosts {
    /// In the order in which they left. One that was taken stays here until its turn.
    order: VecDeque<Id>,
    known: HashSet<Id, Mixed>,
}

impl Ghosts {
    fn put(&mut self, id: Id) {
        self.order.push_back(id);
        self.known.insert(id);
    }

    fn take(&mut self, id: Id) -> bool {
        self.known.remove(&id)
    }

    fn limit(&mut self, count: usize) {
        while self.order.len() > count {
            if let Some(id) = self.order.pop_front() {
                self.known.remove(&id);
            }
        }
    }

    fn shrink(&mut self) {
        self.order.shrink_to_fit();
        self.known.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK_BYTES: usize = 4096;

    fn block() -> Block {
        Block::new(vec![0; BLOCK_BYTES].into()).unwrap()
    }

    /// Room for `blocks` blocks in one shard.
    fn cache(blocks: usize) -> Cache {
        let bytes = blocks * (BLOCK_BYTES + OVERHEAD_BYTES);
        Cache {
            shards: vec![Mutex::default()],
            shard_bytes: AtomicUsize::new(bytes),
        }
    }

    /// Reads as a table does; gives whether it was there.
    fn read(cache: &Cache, table: u64, offset: u64) -> bool {
        let found = cache.get(table, offset).is_some();
        if !found {
            cache.insert(table, offset, &block());
        }
        found
    }

    fn hits(cache: &Cache, table: u64, blocks: u64) -> usize {
        (0..blocks).filter(|n| read(cache, table, *n)).count()
    }

    #[test]
    fn a_scan_of_everything_leaves_the_hot_blocks_in_place() {
        let cache = cache(100);
        for _ in 0..3 {
            hits(&cache, 1, 60);
        }
        assert_eq!(hits(&cache, 1, 60), 60);
        assert_eq!(hits(&cache, 2, 10_000), 0);
        assert_eq!(hits(&cache, 1, 60), 60);
    }

    #[test]
    fn a_new_hot_set_takes_the_place_of_the_old_one() {
        let cache = cache(100);
        for table in 1..5 {
            for _ in 0..8 {
                hits(&cache, table, 80);
            }
            assert_eq!(hits(&cache, table, 80), 80, "table {table}");
        }
    }

    #[test]
    fn a_block_that_comes_back_soon_stays() {
        let cache = cache(100);
        hits(&cache, 1, 90);
        for _ in 0..3 {
            hits(&cache, 1, 90);
        }
        // Through the small queue and out again.
        assert!(!read(&cache, 2, 0));
        hits(&cache, 3, 40);
        assert!(!read(&cache, 2, 0));
        hits(&cache, 4, 40);
        assert!(read(&cache, 2, 0));
    }

    #[test]
    fn a_smaller_size_holds_at_once_and_a_larger_one_can_be_filled() {
        let cache = cache(100);
        hits(&cache, 1, 100);
        let full = cache.stats().bytes;
        assert_eq!(full, 100 * (BLOCK_BYTES + OVERHEAD_BYTES));
        cache.resize(full / 4);
        assert_eq!(cache.stats().bytes, full / 4);
        hits(&cache, 2, 100);
        assert_eq!(cache.stats().bytes, full / 4);
        cache.resize(0);
        hits(&cache, 2, 100);
        assert_eq!(
            cache.stats(),
            CacheStats {
                bytes: 0,
                ..cache.stats()
            }
        );
        cache.resize(full);
        hits(&cache, 2, 1000);
        assert_eq!(cache.stats().bytes, full);
    }

    #[test]
    fn blocks_that_are_held_count_until_their_holders_are_gone() {
        let cache = cache(10);
        hits(&cache, 1, 10);
        let held: Vec<Block> = (0..4).filter_map(|n| cache.get(1, n)).collect();
        cache.resize(0);
        let size = BLOCK_BYTES + OVERHEAD_BYTES;
        assert_eq!(
            (cache.stats().bytes, cache.stats().pinned_bytes),
            (0, 4 * size)
        );
        // They take room from others.
        cache.resize(10 * size);
        hits(&cache, 2, 20);
        assert_eq!(cache.stats().bytes, 6 * size);
        drop(held);
        assert_eq!(cache.stats().pinned_bytes, 0);
        hits(&cache, 3, 20);
        assert_eq!(cache.stats().bytes, 10 * size);
    }

    #[test]
    fn the_kept_identities_are_bounded() {
        let cache = cache(50);
        hits(&cache, 1, 100_000);
        let shard = cache.shards[0].lock();
        assert!(shard.ghosts.order.len() <= 50 && shard.ghosts.known.len() <= 50);
        assert_eq!(shard.slots.len(), shard.small.len() + shard.main.len());
    }
}
