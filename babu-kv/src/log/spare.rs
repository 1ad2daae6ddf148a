//! Segments made ahead, so that the log goes on in a new one by a swap of pointers, without a call
//! to the file system while writers wait.
//!
//! Numbers are given out in ascending order and never twice. A segment made ahead that is overtaken
//! by one with a higher number, because a writer could not wait for it, is removed. When there is
//! none, whoever needs one makes it and gets the error, if it fails.
//!
//! A segment made ahead begins with zeros, which are durable. To sync a write that makes a file
//! longer, or that fills blocks for the first time, the file system must commit to its journal, which
//! is another write and another thread to wait for. To sync what overwrites zeros is one write. That
//! the zeros are written once more than needed is little beside syncs of small records, each of which
//! writes a block of its own. Where there are few syncs there are few zeros.

use super::{format, writer::Segment};
use crate::{
    error::{Context, Result},
    fs::{File, Fs, Open},
    threads::{
        Condvar, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use std::{io, path::PathBuf, sync::Arc};

/// Zeros in the first segment, when nobody knows yet how often it will be synced.
const AHEAD_FIRST: u64 = 1 << 20;
/// Zeros in a segment for each sync of the one before: a few blocks, because a sync may serve many
/// writers.
const AHEAD_PER_SYNC: u64 = 16 << 10;
/// The part of the free space that zeros may take: on a disk that is nearly full it is needed for
/// more than speed.
const AHEAD_SHARE: u64 = 256;
/// Zeros come in whole blocks.
const BLOCK_BYTES: u64 = 4 << 10;
/// Zeros that are written and synced at once, so that other syncs need not wait long for the disk.
const PIECE_BYTES: u64 = 1 << 20;

pub(crate) struct Spares {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    next: AtomicU64,
    /// Zeros that the next segment gets, and at most.
    ahead: AtomicU64,
    ahead_max: u64,
    /// Held while one is made, so that not two are.
    making: Mutex<()>,
    shelf: Mutex<Shelf>,
    changed: Condvar,
}

#[derive(Default)]
struct Shelf {
    spare: Option<Arc<Segment>>,
    wanted: bool,
    stopped: bool,
}

impl Spares {
    /// `next` is the number of the first segment that it makes; none gets more than `ahead_max`
    /// zeros.
    pub(crate) fn new(fs: Arc<dyn Fs>, dir: PathBuf, next: u64, ahead_max: u64) -> Spares {
        Spares {
            fs,
            dir,
            next: AtomicU64::new(next),
            ahead: AtomicU64::new(AHEAD_FIRST.min(ahead_max)),
            ahead_max,
            making: Mutex::default(),
            shelf: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Bytes on disk of the segment that was made ahead.
    pub(crate) fn bytes(&self) -> u64 {
        self.shelf.lock().spare.as_ref().map_or(0, |s| s.ahead)
    }

    /// Sees to it that there is one. Waits for the file system.
    pub(crate) fn prepare(&self) -> Result<()> {
        let _making = self.making.lock();
        let shelf = self.shelf.lock();
        if shelf.spare.is_some() || shelf.stopped {
            return Ok(());
        }
        drop(shelf);
        let segment = self.create(self.ahead.load(Relaxed))?;
        let mut shelf = self.shelf.lock();
        if shelf.stopped {
            drop(shelf);
            segment.remove(&*self.fs);
        } else {
            shelf.spare = Some(segment);
        }
        Ok(())
    }

    /// A new segment, with a higher number than `left`, which the log leaves for it.
    pub(crate) fn take(&self, left: Option<&Segment>) -> Result<Arc<Segment>> {
        let (after, syncs) = left.map_or((0, None), |s| (s.number, Some(s.syncs())));
        if let Some(syncs) = syncs {
            let ahead = syncs.saturating_mul(AHEAD_PER_SYNC);
            self.ahead.store(ahead.min(self.ahead_max), Relaxed);
        }
        let mut shelf = self.shelf.lock();
        let spare = shelf.spare.take();
        shelf.wanted = true;
        drop(shelf);
        self.changed.notify_one();
        match spare {
            Some(segment) if segment.number > after => Ok(segment),
            Some(overtaken) => {
                overtaken.remove(&*self.fs);
                self.create(0)
            }
            // Without zeros, because writers wait.
            None => self.create(0),
        }
    }

    fn create(&self, ahead: u64) -> Result<Arc<Segment>> {
        // The number is not used again, also when this fails.
        let number = self.next.fetch_add(1, Relaxed);
        let path = self.dir.join(format::segment_name(number));
        let file = self.fs.open(&path, Open::CreateNew).at("create", &path)?;
        let ahead = ahead.min(self.room(ahead));
        let ahead = self.write_ahead(&*file, ahead).at("write", &path);
        let ahead = ahead.inspect_err(|_| {
            // It must not be used: what a sync has lost stays lost.
            let _ = self.fs.remove(&path);
        })?;
        Ok(Arc::new(Segment::new(number, path, file, ahead)))
    }

    /// How many zeros the disk has room for, where some are wanted.
    fn room(&self, wanted: u64) -> u64 {
        if wanted == 0 {
            return 0;
        }
        // A disk that does not tell its room gets none.
        let free = self.fs.space(&self.dir).map_or(0, |space| space.free_bytes);
        free / AHEAD_SHARE / BLOCK_BYTES * BLOCK_BYTES
    }

    /// Writes so many zeros, if there is room; gives how many.
    fn write_ahead(&self, file: &dyn File, wanted: u64) -> io::Result<u64> {
        let zeros = vec![0; wanted.min(PIECE_BYTES) as usize];
        let mut written = 0;
        while written < wanted && !self.shelf.lock().stopped {
            let piece = &zeros[..(wanted - written).min(PIECE_BYTES) as usize];
            if file.write_at(piece, written).is_err() {
                // Perhaps there is no room, and records need what there is. The segment grows with
                // them then.
                file.set_len(0)?;
                return Ok(0);
            }
            file.sync_data()?;
            written += piece.len() as u64;
        }
        Ok(written)
    }

    /// Makes segments ahead, with durable names, until it is stopped.
    pub(crate) fn keep_ready(&self) {
        let mut shelf = self.shelf.lock();
        loop {
            while !shelf.wanted && !shelf.stopped {
                self.changed.wait(&mut shelf);
            }
            if shelf.stopped {
                return;
            }
            shelf.wanted = false;
            drop(shelf);
            // Whoever needs it tries again, and gets the error. The same for its name.
            let made = self.prepare();
            let spare = self.shelf.lock().spare.clone();
            if let (Ok(()), Some(segment)) = (made, spare) {
                let _ = segment.make_named(&*self.fs);
            }
            shelf = self.shelf.lock();
        }
    }

    /// Asks for the first one.
    pub(crate) fn wake(&self) {
        self.shelf.lock().wanted = true;
        self.changed.notify_one();
    }

    /// Ends `keep_ready`. None is made from now on unless it is taken at once: the folder may belong
    /// to somebody else soon, whose numbers go on where these end.
    pub(crate) fn stop(&self) {
        self.shelf.lock().stopped = true;
        self.changed.notify_all();
        // Waits for the one that is just being made, which is removed by whoever makes it.
        let _making = self.making.lock();
        let spare = self.shelf.lock().spare.take();
        if let Some(segment) = spare {
            segment.remove(&*self.fs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fs::{Crash, Fault, FaultyFs, MemoryFs},
        log::writer::LogWriter,
    };
    use std::{io::ErrorKind, path::Path, sync::mpsc, time::Duration};

    const DIR: &str = "/db";

    fn spares() -> (Spares, FaultyFs) {
        let fs = FaultyFs::new(Arc::new(MemoryFs::new()));
        fs.create_dir_all(Path::new(DIR)).unwrap();
        (
            Spares::new(Arc::new(fs.clone()), DIR.into(), 7, 4 << 20),
            fs,
        )
    }

    fn files(fs: &FaultyFs) -> Vec<String> {
        fs.list(Path::new(DIR)).unwrap()
    }

    #[test]
    fn a_rotation_with_a_spare_makes_no_call() {
        let (spares, fs) = spares();
        let mut log = LogWriter::new(1);
        spares.prepare().unwrap();
        spares.prepare().unwrap();
        fs.arm(None);
        assert_eq!(log.rotate(&spares).unwrap().0.number, 7);
        assert_eq!(fs.calls(), 0);
        assert_eq!(log.rotate(&spares).unwrap().0.number, 8);
        assert_eq!(files(&fs), ["000007.log", "000008.log"]);
    }

    #[test]
    fn a_failure_reaches_who_needs_the_segment_and_the_next_one_succeeds() {
        let (spares, fs) = spares();
        let fault = Fault {
            at: 0,
            count: 2,
            kind: ErrorKind::StorageFull,
            changes_only: true,
        };
        fs.arm(Some(fault));
        spares.prepare().unwrap_err();
        spares.take(None).unwrap_err();
        assert_eq!(spares.take(None).unwrap().number, 9);
    }

    #[test]
    fn an_overtaken_spare_is_never_used_and_removed() {
        let (spares, fs) = spares();
        spares.prepare().unwrap();
        let overtaking = spares.create(0).unwrap();
        assert_eq!(spares.take(Some(&overtaking)).unwrap().number, 9);
        assert_eq!(files(&fs), ["000008.log", "000009.log"]);
    }

    /// Zeros for writers who sync, none for those who do not, and never more than the bound.
    #[test]
    fn as_many_zeros_are_durable_ahead_as_syncs_will_need() {
        let memory = MemoryFs::new();
        let fs = FaultyFs::new(Arc::new(memory.clone()));
        fs.create_dir_all(Path::new(DIR)).unwrap();
        let spares = Spares::new(Arc::new(fs.clone()), DIR.into(), 7, 4 << 20);
        spares.prepare().unwrap();
        let first = spares.take(None).unwrap();
        assert_eq!((first.ahead, spares.bytes()), (AHEAD_FIRST, 0));
        for (syncs, ahead) in [(0, 0), (3, 3 * AHEAD_PER_SYNC), (1000, 4 << 20)] {
            let left = spares.take(None).unwrap();
            (0..syncs).for_each(|_| left.sync(&fs).unwrap());
            let next = spares.take(Some(&left)).unwrap();
            assert_eq!(next.ahead, 0, "a writer waited for zeros");
            spares.prepare().unwrap();
            assert_eq!(spares.bytes(), ahead);
            let made = spares.take(Some(&left)).unwrap();
            let path = Path::new(DIR).join(format::segment_name(made.number));
            let image = memory.crash(Crash::Names);
            assert_eq!(image.file_len(&path).unwrap(), ahead);
        }
    }

    #[test]
    fn zeros_take_a_small_part_of_the_room_that_is_left() {
        for (free, ahead) in [(1 << 40, AHEAD_FIRST), (8 << 20, 32 << 10), (1 << 19, 0)] {
            let memory = MemoryFs::new();
            memory.create_dir_all(Path::new(DIR)).unwrap();
            memory.set_capacity(Some(free));
            let spares = Spares::new(Arc::new(memory.clone()), DIR.into(), 7, AHEAD_FIRST);
            spares.prepare().unwrap();
            assert_eq!(spares.take(None).unwrap().ahead, ahead, "{free} bytes free");
            assert_eq!(memory.used_bytes(), ahead);
        }
    }

    #[test]
    fn a_segment_for_whose_zeros_the_room_went_meanwhile_is_made_without_them() {
        let (spares, fs) = spares();
        let fault = Fault {
            at: 1,
            count: 1,
            kind: ErrorKind::StorageFull,
            changes_only: true,
        };
        fs.arm(Some(fault));
        spares.prepare().unwrap();
        assert_eq!(spares.take(None).unwrap().ahead, 0);
    }

    /// A checkpoint makes one ahead while the database is closed.
    #[test]
    fn it_is_stopped_when_the_one_that_is_being_made_is_gone() {
        let (spares, fs) = spares();
        let spares = Arc::new(spares);
        let (stopped, is_stopped) = mpsc::channel();
        let (own, is_stopped) = (spares.clone(), std::sync::Mutex::new(is_stopped));
        let memory = fs.clone();
        let once = std::sync::Once::new();
        fs.after_sync(move || {
            once.call_once(|| {
                let (own, memory, stopped) = (own.clone(), memory.clone(), stopped.clone());
                std::thread::spawn(move || {
                    own.stop();
                    stopped.send(files(&memory)).unwrap();
                });
                // Long enough for a stop that does not wait. One that waits goes on after this.
                let is_stopped = is_stopped.lock().unwrap();
                let early = is_stopped.recv_timeout(Duration::from_millis(300));
                assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout));
            });
        });
        spares.prepare().unwrap();
        spares.stop();
        assert_eq!(files(&fs), [] as [String; 0]);
    }

    #[test]
    fn nothing_is_left_when_it_was_stopped() {
        let (spares, fs) = spares();
        spares.prepare().unwrap();
        spares.stop();
        spares.prepare().unwrap();
        assert_eq!(files(&fs), [] as [String; 0]);
    }
}
