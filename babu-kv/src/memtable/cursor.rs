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

/// Entries of one key to step over before a search is cheaper.
const STEPS_MAX: usize = 16;

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
        let mut steps = 0;
        while let Some(mut node) = self.at.take() {
            if node.key().sequence <= self.sequence {
                self.at = Some(node);
                return;
            }
            steps += 1;
            if steps % STEPS_MAX == 0 {
                let key = node.key().key();
                self.at = self.lower_bound(Bound::Included((key, self.sequence)));
            } else if node.move_next() {
                self.at = Some(node);
            }
        }
    }

    /// Goes to the first entry after all of the key where it stands.
    fn leave_key(&mut self) {
        let Some(first) = self.at.take() else { return };
        let key = first.key().key();
        let mut node = first.clone();
        for _ in 0..STEPS_MAX {
            if !node.move_next() {
                return;
            }
            if node.key().key() != key {
                self.at = Some(node);
                return;
            }
        }
        // Sequence numbers begin at 1, so that this place is after every entry of the key.
        self.at = self.lower_bound(Bound::Included((key, 0)));
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
        self.leave_key();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::format::{self, OPERATIONS_AT, Operation};
    use std::collections::BTreeMap;

    /// Each key has hundreds of entries; whoever walks sees each key once, as it was then.
    #[test]
    fn a_key_with_many_versions_is_shown_once() {
        let memtable = Arc::new(Memtable::new());
        let mut states = vec![BTreeMap::new()];
        for sequence in 1..1500u64 {
            let key = [(sequence * sequence % 7) as u8];
            let mut record = vec![0; OPERATIONS_AT];
            let value = sequence.to_be_bytes();
            format::put_operation(&mut record, Operation::PUT, 1, &key, Some(&value));
            format::number(&mut record, sequence, 1);
            memtable.apply(&record.into(), sequence, 1).unwrap();
            let mut state = states[states.len() - 1].clone();
            state.insert([&[0, 0, 0, 1], key.as_slice()].concat(), value.to_vec());
            states.push(state);
        }
        for sequence in (1..1500).step_by(37) {
            let expected: Vec<_> = states[sequence].clone().into_iter().collect();
            let mut cursor = MemtableCursor::new(memtable.clone(), sequence as u64);
            let mut forward = Vec::new();
            cursor.seek(&[]).unwrap();
            while let Some(entry) = cursor.entry() {
                forward.push((entry.key.to_vec(), cursor.value().to_vec()));
                cursor.next().unwrap();
            }
            assert_eq!(forward, expected);
            let mut back = Vec::new();
            cursor.seek_back(None).unwrap();
            while let Some(entry) = cursor.entry() {
                back.insert(0, (entry.key.to_vec(), cursor.value().to_vec()));
                cursor.prev().unwrap();
            }
            assert_eq!(back, expected);
        }
    }
}
