//! What threads meet in: locks, atomics, threads themselves.
//!
//! Everything in this crate that takes part in the order of threads takes these from here, so that
//! the feature `shuttle` can put the same code under a scheduler that tries many orders, one
//! reproducible seed each (`tests/schedules.rs`). Without the feature they are those of
//! `parking_lot`, `arc_swap` and of the standard library and nothing else.

use crate::error::Result;
#[cfg(not(feature = "shuttle"))]
use std::sync::Arc;

#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::{Condvar, Mutex, RwLock};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::{sync::atomic, thread};

/// Whether a wait can end because time has passed. Under the scheduler there is none.
pub(crate) const HAVE_TIME: bool = cfg!(not(feature = "shuttle"));

/// A pointer that is swapped under its readers, who take no lock.
#[cfg(not(feature = "shuttle"))]
pub(crate) struct Swap<T>(arc_swap::ArcSwap<T>);

/// What a [`Swap`] pointed to when it was read.
#[cfg(not(feature = "shuttle"))]
pub(crate) type Current<T> = arc_swap::Guard<Arc<T>>;

#[cfg(not(feature = "shuttle"))]
impl<T> Swap<T> {
    pub(crate) fn new(value: T) -> Swap<T> {
        Swap(arc_swap::ArcSwap::from_pointee(value))
    }

    /// For short use: each thread has few that cost nobody anything.
    pub(crate) fn load(&self) -> Current<T> {
        self.0.load()
    }

    pub(crate) fn swap(&self, value: Arc<T>) -> Arc<T> {
        self.0.swap(value)
    }
}

/// Something that waits, mostly for the disk.
pub(crate) type Task<'a> = &'a (dyn Fn() -> Result<()> + Sync);

/// Runs all of them, at the same time where it can; gives the first error in their order.
#[cfg(not(feature = "shuttle"))]
pub(crate) fn together(tasks: &[Task<'_>]) -> Result<()> {
    thread::scope(|scope| {
        let started: Vec<_> = tasks
            .iter()
            .map(|task| thread::Builder::new().spawn_scoped(scope, task).ok())
            .collect();
        let ended = started.into_iter().zip(tasks).map(|(thread, task)| {
            // Without a thread, or if it ended in a panic, it is done here.
            thread.and_then(|t| t.join().ok()).unwrap_or_else(task)
        });
        ended.fold(Ok(()), Result::and)
    })
}

/// Under the scheduler one after the other.
#[cfg(feature = "shuttle")]
pub(crate) fn together(tasks: &[Task<'_>]) -> Result<()> {
    tasks.iter().try_for_each(|task| task())
}

#[cfg(feature = "shuttle")]
pub(crate) use scheduled::{Condvar, Current, Mutex, RwLock, Swap};
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::{sync::atomic, thread};

/// The locks of shuttle with the face of `parking_lot`: no poison, and a condition variable that
/// borrows the guard.
#[cfg(feature = "shuttle")]
mod scheduled {
    use shuttle::sync;
    use std::{
        fmt, mem,
        ops::{Deref, DerefMut},
        sync::{Arc, PoisonError},
        time::Duration,
    };

    #[derive(Default)]
    pub(crate) struct Mutex<T>(sync::Mutex<T>);

    /// Without its inner guard only inside of a wait.
    pub(crate) struct MutexGuard<'a, T>(Option<sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            let guard = self.0.lock();
            MutexGuard(Some(guard.unwrap_or_else(PoisonError::into_inner)))
        }
    }

    impl<T> fmt::Debug for Mutex<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Mutex").finish_non_exhaustive()
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect("a guard outside of a wait")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("a guard outside of a wait")
        }
    }

    #[derive(Default)]
    pub(crate) struct Condvar(sync::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Condvar {
            Condvar(sync::Condvar::new())
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            guard.0 = guard.0.take().map(|inner| {
                let inner = self.0.wait(inner);
                inner.unwrap_or_else(PoisonError::into_inner)
            });
        }

        /// There is no time under the scheduler: it waits until it is notified.
        pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _limit: Duration) {
            self.wait(guard);
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    /// Under the scheduler each access is a point where another thread may come first.
    pub(crate) struct Swap<T>(sync::Mutex<Arc<T>>);

    pub(crate) type Current<T> = Arc<T>;

    impl<T> Swap<T> {
        pub(crate) fn new(value: T) -> Swap<T> {
            Swap(sync::Mutex::new(Arc::new(value)))
        }

        pub(crate) fn load(&self) -> Current<T> {
            let pointer = self.0.lock();
            pointer.unwrap_or_else(PoisonError::into_inner).clone()
        }

        pub(crate) fn swap(&self, value: Arc<T>) -> Arc<T> {
            let pointer = self.0.lock();
            mem::replace(&mut *pointer.unwrap_or_else(PoisonError::into_inner), value)
        }
    }

    #[derive(Default)]
    pub(crate) struct RwLock<T>(sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub(crate) fn new(value: T) -> RwLock<T> {
            RwLock(sync::RwLock::new(value))
        }

        pub(crate) fn read(&self) -> sync::RwLockReadGuard<'_, T> {
            self.0.read().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn write(&self) -> sync::RwLockWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
