//! Reading, writing and flushing, as applications ask for it.

use std::sync::atomic::Ordering;

use xtfs_protocol::{Code, Error, Result};

use super::Vfs;
use super::open::is_read_worth_telling;
use crate::data::write::Write;

impl Vfs {
    /// Reads at most `length` bytes; fewer only at the end of the file.
    ///
    /// # Errors
    /// `Invalid` for a handle that is not open for reading; `Corrupt` where stored bytes do not
    /// check; `TimedOut` when an OSD does not answer by the deadline.
    pub async fn read(&self, handle: u64, offset: u64, length: u32) -> Result<Vec<u8>> {
        let file = self.inner.file(handle)?;
        if !file.read {
            return Err(Error::new(Code::Invalid, "not open for reading"));
        }
        let bytes = self.inner.read(&file, offset, length).await?;
        if !bytes.is_empty() && self.inner.access_times.load(Ordering::Relaxed) {
            let mut state = file.inode.state.lock();
            let now = self.inner.session.env.now();
            if state
                .attr
                .is_some_and(|attr| is_read_worth_telling(&attr, now))
            {
                state.pending.read_at = Some(now);
            }
        }
        Ok(bytes)
    }

    /// Writes when that needs no waiting; `None` when [`Vfs::write`] has to be awaited.
    ///
    /// # Errors
    /// As [`Vfs::write`].
    #[must_use]
    pub fn write_now(&self, handle: u64, write: Write<'_>) -> Option<Result<u32>> {
        let file = match self.writable(handle) {
            Ok(file) => file,
            Err(error) => return Some(Err(error)),
        };
        self.inner.write_now(&file, write)
    }

    /// Writes all of the bytes, behind the cache: they are sent within seconds, at
    /// [`Vfs::flush`] or [`Vfs::fsync`].
    ///
    /// # Errors
    /// `TooLarge`; an error of an earlier write that could not be sent, once per handle;
    /// `TimedOut` when unsent bytes found no room until the deadline.
    pub async fn write(&self, handle: u64, write: Write<'_>) -> Result<u32> {
        let file = self.writable(handle)?;
        self.inner.write(&file, write).await
    }

    /// Sends what was written and tells the MRC: what a close of the file waits for.
    ///
    /// # Errors
    /// What could not be sent, once per handle.
    pub async fn flush(&self, handle: u64) -> Result<()> {
        let file = self.inner.file(handle)?;
        let outcome = self.inner.flush_inode(&file.inode).await;
        file.take_error()?;
        outcome
    }

    /// Makes everything about the file durable: bytes on the OSDs' disks, then size and times at
    /// the MRC.
    ///
    /// # Errors
    /// What could not be made durable; errors of earlier writes once per handle.
    pub async fn fsync(&self, handle: u64) -> Result<()> {
        let file = self.inner.file(handle)?;
        let outcome = self.inner.sync_inode(&file.inode).await;
        file.take_error()?;
        outcome
    }

    /// Makes every change of names and attributes so far durable.
    ///
    /// # Errors
    /// The MRC could not do it or did not answer.
    pub async fn sync(&self) -> Result<()> {
        let inner = &self.inner;
        let told = *inner.names_told.lock();
        inner.session.sync().await?;
        let mut names_told = inner.names_told.lock();
        if *names_told == told {
            *names_told = None;
        }
        if told.is_some_and(|(restarts, _)| restarts != inner.session.restarts()) {
            let text = "the MRC's machine restarted: changes of names may be lost";
            tracing::error!("{text}");
            return Err(Error::new(Code::Io, text));
        }
        Ok(())
    }

    fn writable(&self, handle: u64) -> Result<std::sync::Arc<super::open::File>> {
        let file = self.inner.file(handle)?;
        if file.write {
            Ok(file)
        } else {
            Err(Error::new(Code::Invalid, "not open for writing"))
        }
    }
}
