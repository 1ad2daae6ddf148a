//! Room: full disks, and getting it back.

use std::sync::atomic::{AtomicBool, Ordering};

use babu_kv::fs::{Fs, MemoryFs};

use super::{
    Step, content, file, noise, object, observe, open, segment_bytes, segment_path, write,
};
use crate::error::StoreError;

#[test]
fn a_full_disk_refuses_writes_and_works_again_after_deletions() {
    let fs = MemoryFs::new();
    fs.set_capacity(Some(4 << 20));
    let store = open(&fs);
    let mut written = 0;
    let refused = loop {
        let id = object(1 + written % 3, written / 3);
        match write(id, 0, noise(written, 50_000)).run(&store) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 100, "the disk is never full");
    };
    assert!(matches!(refused, StoreError::NoSpace { .. }), "{refused}");
    assert!(written > 30, "full after {written} writes");
    let check = |except: u64| {
        for number in (0..written).filter(|n| 1 + n % 3 != except) {
            let id = object(1 + number % 3, number / 3);
            let read = content(&store, id, 50_000).unwrap();
            assert!(read == noise(number, 50_000), "object {number}");
        }
    };
    check(0);
    store.flush(file(1)).unwrap();
    Step::Delete { file: file(2) }.run(&store).unwrap();
    check(2);
    for number in 0..8 {
        write(object(3, 100 + number), 0, noise(number, 50_000))
            .run(&store)
            .unwrap();
    }
    check(2);
    drop(store);
    let store = open(&fs);
    assert_eq!(
        content(&store, object(3, 107), 50_000).unwrap(),
        noise(7, 50_000)
    );
}

#[test]
fn a_disk_with_no_byte_left_damages_nothing() {
    let fs = MemoryFs::new();
    let store = open(&fs);
    write(object(1, 0), 0, noise(1, 50_000))
        .run(&store)
        .unwrap();
    store.checkpoint().unwrap();
    for more in 0..40 {
        fs.set_capacity(Some(fs.used_bytes() + more * 50));
        let outcome = write(object(1, 0), 0, noise(2, 5_000)).run(&store);
        let first = if outcome.is_ok() { 2 } else { 1 };
        let read = content(&store, object(1, 0), 50_000).unwrap();
        assert_eq!(read[..5_000], noise(first, 50_000)[..5_000]);
        assert_eq!(read[5_000..], noise(1, 50_000)[5_000..]);
        fs.set_capacity(None);
        write(object(1, 0), 0, noise(1, 5_000)).run(&store).unwrap();
    }
}

#[test]
fn deleting_everything_gives_everything_back() {
    let fs = MemoryFs::new();
    fs.set_capacity(Some(8 << 20));
    let store = open(&fs);
    for number in 0..20 {
        write(object(1, number), 0, noise(number, 60_000))
            .run(&store)
            .unwrap();
    }
    assert!(segment_bytes(&store) > 1_200_000);
    Step::Delete { file: file(1) }.run(&store).unwrap();
    assert!(store.wants_reclaim());
    store.reclaim().unwrap();
    let space = store.space().unwrap();
    assert_eq!((space.objects, space.live_bytes), (0, 0));
    assert!(space.segment_bytes < 1000, "{} left", space.segment_bytes);
    assert!(fs.used_bytes() < 100_000, "{} used", fs.used_bytes());
    assert!(!store.wants_reclaim());
}

#[test]
fn mostly_dead_segments_are_emptied_and_their_survivors_stay() {
    let fs = MemoryFs::new();
    let store = open(&fs);
    for number in 0..40 {
        let data = if number % 8 == 0 { 1 } else { 2 };
        write(object(data, number), 0, noise(number, 20_000))
            .run(&store)
            .unwrap();
    }
    // Bytes that are partly overwritten by zeros must move as well.
    write(object(1, 8), 100, vec![0; 8000]).run(&store).unwrap();
    let mut expected = observe(&store);
    let before = segment_bytes(&store);
    let delete = Step::Delete { file: file(2) };
    delete.run_on_both(&store, &mut expected);
    store.reclaim().unwrap();
    let after = segment_bytes(&store);
    assert!(after * 3 < before, "{before} to {after} bytes");
    assert!(observe(&store) == expected);
    drop(store);
    assert!(observe(&open(&fs)) == expected);
}

#[test]
fn objects_of_many_small_writes_stay_within_bounds() {
    let store = open(&MemoryFs::new());
    let mut expected = noise(1, 100_000);
    write(object(1, 0), 0, expected.clone())
        .run(&store)
        .unwrap();
    for number in 0..1500u32 {
        let offset = number * 7919 % 99_000;
        let bytes = noise(u64::from(number), 13);
        expected[offset as usize..][..13].copy_from_slice(&bytes);
        write(object(1, 0), offset, bytes).run(&store).unwrap();
    }
    let map = store.lookup(object(1, 0)).unwrap().unwrap();
    assert!(map.extents().len() < 500, "{} extents", map.extents().len());
    assert!(content(&store, object(1, 0), 100_000).unwrap() == expected);
}

#[test]
fn readers_never_fail_while_segments_move_under_them() {
    let store = open(&MemoryFs::new());
    let kept: Vec<u64> = (0..6).collect();
    for number in &kept {
        write(object(1, *number), 0, noise(*number, 30_000))
            .run(&store)
            .unwrap();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut reads = 0;
                while !done.load(Ordering::Relaxed) || reads < 100 {
                    for number in &kept {
                        let read = content(&store, object(1, *number), 30_000).unwrap();
                        assert!(read == noise(*number, 30_000), "object {number}");
                        reads += 1;
                    }
                }
            });
        }
        for round in 0..40 {
            for number in 0..12 {
                write(object(3, number), 0, noise(round, 30_000))
                    .run(&store)
                    .unwrap();
            }
            // The same bytes again: what readers see does not change, the segments do.
            let number = round % 6;
            write(object(1, number), 0, noise(number, 30_000))
                .run(&store)
                .unwrap();
            store.reclaim().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    let space = store.space().unwrap();
    assert!(space.segment_bytes < 3 * space.live_bytes, "{space:?}");
}

#[test]
fn many_writers_at_once_leave_the_reserve_to_deletions() {
    let fs = MemoryFs::new();
    fs.set_capacity(Some(8 << 20));
    let store = open(&fs);
    let reserve = store.limits.reserve_bytes;
    std::thread::scope(|scope| {
        for data in 1..=8 {
            let store = &store;
            scope.spawn(move || {
                let writes = (0..40).map(|number| {
                    let bytes = noise(number, 150_000);
                    write(object(data, number), 0, bytes).run(store)
                });
                let refused = writes.filter_map(Result::err).next();
                assert!(matches!(refused, Some(StoreError::NoSpace { .. })));
            });
        }
    });
    // One record more than the writers saw, and what the index took.
    let left = (8 << 20) - fs.used_bytes();
    assert!(left >= reserve / 2, "{left} bytes left of {reserve}");
    for data in 1..=8 {
        Step::Delete { file: file(data) }.run(&store).unwrap();
    }
    write(object(9, 0), 0, noise(1, 150_000))
        .run(&store)
        .unwrap();
}

#[test]
fn one_segment_that_cannot_be_read_does_not_keep_the_space_of_others() {
    let fs = MemoryFs::new();
    let store = open(&fs);
    for number in 0..3 {
        write(object(1, number), 0, noise(number, 1000))
            .run(&store)
            .unwrap();
        write(object(2, number), 0, noise(number, 100_000))
            .run(&store)
            .unwrap();
    }
    assert_eq!(store.appender.lock().segment, 3);
    Step::Delete { file: file(2) }.run(&store).unwrap();
    store.checkpoint().unwrap();
    drop(store);
    fs.remove(&segment_path(1)).unwrap();
    let store = open(&fs);
    store.reclaim_until(|| Ok(false)).unwrap();
    assert!(!fs.exists(&segment_path(2)).unwrap());
    assert_eq!(content(&store, object(1, 1), 1000).unwrap(), noise(1, 1000));
    let lost = content(&store, object(1, 0), 1000);
    assert!(matches!(lost, Err(StoreError::Damaged { .. })), "{lost:?}");
    assert!(!store.wants_reclaim(), "it would try for ever");
}
