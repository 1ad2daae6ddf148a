//! Opens a database beside its owner: everything is read, nothing is changed.
//!
//! The owner makes a manifest durable before it removes what the manifest no longer names. So all
//! files that a manifest names can be opened, unless the owner has gone on to a newer one meanwhile;
//! then the next attempt finds that. Once opened, files stay readable without their names. Tables
//! never change, and a log segment only grows: what it held when it was read is a prefix of all
//! batches.

use crate::{
    core::{Core, Opened},
    error::{Context, Error, Result},
    fs::{File, Fs, Lock, Open, Space},
    log::{
        format as log_format,
        reader::{Replay, Replayed},
        seal::{Closed, Seal},
    },
    manifest::Manifest,
    open::Files,
    options::{Background, Options},
    state::State,
    table::Tables,
    threads::Mutex,
};
use std::{
    collections::BTreeMap,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::Arc,
};

/// How often it is tried while the owner replaces files.
const ATTEMPTS: usize = 16;

/// A segment of the log, up to where it was read.
#[derive(Clone)]
pub(crate) struct PinnedSegment {
    pub number: u64,
    pub path: PathBuf,
    pub file: Arc<dyn File>,
    pub bytes: u64,
}

/// The segments from which the memtables were made.
pub(crate) type PinnedLog = Vec<PinnedSegment>;

pub(crate) fn open(dir: &Path, options: Options) -> Result<Core> {
    let options = Options {
        background: Background::Inline,
        ..options.bounded()
    };
    let mut before = String::new();
    for _ in 1..ATTEMPTS {
        match attempt(dir, &options) {
            Err(error) if may_pass(&error) => {
                // What is still so at the second look is damage, and not the owner at work.
                let now = error.to_string();
                if now == before {
                    return Err(error);
                }
                before = now;
            }
            result => return result,
        }
    }
    attempt(dir, &options)
}

/// Whether the owner's work may look like this.
fn may_pass(error: &Error) -> bool {
    match error {
        Error::Corrupt { .. } => true,
        Error::Io { source, .. } => {
            matches!(
                source.kind(),
                ErrorKind::NotFound | ErrorKind::UnexpectedEof
            )
        }
        _ => false,
    }
}

fn attempt(dir: &Path, options: &Options) -> Result<Core> {
    let fs = Arc::new(PinnedFs {
        inner: options.fs.clone(),
        pinned: Mutex::default(),
    });
    let tables = Arc::new(Tables::new(fs.clone(), dir, options));
    let (mut manifest, version, next_file) = Manifest::open_read_only(&tables)?;
    let files = Files::list(&tables)?;
    files.check(&tables, &version)?;
    for table in version.tables() {
        fs.pin(&tables.path(table.meta.number))?;
    }
    let logs: Vec<u64> = files.logs.range(version.log_number..).copied().collect();
    for number in &logs {
        fs.pin(&dir.join(log_format::segment_name(*number)))?;
    }
    let replay = Replay {
        fs: &*fs,
        dir,
        flushed: version.flushed,
        indices: manifest.last_index,
        memtable_bytes: options.memtable_bytes,
        sealed: &version.sealed,
        cuts: false,
    };
    // There is no table to flush them to, so that all of them stay.
    let mut waiting = Vec::new();
    let Replayed {
        active,
        last,
        segments,
        dropped,
    } = replay.run(&logs, &mut |full, _| {
        waiting.insert(0, full);
        Ok(())
    })?;
    manifest.indices.retain(|_, id| !dropped.contains_key(id));
    let pinned = segments.into_iter().map(
        |Seal {
             segment: number,
             bytes,
             ..
         }| {
            let path = dir.join(log_format::segment_name(number));
            let file = fs.open(&path, Open::Read).at("open", &path)?;
            Ok(PinnedSegment {
                number,
                path,
                file,
                bytes,
            })
        },
    );
    Ok(Core::new(Opened {
        options: options.clone(),
        read_only: Some(pinned.collect::<Result<PinnedLog>>()?),
        tables,
        lock: None,
        manifest,
        next_file,
        closed_logs: Closed::default(),
        next_segment: logs.last().map_or(version.log_number, |last| *last) + 1,
        state: State {
            active,
            waiting,
            version: Arc::new(version),
        },
        last,
    }))
}

/// A file system that refuses every change, and keeps files open whose names may go.
#[derive(Debug)]
struct PinnedFs {
    inner: Arc<dyn Fs>,
    pinned: Mutex<BTreeMap<PathBuf, Arc<dyn File>>>,
}

impl PinnedFs {
    fn pin(&self, path: &Path) -> Result<()> {
        let file = self.inner.open(path, Open::Read).at("open", path)?;
        self.pinned.lock().insert(path.to_path_buf(), file);
        Ok(())
    }

    fn pinned(&self, path: &Path) -> Option<Arc<dyn File>> {
        self.pinned.lock().get(path).cloned()
    }
}

fn refused<T>() -> io::Result<T> {
    Err(ErrorKind::ReadOnlyFilesystem.into())
}

impl Fs for PinnedFs {
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>> {
        match self.pinned(path) {
            _ if how != Open::Read => refused(),
            Some(file) => Ok(file),
            None => self.inner.open(path, how),
        }
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        Ok(self.pinned(path).is_some() || self.inner.exists(path)?)
    }

    fn file_len(&self, path: &Path) -> io::Result<u64> {
        match self.pinned(path) {
            Some(file) => file.len(),
            None => self.inner.file_len(path),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.inner.list(dir)
    }

    fn space(&self, dir: &Path) -> io::Result<Space> {
        self.inner.space(dir)
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        refused()
    }

    fn remove(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    fn hard_link(&self, _: &Path, _: &Path) -> io::Result<()> {
        refused()
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    fn create_dir_all(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    fn remove_dir(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    fn lock(&self, _: &Path) -> io::Result<Box<dyn Lock>> {
        refused()
    }
}
