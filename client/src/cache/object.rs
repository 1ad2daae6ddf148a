//! The cached bytes of one object, clean and dirty.
//!
//! Bytes lie in pages that grow to what they hold. What always holds: dirty and departing bytes
//! are known bytes; what is departing (on its way to an OSD) or dirty is never evicted, because
//! the OSD may still hold older bytes in its place.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::ranges::RangeSet;

/// Largest page in bytes.
const PAGE: u32 = 64 << 10;

/// The cached part of one object.
#[derive(Debug, Default)]
pub(crate) struct ObjectBuffer {
    pages: BTreeMap<u32, Vec<u8>>,
    known: RangeSet,
    dirty: RangeSet,
    departing: RangeSet,
    memory: usize,
    queued: bool,
    /// A read-ahead is on its way.
    pub(crate) fetching: bool,
    /// When it was last used, as a place in the queue for eviction.
    pub(crate) tick: u64,
}

impl ObjectBuffer {
    /// Bytes of memory in use.
    pub(crate) fn memory(&self) -> usize {
        self.memory
    }

    /// Bytes that no OSD has acknowledged.
    pub(crate) fn unsent(&self) -> u64 {
        self.dirty.total() + self.departing.total()
    }

    /// Behind the last byte that no OSD has acknowledged; 0 when there is none.
    pub(crate) fn unsent_end(&self) -> u32 {
        let ends = [&self.dirty, &self.departing].map(|ranges| ranges.iter().last());
        ends.into_iter()
            .flatten()
            .map(|(_, end)| end)
            .max()
            .unwrap_or(0)
    }

    /// Holds nothing and waits for nothing?
    pub(crate) fn is_idle(&self) -> bool {
        self.known.is_empty() && self.departing.is_empty() && !self.fetching
    }

    /// Has bytes to send?
    pub(crate) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Are bytes on their way?
    pub(crate) fn is_departing(&self) -> bool {
        !self.departing.is_empty()
    }

    /// Is all of `start..end` dirty?
    pub(crate) fn is_dirty_within(&self, start: u32, end: u32) -> bool {
        self.dirty.contains(start, end)
    }

    /// From the first to the last byte of `start..end` that is not known.
    pub(crate) fn missing(&self, start: u32, end: u32) -> Option<(u32, u32)> {
        self.known.missing(start, end)
    }

    /// Takes new bytes from the application.
    pub(crate) fn write(&mut self, offset: u32, data: &[u8]) {
        let end = offset.saturating_add(data.len() as u32);
        self.store(offset, data);
        self.known.insert(offset, end);
        self.dirty.insert(offset, end);
    }

    /// Takes bytes that an OSD sent; known bytes win over them.
    pub(crate) fn fill(&mut self, offset: u32, data: &[u8]) {
        let end = offset.saturating_add(data.len() as u32);
        for (low, high) in self.known.gaps(offset, end) {
            let part = (low - offset) as usize..(high - offset) as usize;
            if let Some(part) = data.get(part) {
                self.store(low, part);
            }
        }
        self.known.insert(offset, end);
    }

    /// Copies the known bytes of the range that starts at `offset` over `out`.
    pub(crate) fn read(&self, offset: u32, out: &mut [u8]) {
        let end = offset.saturating_add(out.len() as u32);
        for (low, high) in self.known.within(offset, end) {
            let mut at = low;
            while at < high {
                let within = (at % PAGE) as usize;
                let step = (PAGE - at % PAGE).min(high - at);
                let source = self
                    .pages
                    .get(&(at / PAGE))
                    .and_then(|page| page.get(within..within + step as usize));
                let to = (at - offset) as usize;
                if let (Some(source), Some(target)) = (source, out.get_mut(to..to + step as usize))
                {
                    target.copy_from_slice(source);
                }
                at += step;
            }
        }
    }

    /// Should somebody be asked to send this now? Once until they are on it.
    pub(crate) fn queue(&mut self) -> bool {
        !self.is_departing() && !std::mem::replace(&mut self.queued, true)
    }

    /// Takes every dirty range for sending: dirty becomes departing. Nothing while something is
    /// departing already, so that two versions of a byte never overtake each other.
    pub(crate) fn depart(&mut self) -> Vec<(u32, Bytes)> {
        if self.is_departing() {
            return Vec::new();
        }
        self.queued = false;
        let dirty = std::mem::take(&mut self.dirty);
        let pieces = dirty
            .iter()
            .map(|(low, high)| {
                let mut bytes = vec![0; (high - low) as usize];
                self.read(low, &mut bytes);
                (low, Bytes::from(bytes))
            })
            .collect();
        self.departing = dirty;
        pieces
    }

    /// The departing bytes arrived.
    pub(crate) fn arrived(&mut self) {
        self.departing = RangeSet::default();
    }

    /// The departing bytes are lost: forgets them, except where newer bytes lie over them.
    pub(crate) fn lost(&mut self) {
        let departing = std::mem::take(&mut self.departing);
        for (low, high) in departing.iter() {
            for (low, high) in self.dirty.gaps(low, high) {
                self.known.remove(low, high);
            }
        }
        self.shrink();
    }

    /// Nobody knows whether the departing bytes arrived: they are dirty again.
    pub(crate) fn returned(&mut self) {
        let departing = std::mem::take(&mut self.departing);
        for (low, high) in departing.iter() {
            self.dirty.insert(low, high);
        }
    }

    /// Forgets `start..end`, dirty or not. Nothing may be departing.
    pub(crate) fn forget(&mut self, start: u32, end: u32) {
        self.known.remove(start, end);
        self.dirty.remove(start, end);
        self.shrink();
    }

    /// Forgets what an OSD has as well.
    pub(crate) fn evict(&mut self) {
        self.known = self.dirty.clone();
        for (low, high) in self.departing.iter() {
            self.known.insert(low, high);
        }
        self.shrink();
    }

    /// Gives back pages in which nothing is known.
    fn shrink(&mut self) {
        let known = &self.known;
        self.pages.retain(|&page, _| {
            let start = page * PAGE;
            !known.within(start, start.saturating_add(PAGE)).is_empty()
        });
        self.memory = self.pages.values().map(Vec::capacity).sum();
    }

    fn store(&mut self, offset: u32, data: &[u8]) {
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let within = (at % PAGE) as usize;
            let step = rest.len().min(PAGE as usize - within);
            let (now, later) = rest.split_at(step);
            let page = self.pages.entry(at / PAGE).or_default();
            let before = page.capacity();
            if page.len() < within {
                page.resize(within, 0);
            }
            let over = step.min(page.len() - within);
            let (onto, behind) = now.split_at(over);
            page[within..within + over].copy_from_slice(onto);
            page.extend_from_slice(behind);
            self.memory = self.memory + page.capacity() - before;
            at += step as u32;
            rest = later;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(buffer: &ObjectBuffer, offset: u32, length: usize) -> Vec<u8> {
        let mut out = vec![0; length];
        buffer.read(offset, &mut out);
        out
    }

    #[test]
    fn written_bytes_win_over_fetched_ones() {
        let mut buffer = ObjectBuffer::default();
        buffer.write(PAGE - 2, b"abcd");
        buffer.fill(PAGE - 4, b"........");
        assert_eq!(bytes_of(&buffer, PAGE - 4, 8), b"..abcd..");
        assert_eq!(buffer.unsent(), 4);
        assert_eq!(buffer.missing(PAGE - 4, PAGE + 4), None);
    }

    #[test]
    fn eviction_keeps_what_no_osd_has() {
        let mut buffer = ObjectBuffer::default();
        buffer.fill(0, &[1; 100]);
        buffer.write(10, b"new");
        assert_eq!(buffer.depart(), vec![(10, Bytes::from_static(b"new"))]);
        buffer.evict();
        assert_eq!(buffer.missing(10, 13), None, "on its way, so it stays");
        assert!(buffer.missing(0, 10).is_some());
        buffer.arrived();
        buffer.evict();
        assert!(buffer.is_idle());
        assert_eq!(buffer.memory(), 0);
    }

    #[test]
    fn two_versions_of_a_byte_never_travel_together() {
        let mut buffer = ObjectBuffer::default();
        buffer.write(0, b"one");
        assert_eq!(buffer.depart().len(), 1);
        buffer.write(1, b"two");
        assert!(buffer.depart().is_empty(), "the first is still on its way");
        buffer.arrived();
        assert_eq!(buffer.depart(), vec![(1, Bytes::from_static(b"two"))]);
    }

    #[test]
    fn an_object_that_waits_to_be_sent_is_queued_once() {
        let mut buffer = ObjectBuffer::default();
        buffer.write(0, b"one");
        assert!(buffer.queue());
        buffer.write(0, b"two");
        assert!(!buffer.queue(), "somebody is asked already");
        buffer.depart();
        assert!(!buffer.queue(), "on its way");
        buffer.arrived();
        assert!(buffer.queue());
    }

    #[test]
    fn bytes_whose_sending_was_given_up_are_sent_again() {
        let mut buffer = ObjectBuffer::default();
        buffer.write(0, b"0123456789");
        buffer.depart();
        buffer.write(4, b"xy");
        buffer.returned();
        let whole = Bytes::from_static(b"0123xy6789");
        assert_eq!(buffer.depart(), vec![(0, whole)]);
    }

    #[test]
    fn lost_bytes_are_forgotten_but_newer_ones_stay() {
        let mut buffer = ObjectBuffer::default();
        buffer.write(0, b"0123456789");
        buffer.depart();
        buffer.write(4, b"xy");
        buffer.lost();
        assert_eq!(buffer.missing(4, 6), None);
        assert!(buffer.missing(0, 4).is_some());
        assert_eq!(buffer.unsent(), 2);
    }
}
