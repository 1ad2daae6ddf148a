//! Waiting for processes that are not children.

use std::time::Duration;

use anyhow::Result;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Waits for the end of a process that is not a child.
pub struct Watch(AsyncFd<rustix::fd::OwnedFd>);

impl Watch {
    /// None when it has ended already.
    pub fn new(pid: u32) -> Option<Self> {
        let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let fd = pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?;
        // SAFETY: the descriptor is owned by the AsyncFd, which nobody takes it out of, so it stays
        // open for as long as it is registered.
        let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        registered.ok().map(Self)
    }

    /// Returns when it has ended; an error when it has not in time.
    pub async fn ended(&self, limit: Duration) -> Result<()> {
        // It stays readable, so nothing has to be cleared.
        let _ready = tokio::time::timeout(limit, self.0.readable()).await??;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_a_process_is_noticed() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let watch = Watch::new(child.id()).unwrap();
        drop(child.stdin.take());
        watch.ended(Duration::from_secs(60)).await.unwrap();
        child.wait().unwrap();
    }
}
