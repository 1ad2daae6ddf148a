//! What happens in a database, told to a listener.
//!
//! Events are only noted where they happen, in a bounded queue, and delivered by a thread of their
//! own ([`Background::Threads`](crate::Background::Threads)) or at the end of the call that caused
//! them ([`Background::Inline`](crate::Background::Inline)). So no lock of the database is held
//! while a listener runs, and it may call the database. A listener that blocks delays the events
//! behind it, and `close`, which waits for it; when the queue is full, events are lost and counted.
//! A panic of a listener ends in the delivery. Snapshots and iterators only note events: without
//! threads, what they met with is delivered at the end of the next call of the database itself.

use crate::{
    error::{Error, Result},
    threads::{Condvar, Mutex},
};
use std::{
    collections::VecDeque,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::Arc,
};

/// Events that wait for delivery.
const WAITING_MAX: usize = 1024;

macro_rules! events {
    ($(#[$meta:meta])* pub enum $enum:ident {
        $($(#[$doc:meta])+ $name:ident $({ $($(#[$field_doc:meta])+ $field:ident: $type:ty,)* })?
            = $text:literal,)*
    }) => {
        $(#[$meta])*
        pub enum $enum {
            $($(#[$doc])+ $name $({ $($(#[$field_doc])+ $field: $type,)* })?,)*
        }

        impl $enum {
            /// The name of the kind of event, in lower case with underscores.
            pub fn name(&self) -> &'static str {
                match self {
                    $($enum::$name { .. } => $text,)*
                }
            }
        }
    };
}

events! {
    /// Something that happened in a database.
    #[derive(Clone, Debug)]
    #[non_exhaustive]
    pub enum Event {
        /// The flush of a memtable begins.
        FlushBegin {
            /// Bytes of the memtable.
            bytes: u64,
        } = "flush_begin",
        /// It ended. The memtable stays when it failed, and [`Event::BackgroundError`] says why.
        FlushEnd {
            /// Bytes of the tables written.
            bytes: u64,
            /// Whether it is done.
            done: bool,
        } = "flush_end",
        /// A compaction begins.
        CompactionBegin {
            /// The level that it takes from.
            level: usize,
            /// The level that it puts to.
            output_level: usize,
            /// Bytes of the tables that it reads.
            bytes: u64,
        } = "compaction_begin",
        /// It ended.
        CompactionEnd {
            /// The level that it takes from.
            level: usize,
            /// The level that it puts to.
            output_level: usize,
            /// Bytes of the tables written.
            bytes: u64,
            /// Whether it is done.
            done: bool,
        } = "compaction_end",
        /// Writers are slowed from now on, because flush and compaction lag behind.
        SlowBegin = "slow_begin",
        /// They are not any more.
        SlowEnd = "slow_end",
        /// Writers wait for a flush.
        StallBegin = "stall_begin",
        /// They go on.
        StallEnd = "stall_end",
        /// A checkpoint was made.
        Checkpoint {
            /// Its folder.
            destination: PathBuf,
        } = "checkpoint",
        /// A backup was made.
        Backup {
            /// Its number.
            number: u64,
            /// The number of the last operation in it.
            sequence: u64,
            /// Bytes that travelled.
            bytes: u64,
        } = "backup",
        /// A read, a check or work in the background met with damage.
        Corruption {
            /// Names file and offset.
            error: Error,
        } = "corruption",
        /// A flush or compaction failed and will be tried again.
        BackgroundError {
            /// What it said.
            error: Error,
        } = "background_error",
        /// After a failed sync the log goes on in a new segment.
        LogRestart = "log_restart",
        /// Snapshots and iterators had to let go because they were too old.
        SnapshotsReleased {
            /// How many.
            count: usize,
        } = "snapshots_released",
    }
}

/// Hears of events; see [`Options::listener`](crate::Options::listener).
pub trait Listener: Send + Sync + fmt::Debug {
    /// Called for one event at a time, in their order, with no lock of the database held. May call
    /// the database, but must not wait for another event.
    fn event(&self, event: &Event);
}

/// The events that wait for their delivery.
pub(crate) struct Events {
    listener: Option<Arc<dyn Listener>>,
    queue: Mutex<Queue>,
    ready: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Event>,
    lost: u64,
    delivering: bool,
    ended: bool,
}

impl Events {
    pub(crate) fn new(listener: Option<Arc<dyn Listener>>) -> Events {
        Events {
            listener,
            queue: Mutex::default(),
            ready: Condvar::new(),
        }
    }

    pub(crate) fn has_listener(&self) -> bool {
        self.listener.is_some()
    }

    /// Events that were lost because too many waited.
    pub(crate) fn lost(&self) -> u64 {
        self.queue.lock().lost
    }

    /// Notes an event. Never waits for the listener, so that any lock may be held.
    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        if self.listener.is_none() {
            return;
        }
        let event = event();
        let mut queue = self.queue.lock();
        if queue.waiting.len() < WAITING_MAX {
            queue.waiting.push_back(event);
        } else {
            queue.lost += 1;
        }
        drop(queue);
        self.ready.notify_one();
    }

    /// Notes that a result is damage.
    pub(crate) fn observe<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error @ Error::Corrupt { .. }) = &result {
            self.emit(|| Event::Corruption {
                error: error.clone(),
            });
        }
        result
    }

    /// Notes that work in the background failed.
    pub(crate) fn failed(&self, error: &Error) {
        let _ = self.observe::<()>(Err(error.clone()));
        self.emit(|| Event::BackgroundError {
            error: error.clone(),
        });
    }

    /// Delivers what waits, unless that is under way: on another thread, or because a listener has
    /// called the database.
    pub(crate) fn deliver(&self) {
        let Some(listener) = &self.listener else {
            return;
        };
        let mut queue = self.queue.lock();
        if queue.delivering {
            return;
        }
        queue.delivering = true;
        while let Some(event) = queue.waiting.pop_front() {
            drop(queue);
            // It shares nothing with the database that a panic could leave half changed, and what
            // the panic said was printed when it happened.
            let _ = catch_unwind(AssertUnwindSafe(|| listener.event(&event)));
            queue = self.queue.lock();
        }
        queue.delivering = false;
    }

    /// Delivers until the end of the database.
    pub(crate) fn deliver_all(&self) {
        loop {
            self.deliver();
            let mut queue = self.queue.lock();
            if queue.waiting.is_empty() {
                if queue.ended {
                    return;
                }
                self.ready.wait(&mut queue);
            }
        }
    }

    pub(crate) fn end(&self) {
        self.queue.lock().ended = true;
        self.ready.notify_all();
    }
}
