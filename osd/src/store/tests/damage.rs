//! Decay: whichever byte flips, the answer is right or an error, and the daemon starts.

use babu_kv::fs::{Crash, Fs, MemoryFs};

use super::{State, Step, content, file, noise, object, open, segment_path, write};
use crate::error::StoreError;
use crate::store::Store;

fn steps() -> Vec<Step> {
    vec![
        write(object(1, 0), 0, noise(1, 700)),
        write(object(1, 1), 0, vec![3; 9000]),
        write(object(2, 0), 50, noise(2, 300)),
        write(object(1, 0), 100, noise(3, 20)),
        Step::Truncate {
            file: file(2),
            object: 0,
            length: 200,
        },
    ]
}

/// The file system after the steps, and the states that they led to.
fn prepare(checkpoint: bool) -> (MemoryFs, Vec<State>) {
    let fs = MemoryFs::new();
    let store = open(&fs);
    let mut history = vec![State::default()];
    for step in steps() {
        let mut state = history.last().cloned().unwrap();
        step.run_on_both(&store, &mut state);
        history.push(state);
    }
    if checkpoint {
        store.checkpoint().unwrap();
    }
    (fs.crash(Crash::Kept), history)
}

fn segment_length(fs: &MemoryFs) -> usize {
    fs.file_len(&segment_path(1)).unwrap() as usize
}

/// Whether every object reads as in `state`, or fails as damaged.
fn agrees(store: &Store, state: &State) -> bool {
    let ids = [object(1, 0), object(1, 1), object(2, 0)];
    ids.iter().all(|id| {
        let expected = state.objects.get(id).cloned().unwrap_or_default();
        match content(store, *id, expected.len() as u32) {
            Ok(bytes) => bytes == expected,
            Err(StoreError::Damaged { object, .. }) => object == *id,
            Err(other) => panic!("unexpected error {other}"),
        }
    })
}

#[test]
fn a_flipped_byte_of_a_closed_store_gives_the_right_answer_or_an_error() {
    let (fs, history) = prepare(true);
    let expected = history.last().unwrap();
    let mut found = 0;
    for at in 0..segment_length(&fs) {
        let image = fs.crash(Crash::Kept);
        image.corrupt(&segment_path(1), at, 0x20).unwrap();
        let store = open(&image);
        assert!(agrees(&store, expected), "byte {at}");
        let verified = store.verify(None, 100).unwrap();
        assert_eq!(verified.objects, 3);
        let hurt = super::observe_damage(&store);
        assert!(
            hurt <= verified.damaged.len(),
            "byte {at}: verify misses damage"
        );
        found += usize::from(!verified.damaged.is_empty());
    }
    // All but the segment's header and the records without data.
    assert!(found > 1000, "only {found} flips were found");
}

#[test]
fn a_flipped_byte_of_the_log_never_gives_wrong_bytes() {
    let (fs, history) = prepare(false);
    for at in 0..segment_length(&fs) {
        let image = fs.crash(Crash::Kept);
        image.corrupt(&segment_path(1), at, 0x20).unwrap();
        let store = open(&image);
        assert!(
            history.iter().any(|state| agrees(&store, state)),
            "byte {at}: neither an error nor a state that was"
        );
    }
}

#[test]
fn a_damaged_record_that_was_durable_gives_errors_and_not_older_bytes() {
    let fs = MemoryFs::new();
    let store = open(&fs);
    write(object(1, 0), 0, vec![1; 100]).run(&store).unwrap();
    let second = store.appender.lock().position;
    write(object(1, 0), 0, noise(2, 100)).run(&store).unwrap();
    store.flush(file(1)).unwrap();
    write(object(2, 0), 0, noise(3, 100)).run(&store).unwrap();
    let image = fs.crash(Crash::Kept);
    image
        .corrupt(&segment_path(1), second as usize + 180, 1)
        .unwrap();
    let store = open(&image);
    let read = content(&store, object(1, 0), 100);
    assert!(matches!(read, Err(StoreError::Damaged { .. })), "{read:?}");
    assert_eq!(content(&store, object(2, 0), 100).unwrap(), noise(3, 100));
}

#[test]
fn a_lost_segment_is_damage_and_not_a_hole() {
    let (fs, _) = prepare(true);
    fs.remove(&segment_path(1)).unwrap();
    let store = open(&fs);
    let read = content(&store, object(1, 0), 700);
    assert!(matches!(read, Err(StoreError::Damaged { .. })), "{read:?}");
    let verified = store.verify(None, 10).unwrap();
    assert_eq!((verified.objects, verified.damaged.len()), (3, 3));
    write(object(3, 0), 0, noise(9, 100)).run(&store).unwrap();
    assert_eq!(content(&store, object(3, 0), 100).unwrap(), noise(9, 100));
}

#[test]
fn damaged_bytes_are_never_moved_under_a_good_checksum() {
    let fs = MemoryFs::new();
    let store = open(&fs);
    write(object(1, 0), 0, noise(1, 1000)).run(&store).unwrap();
    write(object(2, 0), 0, noise(2, 90_000))
        .run(&store)
        .unwrap();
    write(object(3, 0), 0, noise(3, 90_000))
        .run(&store)
        .unwrap();
    Step::Delete { file: file(2) }.run(&store).unwrap();
    store.checkpoint().unwrap();
    fs.corrupt(&segment_path(1), 64 + 164 + 500, 1).unwrap();
    store.reclaim().unwrap();
    let read = content(&store, object(1, 0), 1000);
    assert!(matches!(read, Err(StoreError::Damaged { .. })), "{read:?}");
    assert!(!store.wants_reclaim(), "it would try for ever");
}

#[test]
fn an_index_that_is_lost_is_made_anew_from_the_segments() {
    let (fs, history) = prepare(true);
    let dir = std::path::Path::new(super::DIR).join("index");
    for name in fs.list(&dir).unwrap() {
        fs.remove(&dir.join(name)).unwrap();
    }
    let store = open(&fs);
    assert!(Some(&super::observe(&store)) == history.last());
}

#[test]
fn an_index_that_is_lost_costs_no_object_that_was_moved() {
    let fs = MemoryFs::new();
    let store = open(&fs);
    write(object(1, 0), 0, noise(1, 1000)).run(&store).unwrap();
    write(object(2, 0), 0, noise(2, 90_000))
        .run(&store)
        .unwrap();
    write(object(2, 1), 0, noise(2, 90_000))
        .run(&store)
        .unwrap();
    Step::Delete { file: file(2) }.run(&store).unwrap();
    store.reclaim().unwrap();
    assert!(!fs.exists(&segment_path(1)).unwrap(), "nothing was moved");
    drop(store);
    let dir = std::path::Path::new(super::DIR).join("index");
    for name in fs.list(&dir).unwrap() {
        fs.remove(&dir.join(name)).unwrap();
    }
    let store = open(&fs);
    assert_eq!(content(&store, object(1, 0), 1000).unwrap(), noise(1, 1000));
}
