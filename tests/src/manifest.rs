//! What a file tree holds, so that two trees, or one tree at two times, can be compared.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// One file of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// `f`ile, `d`irectory, `l`ink, or another kind.
    pub kind: char,
    /// Permission and set-id bits.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Time of the last change in nanoseconds; 0 for directories.
    pub mtime_ns: i128,
    /// Length in bytes; 0 for directories.
    pub size: u64,
    /// Hard links; 0 for directories.
    pub links: u64,
    /// SHA-256 of a file, target of a link.
    pub content: Vec<u8>,
}

/// All files of a tree by their path within it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Manifest(pub BTreeMap<PathBuf, Item>);

impl Manifest {
    /// Reads a whole tree.
    ///
    /// # Panics
    /// When anything in it cannot be read.
    #[must_use]
    pub fn of(root: &Path) -> Self {
        let mut all = BTreeMap::new();
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            let at = root.join(&folder);
            let entries = std::fs::read_dir(&at)
                .unwrap_or_else(|error| panic!("list {}: {error}", at.display()));
            for entry in entries {
                let entry = entry.unwrap_or_else(|error| panic!("list {}: {error}", at.display()));
                let path = folder.join(entry.file_name());
                let item = Item::of(&root.join(&path));
                if item.kind == 'd' {
                    folders.push(path.clone());
                }
                let before = all.insert(path, item);
                assert!(
                    before.is_none(),
                    "{} is listed twice",
                    entry.path().display()
                );
            }
        }
        Self(all)
    }

    /// # Panics
    /// Names the first differences, when there are any.
    pub fn assert_same(&self, other: &Self, what: &str) {
        const SHOWN_MAX: usize = 20;
        let mut differences = Vec::new();
        for (path, item) in &self.0 {
            match other.0.get(path) {
                None => differences.push(format!("{} is missing", path.display())),
                Some(found) if found != item => differences.push(format!(
                    "{}: expected {item:?}, found {found:?}",
                    path.display()
                )),
                Some(_) => {}
            }
        }
        let added = other.0.keys().filter(|path| !self.0.contains_key(*path));
        differences.extend(added.map(|path| format!("{} is new", path.display())));
        let count = differences.len();
        differences.truncate(SHOWN_MAX);
        assert!(
            count == 0,
            "{what}: {count} differences in {} files:\n{}",
            self.0.len(),
            differences.join("\n")
        );
    }
}

impl Item {
    fn of(path: &Path) -> Self {
        let fail = |error: std::io::Error| -> ! { panic!("read {}: {error}", path.display()) };
        let meta = std::fs::symlink_metadata(path).unwrap_or_else(|error| fail(error));
        let kind = meta.file_type();
        let (letter, content) = if kind.is_file() {
            ('f', sha256_of(path).unwrap_or_else(|error| fail(error)))
        } else if kind.is_symlink() {
            let target = std::fs::read_link(path).unwrap_or_else(|error| fail(error));
            ('l', target.as_os_str().as_bytes().to_vec())
        } else if kind.is_dir() {
            ('d', Vec::new())
        } else if kind.is_fifo() {
            ('p', Vec::new())
        } else {
            ('?', Vec::new())
        };
        let folder = letter == 'd';
        Self {
            kind: letter,
            mode: meta.mode() & 0o7777,
            owner: (meta.uid(), meta.gid()),
            mtime_ns: if folder {
                0
            } else {
                i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec())
            },
            size: if folder { 0 } else { meta.len() },
            links: if folder { 0 } else { meta.nlink() },
            content,
        }
    }
}

/// SHA-256 of a file.
///
/// # Errors
/// When it cannot be read.
pub fn sha256_of(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok(hash.finalize().to_vec());
        }
        hash.update(&buffer[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "2 differences")]
    fn a_changed_and_a_lost_file_are_seen() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("kept"), "1").unwrap();
        std::fs::write(folder.path().join("changed"), "1").unwrap();
        std::fs::write(folder.path().join("lost"), "1").unwrap();
        let before = Manifest::of(folder.path());
        std::fs::write(folder.path().join("changed"), "2").unwrap();
        std::fs::remove_file(folder.path().join("lost")).unwrap();
        before.assert_same(&Manifest::of(folder.path()), "after the change");
    }
}
