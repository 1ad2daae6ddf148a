//! A byte that changes on the disk of an OSD is noticed, named, and hurts nothing else.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use xtfs_tests::segment::{find, flip};
use xtfs_tests::{TestCell, require};

const OBJECT_BYTES: usize = 1 << 20;
const OBJECTS: usize = 4;
/// What lies in the third object of the victim.
const DAMAGED_AT: usize = 2 * OBJECT_BYTES + 123_456;

fn random_bytes(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; OBJECTS * OBJECT_BYTES];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

fn write_synced(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
    File::open(path).unwrap().sync_all().unwrap();
}

fn damage_is_contained(mut cell: TestCell) {
    let (victim, bystander) = (random_bytes(1), random_bytes(2));
    write_synced(&cell.path().join("victim"), &victim);
    write_synced(&cell.path().join("bystander"), &bystander);
    cell.stop();
    let places = find(cell.data(), &victim[DAMAGED_AT..DAMAGED_AT + 64]);
    assert_eq!(places.len(), 1, "the bytes are stored in one place");
    let segment = places[0]
        .file
        .file_name()
        .unwrap()
        .to_string_lossy()
        .into_owned();
    flip(&places[0]);
    cell.start_all();

    let file = File::open(cell.path().join("victim")).unwrap();
    let mut byte = [0];
    let error = file
        .read_exact_at(&mut byte, DAMAGED_AT as u64)
        .unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");

    let mut object = vec![0; OBJECT_BYTES];
    for number in [0, 1, 3] {
        let offset = number * OBJECT_BYTES;
        file.read_exact_at(&mut object, offset as u64).unwrap();
        assert!(
            object == victim[offset..offset + OBJECT_BYTES],
            "object {number} of the victim"
        );
    }
    assert!(std::fs::read(cell.path().join("bystander")).unwrap() == bystander);

    let logs = cell.logs();
    let named = logs
        .lines()
        .any(|line| line.contains(&segment) && line.to_lowercase().contains("object"));
    assert!(named, "no log line names an object and {segment}:\n{logs}");

    let scrub = cell.scrub();
    assert_eq!(
        scrub.status.code(),
        Some(2),
        "{}{}",
        scrub.stdout,
        scrub.stderr
    );
    assert!(
        scrub.stdout.contains(&segment),
        "scrub does not name {segment}: {}",
        scrub.stdout
    );

    // Work goes on, in the damaged file too once it is written anew.
    write_synced(&cell.path().join("victim"), &victim);
    write_synced(&cell.path().join("new"), &bystander);
    cell.remount();
    assert!(std::fs::read(cell.path().join("victim")).unwrap() == victim);
    assert!(std::fs::read(cell.path().join("new")).unwrap() == bystander);
    cell.stop();
}

#[test]
fn a_flipped_byte_is_contained_in_one_process() {
    require(&[]);
    damage_is_contained(TestCell::up(1));
}

#[test]
fn a_flipped_byte_is_contained_in_separate_processes() {
    require(&[]);
    damage_is_contained(TestCell::cluster(3));
}

/// Bad bytes never gain a good checksum: a write into the damaged block fails and changes nothing.
#[test]
fn a_partial_write_does_not_bless_a_flipped_byte() {
    require(&[]);
    let mut cell = TestCell::up(1);
    let victim = random_bytes(3);
    let path = cell.path().join("victim");
    write_synced(&path, &victim);
    cell.stop();
    let places = find(cell.data(), &victim[DAMAGED_AT..DAMAGED_AT + 64]);
    flip(&places[0]);
    cell.start_all();
    {
        // An unaligned write close to the damage; whether and where it fails is not the point.
        let file = File::options().write(true).open(&path).unwrap();
        let _ = file.write_all_at(b"patch", DAMAGED_AT as u64 + 100);
        let _ = file.sync_all();
    }
    cell.remount();
    let mut byte = [0];
    let read = File::open(&path)
        .unwrap()
        .read_exact_at(&mut byte, DAMAGED_AT as u64);
    let error = read.expect_err("the flipped byte was given out as good");
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    assert_eq!(cell.scrub().status.code(), Some(2));
}
