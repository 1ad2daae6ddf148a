//! A disk that fills up: the writer hears of it, nothing is lost, and deleting helps.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Error, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use xtfs_tests::{Scratch, TestCell, loop_disk, require, secs};

const DISK_MEBIBYTES: u64 = 256;
const FILE_BYTES: usize = 3 << 20;
const ROUNDS: u64 = 3;

fn content(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; FILE_BYTES];
    StdRng::seed_from_u64(number).fill_bytes(&mut bytes);
    bytes
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Writes files until one does not fit; returns the numbers of those that were synced.
fn fill(folder: &Path, from: u64) -> BTreeMap<u64, ()> {
    let mut synced = BTreeMap::new();
    for number in from.. {
        assert!(
            (number - from) * FILE_BYTES as u64 <= DISK_MEBIBYTES << 20,
            "more fits on the disk than the disk is large"
        );
        match write_synced(&folder.join(number.to_string()), &content(number)) {
            Ok(()) => {
                synced.insert(number, ());
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
                std::fs::remove_file(folder.join(number.to_string())).unwrap();
                break;
            }
        }
    }
    synced
}

fn assert_all_right(folder: &Path, synced: &BTreeMap<u64, ()>) {
    for number in synced.keys() {
        let found = std::fs::read(folder.join(number.to_string())).unwrap();
        assert!(
            found == content(*number),
            "file {number} is not what was synced"
        );
    }
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), synced.len());
}

/// Space comes back in the background; nothing tells when, so this asks again and again.
fn await_room(folder: &Path, bytes: u64) {
    let until = Instant::now() + secs(120);
    loop {
        let room = rustix::fs::statvfs(folder).unwrap();
        if room.f_bavail * room.f_frsize >= bytes {
            return;
        }
        assert!(
            Instant::now() < until,
            "only {} bytes are free long after deleting, wanted {bytes}",
            room.f_bavail * room.f_frsize
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_full_disk_loses_nothing_and_works_again() {
    require(&["mkfs.ext4", "mount"]);
    let scratch = Scratch::new("full");
    let disk = loop_disk::make(&scratch, "disk", DISK_MEBIBYTES);
    let mut cell = TestCell::up_on(scratch, disk.join("data"), 1);
    let folder = cell.path().join("files");
    std::fs::create_dir(&folder).unwrap();
    let mut kept = BTreeMap::new();
    for round in 0..ROUNDS {
        let synced = fill(&folder, round * 10_000);
        println!("round {round}: {} files of 3 MiB fit", synced.len());
        assert!(
            synced.len() >= 20,
            "hardly anything fits: {} files",
            synced.len()
        );
        kept.extend(synced);
        assert_all_right(&folder, &kept);
        cell.remount();
        assert_all_right(&folder, &kept);
        cell.assert_scrub_clean();
        // All but a few go, and with them their space.
        let gone: Vec<u64> = kept
            .keys()
            .copied()
            .filter(|number| number % 10 != 3)
            .collect();
        for number in &gone {
            std::fs::remove_file(folder.join(number.to_string())).unwrap();
            kept.remove(number);
        }
        await_room(&folder, (gone.len() as u64 / 2) * FILE_BYTES as u64);
        assert_all_right(&folder, &kept);
    }
    cell.assert_scrub_clean();
    cell.stop();
}
