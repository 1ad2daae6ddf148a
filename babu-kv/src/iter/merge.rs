//! Merges sources into one order. Of several entries for a key the one of the newest source counts.
//!
//! The merge stands on the entry that it gave last and leaves it when the next is asked for, so that
//! keys and values are looked at in place and nothing is copied for an entry that is not live.
//!
//! Nearly all entries of a listing come from one block of a table. So keys are compared once for a
//! group of entries: a *run* is those ahead in the group that come before everything else and before
//! the limit. It is walked without looking at other sources, but for what those delete that lie in a
//! stretch where nothing is live.

use super::{Cursor, Entry, Head, Source};
use crate::{
    error::Result,
    keys::{Kind, Range, user_key},
    slice::Value,
    tombstones::Tombstones,
};
use std::cmp::Ordering;

/// Entries that a range tombstone deletes to step over before looking for its end is cheaper.
const COVERED_STEPS_MAX: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Back,
}

impl Direction {
    /// `Less` when `a` is met before `b`.
    pub(crate) fn order(self, a: &[u8], b: &[u8]) -> Ordering {
        match self {
            Direction::Forward => a.cmp(b),
            Direction::Back => b.cmp(a),
        }
    }
}

/// Where a walk ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit<'a> {
    /// Before this key, included.
    Inside(&'a [u8]),
    /// Before this key.
    Outside(&'a [u8]),
    None,
}

/// The newest entry of a key.
pub(crate) struct Newest {
    pub sequence: u64,
    pub kind: Kind,
}

pub(crate) struct Merge {
    /// From new to old.
    sources: Vec<Source>,
    tombstones: Tombstones,
    direction: Direction,
    /// The source of the entry that was given last. Newer ones are past its key.
    current: Option<usize>,
    rival: Rival,
    /// Entries of the run that are left.
    run: usize,
    /// Newer sources may delete entries of the run in stretches where nothing is live.
    is_shaded: bool,
}

/// What comes after the current entry, as long as no other source moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rival {
    /// Another source may have the same key, or none was looked for.
    Unknown,
    /// The source whose next key comes first among the others.
    Source(usize),
    /// The others have nothing more.
    None,
}

impl Merge {
    /// Starts at the near end of `range`. The caller ends it at the far end.
    pub(crate) fn new(
        mut sources: Vec<Source>,
        tombstones: Tombstones,
        range: &Range,
        direction: Direction,
    ) -> Result<Merge> {
        for source in &mut sources {
            match direction {
                Direction::Forward => source.seek(&range.from)?,
                Direction::Back => source.seek_back(range.to.as_deref())?,
            }
        }
        Ok(Merge {
            sources,
            tombstones,
            direction,
            current: None,
            rival: Rival::Unknown,
            run: 0,
            is_shaded: false,
        })
    }

    #[cfg(test)]
    pub(crate) fn sources(&self) -> &[Source] {
        &self.sources
    }

    fn entry(&self) -> Option<Entry<'_>> {
        self.sources.get(self.current?)?.entry()
    }

    /// The key that was given last; empty before the first and after the end.
    pub(crate) fn key(&self) -> &[u8] {
        self.entry().map_or(&[], |entry| entry.key)
    }

    /// The value of the entry that was given last.
    pub(crate) fn value(&self) -> Value {
        match self.current.and_then(|n| self.sources.get(n)) {
            Some(source) => source.value(),
            None => Value::from(&[][..]),
        }
    }

    /// Key, without its index, and value of the entry that was given last.
    #[inline]
    pub(crate) fn borrowed(&self) -> (&[u8], &[u8]) {
        let source = self.current.and_then(|n| self.sources.get(n));
        let entry = source.and_then(|source| Some((source.entry()?.key, source.value_bytes())));
        entry.map_or((&[], &[]), |(key, value)| (user_key(key), value))
    }

    /// Goes on from the key that was given last, in all sources that have it.
    fn leave(&mut self) -> Result<()> {
        let Some(n) = self.current.take() else {
            return Ok(());
        };
        let (newer, older) = self.sources.split_at_mut(n + 1);
        let Some(source) = newer.last_mut() else {
            return Ok(());
        };
        if self.rival == Rival::Unknown {
            let key = source.entry().map_or(&[][..], |entry| entry.key);
            for other in older {
                if matches!(other.head(), Head::Entry(entry) if entry.key == key) {
                    other.advance(self.direction)?;
                }
            }
        }
        source.advance(self.direction)
    }

    /// The key of the next entry or edge of a source.
    fn next_key(&self, n: usize) -> Option<&[u8]> {
        match self.sources.get(n)?.head() {
            Head::Entry(entry) => Some(entry.key),
            Head::Dead(edge) => edge,
            Head::End => None,
        }
    }

    /// Whether a source that moved alone has the next entry again.
    fn leads(&self, n: usize) -> bool {
        let Some(Head::Entry(entry)) = self.sources.get(n).map(Source::head) else {
            return false;
        };
        match self.rival {
            Rival::Unknown => false,
            Rival::None => true,
            Rival::Source(other) => self
                .next_key(other)
                .is_some_and(|key| self.direction.order(entry.key, key).is_lt()),
        }
    }

    fn is_past(&self, key: &[u8], limit: Limit<'_>) -> bool {
        match limit {
            Limit::Inside(end) => self.direction.order(key, end).is_gt(),
            Limit::Outside(end) => self.direction.order(key, end).is_ge(),
            Limit::None => false,
        }
    }

    /// The newest source that has the next key inside `limit`.
    fn pick(&mut self, limit: Limit<'_>) -> Result<Option<usize>> {
        let last = self.current;
        self.leave()?;
        if let Some(n) = last.filter(|n| self.leads(*n)) {
            let key = self.next_key(n);
            return Ok(key.filter(|key| !self.is_past(key, limit)).map(|_| n));
        }
        loop {
            let mut best: Option<(usize, &[u8], bool)> = None;
            let mut rival: Option<(usize, &[u8])> = None;
            for (n, source) in self.sources.iter().enumerate() {
                let (key, dead) = match source.head() {
                    Head::Entry(entry) => (entry.key, false),
                    Head::Dead(Some(edge)) => (edge, true),
                    Head::Dead(None) | Head::End => continue,
                };
                let order = best.map_or(Ordering::Less, |(_, other, other_dead)| {
                    let order = self.direction.order(key, other);
                    // What is at the edge of a dead stretch is not known yet.
                    order.then(dead.cmp(&other_dead).reverse())
                });
                if order.is_lt() {
                    rival = best.map(|(n, key, _)| (n, key));
                    best = Some((n, key, dead));
                } else if rival.is_none_or(|(_, r)| self.direction.order(key, r).is_lt()) {
                    rival = Some((n, key));
                }
            }
            let Some((n, key, dead)) = best else {
                return Ok(None);
            };
            if self.is_past(key, limit) {
                return Ok(None);
            }
            if !dead {
                self.rival = match rival {
                    Some((_, other)) if other == key => Rival::Unknown,
                    Some((other, _)) => Rival::Source(other),
                    None => Rival::None,
                };
                return Ok(Some(n));
            }
            self.sources[n].skip();
        }
    }

    /// The newest entry of the next key, also when it deletes or is deleted by a range tombstone.
    pub(crate) fn next_newest(&mut self) -> Result<Option<Newest>> {
        self.current = self.pick(Limit::None)?;
        Ok(self.entry().map(|entry| Newest {
            sequence: entry.sequence,
            kind: entry.kind,
        }))
    }

    /// Whether a range tombstone deletes the key that was given last, written at `sequence`.
    pub(crate) fn is_covered(&self, sequence: u64) -> bool {
        !self.tombstones.is_empty() && self.tombstones.covering(self.key(), u64::MAX) > sequence
    }

    /// Leaves out what a range tombstone deletes around the key that was given last, as far as
    /// `limit`, where a source knows that nothing in it is newer.
    fn pass_covered(&mut self, limit: Limit<'_>) -> Result<()> {
        let Some(covered) = self.tombstones.around(self.key()) else {
            return Ok(());
        };
        let far_end = match self.direction {
            Direction::Forward => covered.to.as_slice(),
            Direction::Back => covered.from.as_slice(),
        };
        let end = match limit {
            Limit::Inside(end) | Limit::Outside(end)
                if self.direction.order(end, far_end).is_lt() =>
            {
                end
            }
            _ => far_end,
        };
        self.leave()?;
        for source in &mut self.sources {
            source.pass(end, covered.sequence, self.direction)?;
        }
        Ok(())
    }

    /// Goes to the next entry of the run that has a value; `false` when none is left of it.
    #[inline]
    pub(crate) fn glide(&mut self) -> bool {
        self.run > 0 && self.glide_to_live().is_some()
    }

    fn glide_to_live(&mut self) -> Option<()> {
        let (newer, older) = self.sources.split_at_mut(self.current?);
        let block = older.first_mut()?.block_mut()?;
        while self.run > 0 {
            self.run -= 1;
            let is_put = block.glide(self.direction)? == Kind::Put;
            if is_put && !(self.is_shaded && is_hidden(newer, block.entry()?.key)) {
                return Some(());
            }
        }
        None
    }

    /// Forgets the run, because the limit has changed.
    pub(crate) fn stop(&mut self) {
        self.run = 0;
    }

    /// Looks for a run ahead of the current entry of source `n`.
    fn start(&mut self, n: usize, limit: Limit<'_>) {
        if self.rival == Rival::Unknown || !self.tombstones.is_empty() {
            return;
        }
        let rival = match self.rival {
            Rival::Source(other) => self.next_key(other),
            _ => None,
        };
        let is_inside = |key: &[u8]| {
            !self.is_past(key, limit)
                && rival.is_none_or(|rival| self.direction.order(key, rival).is_lt())
        };
        let (newer, older) = self.sources.split_at(n);
        let block = older.first().and_then(Source::block);
        self.run = block.map_or(0, |block| block.run(self.direction, is_inside));
        self.is_shaded = newer.iter().any(Source::is_dead);
    }

    /// Goes to the next key inside `limit` that has a value; false when there is none.
    pub(crate) fn next_live(&mut self, limit: Limit<'_>) -> Result<bool> {
        let mut covered = 0;
        loop {
            if self.glide() {
                return Ok(true);
            }
            self.run = 0;
            let last = self.current;
            let Some(n) = self.pick(limit)? else {
                return Ok(false);
            };
            self.current = Some(n);
            // Where sources take turns, runs are too short to look for.
            if last == Some(n) {
                self.start(n, limit);
            }
            let (newer, older) = self.sources.split_at_mut(n);
            let Some(entry) = older.first().and_then(Source::entry) else {
                continue;
            };
            let sequence = entry.sequence;
            if entry.kind != Kind::Put || is_hidden(newer, entry.key) {
                continue;
            }
            if !self.is_covered(sequence) {
                return Ok(true);
            }
            covered += 1;
            if covered % COVERED_STEPS_MAX == 0 {
                self.pass_covered(limit)?;
            }
        }
    }
}

/// Whether one of these sources deletes `key` in a stretch where nothing is live.
fn is_hidden(newer: &mut [Source], key: &[u8]) -> bool {
    newer.iter_mut().any(|source| source.hides(key))
}
