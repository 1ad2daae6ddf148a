//! A cursor over a memtable that shows each key once, as it was at one sequence number.

use super::{EntryKey, EntryValue, Lookup, Memtable, Place};
use crate::{
    error::Result,
    iter::{Cursor, Entry},
    slice::Value,
};
use crossbeam_skiplist::map;
use std::{ops::Bound, sync::Arc};

type Node = map::Entry<'static, EntryKey, EntryValue>;

pub(crate) struct MemtableCursor {
    /// Declared before `memtable`, so that it is dropped first.
    at: Option<Node>,
    memtable: Arc<Memtable>,
    sequence: u64,
}

impl MemtableCursor {
    pub(crate) fn new(memtable: Arc<Memtable>, sequence: u64) -> MemtableCursor {
        MemtableCursor {
            at: None,
            memtable,
            sequence,
        }
    }

    fn lower_bound(&self, bound: Bound<(&[u8], u64)>) -> Option<Node> {
        let bound = bound.map(|(key, sequence)| Lookup(key, sequence));
        let bound = bound.as_ref().map(|lookup| lookup as &dyn Place);
        self.memtable
            .map
            .lower_bound(bound)
            .map(|node| self.keep(node))
    }

    fn upper_bound(&self, bound: Bound<(&[u8], u64)>) -> Option<Node> {
        let bound = bound.map(|(key, sequence)| Lookup(key, sequence));
        let bound = bound.as_ref().map(|lookup| lookup as &dyn Place);
        self.memtable
            .map
            .upper_bound(bound)
            .map(|node| self.keep(node))
    }

    fn keep(&self, node: map::Entry<'_, EntryKey, EntryValue>) -> Node {
        // SAFETY: the lifetime of a node is a borrow of the skip list, which lives on the heap
        // inside `self.memtable` and never moves. `self` holds that Arc as long as it holds the
        // node, never replaces it, and drops the node first (field order).
        unsafe { std::mem::transmute::<map::Entry<'_, EntryKey, EntryValue>, Node>(node) }
    }

    /// Goes forward to the first entry that is not too new; the first such entry of a key is the
    /// one to show.
    fn settle_forward(&mut self) {
        while let Some(node) = &mut self.at {
            if node.key().sequence <= self.sequence {
                return;
            }
            if !node.move_next() {
                self.at = None;
            }
        }
    }

    /// `at` is the oldest entry of its key: takes the newest that is not too new, or goes back to
    /// another key.
    fn settle_back(&mut self) {
        while let Some(node) = self.at.take() {
            let key = node.key().key();
            let newest = self.lower_bound(Bound::Included((key, self.sequence)));
            if let Some(found) = newest.filter(|n| n.key().key() == key) {
                self.at = Some(found);
                return;
            }
            self.at = self.upper_bound(Bound::Excluded((key, u64::MAX)));
        }
    }
}

impl Cursor for MemtableCursor {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.at = self.lower_bound(Bound::Included((key, self.sequence)));
        self.settle_forward();
        Ok(())
    }

    fn seek_back(&mut self, before: Option<&[u8]>) -> Result<()> {
        // Sequence numbers stay below u64::MAX, so this place is before every entry of the key.
        self.at = self
            .upper_bound(before.map_or(Bound::Unbounded, |key| Bound::Excluded((key, u64::MAX))));
        self.settle_back();
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        let Some(mut node) = self.at.take() else {
            return Ok(());
        };
        let record = node.key().record.clone();
        let shown = &record[node.key().from as usize..node.key().to as usize];
        while node.move_next() {
            if node.key().key() != shown {
                self.at = Some(node);
                break;
            }
        }
        self.settle_forward();
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        if let Some(node) = self.at.take() {
            self.at = self.upper_bound(Bound::Excluded((node.key().key(), u64::MAX)));
            self.settle_back();
        }
        Ok(())
    }

    fn entry(&self) -> Option<Entry<'_>> {
        let node = self.at.as_ref()?;
        Some(Entry {
            key: node.key().key(),
            sequence: node.key().sequence,
            kind: node.value().kind,
        })
    }

    fn value(&self) -> Value {
        match &self.at {
            Some(node) => Value::within(
                &node.key().record,
                node.value().from as usize,
                node.value().to as usize,
            ),
            None => Value::from(&[][..]),
        }
    }
}
