//! Many at once: writers, flushes, checkpoints and the reclaimer on one store.

use std::sync::atomic::{AtomicBool, Ordering};

use babu_kv::fs::{Crash, MemoryFs};

use xtfs_protocol::ids::SessionId;

use super::{State, Step, content, file, noise, object, observe, open, write};
use crate::error::StoreError;
use crate::store::{Store, Turn};

/// Changes one file in ways that look random; returns what must be left of it.
fn change_file(store: &Store, data: u64) -> State {
    let mut state = State::default();
    for number in 0..150u64 {
        let dice = u64::from(noise(data * 1000 + number, 1)[0]);
        let id = object(data, dice % 3);
        let offset = (dice * 371 % 50_000) as u32;
        let step = match number % 10 {
            7 => Step::Punch {
                id,
                offset,
                length: 10_000,
            },
            9 => Step::Truncate {
                file: file(data),
                object: 1,
                length: offset,
            },
            _ => write(id, offset, noise(number, 1 + offset as usize / 3)),
        };
        step.run_on_both(store, &mut state);
        if dice.is_multiple_of(4) {
            store.flush(file(data)).unwrap();
        }
    }
    state
}

#[test]
fn files_changed_at_the_same_time_do_not_disturb_each_other() {
    let fs = MemoryFs::new();
    let store = open(&fs);
    let done = AtomicBool::new(false);
    let mut expected = State::default();
    std::thread::scope(|scope| {
        let store = &store;
        let writers: Vec<_> = (1..=3)
            .map(|data| scope.spawn(move || change_file(store, data)))
            .collect();
        let worker = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                store.reclaim().unwrap();
            }
        });
        for writer in writers {
            let state = writer.join().unwrap();
            expected.objects.extend(state.objects);
            expected.files.extend(state.files);
        }
        done.store(true, Ordering::Relaxed);
        worker.join().unwrap();
    });
    assert!(observe(&open(&fs.crash(Crash::Kept))) == expected);
    assert!(observe(&store) == expected);
    for data in 1..=3 {
        store.flush(file(data)).unwrap();
    }
    assert!(observe(&open(&fs.crash(Crash::Lost))) == expected);
}

#[test]
fn deleted_files_are_forgotten_when_no_capability_can_be_left() {
    let store = open(&MemoryFs::new());
    write(object(1, 0), 0, vec![1; 10]).run(&store).unwrap();
    Step::Delete { file: file(1) }.run(&store).unwrap();
    store.checkpoint().unwrap();
    store.forget_deleted(100).unwrap();
    assert!(write(object(1, 0), 0, vec![1; 10]).run(&store).is_err());
    store.forget_deleted(101).unwrap();
    assert!(write(object(1, 0), 0, vec![1; 10]).run(&store).is_ok());
}

#[test]
fn a_write_that_was_sent_again_does_not_undo_what_came_after_it() {
    let store = open(&MemoryFs::new());
    let turn = |number| Turn {
        session: SessionId([7; 16]),
        number,
    };
    let send = |number, offset, bytes: &[u8]| {
        store.write(turn(number), object(1, 0), 0, offset, bytes, false)
    };
    // The first attempt does not come through, the second does, and the client goes on.
    send(2, 0, &[1; 100]).unwrap();
    send(3, 10, &[2; 10]).unwrap();
    let late = send(1, 0, &[1; 100]);
    assert!(
        matches!(late, Err(StoreError::Overtaken { .. })),
        "{late:?}"
    );
    let late = store.punch(turn(1), object(1, 0), 0, 0, 100);
    assert!(
        matches!(late, Err(StoreError::Overtaken { .. })),
        "{late:?}"
    );
    let read = content(&store, object(1, 0), 100).unwrap();
    assert_eq!((&read[..10], &read[10..20]), (&[1; 10][..], &[2; 10][..]));
    // Pieces that do not touch each other come in any order.
    send(9, 200, &[3; 10]).unwrap();
    send(8, 300, &[4; 10]).unwrap();
}
