//! Segment files: their names, and a bounded number of open ones.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use babu_kv::fs::{File, Fs, Open};
use parking_lot::Mutex;

/// Most segment files kept open for reading.
const OPEN_FILES_MAX: usize = 128;

/// The name of a segment's file.
pub(crate) fn file_name(segment: u64) -> String {
    format!("{segment:08}.seg")
}

/// The segment of a file name, if it is one.
pub(crate) fn number_of(name: &str) -> Option<u64> {
    let number = name.strip_suffix(".seg")?.parse().ok()?;
    (file_name(number) == name).then_some(number)
}

/// Where something lies, for people.
pub(crate) fn place(segment: u64, position: u64) -> String {
    format!("segments/{} offset {position}", file_name(segment))
}

/// The open segment files; the least recently used is closed when there are too many.
pub(crate) struct SegmentFiles {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    open: Mutex<OpenFiles>,
    /// The folder may have names that are not durable.
    unsynced_names: AtomicBool,
}

#[derive(Default)]
struct OpenFiles {
    files: BTreeMap<u64, (u64, Arc<dyn File>)>,
    uses: u64,
}

impl SegmentFiles {
    pub(crate) fn new(fs: Arc<dyn Fs>, dir: PathBuf) -> Self {
        Self {
            fs,
            dir,
            open: Mutex::default(),
            // Whoever had the folder before may have died before it was synced.
            unsynced_names: AtomicBool::new(true),
        }
    }

    /// The folder.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn path(&self, segment: u64) -> PathBuf {
        self.dir.join(file_name(segment))
    }

    /// Numbers of the segments that have a file, in order.
    pub(crate) fn list(&self) -> io::Result<Vec<u64>> {
        let names = self.fs.list(&self.dir)?;
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| number_of(name)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The file of a segment, for reading; `NotFound` once it was removed.
    pub(crate) fn get(&self, segment: u64) -> io::Result<Arc<dyn File>> {
        let mut open = self.open.lock();
        open.uses += 1;
        let now = open.uses;
        if let Some((used, file)) = open.files.get_mut(&segment) {
            *used = now;
            return Ok(file.clone());
        }
        // Opened under the lock, so that a removal cannot come between and leave a file open.
        let file = self.fs.open(&self.path(segment), Open::Read)?;
        open.insert(segment, file.clone());
        Ok(file)
    }

    /// Creates the file of a new segment with its first bytes. Its name is durable after
    /// [`SegmentFiles::sync_names`]: who appends does not wait for the disk.
    pub(crate) fn create(&self, segment: u64, header: &[u8]) -> io::Result<Arc<dyn File>> {
        let path = self.path(segment);
        let file = self.fs.open(&path, Open::Create)?;
        self.unsynced_names.store(true, Ordering::Release);
        if let Err(error) = file.write_at(header, 0) {
            // The number is used again by the next attempt; a leftover does no harm.
            let _ = self.fs.remove(&path);
            return Err(error);
        }
        self.open.lock().insert(segment, file.clone());
        Ok(file)
    }

    /// Makes the names of all segments created before durable.
    pub(crate) fn sync_names(&self) -> io::Result<()> {
        if !self.unsynced_names.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let synced = self.fs.sync_dir(&self.dir);
        if synced.is_err() {
            self.unsynced_names.store(true, Ordering::Release);
        }
        synced
    }

    /// The file of a segment that is appended to again.
    pub(crate) fn reopen(&self, segment: u64) -> io::Result<Arc<dyn File>> {
        self.fs.open(&self.path(segment), Open::Write)
    }

    /// Removes a segment's file; no error when it is gone already.
    pub(crate) fn remove(&self, segment: u64) -> io::Result<()> {
        let mut open = self.open.lock();
        open.files.remove(&segment);
        match self.fs.remove(&self.path(segment)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

impl OpenFiles {
    fn insert(&mut self, segment: u64, file: Arc<dyn File>) {
        if self.files.len() >= OPEN_FILES_MAX {
            let oldest = self.files.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(oldest) = oldest.map(|(segment, _)| *segment) {
                self.files.remove(&oldest);
            }
        }
        self.uses += 1;
        self.files.insert(segment, (self.uses, file));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_a_segment_would_have_are_segments() {
        assert_eq!(number_of(&file_name(7)), Some(7));
        assert_eq!(
            number_of(&file_name(123_456_789_012)),
            Some(123_456_789_012)
        );
        for other in ["7.seg", "0000000x.seg", "00000007.tmp", "+0000007.seg"] {
            assert_eq!(number_of(other), None, "{other}");
        }
    }
}
