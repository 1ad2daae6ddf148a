//! Work on a folder that keeps, outside the file system under test, what must be found there.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use rand::{Rng, RngCore, SeedableRng};

use crate::model::{self, Model, Node, Op, temporary};

/// Most files of one folder of the workload, so that it stays quick to verify.
const FILES_MAX: usize = 60;
/// Files that stay open after they were synced, so that it is the sync and not the close that
/// sent their bytes.
const OPEN_MAX: usize = 8;
/// Longest file in bytes: more than one object.
const FILE_BYTES_MAX: usize = 3 << 20;

/// Counts finished operations, so that a fault can come in the middle of the work.
#[derive(Default)]
pub struct Progress {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Progress {
    fn step(&self) {
        *self.count.lock() += 1;
        self.changed.notify_all();
    }

    /// Operations finished so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        *self.count.lock()
    }

    /// Waits for so many more operations.
    ///
    /// # Panics
    /// When they take longer than the limit.
    pub fn await_more(&self, more: u64, limit: std::time::Duration) {
        let mut count = self.count.lock();
        let target = *count + more;
        let until = std::time::Instant::now() + limit;
        while *count < target {
            let late = self.changed.wait_until(&mut count, until).timed_out();
            assert!(
                !late,
                "the workload did not get {more} operations further in {limit:?}"
            );
        }
    }
}

/// One worker's folder with what must be in it.
pub struct Ground {
    root: PathBuf,
    model: Model,
    pending: Option<Op>,
    rng: StdRng,
}

/// How a worker's turn ended: asked to stop, or by an error of the file system.
pub type Turn = (Ground, Option<std::io::Error>);

impl Ground {
    /// A new folder.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn new(root: PathBuf, seed: u64) -> Self {
        std::fs::create_dir(&root).expect("make the folder of a worker");
        Self {
            root,
            model: Model::new(),
            pending: None,
            rng: StdRng::seed_from_u64(seed),
        }
    }

    /// Works in a thread until it is told to stop or an operation fails.
    #[must_use]
    pub fn work(mut self, stop: Arc<AtomicBool>, progress: Arc<Progress>) -> JoinHandle<Turn> {
        std::thread::spawn(move || {
            let mut open = VecDeque::new();
            while !stop.load(Ordering::Relaxed) {
                let op = self.next_op();
                match perform(&self.root, &op) {
                    Ok(synced) => open.extend(synced),
                    Err(error) => {
                        self.pending = Some(op);
                        return (self, Some(error));
                    }
                }
                if open.len() > OPEN_MAX {
                    open.pop_front();
                }
                op.apply(&mut self.model);
                progress.step();
            }
            (self, None)
        })
    }

    /// The operation that failed, if one did.
    #[must_use]
    pub fn pending(&self) -> Option<&Op> {
        self.pending.as_ref()
    }

    /// Compares the folder with what must be in it, and goes on from what is there.
    ///
    /// # Panics
    /// When something is lost, wrong or too much.
    pub fn verify(&mut self) {
        let found = model::read(&self.root).unwrap_or_else(|error| panic!("{error}"));
        if let Err(wrong) = model::check(&self.model, self.pending.as_ref(), &found) {
            panic!("{}:\n{}", self.root.display(), wrong.join("\n"));
        }
        self.pending = None;
        self.model = found;
        // What is there now stays: it may not have been synced, but it has reached the servers.
        for path in self.model.keys().filter(|path| path.ends_with('~')) {
            std::fs::remove_file(self.root.join(path)).expect("remove a temporary file");
        }
        self.model.retain(|path, _| !path.ends_with('~'));
    }

    fn next_op(&mut self) -> Op {
        let roll = self.rng.random_range(0..100);
        let op = match roll {
            0..30 => Some(self.replace()),
            30..38 => Some(self.write_loose()),
            38..44 => self.pick(is_loose).map(|path| Op::Settle { path }),
            44..58 => self.pick(is_synced).map(|path| self.append(path)),
            58..68 => self.pick(is_synced).and_then(|path| self.overwrite(path)),
            68..74 => self.pick(is_synced).map(|path| self.truncate(path)),
            74..84 => self.rename(),
            84..91 => self
                .pick(|node| *node != Node::Folder)
                .map(|path| Op::Remove { path }),
            91..95 => Some(Op::MakeFolder {
                path: self.new_path("d"),
            }),
            95..97 => self.remove_folder(),
            _ => Some(Op::Link {
                path: self.new_path("l"),
                target: format!("to/{roll}"),
            }),
        };
        let full = self.model.len() >= FILES_MAX;
        match op {
            Some(op) if !full || matches!(op, Op::Remove { .. }) => op,
            _ if full => match self.pick(|node| *node != Node::Folder) {
                Some(path) => Op::Remove { path },
                None => self.replace(),
            },
            _ => self.replace(),
        }
    }

    fn pick(&mut self, wanted: impl Fn(&Node) -> bool) -> Option<String> {
        let fitting = self.model.iter().filter(|(_, node)| wanted(node));
        fitting.choose(&mut self.rng).map(|(path, _)| path.clone())
    }

    fn new_path(&mut self, letter: &str) -> String {
        loop {
            let number = self.rng.random_range(0..10_000);
            let folder = self.pick(|node| *node == Node::Folder);
            let path = match folder {
                Some(folder) if number % 2 == 0 && folder.matches('/').count() < 4 => {
                    format!("{folder}/{letter}{number}")
                }
                _ => format!("{letter}{number}"),
            };
            if !self.model.contains_key(&path) {
                return path;
            }
        }
    }

    /// A path for a file, new or in use by a file.
    fn file_path(&mut self) -> String {
        if self.rng.random_bool(0.5)
            && let Some(path) = self.pick(|node| is_synced(node) || is_loose(node))
        {
            return path;
        }
        self.new_path("f")
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = match self.rng.random_range(0..100) {
            0..60 => self.rng.random_range(1..20_000),
            60..95 => self.rng.random_range(20_000..300_000),
            _ => self.rng.random_range(300_000..FILE_BYTES_MAX / 2),
        };
        let mut bytes = vec![0; length];
        self.rng.fill_bytes(&mut bytes);
        bytes
    }

    fn replace(&mut self) -> Op {
        Op::Replace {
            path: self.file_path(),
            bytes: self.bytes(),
        }
    }

    fn write_loose(&mut self) -> Op {
        Op::WriteLoose {
            path: self.file_path(),
            bytes: self.bytes(),
        }
    }

    fn length(&self, path: &str) -> usize {
        match self.model.get(path) {
            Some(Node::Synced(bytes)) => bytes.len(),
            _ => 0,
        }
    }

    fn append(&mut self, path: String) -> Op {
        if self.length(&path) > FILE_BYTES_MAX {
            return Op::Remove { path };
        }
        Op::Append {
            path,
            bytes: self.bytes(),
        }
    }

    fn overwrite(&mut self, path: String) -> Option<Op> {
        let length = self.length(&path);
        if length == 0 {
            return None;
        }
        let offset = self.rng.random_range(0..length);
        let mut bytes = self.bytes();
        bytes.truncate(length - offset);
        Some(Op::Overwrite {
            path,
            offset,
            bytes,
        })
    }

    fn truncate(&mut self, path: String) -> Op {
        let longest = self.length(&path) + 10_000;
        Op::Truncate {
            path,
            length: self.rng.random_range(0..longest),
        }
    }

    fn rename(&mut self) -> Option<Op> {
        if self.rng.random_bool(0.2) {
            let from = self.pick(|node| *node == Node::Folder)?;
            let to = self.new_path("d");
            let into_itself = to.starts_with(&format!("{from}/"));
            return (!into_itself).then_some(Op::Rename { from, to });
        }
        let from = self.pick(is_synced)?;
        let to = self.file_path();
        (from != to).then_some(Op::Rename { from, to })
    }

    fn remove_folder(&mut self) -> Option<Op> {
        let path = self.pick(|node| *node == Node::Folder)?;
        let below = format!("{path}/");
        let empty = !self.model.keys().any(|other| other.starts_with(&below));
        empty.then_some(Op::RemoveFolder { path })
    }
}

fn is_synced(node: &Node) -> bool {
    matches!(node, Node::Synced(_))
}

fn is_loose(node: &Node) -> bool {
    matches!(node, Node::Loose(_))
}

/// Does what the operation says; it is acknowledged when this returns. The file that it synced
/// comes back still open.
///
/// # Errors
/// The first that the file system gives.
pub fn perform(root: &Path, op: &Op) -> std::io::Result<Option<File>> {
    let at = |path: &str| root.join(path);
    let open = |path: &str| OpenOptions::new().write(true).open(at(path));
    match op {
        Op::Replace { path, bytes } => {
            let mut file = File::create(at(&temporary(path)))?;
            file.write_all(bytes)?;
            file.sync_all()?;
            std::fs::rename(at(&temporary(path)), at(path))?;
            return Ok(Some(file));
        }
        Op::WriteLoose { path, bytes } => std::fs::write(at(path), bytes)?,
        Op::Settle { path } => {
            let file = open(path)?;
            file.sync_all()?;
            return Ok(Some(file));
        }
        Op::Append { path, bytes } => {
            let mut file = OpenOptions::new().append(true).open(at(path))?;
            file.write_all(bytes)?;
            file.sync_all()?;
            return Ok(Some(file));
        }
        Op::Overwrite {
            path,
            offset,
            bytes,
        } => {
            let file = open(path)?;
            file.write_all_at(bytes, *offset as u64)?;
            file.sync_data()?;
            return Ok(Some(file));
        }
        Op::Truncate { path, length } => {
            let file = open(path)?;
            file.set_len(*length as u64)?;
            file.sync_all()?;
            return Ok(Some(file));
        }
        Op::Rename { from, to } => std::fs::rename(at(from), at(to))?,
        Op::Remove { path } => std::fs::remove_file(at(path))?,
        Op::MakeFolder { path } => std::fs::create_dir(at(path))?,
        Op::RemoveFolder { path } => std::fs::remove_dir(at(path))?,
        Op::Link { path, target } => symlink(target, at(path))?,
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// On a file system that works the folder is at any time what the model says.
    #[test]
    fn work_on_a_local_disk_agrees_with_its_model() {
        let folder = tempfile::tempdir().unwrap();
        let mut ground = Ground::new(folder.path().join("w"), 7);
        for _ in 0..3 {
            let stop = Arc::new(AtomicBool::new(false));
            let progress = Arc::new(Progress::default());
            let worker = ground.work(Arc::clone(&stop), Arc::clone(&progress));
            progress.await_more(150, Duration::from_secs(120));
            stop.store(true, Ordering::Relaxed);
            let (back, error) = worker.join().unwrap();
            assert!(error.is_none(), "{:?}: {error:?}", back.pending());
            ground = back;
            ground.verify();
        }
    }

    #[test]
    #[should_panic(expected = "is missing")]
    fn a_lost_file_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let mut ground = Ground::new(folder.path().join("w"), 7);
        let op = Op::Replace {
            path: "a".into(),
            bytes: vec![1],
        };
        perform(&ground.root, &op).unwrap();
        op.apply(&mut ground.model);
        std::fs::remove_file(ground.root.join("a")).unwrap();
        ground.verify();
    }
}
