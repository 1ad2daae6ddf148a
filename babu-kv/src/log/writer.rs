//! Appends to the log. Only the leading writer uses it (see `commit.rs`), so that nothing here
//! waits for anyone.

use super::{
    format::{self, SEGMENT_HEADER_BYTES},
    seal::Seal,
    spare::Spares,
};
use crate::{
    error::{Context, Error, Result},
    fs::{File, Fs},
    threads::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};
use std::{path::PathBuf, sync::Arc};
use xxhash_rust::xxh3::Xxh3;

/// An open log segment.
#[derive(Debug)]
pub(crate) struct Segment {
    pub number: u64,
    path: PathBuf,
    file: Arc<dyn File>,
    /// Bytes of zeros that were written ahead.
    pub ahead: u64,
    /// How often it was synced.
    syncs: AtomicU64,
    /// Where its records end, once the log has left it; `u64::MAX` before, and after it was trimmed.
    end: AtomicU64,
    /// Its name is durable.
    named: AtomicBool,
}

impl Segment {
    pub(crate) fn new(number: u64, path: PathBuf, file: Arc<dyn File>, ahead: u64) -> Segment {
        Segment {
            number,
            path,
            file,
            ahead,
            syncs: AtomicU64::new(0),
            end: AtomicU64::new(u64::MAX),
            named: AtomicBool::new(false),
        }
    }

    pub(crate) fn syncs(&self) -> u64 {
        self.syncs.load(Relaxed)
    }

    /// Gives back what was written ahead and is not needed, if the log has left the segment. Only
    /// space depends on it: readers know the end of a segment by its seal or by its records.
    pub(crate) fn trim(&self) {
        let end = self.end.swap(u64::MAX, Relaxed);
        if end < self.ahead {
            let _ = self.file.set_len(end);
        }
    }

    /// Makes its name durable.
    pub(crate) fn make_named(&self, fs: &dyn Fs) -> Result<()> {
        if !self.named.load(Relaxed) {
            let dir = self.path.parent().unwrap_or(&self.path);
            fs.sync_dir(dir).at("sync", dir)?;
            self.named.store(true, Relaxed);
        }
        Ok(())
    }

    /// Makes the segment durable as far as it is written.
    pub(crate) fn sync(&self, fs: &dyn Fs) -> Result<()> {
        self.make_named(fs)?;
        self.trim();
        self.syncs.fetch_add(1, Relaxed);
        self.file.sync_data().at("sync", &self.path)
    }

    /// Removes a segment that holds no batch. What cannot be removed now does no harm: the next
    /// flush after it or the next open removes it.
    pub(crate) fn remove(&self, fs: &dyn Fs) {
        let _ = fs.remove(&self.path);
    }
}

/// A batch on its way into the log.
#[derive(Debug)]
pub(crate) struct Request {
    pub record: Vec<u8>,
    /// Operations in it.
    pub count: u32,
    /// Indices that had been dropped when its own were looked at.
    pub drops: u64,
}

/// A batch that is in the log.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub record: Arc<[u8]>,
    pub sequence: u64,
    pub count: u32,
}

impl Written {
    pub(crate) fn last(&self) -> u64 {
        self.sequence + u64::from(self.count) - 1
    }
}

pub(crate) struct LogWriter {
    segment: Option<Arc<Segment>>,
    /// Bytes written to the segment. Its header goes with the first record.
    offset: u64,
    /// The hash of them.
    hash: Xxh3,
    /// It holds a batch that no earlier segment holds.
    has_own: bool,
    next_sequence: u64,
    /// The current segment cannot be trusted: what is not durable must be repeated in a new one
    /// before anything else is written.
    pub(crate) poisoned: bool,
    gathered: Vec<u8>,
}

/// Sequence numbers must leave room for the kind of an entry beside them in a table.
const SEQUENCE_MAX: u64 = 1 << 60;

impl LogWriter {
    pub(crate) fn new(next_sequence: u64) -> LogWriter {
        LogWriter {
            segment: None,
            offset: 0,
            hash: Xxh3::new(),
            has_own: false,
            next_sequence,
            poisoned: false,
            gathered: Vec::new(),
        }
    }

    pub(crate) fn segment(&self) -> Option<&Arc<Segment>> {
        self.segment.as_ref()
    }

    /// Whether nothing was written to the current segment yet.
    pub(crate) fn is_fresh(&self) -> bool {
        self.segment.is_some() && self.offset == 0
    }

    /// The current segment as it is now; `None` when no batch of its own is in it. Then all that it
    /// holds may be durable elsewhere, which does not tell whether the segment is.
    pub(crate) fn seal(&self) -> Option<Seal> {
        let segment = self.segment.as_ref().filter(|_| self.has_own)?;
        Some(Seal {
            segment: segment.number,
            bytes: self.offset,
            hash: self.hash.digest(),
        })
    }

    /// Nothing more is written to the current segment.
    pub(crate) fn leave(&self) {
        if let Some(segment) = &self.segment {
            segment.end.store(self.offset, Relaxed);
        }
    }

    /// Goes on in another segment. Also gives the one that is left, if it can be sealed.
    pub(crate) fn rotate(&mut self, spares: &Spares) -> Result<(Arc<Segment>, Option<Seal>)> {
        let segment = spares.take(self.segment.as_deref())?;
        let left = self.seal();
        self.leave();
        self.segment = Some(segment.clone());
        self.has_own = false;
        self.offset = 0;
        self.hash.reset();
        Ok((segment, left))
    }

    /// The last number that was given to an operation.
    pub(crate) fn last(&self) -> u64 {
        self.next_sequence - 1
    }

    /// Goes on in another segment that repeats `records`, which are those with numbers after
    /// `durable`. Earlier segments count up to there only.
    pub(crate) fn restart(
        &mut self,
        spares: &Spares,
        fs: &dyn Fs,
        durable: u64,
        records: &[Arc<[u8]>],
    ) -> Result<Arc<Segment>> {
        let mut record = format::restart(durable, records.iter().map(|r| &**r));
        if u32::try_from(record.len()).is_err() {
            return Err(Error::invalid("too many batches are not durable yet"));
        }
        let segment = spares.take(self.segment.as_deref())?;
        format::seal(
            &mut record,
            segment.number,
            SEGMENT_HEADER_BYTES as u64,
            durable,
        );
        let start = [&format::segment_header(segment.number), record.as_slice()].concat();
        if let Err(e) = segment.file.write_at(&start, 0) {
            // What stays of it has no whole record, so that the next open takes it for what it is.
            segment.remove(fs);
            return Err(Error::io("write", &segment.path, e));
        }
        self.poisoned = false;
        self.segment = Some(segment.clone());
        self.has_own = false;
        self.offset = start.len() as u64;
        self.hash.reset();
        self.hash.update(&start);
        Ok(segment)
    }

    /// Numbers and writes the batches, all in one write. `durable` is the highest sequence number
    /// known to be on disk. There must be a segment.
    pub(crate) fn write(
        &mut self,
        first: Request,
        others: Vec<Request>,
        durable: u64,
    ) -> Result<(Written, Vec<Written>)> {
        let Some(segment) = self.segment.clone() else {
            return Err(Error::Closed);
        };
        let mut sequence = self.next_sequence;
        let mut offset = self.offset.max(SEGMENT_HEADER_BYTES as u64);
        let mut place = |request: &mut Request| {
            format::number(&mut request.record, sequence, request.count);
            format::seal(&mut request.record, segment.number, offset, durable);
            offset += request.record.len() as u64;
            sequence += u64::from(request.count);
            sequence - u64::from(request.count)
        };
        let (mut first, mut others) = (first, others);
        let first_sequence = place(&mut first);
        let sequences: Vec<u64> = others.iter_mut().map(&mut place).collect();
        if sequence > SEQUENCE_MAX {
            return Err(Error::invalid(
                "the sequence numbers of this database are used up",
            ));
        }
        if others.is_empty() {
            self.append(&first.record)?;
        } else {
            let mut gathered = std::mem::take(&mut self.gathered);
            gathered.clear();
            gathered.extend_from_slice(&first.record);
            others
                .iter()
                .for_each(|r| gathered.extend_from_slice(&r.record));
            let appended = self.append(&gathered);
            if gathered.capacity() <= 4 << 20 {
                self.gathered = gathered;
            }
            appended?;
        }
        self.next_sequence = sequence;
        let written = |r: Request, sequence| Written {
            record: r.record.into(),
            sequence,
            count: r.count,
        };
        let others = others
            .into_iter()
            .zip(sequences)
            .map(|(r, s)| written(r, s))
            .collect();
        Ok((written(first, first_sequence), others))
    }

    fn append(&mut self, records: &[u8]) -> Result<()> {
        let Some(segment) = &self.segment else {
            return Err(Error::Closed);
        };
        let with_header;
        let bytes = if self.offset == 0 {
            with_header = [&format::segment_header(segment.number), records].concat();
            &with_header
        } else {
            records
        };
        if let Err(e) = segment.file.write_at(bytes, self.offset) {
            // Whatever part was written must not be taken for a record, nor stand before the next
            // one.
            self.poisoned = segment.file.set_len(self.offset).is_err();
            return Err(Error::io("write", &segment.path, e));
        }
        self.has_own = true;
        self.offset += bytes.len() as u64;
        self.hash.update(bytes);
        Ok(())
    }
}
