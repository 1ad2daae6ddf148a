//! A file system that fails on command, around any other one.

use super::{File, Fs, Lock, Open, Space};
use parking_lot::Mutex;
use std::{fmt, io, path::Path, sync::Arc};

/// Which calls fail, and how.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The call that fails first; calls are counted from 0 since [`FaultyFs::new`] or the last
    /// [`FaultyFs::arm`].
    pub at: u64,
    /// How many calls fail from there on; `u64::MAX` for all, as if the machine had stopped.
    pub count: u64,
    /// The error that they return.
    pub kind: io::ErrorKind,
    /// Only calls that change or sync something are counted and fail.
    pub changes_only: bool,
}

/// Something to do beside a sync.
type Hook = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Plan {
    calls: u64,
    changes: u64,
    fault: Option<Fault>,
    after_sync: Option<Hook>,
    whole_writes: bool,
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan")
            .field("calls", &self.calls)
            .field("fault", &self.fault)
            .finish_non_exhaustive()
    }
}

/// Counts calls and fails those that a [`Fault`] names; clones share the count.
#[derive(Clone, Debug)]
pub struct FaultyFs {
    inner: Arc<dyn Fs>,
    plan: Arc<Mutex<Plan>>,
}

#[derive(Debug)]
struct FaultyFile {
    inner: Arc<dyn File>,
    plan: Arc<Mutex<Plan>>,
}

fn step(plan: &Mutex<Plan>, change: bool) -> io::Result<()> {
    let mut plan = plan.lock();
    let (call, change_call) = (plan.calls, plan.changes);
    plan.calls += 1;
    plan.changes += u64::from(change);
    match plan.fault {
        Some(fault) => {
            let n = if fault.changes_only {
                change_call
            } else {
                call
            };
            let counted = change || !fault.changes_only;
            if counted && n >= fault.at && n - fault.at < fault.count {
                Err(fault.kind.into())
            } else {
                Ok(())
            }
        }
        None => Ok(()),
    }
}

impl FaultyFs {
    /// Passes everything to `inner` until armed.
    pub fn new(inner: Arc<dyn Fs>) -> FaultyFs {
        FaultyFs {
            inner,
            plan: Arc::default(),
        }
    }

    /// Starts counting from 0 and fails as `fault` says; `None` disarms.
    pub fn arm(&self, fault: Option<Fault>) {
        let mut plan = self.plan.lock();
        let after_sync = plan.after_sync.take();
        *plan = Plan {
            fault,
            after_sync,
            ..Plan::default()
        };
    }

    /// Calls `hook` whenever a file was synced, before its `sync_data` returns: a sync holds what
    /// was written when it began, and much may happen until it ends.
    pub fn after_sync(&self, hook: impl Fn() + Send + Sync + 'static) {
        self.plan.lock().after_sync = Some(Arc::new(hook));
    }

    /// Failed writes leave all of their bytes behind instead of the first half, until the next
    /// [`FaultyFs::arm`].
    pub fn leave_whole_writes(&self) {
        self.plan.lock().whole_writes = true;
    }

    /// Calls since the last [`FaultyFs::arm`].
    pub fn calls(&self) -> u64 {
        self.plan.lock().calls
    }

    /// Calls since the last [`FaultyFs::arm`] that change or sync something.
    pub fn changes(&self) -> u64 {
        self.plan.lock().changes
    }
}

impl File for FaultyFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        step(&self.plan, false)?;
        self.inner.read_at(buffer, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        if let Err(e) = step(&self.plan, true) {
            // A failed write leaves something behind, as a full disk does.
            let whole = self.plan.lock().whole_writes;
            let left = if whole { data.len() } else { data.len() / 2 };
            self.inner.write_at(&data[..left], offset)?;
            return Err(e);
        }
        self.inner.write_at(data, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        step(&self.plan, true)?;
        self.inner.sync_data()?;
        let hook = self.plan.lock().after_sync.clone();
        if let Some(hook) = hook {
            hook();
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        step(&self.plan, true)?;
        self.inner.set_len(length)
    }

    fn len(&self) -> io::Result<u64> {
        step(&self.plan, false)?;
        self.inner.len()
    }

    fn preallocate(&self, offset: u64, length: u64) -> io::Result<()> {
        step(&self.plan, true)?;
        self.inner.preallocate(offset, length)
    }
}

impl Fs for FaultyFs {
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>> {
        step(&self.plan, matches!(how, Open::Create | Open::CreateNew))?;
        Ok(Arc::new(FaultyFile {
            inner: self.inner.open(path, how)?,
            plan: self.plan.clone(),
        }))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        step(&self.plan, false)?;
        self.inner.exists(path)
    }

    fn file_len(&self, path: &Path) -> io::Result<u64> {
        step(&self.plan, false)?;
        self.inner.file_len(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        step(&self.plan, true)?;
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        step(&self.plan, true)?;
        self.inner.remove(path)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        step(&self.plan, true)?;
        self.inner.hard_link(from, to)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        step(&self.plan, false)?;
        self.inner.list(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        step(&self.plan, true)?;
        self.inner.sync_dir(dir)
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        step(&self.plan, true)?;
        self.inner.create_dir_all(dir)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        step(&self.plan, true)?;
        self.inner.remove_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        step(&self.plan, false)?;
        self.inner.lock(path)
    }

    fn space(&self, dir: &Path) -> io::Result<Space> {
        step(&self.plan, false)?;
        self.inner.space(dir)
    }
}
