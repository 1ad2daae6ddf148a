//! Loss of power after every step: what was durable is there, and the state is a prefix.

use std::sync::Arc;

use babu_kv::fs::{Crash, FaultyFs, Fs, MemoryFs};

use super::{
    State, content, file, noise, object, observe, open, options, scenario, segment_path, write,
};
use crate::error::StoreError;
use crate::store::Store;

/// Runs the scenario, with a flush or checkpoint after some steps, and looks at every crash image.
fn crash_everywhere(flush_every: usize, checkpoint_every: usize) {
    let fs = MemoryFs::new();
    let store = open(&fs);
    let mut history = vec![State::default()];
    let mut durable = 0;
    for (number, step) in scenario().iter().enumerate() {
        let mut state = history.last().cloned().unwrap();
        step.run_on_both(&store, &mut state);
        history.push(state);
        if number % flush_every == 0 {
            store.flush(step.file()).unwrap();
            durable = history.len() - 1;
        }
        if number % checkpoint_every == 1 {
            store.reclaim().unwrap();
            durable = history.len() - 1;
        }
        for crash in Crash::ALL {
            let image = fs.crash(crash);
            let found = observe(&open(&image));
            let context = format!("step {number}, {crash:?}");
            let allowed = match crash {
                Crash::Kept => history.len() - 1..history.len(),
                _ => durable..history.len(),
            };
            assert!(
                history[allowed].contains(&found),
                "{context}: not a prefix with everything durable"
            );
            // And once more: recovery itself may be interrupted.
            let again = observe(&open(&image.crash(Crash::Lost)));
            assert_eq!(again, found, "{context}: a second recovery differs");
        }
    }
}

#[test]
fn a_crash_leaves_a_prefix_when_nothing_is_flushed() {
    crash_everywhere(usize::MAX, usize::MAX);
}

#[test]
fn a_crash_keeps_what_was_flushed() {
    crash_everywhere(2, usize::MAX);
}

#[test]
fn a_crash_between_checkpoints_keeps_everything_before_them() {
    crash_everywhere(3, 3);
    crash_everywhere(usize::MAX, 2);
}

#[test]
fn a_truncation_to_an_absurd_length_does_not_end_the_log_for_others() {
    let fs = MemoryFs::new();
    let store = open(&fs);
    write(object(1, 0), 0, noise(1, 100)).run(&store).unwrap();
    let absurd = store.truncate(file(1), 1, 1, Some((0, u32::MAX)));
    assert!(matches!(absurd, Err(StoreError::Invalid(_))), "{absurd:?}");
    write(object(2, 0), 0, noise(2, 100)).run(&store).unwrap();
    let store = open(&fs.crash(Crash::Kept));
    assert_eq!(content(&store, object(2, 0), 100).unwrap(), noise(2, 100));
}

#[test]
fn a_segment_that_recovery_dropped_does_not_come_back_after_the_next_loss_of_power() {
    let fs = MemoryFs::new();
    let store = open(&fs);
    // The first segment ends with its only record; the second holds one more.
    write(object(1, 0), 0, noise(1, 100_000))
        .run(&store)
        .unwrap();
    write(object(2, 0), 0, noise(2, 100)).run(&store).unwrap();
    assert_eq!(store.appender.lock().segment, 2);
    // The disk has the names and the second segment, but not all of the first.
    let image = fs.crash(Crash::Kept);
    image.corrupt(&segment_path(1), 50_000, 1).unwrap();
    let store = open(&image);
    assert!(!image.exists(&segment_path(2)).unwrap());
    write(object(1, 0), 0, noise(3, 100)).run(&store).unwrap();
    store.flush(file(1)).unwrap();
    let store = open(&image.crash(Crash::Lost));
    assert_eq!(content(&store, object(1, 0), 100).unwrap(), noise(3, 100));
    assert!(store.lookup(object(2, 0)).unwrap().is_none());
}

#[test]
fn a_new_segment_makes_nobody_wait_for_the_disk_and_is_durable_with_its_first_flush() {
    let memory = MemoryFs::new();
    let slow = FaultyFs::new(Arc::new(memory.clone()));
    let store = Store::open(&options(Arc::new(slow.clone()))).unwrap();
    for number in 0..3 {
        slow.arm(None);
        write(object(1, number), 0, noise(number, 100_000))
            .run(&store)
            .unwrap();
        let (open_and_write_header, write_record) = (2, 1);
        assert!(slow.changes() <= open_and_write_header + write_record);
    }
    assert_eq!(store.appender.lock().segment, 3);
    store.flush(file(1)).unwrap();
    let store = open(&memory.crash(Crash::Lost));
    for number in 0..3 {
        let read = content(&store, object(1, number), 100_000).unwrap();
        assert!(read == noise(number, 100_000), "object {number}");
    }
}

#[test]
fn a_segment_whose_name_was_lost_before_its_first_byte_is_no_damage() {
    let fs = MemoryFs::new();
    let store = open(&fs);
    write(object(1, 0), 0, noise(1, 1000)).run(&store).unwrap();
    store.flush(file(1)).unwrap();
    {
        let mut appender = store.appender.lock();
        store.roll(&mut appender).unwrap();
    }
    store.checkpoint().unwrap();
    let image = fs.crash(Crash::Lost);
    let store = open(&image);
    write(object(1, 1), 0, noise(2, 1000)).run(&store).unwrap();
    store.checkpoint().unwrap();
    let store = open(&image.crash(Crash::Lost));
    for number in 0..2 {
        let read = content(&store, object(1, number), 1000).unwrap();
        assert!(read == noise(number + 1, 1000), "object {number}");
    }
    let numbers: Vec<u64> = store.layers.read().segments.keys().copied().collect();
    assert_eq!(numbers, [1, 3], "a segment that is not there is remembered");
}
