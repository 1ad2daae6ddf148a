//! A cursor over a memtable that shows each key once, as it was at one sequence number.
//!
//! Inside a bucket without live entries a *lazy* cursor does not move: it only says that nothing is
//! live before the end of the bucket. Its entries matter only where an older source has an entry
//! that they may delete; [`MemtableCursor::hides`] looks there when it is asked. So a scan over what
//! came and went in the memtable costs a step for each bucket, not for each entry.
//!
//! Going forward, `at` lies in the bucket that ends with `edge`; going back, in the one that begins
//! with `edge`. A bucket that begins while the cursor walks may be passed without notice. That is
//! sound: its beginning is too new for this cursor, so that the bucket would have to be walked.

use super::{Memtable, node::Node};
use crate::{
    error::Result,
    iter::{Cursor, Entry, Head},
    slice::Value,
};
use std::{cmp::Ordering, sync::Arc};

/// Entries to step over before a search is cheaper.
const STEPS_MAX: usize = 16;

pub(crate) struct MemtableCursor {
    /// Nodes are declared before `memtable`, so that they go first.
    at: Option<Node<'static>>,
    edge: Option<Node<'static>>,
    /// Nothing is live between `at` and `edge`.
    dead: bool,
    /// Where the bucket begins that `hides` may soon bring into the processor's cache.
    cold: Option<Node<'static>>,
    back: bool,
    lazy: bool,
    sequence: u64,
    memtable: Arc<Memtable>,
    #[cfg(test)]
    steps: usize,
}

impl MemtableCursor {
    /// Shows what deletes as well.
    pub(crate) fn new(memtable: Arc<Memtable>, sequence: u64) -> MemtableCursor {
        MemtableCursor {
            at: None,
            edge: None,
            dead: false,
            cold: None,
            back: false,
            lazy: false,
            sequence,
            memtable,
            #[cfg(test)]
            steps: 0,
        }
    }

    /// May leave out what deletes, to be asked for with `hides`.
    pub(crate) fn lazy(memtable: Arc<Memtable>, sequence: u64) -> MemtableCursor {
        MemtableCursor {
            lazy: true,
            ..MemtableCursor::new(memtable, sequence)
        }
    }

    /// Nodes and buckets that it looked at, searches aside.
    #[cfg(test)]
    pub(crate) fn steps(&self) -> usize {
        self.steps
    }

    fn count_step(&mut self) {
        #[cfg(test)]
        {
            self.steps += 1;
        }
    }

    fn hold(&self, node: Node<'_>) -> Node<'static> {
        // SAFETY: the node belongs to the list in `self.memtable`, which `self` never replaces and
        // drops after its nodes. What `self` gives out borrows `self`.
        unsafe { node.extend() }
    }

    /// Notes whether the bucket between `at` and `edge`, which begins with this node, is dead.
    fn look(&mut self, bucket: Option<Node<'static>>) {
        self.dead = self.lazy
            && self.at.is_some()
            && bucket.is_some_and(|bucket| bucket.is_dead(self.sequence));
        self.cold = bucket.filter(|_| self.dead);
    }

    /// Goes on into the bucket that begins with this node.
    fn look_ahead(&mut self, bucket: Option<Node<'static>>) {
        self.look(bucket);
        // All of a bucket that is not dead will be walked, most likely.
        if let Some(bucket) = bucket.filter(|_| self.lazy && !self.dead) {
            bucket.warm();
        }
    }

    fn is_visible(&self, node: Node<'static>) -> bool {
        node.sequence() <= self.sequence
    }

    /// Goes forward to a place.
    fn find(&mut self, key: &[u8], sequence: u64) {
        let place = self.memtable.list.find(Some((key, sequence)));
        let bucket = self.hold(place.bucket);
        (self.at, self.edge) = (
            place.at.map(|node| self.hold(node)),
            place.bucket_end.map(|node| self.hold(node)),
        );
        if self.at == self.edge {
            self.enter();
        } else {
            self.look(Some(bucket));
        }
    }

    /// Goes to the last node before a place.
    fn find_back(&mut self, place: Option<(&[u8], u64)>) {
        let place = self.memtable.list.find(place);
        let (before, bucket) = (self.hold(place.before), self.hold(place.bucket));
        self.at = (!before.is_head()).then_some(before);
        self.edge = Some(bucket);
        self.look(self.edge);
    }

    /// Standing on the node that begins a bucket, goes into it.
    fn enter(&mut self) {
        self.edge = self.at.and_then(|node| node.bucket_end());
        self.look_ahead(self.at);
    }

    fn step(&mut self) {
        self.count_step();
        self.at = self.at.and_then(|node| node.next());
        if self.at == self.edge {
            self.enter();
        }
    }

    fn step_back(&mut self) {
        self.count_step();
        let before = self.edge.filter(|edge| self.at == Some(*edge));
        let before = before.and_then(|edge| edge.bucket_before());
        self.at = self.at.and_then(|node| node.prev());
        if before.is_some() {
            self.edge = before;
            self.look_ahead(before);
        }
    }

    /// Goes forward to the first entry that is not too new; the first such entry of a key is the
    /// one to show.
    fn settle(&mut self) {
        let mut steps = 0;
        while !self.dead
            && let Some(node) = self.at.filter(|node| !self.is_visible(*node))
        {
            steps += 1;
            if steps % STEPS_MAX == 0 {
                self.find(node.key(), self.sequence);
            } else {
                self.step();
            }
        }
    }

    /// Goes to the first entry after all of the key where it stands.
    fn leave_key(&mut self) {
        let Some(first) = self.at else { return };
        for _ in 0..STEPS_MAX {
            self.step();
            if self.at.is_none_or(|node| node.key() != first.key()) {
                return;
            }
        }
        // Sequence numbers begin at 1, so that this place is after every entry of the key.
        self.find(first.key(), 0);
    }

    /// `at` is the oldest entry of its key: goes to the newest that is not too new, or back to
    /// another key.
    fn settle_back(&mut self) {
        while !self.dead
            && let Some(node) = self.at
        {
            if self.is_visible(node) {
                return self.climb();
            }
            self.leave_key_back();
        }
    }

    /// Goes back to the newest entry of the key that is not too new.
    fn climb(&mut self) {
        for _ in 0..STEPS_MAX {
            let newer = self.at.and_then(|node| newer(node, self.sequence));
            if self.dead || newer.is_none() {
                return;
            }
            self.step_back();
        }
        if let Some(node) = self.at {
            let place = self.memtable.list.find(Some((node.key(), self.sequence)));
            let bucket = self.hold(place.bucket);
            self.at = place.at.map(|node| self.hold(node));
            let own = self.at.filter(|node| node.begins_bucket());
            self.edge = own.or(Some(bucket));
            self.look(self.edge);
        }
    }

    /// Goes back to the oldest entry of the key before.
    fn leave_key_back(&mut self) {
        let Some(last) = self.at else { return };
        for _ in 0..STEPS_MAX {
            self.step_back();
            if self.at.is_none_or(|node| node.key() != last.key()) {
                return;
            }
        }
        // Sequence numbers stay below u64::MAX, so this place is before every entry of the key.
        self.find_back(Some((last.key(), u64::MAX)));
    }

    pub(crate) fn head(&self) -> Head<'_> {
        if self.dead {
            let edge = self.edge.filter(|node| !node.is_head());
            return Head::Dead(edge.map(Node::key));
        }
        self.entry().map_or(Head::End, Head::Entry)
    }

    /// Whether it stands where nothing is live.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead
    }

    /// Goes on from where nothing is live.
    pub(crate) fn skip(&mut self) {
        self.count_step();
        if self.back {
            return self.skip_back();
        }
        self.at = self.edge;
        self.enter();
        // The newest entry of the key may lie before the edge.
        while let Some(node) = self.at.and_then(|node| newer(node, self.sequence)) {
            self.count_step();
            self.at = Some(node);
        }
        self.settle();
    }

    fn skip_back(&mut self) {
        self.at = self.edge.filter(|edge| !edge.is_head());
        let before = self.at.and_then(|node| node.bucket_before());
        self.look(before);
        if self.dead {
            // What begins the bucket is dead like what comes before.
            self.edge = before;
        } else {
            self.settle_back();
        }
    }

    /// Goes on over buckets before `end` in which nothing is newer than `sequence`, which is not
    /// newer than what the cursor shows.
    pub(crate) fn pass(&mut self, end: &[u8], sequence: u64) {
        while let Some(edge) = self
            .edge
            .filter(|edge| self.at.is_some() && !edge.is_head())
        {
            let (bucket, is_inside) = match self.back {
                true => (Some(edge), edge.key() >= end),
                false => (edge.bucket_before(), edge.key() <= end),
            };
            if !is_inside || !bucket.is_some_and(|bucket| bucket.is_unchanged_after(sequence)) {
                return;
            }
            if self.back && self.at == Some(edge) && !self.dead {
                // It is the newest entry of its key.
                self.leave_key_back();
                self.settle_back();
            } else {
                self.skip();
            }
        }
    }

    /// Whether an entry of `key`, which must lie where nothing is live, deletes what older sources
    /// have. Asked for keys in the order of the walk.
    pub(crate) fn hides(&mut self, key: &[u8]) -> bool {
        if !self.dead {
            return false;
        }
        if let Some(bucket) = self.cold.take() {
            bucket.warm();
        }
        let passed = if self.back {
            Ordering::Greater
        } else {
            Ordering::Less
        };
        for _ in 0..STEPS_MAX {
            let Some(node) = self.at else { return false };
            let order = node.key().cmp(key);
            if order != passed && order != Ordering::Equal {
                return false;
            }
            self.count_step();
            self.at = if self.back { node.prev() } else { node.next() };
            if order == Ordering::Equal && self.is_visible(node) {
                return true;
            }
        }
        let place = self.memtable.list.find(Some((key, self.sequence)));
        let found = place.at.filter(|node| node.key() == key);
        let at = if self.back {
            found.or((!place.before.is_head()).then_some(place.before))
        } else {
            place.at
        };
        let (at, found) = (at.map(|node| self.hold(node)), found.is_some());
        self.at = at;
        found
    }
}

/// The next newer entry of the same key, if it is not newer than `sequence`.
fn newer(node: Node<'static>, sequence: u64) -> Option<Node<'static>> {
    if !node.is_superseded() {
        return None;
    }
    node.prev()
        .filter(|newer| newer.sequence() <= sequence && newer.key() == node.key())
}

impl Cursor for MemtableCursor {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.back = false;
        self.find(key, self.sequence);
        self.settle();
        Ok(())
    }

    fn seek_back(&mut self, before: Option<&[u8]>) -> Result<()> {
        self.back = true;
        self.find_back(before.map(|key| (key, u64::MAX)));
        self.settle_back();
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        self.leave_key();
        self.settle();
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        self.leave_key_back();
        self.settle_back();
        Ok(())
    }

    fn entry(&self) -> Option<Entry<'_>> {
        let node = self.at?;
        Some(Entry {
            key: node.key(),
            sequence: node.sequence(),
            kind: node.kind(),
        })
    }

    fn value(&self) -> Value {
        self.at
            .map_or_else(|| Value::from(&[][..]), |node| node.value())
    }

    fn value_bytes(&self) -> &[u8] {
        self.at.map_or(&[], |node| node.value_bytes())
    }
}
