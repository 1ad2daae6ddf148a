//! Iterators that are kept open while everything else goes on.

use crate::{
    Model,
    step::{NAMES, key},
};
use babu_kv::{Index, Iter, Snapshot};
use std::ops::Bound;

type Entry = (Vec<u8>, Vec<u8>);

pub struct Held {
    iter: Iter,
    /// All that it may ever give.
    entries: Vec<Entry>,
    /// What is left between the two ends.
    front: usize,
    back: usize,
}

/// The bounds of kind `kind` between two keys.
pub fn bounds<'a>(kind: u64, from: &'a [u8], to: &'a [u8]) -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
    match kind % 4 {
        0 => (Bound::Included(from), Bound::Excluded(to)),
        1 => (Bound::Excluded(from), Bound::Included(to)),
        2 => (Bound::Unbounded, Bound::Included(to)),
        _ => (Bound::Included(from), Bound::Unbounded),
    }
}

/// The entries of a map between two bounds, which may lie the wrong way round.
pub fn within(model: &Model, index: usize, (from, to): (Bound<&[u8]>, Bound<&[u8]>)) -> Vec<Entry> {
    let after_from = |k: &[u8]| match from {
        Bound::Included(f) => k >= f,
        Bound::Excluded(f) => k > f,
        Bound::Unbounded => true,
    };
    let before_to = |k: &[u8]| match to {
        Bound::Included(t) => k <= t,
        Bound::Excluded(t) => k < t,
        Bound::Unbounded => true,
    };
    let inside = model[index]
        .iter()
        .filter(|(k, _)| after_from(k) && before_to(k));
    inside.map(|(k, v)| (k.clone(), v.clone())).collect()
}

impl Held {
    pub fn open(
        snapshot: &Snapshot,
        indices: &[Index; NAMES.len()],
        model: &Model,
        (index, a, b, kind): (usize, u8, u8, u8),
    ) -> Held {
        let (from, to) = (key(a), key(b));
        let bounds = bounds(u64::from(kind), &from, &to);
        let entries = within(model, index, bounds);
        Held {
            iter: snapshot.range(&indices[index], bounds.0, bounds.1),
            front: 0,
            back: entries.len(),
            entries,
        }
    }

    pub fn seek(&mut self, n: u8) {
        let to = key(n);
        self.iter.seek(&to);
        let front = self.entries.partition_point(|(k, _)| *k < to);
        self.front = front.min(self.back);
    }

    /// Takes `steps` entries, each from the end that the next bit of `turns` names.
    pub fn advance(&mut self, steps: u8, mut turns: u64) {
        for _ in 0..steps {
            let (got, at) = if turns & 1 == 0 {
                let at = (self.front < self.back).then_some(self.front);
                self.front += usize::from(at.is_some());
                (self.iter.next(), at)
            } else {
                let at = self.back.checked_sub(1).filter(|at| *at >= self.front);
                self.back = at.unwrap_or(self.back);
                (self.iter.next_back(), at)
            };
            let got = got.map(|entry| entry.unwrap());
            let got = got.map(|(k, v)| (k.to_vec(), v.to_vec()));
            assert_eq!(got.as_ref(), at.map(|at| &self.entries[at]));
            turns = turns.rotate_right(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use babu_kv::{
        Batch, Database, Iter, Options,
        fs::{Fs, MemoryFs},
    };
    use std::{path::Path, sync::Arc};

    /// An iterator over keys each of which lies in a table of its own.
    fn over(keys: &[&[u8]]) -> Iter {
        let fs: Arc<dyn Fs> = Arc::new(MemoryFs::new());
        let database = Database::open(Path::new("/db"), Options::simulated(fs)).unwrap();
        let index = database.index("index").unwrap();
        for key in keys {
            let mut batch = Batch::new();
            batch.put(&index, key, b"");
            database.commit(batch).unwrap();
            database.flush().unwrap();
        }
        database.prefix(&index, b"")
    }

    fn key(entry: Option<babu_kv::Result<(babu_kv::Key, babu_kv::Value)>>) -> Option<Vec<u8>> {
        entry.map(|entry| entry.unwrap().0.to_vec())
    }

    #[test]
    fn the_back_end_gives_what_the_front_gave_before_it_was_sent_back() {
        let mut iter = over(&[b"a", b"b"]);
        assert_eq!(iter.by_ref().take(2).count(), 2);
        assert!(iter.next_back().is_none());
        iter.seek(b"");
        assert_eq!(key(iter.next_back()).as_deref(), Some(b"b".as_slice()));
    }

    #[test]
    fn the_back_end_goes_to_where_the_front_was_sent_back_to() {
        let mut iter = over(&[b"a", b"z"]);
        iter.seek(b"m");
        assert_eq!(key(iter.next_back()).as_deref(), Some(b"z".as_slice()));
        iter.seek(b"");
        assert_eq!(key(iter.next_back()).as_deref(), Some(b"a".as_slice()));
    }
}
