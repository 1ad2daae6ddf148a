//! Backups as streams: what comes out is what went in, or an error and nothing.

use crate::scenario::{DIR, batch, content, read_all, small};
use babu_kv::{
    Database, Error, backup,
    fs::{Crash, Fs, MemoryFs},
};
use std::{collections::BTreeSet, path::Path, sync::Arc};

fn dir() -> &'static Path {
    Path::new(DIR)
}

fn write(database: &Database, rounds: std::ops::Range<u32>) {
    for round in rounds {
        database.commit(batch(database, round).unwrap()).unwrap();
    }
}

/// A stream of a backup, and what a receiver with `have` gets.
fn stream(database: &Database, have: &BTreeSet<String>) -> Vec<u8> {
    let mut out = Vec::new();
    database
        .backup_to(&mut out, have, Some(7), &mut |_| {})
        .unwrap();
    out
}

#[test]
fn a_stream_gives_back_its_instant_and_leaves_out_what_is_there() {
    let memory = MemoryFs::new();
    let database = Database::open(dir(), small(Arc::new(memory.clone()))).unwrap();
    write(&database, 0..40);
    let far = MemoryFs::new();
    let safe = Path::new("/safe");
    let first = stream(&database, &BTreeSet::new());
    backup::receive(&far, &mut first.as_slice(), safe, &mut |_| {}).unwrap();
    write(&database, 40..42);
    let have = backup::contents(&far, safe).unwrap();
    let second = stream(&database, &have);
    assert!(
        second.len() < first.len() / 2,
        "{} {}",
        second.len(),
        first.len()
    );
    // It needs what it leaves out.
    let empty = MemoryFs::new();
    for result in [
        backup::receive(&empty, &mut second.as_slice(), safe, &mut |_| {}),
        backup::restore_stream(&empty, &mut second.as_slice(), dir(), &mut |_| {}),
    ] {
        assert!(matches!(result, Err(Error::InvalidArgument(_))));
    }
    assert!(backup::list(&empty, safe).unwrap().is_empty());
    assert!(empty.list(dir()).unwrap().is_empty());
    let made = backup::receive(&far, &mut second.as_slice(), safe, &mut |_| {}).unwrap();
    assert_eq!((made.number, made.time), (2, Some(7)));
    for (number, rounds) in [(1, 40), (2, 42)] {
        assert!(
            backup::verify(&far, safe, number)
                .unwrap()
                .damage
                .is_empty()
        );
        // From the folder as a stream into a database.
        let mut out = Vec::new();
        backup::send(&far, safe, number, &BTreeSet::new(), &mut out, &mut |_| {}).unwrap();
        let (image, to) = (MemoryFs::new(), Path::new("/again"));
        backup::restore_stream(&image, &mut out.as_slice(), to, &mut |_| {}).unwrap();
        let again = Database::open(to, small(Arc::new(image.crash(Crash::Lost)))).unwrap();
        assert!(read_all(&again).unwrap() == content(0..rounds), "{number}");
    }
}

#[test]
fn a_stream_that_is_torn_or_has_a_flipped_byte_leaves_nothing() {
    let memory = MemoryFs::new();
    let database = Database::open(dir(), small(Arc::new(memory.clone()))).unwrap();
    write(&database, 0..25);
    let whole = stream(&database, &BTreeSet::new());
    let (image, to, safe) = (MemoryFs::new(), Path::new("/again"), Path::new("/safe"));
    let refuse = |bytes: &[u8], what: String| {
        let restored = backup::restore_stream(&image, &mut &*bytes, to, &mut |_| {});
        assert!(
            matches!(restored, Err(Error::Corrupt { .. })),
            "{what}: {restored:?}"
        );
        assert!(image.list(to).unwrap().is_empty(), "{what}");
        let received = backup::receive(&image, &mut &*bytes, safe, &mut |_| {});
        assert!(
            matches!(received, Err(Error::Corrupt { .. })),
            "{what}: {received:?}"
        );
        assert!(backup::list(&image, safe).unwrap().is_empty(), "{what}");
    };
    for at in (0..whole.len()).step_by(3) {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        refuse(&flipped, format!("byte {at}"));
        refuse(&whole[..at], format!("cut to {at}"));
    }
    // What came whole stays for the next attempt, and is whole.
    backup::receive(&image, &mut whole.as_slice(), safe, &mut |_| {}).unwrap();
    assert!(backup::verify(&image, safe, 1).unwrap().damage.is_empty());
    backup::restore_stream(&image, &mut whole.as_slice(), to, &mut |_| {}).unwrap();
    let again = Database::open(to, small(Arc::new(image))).unwrap();
    assert!(read_all(&again).unwrap() == content(0..25));
}

#[test]
fn progress_goes_up_to_the_bytes_that_travel() {
    let memory = MemoryFs::new();
    let database = Database::open(dir(), small(Arc::new(memory.clone()))).unwrap();
    write(&database, 0..40);
    let safe = Path::new("/safe");
    for expected_new in [true, false] {
        let mut last = None;
        let made = database
            .backup_with(safe, None, &mut |progress| {
                assert!(last.is_none_or(|b| b < progress.done_bytes));
                assert!(progress.done_bytes <= progress.total_bytes);
                last = Some(progress.done_bytes);
            })
            .unwrap();
        assert_eq!(made.bytes_new > 0, expected_new);
        assert_eq!(last.unwrap_or(0), made.bytes_new);
    }
    let mut last = babu_kv::Progress::default();
    database
        .verify_with(&mut |progress| last = progress)
        .unwrap();
    assert!(last.done_bytes == last.total_bytes && last.done_bytes > 0);
}
