//! Reading: from the cache, the rest from the OSDs.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;
use xtfs_layout::{Layout, Span, spans};
use xtfs_protocol::ids::ObjectId;
use xtfs_protocol::meta::{Caller, MetaOp};
use xtfs_protocol::object::{DataRange, ObjectOp, ObjectReply};
use xtfs_protocol::{Code, Error, Result};

use super::access::Need;
use crate::session::within;
use crate::vfs::Inner;
use crate::vfs::inode::{Access, Inode};
use crate::vfs::open::File;

/// Fetches begin and end at multiples of this many bytes where that costs nothing.
const FETCH_ALIGN: u32 = 4096;

impl Inner {
    /// Reads at most `length` bytes; fewer only at the end of the file.
    pub(crate) async fn read(
        self: &Arc<Self>,
        file: &File,
        offset: u64,
        length: u32,
    ) -> Result<Vec<u8>> {
        let deadline = self.session.deadline();
        let inode = &*file.inode;
        self.know_size(inode).await?;
        let size = inode.state.lock().size();
        if offset >= size || length == 0 {
            return Ok(Vec::new());
        }
        let length = u64::from(length).min(size - offset);
        let layout = inode.access()?.layout();
        let mut out = vec![0; usize::try_from(length).unwrap_or(0)];
        if file.direct {
            self.flush_data(inode, deadline).await?;
        }
        let ahead = file.note_read(offset, length, self.ahead_max());
        if ahead > offset + length && !file.direct {
            self.fetch_ahead(inode, &layout, offset + length, ahead.min(size));
        }
        let mut rest = out.as_mut_slice();
        for span in spans(&layout, offset, length) {
            let (now, later) = rest.split_at_mut(rest.len().min(span.length as usize));
            rest = later;
            if file.direct {
                let end = span.offset + span.length;
                let bytes = self
                    .fetch(inode, span.object, (span.offset, end), deadline)
                    .await?;
                copy(&bytes, now);
            } else {
                let bound = object_end(&layout, span.object, ahead.min(size));
                self.read_span(inode, span, bound, now, deadline).await?;
            }
        }
        self.inodes.evict();
        Ok(out)
    }

    /// Where others may have changed the size, asks for it.
    async fn know_size(&self, inode: &Inode) -> Result<()> {
        if !self.is_alone() && self.left(&inode.state.lock()).is_zero() {
            let mark = self.mark();
            let op = MetaOp::Getattr { ino: inode.ino };
            let entry = self.entry(&Caller::root(), op).await?;
            self.absorb(&mut inode.state.lock(), entry, mark);
        }
        Ok(())
    }

    fn ahead_max(&self) -> u64 {
        let cache = self.options.cache_bytes as u64;
        self.options.read_ahead_max.min(cache / 4)
    }

    /// Reads a part of one object; what is missing is fetched, at most up to `bound`.
    async fn read_span(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        span: Span,
        bound: u32,
        out: &mut [u8],
        deadline: Instant,
    ) -> Result<()> {
        let end = span.offset + span.length;
        loop {
            let told = inode.settled.notified();
            tokio::pin!(told);
            told.as_mut().enable();
            let (gap, changes) = {
                let mut state = inode.state.lock();
                let changes = state.changes;
                let (gap, fetching) = match state.objects.get(&span.object) {
                    None => (Some((span.offset, end)), false),
                    Some(buffer) => (buffer.missing(span.offset, end), buffer.fetching),
                };
                match gap {
                    None => {
                        inode.edit(&mut state, span.object, |buffer| {
                            buffer.read(span.offset, out);
                        });
                        return Ok(());
                    }
                    Some(gap) => ((!fetching).then_some(gap), changes),
                }
            };
            let Some(gap) = gap else {
                within(deadline, told).await?;
                continue;
            };
            let start = gap.0 - gap.0 % FETCH_ALIGN;
            let stop = gap.1.next_multiple_of(FETCH_ALIGN).max(bound);
            let limit = bound.max(gap.1);
            let bytes = self
                .fetch(inode, span.object, (start, stop.min(limit)), deadline)
                .await?;
            let skip = (span.offset.max(start) - start) as usize;
            let to = (span.offset.max(start) - span.offset) as usize;
            copy(
                bytes.get(skip..).unwrap_or(&[]),
                out.get_mut(to..).unwrap_or(&mut []),
            );
            let mut state = inode.state.lock();
            let current = state.changes == changes;
            inode.edit(&mut state, span.object, |buffer| {
                if current {
                    buffer.fill(start, &bytes);
                }
                // What was written meanwhile, and what was known before, wins.
                buffer.read(span.offset, out);
            });
            return Ok(());
        }
    }

    /// Starts fetching the objects of a byte range that are not there yet.
    fn fetch_ahead(self: &Arc<Self>, inode: &Arc<Inode>, layout: &Layout, from: u64, to: u64) {
        for span in spans(layout, from, to.saturating_sub(from)) {
            // An object that the reader is in the middle of is fetched by the reader itself.
            if span.offset != 0 {
                continue;
            }
            // Where too many fetches wait already, the reader fetches by itself, so that an OSD
            // that is gone holds up nobody who reads from the others.
            let Ok(place) = Arc::clone(&self.fetchers).try_acquire_owned() else {
                return;
            };
            let changes = {
                let mut state = inode.state.lock();
                if state.objects.contains_key(&span.object) {
                    continue;
                }
                inode.edit(&mut state, span.object, |buffer| buffer.fetching = true);
                state.changes
            };
            let fetching = Fetching {
                inode: Arc::clone(inode),
                object: span.object,
            };
            let end = object_end(layout, span.object, inode.state.lock().size());
            let inner = Arc::clone(self);
            self.tasks.spawn(async move {
                let deadline = inner.session.deadline();
                let _place = place;
                let inode = &fetching.inode;
                match inner.fetch(inode, span.object, (0, end), deadline).await {
                    Ok(bytes) => {
                        let mut state = inode.state.lock();
                        if state.changes == changes {
                            inode.edit(&mut state, span.object, |buffer| buffer.fill(0, &bytes));
                        }
                    }
                    // The reader asks again and gets the error itself.
                    Err(error) => tracing::debug!(ino = inode.ino, %error, "read-ahead failed"),
                }
                inner.inodes.evict();
            });
        }
    }

    /// Bytes of an object from its OSD, holes as zeros.
    pub(crate) async fn fetch(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        object: u64,
        (start, end): (u32, u32),
        deadline: Instant,
    ) -> Result<Bytes> {
        let length = end.saturating_sub(start);
        let (ranges, payload) = self
            .fetch_ranges(inode, object, (start, end), deadline)
            .await?;
        if let [range] = ranges.as_slice()
            && range.offset == start
            && range.length == length
            && payload.len() == length as usize
        {
            return Ok(payload);
        }
        let mut out = vec![0; length as usize];
        let mut rest = &payload[..];
        for range in ranges {
            let wrong = || Error::new(Code::Protocol, format!("osd: ranges of object {object}"));
            let piece = rest.split_at_checked(range.length as usize);
            let (now, later) = piece.ok_or_else(wrong)?;
            rest = later;
            let at = range.offset.checked_sub(start).ok_or_else(wrong)? as usize;
            out.get_mut(at..)
                .and_then(|out| out.get_mut(..now.len()))
                .ok_or_else(wrong)?
                .copy_from_slice(now);
        }
        Ok(out.into())
    }

    /// The pieces of an object that hold data, as its OSD knows them.
    pub(crate) async fn fetch_ranges(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        object: u64,
        (start, end): (u32, u32),
        deadline: Instant,
    ) -> Result<(Vec<DataRange>, Bytes)> {
        let build = |access: &Access| {
            let op = ObjectOp::Read {
                capability: access.capability.clone(),
                object: ObjectId {
                    file: access.file(),
                    object,
                    shard: 0,
                },
                offset: start,
                length: end.saturating_sub(start),
            };
            (access.layout().position(object, 0), op)
        };
        match self
            .object(inode, Need::Read, deadline, Bytes::new(), build)
            .await
        {
            Ok((ObjectReply::Data { ranges }, payload)) => Ok((ranges, payload)),
            Ok(_) => Err(Error::new(Code::Protocol, "osd: unexpected kind of answer")),
            Err(error) if error.code == Code::NotFound => Ok((Vec::new(), Bytes::new())),
            Err(error) => {
                tracing::error!(ino = inode.ino, object, start, end, %error, "could not read");
                Err(error)
            }
        }
    }
}

/// The end of an object's bytes in a file that ends at `size`.
fn object_end(layout: &Layout, object: u64, size: u64) -> u32 {
    let start = object.saturating_mul(u64::from(layout.object_size));
    u32::try_from(size.saturating_sub(start))
        .unwrap_or(u32::MAX)
        .min(layout.object_size)
}

fn copy(from: &[u8], to: &mut [u8]) {
    let length = from.len().min(to.len());
    to[..length].copy_from_slice(&from[..length]);
}

/// A read-ahead on its way: readers wait for it, so it always ends.
struct Fetching {
    inode: Arc<Inode>,
    object: u64,
}

impl Drop for Fetching {
    fn drop(&mut self) {
        let mut state = self.inode.state.lock();
        self.inode
            .edit(&mut state, self.object, |buffer| buffer.fetching = false);
        drop(state);
        self.inode.settled.notify_waiters();
    }
}
