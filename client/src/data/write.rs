//! Writing into the cache.

use std::sync::Arc;

use tokio::time::Instant;
use xtfs_layout::spans;
use xtfs_protocol::meta::{Caller, FileUpdate, MetaOp, SetAttr};
use xtfs_protocol::{Code, Error, Result};

use crate::session::within;
use crate::vfs::Inner;
use crate::vfs::inode::Inode;
use crate::vfs::open::File;

/// Largest size of a file.
const SIZE_MAX: u64 = i64::MAX as u64;

/// A write as the application asked for it.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// First byte; ignored where the handle appends.
    pub offset: u64,
    /// The offset counts even where the handle appends (a page of a mapping comes back).
    pub exact: bool,
    /// What to write.
    pub data: &'a [u8],
    /// The writer may not keep set-id bits on what it writes to.
    pub kill_set_id: bool,
}

/// Whether what is written may be sent later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delay {
    /// Only if it may.
    Only,
    /// The caller sends it if it may not.
    Maybe,
}

impl Inner {
    /// Writes when that needs no waiting; `None` when it does.
    pub(crate) fn write_now(
        self: &Arc<Self>,
        file: &File,
        write: Write<'_>,
    ) -> Option<Result<u32>> {
        if file.direct || !self.budget.has_room(write.data.len() as u64) {
            return None;
        }
        let inode = &*file.inode;
        let _turn = inode.turn.try_read().ok()?;
        if write.kill_set_id && has_set_id(inode) {
            return None;
        }
        self.insert(file, write, Delay::Only).transpose()
    }

    /// Writes, waiting for room among the dirty bytes.
    pub(crate) async fn write(self: &Arc<Self>, file: &File, write: Write<'_>) -> Result<u32> {
        let deadline = self.session.deadline();
        let inode = &*file.inode;
        self.wait_for_room(write.data.len() as u64, deadline)
            .await?;
        if write.kill_set_id {
            self.kill_set_id(inode).await?;
        }
        let written = self.insert_in_turn(file, write, deadline).await?;
        let written = match written {
            Some(written) => written,
            // Others append as well: the MRC says where.
            None => {
                let exact = Write {
                    offset: self.append(inode, write.data.len() as u64).await?,
                    exact: true,
                    ..write
                };
                let written = self.insert_in_turn(file, exact, deadline).await?;
                written.unwrap_or(0)
            }
        };
        if inode.state.lock().through {
            let sent = self.flush_inode(inode).await;
            file.take_error()?;
            sent?;
        } else if file.direct {
            let sent = self.flush_data(inode, deadline).await;
            file.take_error()?;
            sent?;
        }
        Ok(written)
    }

    async fn insert_in_turn(
        self: &Arc<Self>,
        file: &File,
        write: Write<'_>,
        deadline: Instant,
    ) -> Result<Option<u32>> {
        let _turn = within(deadline, file.inode.turn.read()).await?;
        self.insert(file, write, Delay::Maybe)
    }

    /// Makes room at the end of a file to which others write as well; says where it begins.
    async fn append(self: &Arc<Self>, inode: &Arc<Inode>, length: u64) -> Result<u64> {
        // What this client appended before others looked at the file comes first.
        self.flush_inode(inode).await?;
        let mark = self.mark();
        let op = MetaOp::Update {
            ino: inode.ino,
            update: FileUpdate {
                appended: length,
                size_at_least: 0,
                truncate_epoch: inode.access()?.capability.truncate_epoch,
                allocated_delta: 0,
                written_at: None,
                read_at: None,
            },
        };
        let entry = self.entry(&Caller::root(), op).await?;
        self.absorb_change(&mut inode.state.lock(), entry, mark);
        Ok(entry.attr.size.saturating_sub(length))
    }

    /// Takes set-id bits away, as a write of an unprivileged process does.
    pub(crate) async fn kill_set_id(&self, inode: &Arc<Inode>) -> Result<()> {
        let Some(mode) = killed_mode(inode) else {
            return Ok(());
        };
        let mark = self.mark();
        let op = MetaOp::Setattr {
            ino: inode.ino,
            set: SetAttr {
                mode: Some(mode),
                ..SetAttr::default()
            },
            by_handle: true,
        };
        let entry = self.entry(&Caller::root(), op).await?;
        self.absorb_change(&mut inode.state.lock(), entry, mark);
        Ok(())
    }

    async fn wait_for_room(&self, bytes: u64, deadline: Instant) -> Result<()> {
        loop {
            let told = self.budget.room().notified();
            tokio::pin!(told);
            told.as_mut().enable();
            if self.budget.has_room(bytes) {
                return Ok(());
            }
            self.kick.notify_one();
            within(deadline, told)
                .await
                .map_err(|error| error.within("no room among the unsent bytes"))?;
        }
    }

    /// Puts the bytes into the cache and starts sending objects that are complete.
    /// None when it would have to be sent at once and that is not wanted, and when it belongs at the
    /// end of a file to which others append: their last bytes may not be known here.
    fn insert(
        self: &Arc<Self>,
        file: &File,
        write: Write<'_>,
        delay: Delay,
    ) -> Result<Option<u32>> {
        file.take_error()?;
        let inode = &*file.inode;
        let length = write.data.len() as u64;
        let now = self.session.env.now();
        let mut complete = Vec::new();
        {
            let mut state = inode.state.lock();
            let Some(access) = &state.access else {
                return Err(Error::new(
                    Code::Stale,
                    format!("inode {} is not open", inode.ino),
                ));
            };
            let appends = file.append && !write.exact;
            if state.through && (appends || delay == Delay::Only) {
                return Ok(None);
            }
            let layout = access.layout();
            let offset = if appends { state.size() } else { write.offset };
            if offset.saturating_add(length) > SIZE_MAX {
                return Err(Error::new(Code::TooLarge, format!("inode {}", inode.ino)));
            }
            let mut rest = write.data;
            for span in spans(&layout, offset, length) {
                let (now, later) = rest.split_at(rest.len().min(span.length as usize));
                rest = later;
                let full = inode.edit(&mut state, span.object, |buffer| {
                    buffer.write(span.offset, now);
                    span.offset + span.length == layout.object_size
                        && buffer.is_dirty_within(0, layout.object_size)
                        && buffer.queue()
                });
                if full {
                    complete.push(span.object);
                }
            }
            if length > 0 {
                state.pending.end = state.pending.end.max(offset + length);
                state.pending.written_at = Some(now);
                state.changes += 1;
                state.dirty_since.get_or_insert_with(Instant::now);
            }
        }
        self.note_dirty(inode);
        for object in complete {
            self.send_in_background(inode, object);
        }
        self.inodes.evict();
        Ok(Some(u32::try_from(length).unwrap_or(u32::MAX)))
    }
}

/// Does a write by an unprivileged process have to change the mode?
fn has_set_id(inode: &Inode) -> bool {
    killed_mode(inode).is_some()
}

/// The mode without set-id bits, when there are any that count.
fn killed_mode(inode: &Inode) -> Option<u16> {
    let mode = inode.state.lock().attr?.mode;
    let mut killed = mode & !0o4000;
    if mode & 0o010 != 0 {
        killed &= !0o2000;
    }
    (killed != mode).then_some(killed)
}
