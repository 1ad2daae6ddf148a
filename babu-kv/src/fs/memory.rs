//! A file system in memory that knows what would survive a crash.
//!
//! Each file has its current content and the content of its last sync; each name exists now,
//! durably, or both. [`MemoryFs::crash`] builds the file system that a machine could find after
//! losing power at this moment.

use super::{File, Fs, Lock, Open, Space};
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::Arc,
};

/// What survives in a crash image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// Only synced names with their synced content.
    Lost,
    /// Everything, as after `kill -9`.
    Kept,
    /// Everything, except that the last write reached the disk only up to a boundary of 512 bytes.
    Torn,
    /// All names, also those whose folder was not synced, but only synced content.
    Names,
    /// Of what was not synced nothing but the last rename.
    Renamed,
}

impl Crash {
    /// All kinds.
    pub const ALL: [Crash; 5] = [
        Crash::Lost,
        Crash::Kept,
        Crash::Torn,
        Crash::Names,
        Crash::Renamed,
    ];
}

/// A file system in memory; clones share it.
#[derive(Clone, Debug, Default)]
pub struct MemoryFs {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    names: BTreeMap<PathBuf, Arc<Mutex<Content>>>,
    durable: BTreeMap<PathBuf, Arc<Mutex<Content>>>,
    dirs: BTreeSet<PathBuf>,
    locks: BTreeSet<PathBuf>,
    last_write: Option<LastWrite>,
    last_rename: Option<(PathBuf, PathBuf)>,
    capacity: Option<u64>,
    used: u64,
}

#[derive(Debug, Default)]
struct Content {
    now: Vec<u8>,
    synced: Vec<u8>,
    /// Bytes of `now` in this range may differ from `synced`.
    dirty: Option<(usize, usize)>,
}

#[derive(Debug)]
struct LastWrite {
    file: Arc<Mutex<Content>>,
    offset: usize,
    length: usize,
    before: Vec<u8>,
    length_before: usize,
}

#[derive(Debug)]
struct MemoryFile {
    content: Arc<Mutex<Content>>,
    fs: MemoryFs,
    writable: bool,
}

#[derive(Debug)]
struct MemoryLock {
    path: PathBuf,
    fs: MemoryFs,
}

impl Lock for MemoryLock {}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        self.fs.shared.lock().locks.remove(&self.path);
    }
}

impl Content {
    fn touch(&mut self, from: usize, to: usize) {
        self.dirty = Some(
            self.dirty
                .map_or((from, to), |(a, b)| (a.min(from), b.max(to))),
        );
    }

    fn sync(&mut self) {
        let Some((from, to)) = self.dirty.take() else {
            return;
        };
        self.synced.resize(self.now.len(), 0);
        let to = to.min(self.now.len());
        if from < to {
            self.synced[from..to].copy_from_slice(&self.now[from..to]);
        }
    }
}

impl MemoryFs {
    /// An empty file system without a size limit.
    pub fn new() -> MemoryFs {
        MemoryFs::default()
    }

    /// Limits all content to `bytes`; writes that need more end in `StorageFull`. `None` lifts the
    /// limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.shared.lock().capacity = bytes;
    }

    /// Bytes that all files hold now.
    pub fn used_bytes(&self) -> u64 {
        self.shared.lock().used
    }

    /// Changes one byte of a file and its synced content, as a decaying disk would; for tests.
    pub fn corrupt(&self, path: &Path, offset: usize, mask: u8) -> io::Result<()> {
        let file = self
            .shared
            .lock()
            .names
            .get(path)
            .cloned()
            .ok_or(ErrorKind::NotFound)?;
        let mut content = file.lock();
        let Content { now, synced, .. } = &mut *content;
        for bytes in [now, synced] {
            if let Some(byte) = bytes.get_mut(offset) {
                *byte ^= mask;
            }
        }
        Ok(())
    }

    /// The file system that is found after a crash at this moment. Nothing in it is locked, and all
    /// of it is durable.
    pub fn crash(&self, crash: Crash) -> MemoryFs {
        let shared = self.shared.lock();
        let renamed;
        let names = match crash {
            Crash::Lost => &shared.durable,
            Crash::Renamed => {
                renamed = shared.with_last_rename();
                &renamed
            }
            Crash::Kept | Crash::Torn | Crash::Names => &shared.names,
        };
        let mut copies: Vec<(*const Mutex<Content>, Arc<Mutex<Content>>)> = Vec::new();
        let mut image = Shared {
            dirs: shared.dirs.clone(),
            capacity: shared.capacity,
            ..Shared::default()
        };
        for (path, file) in names {
            let known = copies
                .iter()
                .find(|(p, _)| std::ptr::eq(*p, Arc::as_ptr(file)));
            let copy = match known {
                Some((_, copy)) => copy.clone(),
                None => {
                    let bytes = shared.surviving(file, crash);
                    image.used += bytes.len() as u64;
                    let copy = Arc::new(Mutex::new(Content {
                        now: bytes.clone(),
                        synced: bytes,
                        dirty: None,
                    }));
                    copies.push((Arc::as_ptr(file), copy.clone()));
                    copy
                }
            };
            image.names.insert(path.clone(), copy);
        }
        image.durable = image.names.clone();
        MemoryFs {
            shared: Arc::new(Mutex::new(image)),
        }
    }
}

impl Shared {
    /// The durable names, as the last rename changes them.
    fn with_last_rename(&self) -> BTreeMap<PathBuf, Arc<Mutex<Content>>> {
        let mut names = self.durable.clone();
        if let Some((from, to)) = &self.last_rename
            && let Some(file) = self.names.get(to)
        {
            names.remove(from);
            names.insert(to.clone(), file.clone());
        }
        names
    }

    fn surviving(&self, file: &Arc<Mutex<Content>>, crash: Crash) -> Vec<u8> {
        let content = file.lock();
        match crash {
            Crash::Lost | Crash::Names | Crash::Renamed => content.synced.clone(),
            Crash::Kept => content.now.clone(),
            Crash::Torn => {
                let mut bytes = content.now.clone();
                if let Some(last) = self
                    .last_write
                    .as_ref()
                    .filter(|w| Arc::ptr_eq(&w.file, file))
                    && content.dirty.is_some()
                    && bytes.len() >= last.offset + last.length
                {
                    let end = last.offset + last.length;
                    // The last boundary that lies strictly before the end of the write.
                    let tear = (end.saturating_sub(1) / 512 * 512).max(last.offset);
                    for (at, byte) in bytes.iter_mut().enumerate().take(end).skip(tear) {
                        *byte = last.before.get(at - last.offset).copied().unwrap_or(0);
                    }
                    if last.length_before < end && bytes.len() == end {
                        bytes.truncate(tear.max(last.length_before));
                    }
                }
                bytes
            }
        }
    }

    fn reserve(&mut self, more: u64) -> io::Result<()> {
        let used = self.used.saturating_add(more);
        if self.capacity.is_some_and(|c| used > c) {
            return Err(ErrorKind::StorageFull.into());
        }
        self.used = used;
        Ok(())
    }

    fn forget(&mut self, file: Option<Arc<Mutex<Content>>>) {
        if let Some(file) = file
            && !self.names.values().any(|f| Arc::ptr_eq(f, &file))
        {
            let length = file.lock().now.len() as u64;
            self.used = self.used.saturating_sub(length);
        }
    }

    fn parent_exists(&self, path: &Path) -> io::Result<()> {
        match path.parent() {
            Some(dir)
                if dir.as_os_str().is_empty()
                    || dir.parent().is_none()
                    || self.dirs.contains(dir) =>
            {
                Ok(())
            }
            _ => Err(ErrorKind::NotFound.into()),
        }
    }
}

impl File for MemoryFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let content = self.content.lock();
        let from = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(content.now.len());
        let n = buffer.len().min(content.now.len() - from);
        buffer[..n].copy_from_slice(&content.now[from..from + n]);
        Ok(n)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        if !self.writable {
            return Err(ErrorKind::PermissionDenied.into());
        }
        let mut shared = self.fs.shared.lock();
        let mut content = self.content.lock();
        let from = usize::try_from(offset).map_err(|_| ErrorKind::FileTooLarge)?;
        let to = from
            .checked_add(data.len())
            .ok_or(ErrorKind::FileTooLarge)?;
        let length_before = content.now.len();
        shared.reserve(to.saturating_sub(length_before) as u64)?;
        let before = content
            .now
            .get(from..to.min(length_before))
            .unwrap_or_default()
            .to_vec();
        if to > length_before {
            content.now.resize(to, 0);
        }
        content.now[from..to].copy_from_slice(data);
        content.touch(from.min(length_before), to);
        let file = self.content.clone();
        shared.last_write = Some(LastWrite {
            file,
            offset: from,
            length: data.len(),
            before,
            length_before,
        });
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.content.lock().sync();
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        if !self.writable {
            return Err(ErrorKind::PermissionDenied.into());
        }
        let mut shared = self.fs.shared.lock();
        let mut content = self.content.lock();
        let length = usize::try_from(length).map_err(|_| ErrorKind::FileTooLarge)?;
        let before = content.now.len();
        if length >= before {
            shared.reserve((length - before) as u64)?;
        } else {
            shared.used = shared.used.saturating_sub((before - length) as u64);
        }
        content.now.resize(length, 0);
        content.touch(before.min(length), before.max(length));
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.content.lock().now.len() as u64)
    }
}

impl Fs for MemoryFs {
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>> {
        let mut shared = self.shared.lock();
        let found = shared.names.get(path).cloned();
        let content = match (found, how) {
            (Some(_), Open::CreateNew) => return Err(ErrorKind::AlreadyExists.into()),
            (None, Open::Read | Open::Write) => return Err(ErrorKind::NotFound.into()),
            (Some(file), Open::Create) => {
                let mut content = file.lock();
                let before = content.now.len();
                shared.used = shared.used.saturating_sub(before as u64);
                content.now.clear();
                content.touch(0, before);
                drop(content);
                file
            }
            (Some(file), _) => file,
            (None, _) => {
                shared.parent_exists(path)?;
                let file = Arc::new(Mutex::new(Content::default()));
                shared.names.insert(path.to_path_buf(), file.clone());
                file
            }
        };
        Ok(Arc::new(MemoryFile {
            content,
            fs: self.clone(),
            writable: how != Open::Read,
        }))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let shared = self.shared.lock();
        Ok(shared.names.contains_key(path) || shared.dirs.contains(path))
    }

    fn file_len(&self, path: &Path) -> io::Result<u64> {
        let file = self
            .shared
            .lock()
            .names
            .get(path)
            .cloned()
            .ok_or(ErrorKind::NotFound)?;
        let length = file.lock().now.len() as u64;
        Ok(length)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut shared = self.shared.lock();
        shared.parent_exists(to)?;
        let file = shared.names.remove(from).ok_or(ErrorKind::NotFound)?;
        let replaced = shared.names.insert(to.to_path_buf(), file);
        shared.last_rename = Some((from.to_path_buf(), to.to_path_buf()));
        shared.forget(replaced);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut shared = self.shared.lock();
        let file = shared.names.remove(path).ok_or(ErrorKind::NotFound)?;
        shared.forget(Some(file));
        Ok(())
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut shared = self.shared.lock();
        shared.parent_exists(to)?;
        if shared.names.contains_key(to) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let file = shared.names.get(from).cloned().ok_or(ErrorKind::NotFound)?;
        shared.names.insert(to.to_path_buf(), file);
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let shared = self.shared.lock();
        if !shared.dirs.contains(dir) {
            return Err(ErrorKind::NotFound.into());
        }
        let all = shared.names.keys().chain(shared.dirs.iter());
        let mut names: Vec<String> = all
            .filter(|path| path.parent() == Some(dir))
            .filter_map(|path| Some(path.file_name()?.to_str()?.to_string()))
            .collect();
        names.sort();
        Ok(names)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut shared = self.shared.lock();
        let Shared { names, durable, .. } = &mut *shared;
        durable.retain(|path, _| path.parent() != Some(dir) || names.contains_key(path));
        for (path, file) in names.iter().filter(|(path, _)| path.parent() == Some(dir)) {
            durable.insert(path.clone(), file.clone());
        }
        Ok(())
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let mut shared = self.shared.lock();
        for dir in dir.ancestors().filter(|d| !d.as_os_str().is_empty()) {
            if shared.names.contains_key(dir) {
                return Err(ErrorKind::NotADirectory.into());
            }
            shared.dirs.insert(dir.to_path_buf());
        }
        Ok(())
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        if !self.list(dir)?.is_empty() {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        self.shared.lock().dirs.remove(dir);
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        self.open(path, Open::Write)
            .or_else(|_| self.open(path, Open::Create))?;
        if !self.shared.lock().locks.insert(path.to_path_buf()) {
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(MemoryLock {
            path: path.to_path_buf(),
            fs: self.clone(),
        }))
    }

    fn space(&self, _dir: &Path) -> io::Result<Space> {
        let shared = self.shared.lock();
        let total_bytes = shared.capacity.unwrap_or(1 << 40);
        Ok(Space {
            total_bytes,
            free_bytes: total_bytes.saturating_sub(shared.used),
        })
    }
}
