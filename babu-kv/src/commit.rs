//! The order of writers.
//!
//! One writer at a time *leads*. A writer that finds nobody leading leads at once and does its own
//! write; those that come meanwhile queue up. The leader hands over to the first in the queue, who
//! takes all the others with it into one write. No thread stands in between, and no lock is held
//! while the leader works: leadership is a flag in the queue.
//!
//! The leader also puts the batches of the group into the memtable, rather than wake each follower
//! to put in its own. Of the time on the processor of a thread that writes small batches (two puts,
//! 200 bytes), half goes to the kernel for the log and a seventh at most to the memtable, comparing
//! keys included: that is all that followers could take off the leader, for a list that many threads
//! change and one more wake-up before a group becomes visible. With one writer at a time the list
//! needs no retries, and whatever has a number up to the visible one is there.

use crate::{
    error::{Error, Result},
    log::writer::Request,
    threads::{Condvar, Mutex},
};
use std::{collections::VecDeque, mem, sync::Arc};

/// Bytes of one write that a leader takes on for others. The queue itself is bounded by the number
/// of writing threads.
const GROUP_BYTES: usize = 1 << 20;

#[derive(Default)]
pub(crate) struct Writers {
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    leading: bool,
    waiting: VecDeque<Arc<Waiter>>,
}

/// A writer in the queue.
struct Waiter {
    slot: Mutex<Slot>,
    wake: Condvar,
}

enum Slot {
    /// Without a request it wants to lead, not to write.
    Waiting(Option<Request>),
    Leads(Option<Request>),
    Taken,
    Done(Result<u64>),
}

/// What became of a writer.
pub(crate) enum Turn<'a> {
    Leads(Lead<'a>, Option<Request>),
    Done(Result<u64>),
}

/// Leadership; passed on when dropped.
pub(crate) struct Lead<'a>(&'a Writers);

impl Writers {
    /// Waits until the request was written by another, or the caller leads.
    pub(crate) fn enter(&self, request: Option<Request>) -> Turn<'_> {
        let mut queue = self.queue.lock();
        if !queue.leading {
            queue.leading = true;
            return Turn::Leads(Lead(self), request);
        }
        let waiter = Arc::new(Waiter {
            slot: Mutex::new(Slot::Waiting(request)),
            wake: Condvar::new(),
        });
        queue.waiting.push_back(waiter.clone());
        drop(queue);
        let mut slot = waiter.slot.lock();
        loop {
            match mem::replace(&mut *slot, Slot::Taken) {
                Slot::Leads(request) => return Turn::Leads(Lead(self), request),
                Slot::Done(result) => return Turn::Done(result),
                other => *slot = other,
            }
            waiter.wake.wait(&mut slot);
        }
    }

    /// Waits until the caller leads.
    pub(crate) fn lead(&self) -> Lead<'_> {
        loop {
            if let Turn::Leads(lead, _) = self.enter(None) {
                return lead;
            }
        }
    }
}

impl Lead<'_> {
    /// The requests at the head of the queue, up to one that wants to lead or that must: its turn
    /// comes next.
    pub(crate) fn gather(&self, may_follow: impl Fn(&Request) -> bool) -> (Group, Vec<Request>) {
        let (mut group, mut requests, mut bytes) = (Group::default(), Vec::new(), 0);
        let mut queue = self.0.queue.lock();
        while bytes < GROUP_BYTES
            && let Some(waiter) = queue.waiting.front()
        {
            let mut slot = waiter.slot.lock();
            match mem::replace(&mut *slot, Slot::Taken) {
                Slot::Waiting(Some(request)) if may_follow(&request) => {
                    bytes += request.record.len();
                    requests.push(request);
                }
                other => {
                    *slot = other;
                    break;
                }
            }
            drop(slot);
            group.0.extend(queue.waiting.pop_front());
        }
        (group, requests)
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        let Some(next) = queue.waiting.pop_front() else {
            queue.leading = false;
            return;
        };
        drop(queue);
        let mut slot = next.slot.lock();
        if let Slot::Waiting(request) = mem::replace(&mut *slot, Slot::Taken) {
            *slot = Slot::Leads(request);
        }
        next.wake.notify_one();
    }
}

/// Writers whose requests a leader took. Those that get no answer, because the leader did not come
/// to an end, are told so when the group is dropped.
#[derive(Default)]
pub(crate) struct Group(VecDeque<Arc<Waiter>>);

impl Group {
    /// Answers all, in the order of their requests.
    pub(crate) fn answer(mut self, answers: impl Iterator<Item = Result<u64>>) {
        for answer in answers {
            let Some(waiter) = self.0.pop_front() else {
                return;
            };
            waiter.answer(answer);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for waiter in &self.0 {
            waiter.answer(Err(Error::Closed));
        }
    }
}

impl Waiter {
    fn answer(&self, result: Result<u64>) {
        *self.slot.lock() = Slot::Done(result);
        self.wake.notify_one();
    }
}
