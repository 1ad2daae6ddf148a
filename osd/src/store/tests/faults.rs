//! Every call to the file system fails once, or everything from it on.

use std::io::ErrorKind;
use std::sync::Arc;

use babu_kv::fs::{Crash, Fault, FaultyFs, Fs, MemoryFs};

use super::{
    State, Step, content, file, noise, object, observe, observe_quietly, open, options, scenario,
    segment_path, write,
};
use crate::error::StoreError;
use crate::store::Store;

/// Runs the scenario, with a flush and a pass of the worker now and then; returns what was
/// acknowledged.
fn run(store: &Store) -> State {
    let mut state = State::default();
    for (number, step) in scenario().iter().enumerate() {
        if step.run(store).is_ok() {
            step.apply(&mut state);
        }
        if number % 3 == 0 {
            // May fail, and then says so; what was written stays readable.
            let _ = store.flush(step.file());
            let _ = store.reclaim();
        }
    }
    state
}

/// Runs the scenario while calls fail, then starts anew; returns the calls that were made.
fn run_with_fault(at: u64, count: u64) -> u64 {
    let fault = Fault {
        at,
        count,
        kind: ErrorKind::Other,
        changes_only: true,
    };
    let memory = MemoryFs::new();
    let faulty = FaultyFs::new(Arc::new(memory.clone()));
    faulty.arm(Some(fault));
    let mut acknowledged = State::default();
    if let Ok(store) = Store::open(&options(Arc::new(faulty.clone()))) {
        acknowledged = run(&store);
        let found = observe_quietly(&store);
        assert!(found == acknowledged, "{fault:?}: the store differs");
    }
    let found = observe(&open(&memory.crash(Crash::Kept)));
    assert!(
        found == acknowledged,
        "{fault:?}: not what was acknowledged after a restart"
    );
    faulty.changes()
}

#[test]
fn one_failed_call_costs_at_most_the_operation_it_was_for() {
    let calls = run_with_fault(u64::MAX, 1);
    assert!(calls > 40, "only {calls} calls");
    for at in 0..calls {
        run_with_fault(at, 1);
    }
}

#[test]
fn a_disk_that_stops_answering_loses_nothing_acknowledged() {
    for at in 0..run_with_fault(u64::MAX, 1) {
        run_with_fault(at, u64::MAX);
    }
}

#[test]
fn a_disk_that_is_full_at_any_moment_loses_nothing() {
    for free in (0..300_000).step_by(3_001) {
        let fs = MemoryFs::new();
        let mut options = options(Arc::new(fs.clone()));
        options.reserve_bytes = 0;
        let store = Store::open(&options).unwrap();
        fs.set_capacity(Some(fs.used_bytes() + free));
        let acknowledged = run(&store);
        assert!(
            observe_quietly(&store) == acknowledged,
            "{free} bytes free: the store differs"
        );
        fs.set_capacity(None);
        assert!(
            observe(&store) == acknowledged,
            "{free} bytes free: the store differs when there is room again"
        );
        write(object(3, 2), 0, noise(1, 10)).run(&store).unwrap();
        store.flush(file(3)).unwrap();
        let again = observe(&open(&fs.crash(Crash::Lost)));
        assert_eq!(again.objects.len(), acknowledged.objects.len() + 1);
    }
}

#[test]
fn a_failed_fsync_is_told_to_every_file_once_and_not_repeated() {
    let memory = MemoryFs::new();
    let faulty = FaultyFs::new(Arc::new(memory.clone()));
    let store = Store::open(&options(Arc::new(faulty.clone()))).unwrap();
    for data in 1..=2 {
        write(object(data, 0), 0, noise(data, 1000))
            .run(&store)
            .unwrap();
    }
    faulty.arm(Some(Fault {
        at: 0,
        count: 1,
        kind: ErrorKind::Other,
        changes_only: true,
    }));
    for data in 1..=2 {
        let outcome = store.flush(file(data));
        assert!(matches!(outcome, Err(StoreError::NotDurable { .. })));
        store.flush(file(data)).unwrap();
    }
    let before = store.appender.lock().segment;
    write(object(3, 0), 0, noise(3, 1000)).run(&store).unwrap();
    store.flush(file(3)).unwrap();
    assert!(store.appender.lock().segment > before, "the same segment");
    let after = open(&memory.crash(Crash::Names));
    assert_eq!(content(&after, object(3, 0), 1000).unwrap(), noise(3, 1000));
}

#[test]
fn a_step_that_fails_changes_nothing_that_can_be_seen() {
    let faulty = FaultyFs::new(Arc::new(MemoryFs::new()));
    let store = Store::open(&options(Arc::new(faulty.clone()))).unwrap();
    write(object(1, 0), 0, noise(1, 5000)).run(&store).unwrap();
    faulty.arm(Some(Fault {
        at: 0,
        count: u64::MAX,
        kind: ErrorKind::Other,
        changes_only: true,
    }));
    assert!(write(object(1, 0), 10, vec![1; 10]).run(&store).is_err());
    assert!(Step::Delete { file: file(1) }.run(&store).is_err());
    assert_eq!(content(&store, object(1, 0), 5000).unwrap(), noise(1, 5000));
    faulty.arm(None);
    write(object(1, 0), 0, vec![2; 10]).run(&store).unwrap();
    let read = content(&store, object(1, 0), 5000).unwrap();
    assert_eq!(
        (&read[..10], &read[10..]),
        (&[2; 10][..], &noise(1, 5000)[10..])
    );
}

#[test]
fn a_disk_that_fails_for_a_while_loses_nothing_acknowledged() {
    for at in 0..run_with_fault(u64::MAX, 1) {
        run_with_fault(at, 5);
    }
}

#[test]
fn a_flush_after_a_restart_means_what_was_written_before() {
    let mut refused = 0;
    for at in 0..20 {
        let memory = MemoryFs::new();
        let fault = |at, count| {
            Some(Fault {
                at,
                count,
                kind: ErrorKind::Other,
                changes_only: true,
            })
        };
        let faulty = FaultyFs::new(Arc::new(memory.clone()));
        let store = Store::open(&options(Arc::new(faulty.clone()))).unwrap();
        write(object(1, 0), 0, noise(1, 1000)).run(&store).unwrap();
        // A killed process does nothing more.
        faulty.arm(fault(0, u64::MAX));
        drop(store);
        faulty.arm(fault(at, 1));
        let Ok(store) = Store::open(&options(Arc::new(faulty.clone()))) else {
            continue;
        };
        if store.flush(file(1)).is_err() {
            refused += 1;
            continue;
        }
        let after = open(&memory.crash(Crash::Lost));
        let read = content(&after, object(1, 0), 1000);
        assert!(read.is_ok_and(|bytes| bytes == noise(1, 1000)), "call {at}");
    }
    assert!(refused > 0, "no sync failed");
}

#[test]
fn a_failed_fsync_of_moved_bytes_does_not_cost_what_was_durable_before() {
    let mut moved = 0;
    for at in 0.. {
        let memory = MemoryFs::new();
        let faulty = FaultyFs::new(Arc::new(memory.clone()));
        let store = Store::open(&options(Arc::new(faulty.clone()))).unwrap();
        write(object(1, 0), 0, noise(1, 1000)).run(&store).unwrap();
        write(object(2, 0), 0, noise(2, 100_000))
            .run(&store)
            .unwrap();
        write(object(3, 0), 0, noise(3, 1000)).run(&store).unwrap();
        Step::Delete { file: file(2) }.run(&store).unwrap();
        store.flush(file(1)).unwrap();
        faulty.arm(Some(Fault {
            at,
            count: 1,
            kind: ErrorKind::Other,
            changes_only: true,
        }));
        let _ = store.reclaim();
        if faulty.changes() <= at {
            break;
        }
        moved += usize::from(!memory.exists(&segment_path(1)).unwrap());
        faulty.arm(None);
        store.checkpoint().unwrap();
        assert!(store.appender.lock().lost.is_empty(), "call {at}");
        for crash in [Crash::Lost, Crash::Names, Crash::Kept] {
            let after = open(&memory.crash(crash));
            let read = content(&after, object(1, 0), 1000);
            assert!(
                read.is_ok_and(|bytes| bytes == noise(1, 1000)),
                "call {at}, {crash:?}"
            );
        }
    }
    assert!(moved > 0, "every failure kept the segment");
}

#[test]
fn a_disk_whose_fsyncs_all_fail_does_not_stop_the_index_for_ever() {
    let memory = MemoryFs::new();
    let faulty = FaultyFs::new(Arc::new(memory.clone()));
    let store = Store::open(&options(Arc::new(faulty.clone()))).unwrap();
    write(object(1, 0), 0, noise(1, 1000)).run(&store).unwrap();
    let attempts = (0..20).find(|_| {
        // First the fsync and the copy fail, then the fsync behind each copy: a new file, its
        // header and the record come before.
        let again = !store.appender.lock().lost.is_empty();
        let (at, count) = if again { (3, 1) } else { (0, 2) };
        faulty.arm(Some(Fault {
            at,
            count,
            kind: ErrorKind::Other,
            changes_only: true,
        }));
        store.checkpoint().is_ok()
    });
    faulty.arm(None);
    assert_eq!(attempts, Some(3), "attempts");
    assert_eq!(content(&store, object(1, 0), 1000).unwrap(), noise(1, 1000));
}
