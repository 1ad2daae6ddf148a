//! Nodes of the skip list: their bytes, and what may be asked of one without a lock.
//!
//! This and `list.rs` are the only places in the crate that follow raw pointers. What makes it
//! sound:
//!
//! - Nodes lie in an arena that belongs to the list and is freed with it. A [`Node`] borrows the
//!   list, so that no node outlives it.
//! - A node is written in full, its key with it, before a link to it is published with `Release`;
//!   readers follow links with `Acquire`. Afterwards only its atomic fields change.
//! - Only the holder of the writer's lock stores to them.
//!
//! A node, from low to high addresses; a step along level 0 touches only what lies behind `^`:
//!
//! ```text
//! links of levels HEIGHT-1 .. BUCKET_LEVEL | summary | links of levels BUCKET_LEVEL-1 .. 1 | node | key
//! as many as the node is high                if high enough                                  ^
//! ```
//!
//! Values stay in the log record that brought them, which the log keeps as well until it is
//! durable; a copy would double that memory. What a reader gets keeps one record alive, not the
//! list.
//!
//! # Buckets
//!
//! A node that is high enough begins a *bucket*, which goes to the next such node; the head of the
//! list begins the first one. A bucket has about 64 nodes and a summary of them: how many are
//! *live*, which is a put that is the newest entry of its key in this list, and the number of the
//! latest change. A reader at sequence number `s` may take a bucket without live nodes as a whole
//! if it has not changed after `s`, which [`Node::is_dead`] finds out without a lock:
//!
//! - Before the writer stores anything else for an entry with number `q`, it stores `q` as the
//!   latest change of every bucket whose nodes, bounds or live count will be different. All that it
//!   stores afterwards is a `Release`.
//! - The reader loads bounds and count with `Acquire`, and then the latest change. Had it seen
//!   anything of a change `q > s`, it would now find `q` or more.
//! - It has seen all of every change up to `s`, because that was complete before `s` became
//!   visible.
//!
//! So bounds and count are those of `s`. A key may have its newest entry in one bucket and older
//! ones in the next, whose count then changes when the newest comes: that is why that bucket is
//! marked too. [`Node::is_superseded`] tells whoever enters a bucket that it begins in the middle of
//! a key.

use super::list::List;
use crate::{keys::Kind, slice::Value};
use bumpalo::Bump;
use std::{
    alloc::Layout,
    cmp::Ordering as Order,
    marker::PhantomData,
    mem,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicPtr, AtomicU32, AtomicU64,
            Ordering::{Acquire, Relaxed},
        },
    },
};

/// Nodes with a link of this level begin a bucket.
pub(super) const BUCKET_LEVEL: usize = 3;
const WORD: usize = mem::size_of::<usize>();
const SUMMARY_WORDS: usize = mem::size_of::<Summary>() / WORD;

/// What a walk looks at comes last, so that it often shares one line of the processor's cache with the
/// key that follows.
#[repr(C)]
pub(super) struct Raw {
    /// Null in the first node and in the head. A reader going back misses only nodes that are being
    /// inserted meanwhile, which are too new for it.
    pub prev: AtomicPtr<Raw>,
    /// Null in the head.
    pub record: *const Record,
    pub value_from: u32,
    pub value_to: u32,
    /// Sequence number and, in the lowest bit, whether it deletes.
    pub packed: u64,
    pub next: AtomicPtr<Raw>,
    pub key_bytes: u32,
    /// Number of links; 0 in the head.
    pub height: u8,
    /// Whether the node before is a newer entry of the same key.
    pub superseded: AtomicBool,
}

/// What is known of a bucket.
#[repr(C)]
pub(super) struct Summary {
    /// The number of the latest change in it.
    pub changed: AtomicU64,
    /// The node that begins the bucket before; null in the head.
    pub before: AtomicPtr<Raw>,
    pub live: AtomicU32,
}

/// A log record that entries point into.
pub(super) struct Record {
    pub bytes: Arc<[u8]>,
    /// Null in the first one.
    pub earlier: *const Record,
}

/// A node of a list that is borrowed for `'a`.
#[derive(Clone, Copy)]
pub(super) struct Node<'a>(NonNull<Raw>, PhantomData<&'a List>);

// SAFETY: it is a shared reference to a part of a list, which is `Sync`.
unsafe impl Send for Node<'_> {}
// SAFETY: as above.
unsafe impl Sync for Node<'_> {}

impl PartialEq for Node<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

/// Words from a node down to its link of a level above 0.
fn words_below(level: usize) -> usize {
    if level < BUCKET_LEVEL {
        level
    } else {
        level + SUMMARY_WORDS
    }
}

/// Bytes of a node with so many links and a key of this length.
pub(super) fn bytes(height: usize, key_bytes: usize) -> usize {
    words_below(height.saturating_sub(1)) * WORD + mem::size_of::<Raw>() + key_bytes
}

/// Puts a node with no links into the arena. The caller sees to it that the arena outlives it and
/// that it meets the module comment.
pub(super) fn allocate(arena: &Bump, raw: Raw, height: usize, key: &[u8]) -> NonNull<Raw> {
    let below = words_below(height.saturating_sub(1));
    // Keys are shorter than 1 GiB, and there are few levels.
    let layout = Layout::from_size_align(bytes(height, key.len()), mem::align_of::<Raw>())
        .unwrap_or(Layout::new::<[usize; 64]>());
    assert!(layout.size() >= bytes(height, key.len()));
    let start = arena.alloc_layout(layout).cast::<usize>();
    // SAFETY: `below` words, a node and the key fit into the allocation, which is aligned for all
    // of them. All zeroes are null links, no change and no live nodes.
    unsafe {
        start.write_bytes(0, below);
        let node = start.add(below).cast::<Raw>();
        node.write(raw);
        let to = node.add(1).cast::<u8>();
        to.copy_from_nonoverlapping(NonNull::from(key).cast(), key.len());
        node
    }
}

impl<'a> Node<'a> {
    /// # Safety
    ///
    /// `raw` comes from `allocate` with the arena of a list that lives for `'a`.
    pub unsafe fn new(raw: NonNull<Raw>) -> Node<'a> {
        Node(raw, PhantomData)
    }

    /// Follows a pointer to another node of the same list.
    fn follow(self, link: &AtomicPtr<Raw>) -> Option<Node<'a>> {
        NonNull::new(link.load(Acquire)).map(|raw| Node(raw, PhantomData))
    }

    /// The same node, for as long as the caller sees to it that the list lives.
    ///
    /// # Safety
    ///
    /// The list outlives all use of what is returned.
    pub unsafe fn extend(self) -> Node<'static> {
        Node(self.0, PhantomData)
    }

    pub fn as_ptr(self) -> *mut Raw {
        self.0.as_ptr()
    }

    pub fn raw(self) -> &'a Raw {
        // SAFETY: it points to an initialized node of a list that lives for 'a.
        unsafe { self.0.as_ref() }
    }

    /// The link of a level on which the node was met, or that is below its height.
    pub fn link(self, level: usize) -> &'a AtomicPtr<Raw> {
        if level == 0 {
            return &self.raw().next;
        }
        debug_assert!(self.is_head() || level < usize::from(self.raw().height));
        // SAFETY: the links lie below the node in the same allocation and were initialized.
        unsafe {
            let word = self.0.cast::<AtomicPtr<Raw>>();
            word.sub(words_below(level)).as_ref()
        }
    }

    /// Of a node that begins a bucket.
    pub fn summary(self) -> &'a Summary {
        debug_assert!(self.begins_bucket());
        // SAFETY: it lies between the links of levels BUCKET_LEVEL - 1 and BUCKET_LEVEL, and was
        // initialized.
        unsafe {
            let word = self.0.cast::<usize>();
            word.sub(words_below(BUCKET_LEVEL) - 1)
                .cast::<Summary>()
                .as_ref()
        }
    }

    pub fn after(self, level: usize) -> Option<Node<'a>> {
        self.follow(self.link(level))
    }

    pub fn key(self) -> &'a [u8] {
        let length = self.raw().key_bytes as usize;
        // SAFETY: the key lies behind the node in the same allocation and never changes.
        unsafe { std::slice::from_raw_parts(self.0.add(1).cast::<u8>().as_ptr(), length) }
    }

    pub fn sequence(self) -> u64 {
        self.raw().packed >> 1
    }

    pub fn kind(self) -> Kind {
        match self.raw().packed & 1 {
            0 => Kind::Put,
            _ => Kind::Delete,
        }
    }

    pub fn value(self) -> Value {
        let raw = self.raw();
        // SAFETY: records live as long as the list.
        match unsafe { raw.record.as_ref() } {
            Some(record) => Value::within(
                &record.bytes,
                raw.value_from as usize,
                raw.value_to as usize,
            ),
            None => Value::from(&[][..]),
        }
    }

    /// The value, borrowed.
    pub fn value_bytes(self) -> &'a [u8] {
        let raw = self.raw();
        // SAFETY: records live as long as the list.
        let record = unsafe { raw.record.as_ref() };
        let value = raw.value_from as usize..raw.value_to as usize;
        record
            .and_then(|record| record.bytes.get(value))
            .unwrap_or_default()
    }

    pub fn next(self) -> Option<Node<'a>> {
        self.after(0)
    }

    pub fn prev(self) -> Option<Node<'a>> {
        self.follow(&self.raw().prev)
    }

    /// Whether the node before is a newer entry of the same key.
    pub fn is_superseded(self) -> bool {
        self.raw().superseded.load(Acquire)
    }

    pub fn is_live(self) -> bool {
        self.kind() == Kind::Put && !self.is_superseded()
    }

    pub fn is_head(self) -> bool {
        self.raw().height == 0
    }

    pub fn begins_bucket(self) -> bool {
        usize::from(self.raw().height) > BUCKET_LEVEL || self.is_head()
    }

    /// The end of the bucket that this node begins, which begins the next.
    pub fn bucket_end(self) -> Option<Node<'a>> {
        self.after(BUCKET_LEVEL)
    }

    /// The node that begins the bucket before the one that this node begins; none for the head.
    /// Whoever asks for this first and then for [`prev`](Node::prev) gets two nodes in order.
    pub fn bucket_before(self) -> Option<Node<'a>> {
        self.follow(&self.summary().before)
    }

    /// Whether the bucket that this node begins, up to an end that was asked for before, has nothing
    /// live at `sequence`, and all its entries are visible then.
    pub fn is_dead(self, sequence: u64) -> bool {
        let summary = self.summary();
        summary.live.load(Acquire) == 0 && summary.changed.load(Relaxed) <= sequence
    }

    /// Whether the bucket that this node begins, up to an end that was asked for before, has only
    /// entries that are not newer than `sequence`.
    pub fn is_unchanged_after(self, sequence: u64) -> bool {
        self.summary().changed.load(Relaxed) <= sequence
    }

    /// Brings the nodes of the bucket that this node begins into the processor's cache. Each node
    /// says where the next is, so that a walk waits for memory at each step; here the walks from
    /// all nodes that were met on the level above wait together.
    pub fn warm(self) {
        const WALKS: usize = 32;
        const STEPS_MAX: usize = 16;
        let mut starts = [self; WALKS];
        let mut count = 1;
        let mut seen = 0;
        for level in (0..BUCKET_LEVEL).rev() {
            let mut walks = starts.map(Some);
            let walks = &mut walks[..count];
            for step in 0..STEPS_MAX {
                let mut is_over = true;
                for walk in &mut *walks {
                    let Some(node) = *walk else { continue };
                    if step > 0 {
                        // Where another walk began, or the bucket ends.
                        if usize::from(node.raw().height) > level + 1 {
                            *walk = None;
                            continue;
                        }
                        if level > 0 && count < WALKS {
                            starts[count] = node;
                            count += 1;
                        }
                    }
                    is_over = false;
                    *walk = node.after(level);
                    if let Some(next) = *walk {
                        seen ^= next.key().last().copied().unwrap_or_default();
                    }
                }
                if is_over {
                    break;
                }
            }
        }
        std::hint::black_box(seen);
    }

    pub fn is_before(self, key: &[u8], sequence: u64) -> bool {
        match self.key().cmp(key) {
            Order::Less => true,
            Order::Equal => self.sequence() > sequence,
            Order::Greater => false,
        }
    }
}
