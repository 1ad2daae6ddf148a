//! Random changes, restarts and crashes against a plain map of bytes.

use babu_kv::fs::{Crash, MemoryFs};
use proptest::prelude::*;

use super::{State, Step, noise, object, observe, open, write};
use crate::store::Store;

#[derive(Debug, Clone)]
enum Move {
    Change(Step),
    Flush(u64),
    Checkpoint,
    Reclaim,
    Restart,
    Crash(usize),
}

fn moves() -> impl Strategy<Value = Move> {
    let ids = (1u64..=3, 0u64..3).prop_map(|(data, number)| object(data, number));
    let bytes = (any::<u64>(), 1usize..60_000, 0u8..3).prop_map(|(seed, length, kind)| {
        let mut bytes = noise(seed, length);
        match kind {
            0 => bytes.iter_mut().for_each(|byte| *byte &= 1),
            1 => bytes[length / 3..length / 3 * 2].fill(0),
            _ => {}
        }
        bytes
    });
    let changes = prop_oneof![
        8 => (ids.clone(), 0u32..100_000, bytes).prop_map(|(id, offset, bytes)| write(id, offset, bytes)),
        2 => (ids.clone(), 0u32..100_000, 1u32..50_000)
            .prop_map(|(id, offset, length)| Step::Punch { id, offset, length }),
        2 => (ids.clone(), 0u32..100_000)
            .prop_map(|(id, length)| Step::Truncate { file: id.file, object: id.object, length }),
        1 => ids.prop_map(|id| Step::Delete { file: id.file }),
    ];
    prop_oneof![
        12 => changes.prop_map(Move::Change),
        2 => (1u64..=3).prop_map(Move::Flush),
        1 => Just(Move::Checkpoint),
        2 => Just(Move::Reclaim),
        2 => Just(Move::Restart),
        2 => (0usize..4).prop_map(Move::Crash),
    ]
}

/// A store, what it should hold, and what it may fall back to.
struct Run {
    fs: MemoryFs,
    store: Option<Store>,
    history: Vec<State>,
    durable: usize,
    /// For each file, the state that its last change led to.
    changed: [usize; 4],
}

impl Run {
    fn new() -> Self {
        let fs = MemoryFs::new();
        let store = Some(open(&fs));
        Self {
            fs,
            store,
            history: vec![State::default()],
            durable: 0,
            changed: [0; 4],
        }
    }

    fn make(&mut self, step: Move) {
        let store = self.store.as_ref().unwrap();
        match step {
            Move::Change(step) => {
                let mut state = self.history.last().cloned().unwrap();
                step.run_on_both(store, &mut state);
                if self.history.last() != Some(&state) {
                    self.changed[step.file().data as usize] = self.history.len();
                }
                self.history.push(state);
            }
            Move::Flush(data) => {
                store.flush(super::file(data)).unwrap();
                self.durable = self.durable.max(self.changed[data as usize]);
            }
            Move::Checkpoint => {
                store.checkpoint().unwrap();
                self.durable = self.history.len() - 1;
            }
            Move::Reclaim => {
                store.reclaim().unwrap();
                self.durable = self.history.len() - 1;
            }
            Move::Restart => {
                self.store = None;
                self.store = Some(open(&self.fs));
            }
            Move::Crash(kind) => {
                let kind = Crash::ALL[kind];
                let image = self.fs.crash(kind);
                self.store = Some(open(&image));
                self.fs = image;
                let found = observe(self.store.as_ref().unwrap());
                let oldest = match kind {
                    Crash::Kept => self.history.len() - 1,
                    _ => self.durable,
                };
                assert!(self.history[oldest..].contains(&found), "{kind:?}");
                self.history = vec![found];
                self.durable = 0;
                self.changed = [0; 4];
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_store_agrees_with_a_map_of_bytes(moves in prop::collection::vec(moves(), 1..40)) {
        let mut run = Run::new();
        for step in moves {
            let is_crash = matches!(step, Move::Crash(_));
            run.make(step);
            if !is_crash {
                // Looking makes a checkpoint; so only look at what needs none.
                let store = run.store.as_ref().unwrap();
                for (id, bytes) in &run.history.last().unwrap().objects {
                    let read = super::content(store, *id, bytes.len() as u32).unwrap();
                    prop_assert!(read == *bytes, "{} differs", id);
                }
            }
        }
        let found = observe(run.store.as_ref().unwrap());
        prop_assert!(Some(&found) == run.history.last());
    }
}
