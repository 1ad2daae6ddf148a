//! Requests whose process does not want to wait any more.
//!
//! The kernel tells of every signal that a waiting process gets, once for each request, and keeps
//! the process until the request is answered. A wait for a lock ends at any signal, as it does on a
//! local file system. Other calls end only when the process is about to die: programs do not expect
//! a read of a file to be interrupted.
//!
//! The message may overtake the request that it is about, on another thread, so the last few that
//! nobody waited for are remembered.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Most interrupts that are remembered for requests that are not known yet.
const EARLY_MAX: usize = 1024;
/// How often a process that was interrupted is looked at, whether it is to die.
const LOOK: Duration = Duration::from_millis(200);

/// The requests that can be interrupted.
#[derive(Default)]
pub(crate) struct Interrupts {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: BTreeMap<u64, Arc<Notify>>,
    early: VecDeque<u64>,
}

/// A request that can be interrupted, while this lives.
pub(crate) struct Interruptible {
    interrupts: Arc<Interrupts>,
    unique: u64,
    told: Arc<Notify>,
}

impl Interrupts {
    /// The kernel says that a request is not waited for.
    pub(crate) fn interrupt(&self, unique: u64) {
        let mut state = self.state.lock();
        if let Some(told) = state.waiting.get(&unique) {
            told.notify_one();
            return;
        }
        if state.early.len() >= EARLY_MAX {
            state.early.pop_front();
        }
        state.early.push_back(unique);
    }

    /// A request that can be interrupted from now on.
    pub(crate) fn enter(self: &Arc<Self>, unique: u64) -> Interruptible {
        let mut state = self.state.lock();
        let told = Arc::new(Notify::new());
        if let Some(at) = state.early.iter().position(|early| *early == unique) {
            state.early.remove(at);
            told.notify_one();
        }
        state.waiting.insert(unique, Arc::clone(&told));
        Interruptible {
            interrupts: Arc::clone(self),
            unique,
            told,
        }
    }
}

impl Interruptible {
    /// Ready when the process got a signal.
    pub(crate) fn signalled(&self) -> impl Future<Output = ()> + Send + use<> {
        let told = Arc::clone(&self.told);
        async move { told.notified().await }
    }

    /// Ready when the process, of which `pid` is a thread, got a signal that ends it.
    pub(crate) async fn killed(self, pid: u32) {
        self.signalled().await;
        while !is_dying(pid) {
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Drop for Interruptible {
    fn drop(&mut self) {
        self.interrupts.state.lock().waiting.remove(&self.unique);
    }
}

/// Has the kernel marked a thread to be killed? It does so with all threads of a process that gets
/// any signal that ends it.
fn is_dying(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/status")) {
        Ok(status) => is_killed(&status),
        Err(_) => true,
    }
}

fn is_killed(status: &str) -> bool {
    let kill = 1 << (libc::SIGKILL - 1);
    let pending = status.lines().filter_map(|line| {
        let bits = line
            .strip_prefix("SigPnd:")
            .or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(bits.trim(), 16).ok()
    });
    pending.fold(0, |all, bits| all | bits) & kill != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_interrupt_reaches_its_request_also_when_it_comes_first() {
        let interrupts = Arc::new(Interrupts::default());
        interrupts.interrupt(6);
        let (early, late) = (interrupts.enter(6), interrupts.enter(8));
        early.signalled().await;
        interrupts.interrupt(8);
        late.signalled().await;
        drop((early, late));
        assert!(interrupts.state.lock().waiting.is_empty());
        for unique in 0..3000 {
            interrupts.interrupt(unique);
        }
        assert_eq!(interrupts.state.lock().early.len(), EARLY_MAX);
    }

    #[test]
    fn a_process_is_dying_when_it_is_to_be_killed() {
        assert!(is_killed(
            "SigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"
        ));
        assert!(is_killed(
            "SigPnd:\t0000000000000000\nShdPnd:\t0000000000000102\n"
        ));
        assert!(!is_killed(
            "SigPnd:\t0000000000000200\nShdPnd:\t0000000000000002\n"
        ));
        assert!(!is_dying(std::process::id()));
        assert!(is_dying(0));
    }
}
