//! The skip list under a memtable: one writer at a time, any number of readers that take no lock,
//! nothing ever removed. See `node.rs` for what readers may rely on.

use super::node::{self, BUCKET_LEVEL, Node, Raw, Record};
use crate::{
    keys::{INDEX_BYTES, Kind},
    threads::Mutex,
};
use bumpalo::Bump;
use std::{
    mem,
    ops::Range,
    ptr::{self, NonNull},
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicPtr, AtomicUsize,
            Ordering::{Relaxed, Release},
        },
    },
};

/// Levels of the list. One node in four has one level more, so that this is enough for millions of
/// entries.
const LEVELS: usize = 12;
/// Bytes of the counters in front of the bytes of an `Arc<[u8]>`.
const ARC_BYTES: usize = 16;
/// Places of insertions that are remembered, each for some of the indices.
const FINGERS: usize = 4;
/// Up to this level a search begins at the finger.
const FINGER_LEVEL: usize = BUCKET_LEVEL + 1;

pub(super) struct List {
    head: NonNull<Raw>,
    /// Levels in use, but never so few that a search passes by the buckets.
    height: AtomicUsize,
    bytes: AtomicUsize,
    writer: Mutex<Writer>,
}

struct Writer {
    last_record: *const Record,
    random: u64,
    /// The last node on each level before what was inserted last, or that itself. Who fills a
    /// directory inserts near the last place, each index at its own.
    fingers: [[Node<'static>; LEVELS]; FINGERS],
    /// Declared last, so that it is dropped last.
    arena: Bump,
}

// SAFETY: all pointers lead into the arena, which moves between threads together with them. What
// is shared is what `node.rs` allows.
unsafe impl Send for List {}
// SAFETY: as above; the arena is behind the lock.
unsafe impl Sync for List {}

/// Where a place in the order of the list is.
pub(super) struct Place<'a> {
    /// The last node before it; the head if there is none.
    pub before: Node<'a>,
    /// The first node that is not before it.
    pub at: Option<Node<'a>>,
    /// The node that begins the bucket of `before`.
    pub bucket: Node<'a>,
    /// The node that ends this bucket; it is not before `at`.
    pub bucket_end: Option<Node<'a>>,
}

impl List {
    pub fn new() -> List {
        let arena = Bump::new();
        let head = Raw {
            next: AtomicPtr::default(),
            prev: AtomicPtr::default(),
            packed: 0,
            record: ptr::null(),
            value_from: 0,
            value_to: 0,
            key_bytes: 0,
            height: 0,
            superseded: AtomicBool::new(false),
        };
        let head = node::allocate(&arena, head, LEVELS, &[]);
        // SAFETY: the writer, which holds the fingers, owns the arena.
        let first = unsafe { Node::new(head) };
        List {
            head,
            height: AtomicUsize::new(BUCKET_LEVEL + 1),
            bytes: AtomicUsize::new(0),
            writer: Mutex::new(Writer {
                last_record: ptr::null(),
                random: 0x9e37_79b9_7f4a_7c15,
                fingers: [[first; LEVELS]; FINGERS],
                arena,
            }),
        }
    }

    pub fn head(&self) -> Node<'_> {
        // SAFETY: it was allocated with the arena of this list.
        unsafe { Node::new(self.head) }
    }

    /// Bytes of nodes, keys and records.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Looks for the first entry of `key` that is not newer than a sequence number, or for the end
    /// of the list; calls `visit` with each level, from high to low, the last node before that
    /// place, and the first that is not.
    fn search<'a>(
        &'a self,
        place: Option<(&[u8], u64)>,
        visit: impl FnMut(usize, Node<'a>, Option<Node<'a>>),
    ) {
        descend(self.head(), self.height.load(Relaxed), place, visit);
    }

    /// The place before the first entry of `key` that is not newer than a sequence number; without
    /// a key, the one after all.
    pub fn find(&self, place: Option<(&[u8], u64)>) -> Place<'_> {
        let head = self.head();
        let mut found = Place {
            before: head,
            at: None,
            bucket: head,
            bucket_end: None,
        };
        self.search(place, |level, before, at| match level {
            BUCKET_LEVEL => (found.bucket, found.bucket_end) = (before, at),
            0 => (found.before, found.at) = (before, at),
            _ => {}
        });
        found
    }

    /// Moves `path`, the last nodes on each level before some place, to those before another place;
    /// gives the node after it. Above `levels` they only stay before it.
    fn trace<'a>(
        &'a self,
        path: &mut [Node<'a>; LEVELS],
        levels: usize,
        key: &[u8],
        sequence: u64,
    ) -> Option<Node<'a>> {
        let is_before = |node: Node<'_>| node.is_head() || node.is_before(key, sequence);
        let is_after = |node: Node<'_>| !node.is_before(key, sequence);
        let around = (0..=FINGER_LEVEL)
            .find(|n| is_before(path[*n]) && path[*n].after(*n).is_none_or(is_after));
        let (from, below) = match around {
            Some(level) => {
                // Nodes are before those of lower levels, so that these do not go too far.
                for (n, node) in path.iter_mut().enumerate().take(levels).skip(level + 1) {
                    while let Some(next) = node.after(n).filter(|next| !is_after(*next)) {
                        *node = next;
                    }
                }
                (path[level], level + 1)
            }
            None => {
                *path = [self.head(); LEVELS];
                (self.head(), self.height.load(Relaxed))
            }
        };
        let mut next = None;
        descend(from, below, Some((key, sequence)), |level, before, at| {
            path[level] = before;
            next = at;
        });
        next
    }

    /// Lets `work` insert entries that point into `record`. There should be no other writer: this
    /// would wait for it.
    pub fn write<R>(&self, record: &Arc<[u8]>, work: impl FnOnce(&mut Writing<'_>) -> R) -> R {
        let writer = &mut *self.writer.lock();
        let slot: *const Record = writer.arena.alloc(Record {
            bytes: record.clone(),
            earlier: writer.last_record,
        });
        writer.last_record = slot;
        let bytes = record.len() + ARC_BYTES + mem::size_of::<Record>();
        self.bytes.fetch_add(bytes, Relaxed);
        work(&mut Writing {
            list: self,
            writer,
            record: slot,
        })
    }
}

/// Searches from a node before the place on, beginning with the highest of so many levels.
fn descend<'a>(
    mut node: Node<'a>,
    levels: usize,
    place: Option<(&[u8], u64)>,
    mut visit: impl FnMut(usize, Node<'a>, Option<Node<'a>>),
) {
    // Known from the level above not to be before the place.
    let mut beyond = None;
    for level in (0..levels).rev() {
        let next = loop {
            let Some(next) = node.after(level) else {
                break None;
            };
            let is_beyond = beyond == Some(next)
                || place.is_some_and(|(key, sequence)| !next.is_before(key, sequence));
            if is_beyond {
                beyond = Some(next);
                break beyond;
            }
            node = next;
        };
        visit(level, node, next);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let mut record = self.last_record;
        while !record.is_null() {
            // SAFETY: it lies in the arena, which is still there, and is read only here, once: no
            // node is left that could be asked for a value.
            let Record { bytes, earlier } = unsafe { record.read() };
            drop(bytes);
            record = earlier;
        }
    }
}

/// The right to insert.
pub(super) struct Writing<'a> {
    list: &'a List,
    writer: &'a mut Writer,
    record: *const Record,
}

impl<'a> Writing<'a> {
    /// Inserts an entry whose number is higher than any before. `value` is where its value lies in
    /// the record.
    pub fn insert(&mut self, key: &[u8], sequence: u64, kind: Kind, value: Range<usize>) {
        let list = self.list;
        let height = random_height(&mut self.writer.random);
        let finger = usize::from(
            key.get(INDEX_BYTES - 1)
                .map_or(0, |index| index % FINGERS as u8),
        );
        let mut path: [Node<'_>; LEVELS] = self.writer.fingers[finger];
        let levels = height.max(BUCKET_LEVEL + 1);
        let next = list.trace(&mut path, levels, key, sequence);
        debug_assert!(path[0].is_head() || path[0].key() < key);
        let bucket = path[BUCKET_LEVEL];
        bucket.summary().changed.store(sequence, Relaxed);
        if let Some(older) = next.filter(|node| node.key() == key) {
            supersede(older, bucket, sequence);
        }
        let node = self.allocate(key, sequence, kind, value, height, path[0]);
        let mut owner = bucket;
        if height > BUCKET_LEVEL {
            split(bucket, node, next);
            owner = node;
        }
        if kind == Kind::Put {
            let live = &owner.summary().live;
            live.store(live.load(Relaxed) + 1, Release);
        }
        publish(node, &path[..height]);
        if height > list.height.load(Relaxed) {
            list.height.store(height, Relaxed);
        }
        path[..height].fill(node);
        // SAFETY: the writer owns the arena that the nodes lie in.
        self.writer.fingers[finger] = path.map(|node| unsafe { node.extend() });
    }

    fn allocate(
        &mut self,
        key: &[u8],
        sequence: u64,
        kind: Kind,
        value: Range<usize>,
        height: usize,
        before: Node<'_>,
    ) -> Node<'a> {
        let prev = if before.is_head() {
            ptr::null_mut()
        } else {
            before.as_ptr()
        };
        let raw = Raw {
            next: AtomicPtr::default(),
            prev: AtomicPtr::new(prev),
            packed: sequence << 1 | u64::from(kind == Kind::Delete),
            record: self.record,
            value_from: value.start as u32,
            value_to: value.end as u32,
            key_bytes: key.len() as u32,
            height: height as u8,
            superseded: AtomicBool::new(false),
        };
        let bytes = node::bytes(height, key.len());
        self.list.bytes.fetch_add(bytes, Relaxed);
        let node = node::allocate(&self.writer.arena, raw, height, key);
        // SAFETY: it comes from the arena of the list that is borrowed for 'a.
        unsafe { Node::new(node) }
    }
}

fn random_height(state: &mut u64) -> usize {
    // Xorshift, by Marsaglia.
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    let more = state.trailing_zeros() / 2;
    (1 + more as usize).min(LEVELS)
}

/// A newer entry of the same key comes before `older`, which begins a bucket or lies in `bucket`.
fn supersede(older: Node<'_>, bucket: Node<'_>, sequence: u64) {
    if older.is_live() {
        let owner = if older.begins_bucket() { older } else { bucket };
        let summary = owner.summary();
        summary.changed.store(sequence, Relaxed);
        let live = summary.live.load(Relaxed);
        summary.live.store(live.saturating_sub(1), Release);
    }
    older.raw().superseded.store(true, Release);
}

/// From `node`, which is not linked yet and comes before `next`, a new bucket takes over what
/// follows in `bucket`.
fn split(bucket: Node<'_>, node: Node<'_>, next: Option<Node<'_>>) {
    let (old, new) = (bucket.summary(), node.summary());
    let end = bucket.bucket_end();
    let mut live = 0;
    let mut at = next;
    while at != end
        && let Some(inside) = at
    {
        live += u32::from(inside.is_live());
        at = inside.next();
    }
    new.changed.store(old.changed.load(Relaxed), Relaxed);
    new.before.store(bucket.as_ptr(), Relaxed);
    new.live.store(live, Relaxed);
    let left = old.live.load(Relaxed).saturating_sub(live);
    old.live.store(left, Release);
}

/// Links a node behind those in `path`, one for each of its levels. A reader that finds it on one
/// level finds it on those below.
fn publish(node: Node<'_>, path: &[Node<'_>]) {
    let next = path.first().and_then(|before| before.next());
    let bucket_end = path.get(BUCKET_LEVEL).and_then(|b| b.bucket_end());
    for (level, before) in path.iter().enumerate() {
        let after = before.link(level).load(Relaxed);
        node.link(level).store(after, Relaxed);
        before.link(level).store(node.as_ptr(), Release);
    }
    if let Some(next) = next {
        next.raw().prev.store(node.as_ptr(), Release);
    }
    // After `prev`, see `Node::bucket_before`.
    if let Some(end) = bucket_end {
        end.summary().before.store(node.as_ptr(), Release);
    }
}
