//! Damage to what an OSD has stored.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Where some bytes were found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The segment file.
    pub file: PathBuf,
    /// Byte within it.
    pub offset: u64,
}

/// Finds bytes in the segment files below a folder.
///
/// # Panics
/// When the files cannot be read.
#[must_use]
pub fn find(data: &Path, bytes: &[u8]) -> Vec<Place> {
    let mut found = Vec::new();
    let mut folders = vec![data.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "seg") {
                let content = std::fs::read(&path).expect("read a segment");
                found.extend(positions(&content, bytes).into_iter().map(|offset| Place {
                    file: path.clone(),
                    offset,
                }));
            }
        }
    }
    found
}

fn positions(content: &[u8], bytes: &[u8]) -> Vec<u64> {
    let Some(first) = bytes.first() else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (at, byte) in content.iter().enumerate() {
        if byte == first && content[at..].starts_with(bytes) {
            found.push(at as u64);
        }
    }
    found
}

/// Turns one bit around.
///
/// # Panics
/// When the file cannot be changed.
pub fn flip(place: &Place) {
    let file: File = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&place.file)
        .expect("open the segment");
    let mut byte = [0];
    file.read_exact_at(&mut byte, place.offset)
        .expect("read the byte");
    byte[0] ^= 0x10;
    file.write_all_at(&byte, place.offset)
        .expect("write the byte");
    file.sync_all().expect("sync the segment");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_found_and_flipped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("osd0/segments/1.seg");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "abcabd").unwrap();
        let places = find(folder.path(), b"abd");
        assert_eq!(
            places,
            [Place {
                file: path.clone(),
                offset: 3
            }]
        );
        flip(&places[0]);
        assert_eq!(std::fs::read(&path).unwrap(), b"abcqbd");
    }
}
