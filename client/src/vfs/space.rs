//! Preallocation, holes, copying.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use xtfs_layout::{Span, spans};
use xtfs_protocol::ids::ObjectId;
use xtfs_protocol::object::{ObjectOp, ObjectReply};
use xtfs_protocol::{Code, Error, Result};

use super::inode::Access;
use super::open::File;
use super::{Inner, Vfs};
use crate::data::access::{Need, unexpected_from_osd};
use crate::data::write::Write;
use crate::session::within;

/// Largest size of a file.
const SIZE_MAX: u64 = i64::MAX as u64;
/// Bytes that one request to copy moves at most.
const COPY_MAX: u64 = 16 << 20;
/// Bytes that are read and written at a time while copying.
const COPY_STEP: u64 = 1 << 20;
/// Objects that one search for data or a hole looks at; what lies behind counts as data.
const SEEK_OBJECTS_MAX: usize = 64;

/// What to do with a range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocate {
    /// Make the file at least as long as the range's end, unless the size is to be kept.
    Extend {
        /// The size stays.
        keep_size: bool,
    },
    /// Make the range a hole; the size stays.
    PunchHole,
    /// Make the range read as zeros.
    ZeroRange {
        /// The size stays.
        keep_size: bool,
    },
}

/// What to look for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that holds data.
    Data,
    /// The next byte that lies in a hole; the end of the file is one.
    Hole,
}

impl Vfs {
    /// Allocates, zeroes or frees a range. `kill_set_id`: the caller may not keep set-id bits.
    ///
    /// # Errors
    /// `Invalid` for an empty range, `TooLarge`, and what a write can say.
    pub async fn fallocate(
        &self,
        handle: u64,
        offset: u64,
        length: u64,
        what: Allocate,
        kill_set_id: bool,
    ) -> Result<()> {
        let inner = &self.inner;
        let file = inner.file(handle)?;
        if length == 0 || !file.write {
            return Err(Error::new(Code::Invalid, "fallocate"));
        }
        let end = offset.saturating_add(length);
        if end > SIZE_MAX {
            return Err(Error::new(Code::TooLarge, "fallocate"));
        }
        if kill_set_id {
            inner.kill_set_id(&file.inode).await?;
        }
        let extend = match what {
            Allocate::Extend { keep_size } => !keep_size,
            Allocate::PunchHole => {
                inner.punch(&file, offset, end).await?;
                false
            }
            Allocate::ZeroRange { keep_size } => {
                inner.punch(&file, offset, end).await?;
                !keep_size
            }
        };
        if extend {
            inner.extend(&file, end).await?;
        }
        Ok(())
    }

    /// Where the next data or hole at or behind `offset` begins.
    ///
    /// # Errors
    /// `NoDevice`-like `ENXIO` is told as `None`: nothing follows.
    pub async fn seek(&self, handle: u64, offset: u64, what: Seek) -> Result<Option<u64>> {
        let inner = &self.inner;
        let file = inner.file(handle)?;
        let deadline = inner.session.deadline();
        let size = file.inode.state.lock().size();
        if offset >= size {
            return Ok(None);
        }
        inner.flush_data(&file.inode, deadline).await?;
        let layout = file.inode.access()?.layout();
        let mut at = offset;
        for span in spans(&layout, offset, size - offset).take(SEEK_OBJECTS_MAX) {
            let end = span.offset + span.length;
            let (ranges, _) = inner
                .fetch_ranges(&file.inode, span.object, (span.offset, end), deadline)
                .await?;
            let base = at - u64::from(span.offset);
            let mut known = span.offset;
            for range in ranges {
                if what == Seek::Data {
                    return Ok(Some(base + u64::from(range.offset.max(known))));
                }
                if range.offset > known {
                    break;
                }
                known = known.max(range.offset.saturating_add(range.length));
            }
            if what == Seek::Hole && known < end {
                return Ok(Some(base + u64::from(known)));
            }
            at += u64::from(span.length);
        }
        Ok(match what {
            Seek::Data if at >= size => None,
            Seek::Data => Some(at),
            Seek::Hole => Some(size),
        })
    }

    /// Copies bytes between two open files; says how many, which may be fewer than asked for.
    ///
    /// # Errors
    /// What reading or writing can say; `Invalid` for ranges of one file that overlap.
    pub async fn copy_file_range(
        &self,
        (from, from_offset): (u64, u64),
        (to, to_offset): (u64, u64),
        length: u64,
        kill_set_id: bool,
    ) -> Result<u64> {
        let length = length.min(COPY_MAX);
        let (source, target) = (self.inner.file(from)?, self.inner.file(to)?);
        if source.inode.ino == target.inode.ino && from_offset.abs_diff(to_offset) < length {
            return Err(Error::new(Code::Invalid, "ranges overlap"));
        }
        let mut done = 0;
        while done < length {
            let step = u32::try_from((length - done).min(COPY_STEP)).unwrap_or(0);
            let data = self.read(from, from_offset + done, step).await?;
            if data.is_empty() {
                break;
            }
            let write = Write {
                offset: to_offset.saturating_add(done),
                exact: true,
                data: &data,
                kill_set_id,
            };
            match self.write(to, write).await {
                Ok(written) => done += u64::from(written),
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

impl Inner {
    /// Makes the file end at `end` or behind it. Others may have made it longer than is known
    /// here, so this is told like the end of a write, which never cuts anything.
    async fn extend(self: &Arc<Self>, file: &File, end: u64) -> Result<()> {
        let inode = &*file.inode;
        let deadline = self.session.deadline();
        {
            let _turn = within(deadline, inode.turn.read()).await?;
            let mut state = inode.state.lock();
            if end <= state.size() {
                return Ok(());
            }
            state.pending.end = end;
            state.pending.written_at = Some(self.session.env.now());
            state.changes += 1;
            state
                .dirty_since
                .get_or_insert_with(tokio::time::Instant::now);
        }
        self.note_dirty(inode);
        let told = self.flush_inode(inode).await;
        file.take_error()?;
        told
    }

    /// Makes `start..end`, as far as it lies in the file, a hole.
    async fn punch(self: &Arc<Self>, file: &File, start: u64, end: u64) -> Result<()> {
        let inode = &*file.inode;
        let deadline = self.session.deadline();
        let layout = inode.access()?.layout();
        let end = end.min(inode.state.lock().size());
        let _turn = within(deadline, inode.turn.write()).await?;
        let punched: Vec<Span> = spans(&layout, start, end.saturating_sub(start)).collect();
        let results: Vec<Result<Option<(usize, i64, u64)>>> = stream::iter(punched.clone())
            .map(|span| async move {
                let position = layout.position(span.object, 0);
                let build = |access: &Access| {
                    let op = ObjectOp::PunchHole {
                        capability: access.capability.clone(),
                        object: ObjectId {
                            file: access.file(),
                            object: span.object,
                            shard: 0,
                        },
                        offset: span.offset,
                        length: span.length,
                    };
                    (position, op)
                };
                match self
                    .object(inode, Need::Write, deadline, Bytes::new(), build)
                    .await
                {
                    Ok((
                        ObjectReply::Written {
                            allocated_delta,
                            boot,
                        },
                        _,
                    )) => Ok(Some((position, allocated_delta, boot))),
                    Ok(_) => Err(unexpected_from_osd()),
                    Err(error) if error.code == Code::NotFound => Ok(None),
                    Err(error) => Err(error),
                }
            })
            .buffer_unordered(8)
            .collect()
            .await;
        let now = self.session.env.now();
        let mut state = inode.state.lock();
        let mut outcome = Ok(());
        for result in results {
            match result {
                Ok(Some((position, delta, boot))) => state.arrived(position, delta, boot),
                Ok(None) => {}
                Err(error) => outcome = Err(error),
            }
        }
        if outcome.is_ok() {
            for span in punched {
                inode.edit(&mut state, span.object, |buffer| {
                    buffer.forget(span.offset, span.offset + span.length);
                });
            }
        } else {
            // Some of it is a hole now: the OSDs know.
            inode.evict_clean(&mut state);
        }
        state.changes += 1;
        state.pending.written_at = Some(now);
        state
            .dirty_since
            .get_or_insert_with(tokio::time::Instant::now);
        drop(state);
        self.note_dirty(inode);
        outcome
    }
}
