//! Segments made ahead, so that the log goes on in a new one by a swap of pointers, without a call
//! to the file system while writers wait.
//!
//! Numbers are given out in ascending order and never twice. A segment made ahead that is overtaken
//! by one with a higher number, because a writer could not wait for it, is removed. When there is
//! none, whoever needs one makes it and gets the error, if it fails.

use super::{format, writer::Segment};
use crate::{
    error::{Context, Result},
    fs::{Fs, Open},
    threads::{
        Condvar, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use std::{path::PathBuf, sync::Arc};

pub(crate) struct Spares {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    next: AtomicU64,
    /// Held while one is made, so that not two are. Writers never take it.
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
    /// `next` is the number of the first segment that it makes.
    pub(crate) fn new(fs: Arc<dyn Fs>, dir: PathBuf, next: u64) -> Spares {
        Spares {
            fs,
            dir,
            next: AtomicU64::new(next),
            making: Mutex::default(),
            shelf: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Sees to it that there is one. Waits for the file system.
    pub(crate) fn prepare(&self) -> Result<()> {
        let _making = self.making.lock();
        let shelf = self.shelf.lock();
        if shelf.spare.is_some() || shelf.stopped {
            return Ok(());
        }
        drop(shelf);
        let segment = self.create()?;
        let mut shelf = self.shelf.lock();
        if shelf.stopped {
            drop(shelf);
            segment.remove(&*self.fs);
        } else {
            shelf.spare = Some(segment);
        }
        Ok(())
    }

    /// A new segment, with a number above `after`.
    pub(crate) fn take(&self, after: u64) -> Result<Arc<Segment>> {
        let mut shelf = self.shelf.lock();
        let spare = shelf.spare.take();
        shelf.wanted = true;
        drop(shelf);
        self.changed.notify_one();
        match spare {
            Some(segment) if segment.number > after => Ok(segment),
            Some(overtaken) => {
                overtaken.remove(&*self.fs);
                self.create()
            }
            None => self.create(),
        }
    }

    fn create(&self) -> Result<Arc<Segment>> {
        // The number is not used again, also when this fails.
        let number = self.next.fetch_add(1, Relaxed);
        let path = self.dir.join(format::segment_name(number));
        let file = self.fs.open(&path, Open::CreateNew).at("create", &path)?;
        Ok(Arc::new(Segment::new(number, path, file)))
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

    /// Ends `keep_ready`. None is made from now on unless it is taken at once.
    pub(crate) fn stop(&self) {
        let mut shelf = self.shelf.lock();
        shelf.stopped = true;
        let spare = shelf.spare.take();
        drop(shelf);
        self.changed.notify_all();
        if let Some(segment) = spare {
            segment.remove(&*self.fs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fs::{Fault, FaultyFs, MemoryFs},
        log::writer::LogWriter,
    };
    use std::{io::ErrorKind, path::Path};

    const DIR: &str = "/db";

    fn spares() -> (Spares, FaultyFs) {
        let fs = FaultyFs::new(Arc::new(MemoryFs::new()));
        fs.create_dir_all(Path::new(DIR)).unwrap();
        (Spares::new(Arc::new(fs.clone()), DIR.into(), 7), fs)
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
        spares.take(0).unwrap_err();
        assert_eq!(spares.take(0).unwrap().number, 9);
    }

    #[test]
    fn an_overtaken_spare_is_never_used_and_removed() {
        let (spares, fs) = spares();
        spares.prepare().unwrap();
        assert_eq!(spares.take(7).unwrap().number, 8);
        assert_eq!(files(&fs), ["000008.log"]);
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
