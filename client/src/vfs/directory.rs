//! Listings: pages of names that stay right while entries come and go.
//!
//! The cookie `n` of a handle is the number of entries before it in *this handle's* listing. The
//! handle keeps the pages around the reading position and, for every page, the name it starts
//! behind; a position in a page that was dropped is found again from that name. Memory is bounded
//! by [`PAGES_MAX`] pages and one name a page.

use std::collections::VecDeque;

use parking_lot::Mutex;
use xtfs_protocol::ids::Ino;
use xtfs_protocol::meta::{Caller, DirEntry, MetaOp, MetaReply, Name};
use xtfs_protocol::{Code, Error, Result};

use super::{Found, Mark, Vfs, unexpected};

/// Pages that a handle keeps.
const PAGES_MAX: usize = 8;
/// Entries of the first page and of later ones: small directories cost little, large ones few
/// requests.
const FIRST_PAGE: u32 = 512;
const LATER_PAGE: u32 = 2048;

/// An open directory.
pub(crate) struct Directory {
    ino: Ino,
    /// One reader at a time; a page is fetched outside of it.
    listing: Mutex<Listing>,
}

#[derive(Default)]
struct Listing {
    pages: VecDeque<Page>,
    /// Position and preceding name of every page seen.
    starts: Vec<(u64, Name)>,
    parent: Ino,
}

struct Page {
    start: u64,
    mark: Option<Mark>,
    after: Name,
    entries: Vec<DirEntry>,
    with_attr: bool,
    end: bool,
}

/// A part of a listing.
#[derive(Debug, Clone)]
pub struct Entries {
    /// Position of the first of them; the next position is one more for each.
    pub first: u64,
    /// The entries from the position asked for; empty at the end.
    pub entries: Vec<DirEntry>,
    /// Inode number of the directory's parent.
    pub parent: Ino,
    mark: Option<Mark>,
}

impl Vfs {
    /// Opens a directory for listing.
    ///
    /// # Errors
    /// None yet; permission is checked by the first page.
    pub fn opendir(&self, ino: Ino) -> Result<u64> {
        Ok(self.inner.directories.insert(Directory {
            ino,
            listing: Mutex::default(),
        }))
    }

    /// Closes a directory.
    pub fn releasedir(&self, handle: u64) {
        self.inner.directories.remove(handle);
    }

    /// Entries (without `.` and `..`) from position `from` on, at most `limit` and at most to
    /// the end of a page. Position 0 starts a fresh listing.
    ///
    /// # Errors
    /// `Invalid` for an unknown handle or a position this handle never gave out.
    pub async fn readdir(
        &self,
        caller: &Caller,
        handle: u64,
        from: u64,
        limit: usize,
        with_attr: bool,
    ) -> Result<Entries> {
        let directory = self
            .inner
            .directories
            .get(handle)
            .ok_or_else(|| Error::new(Code::Invalid, format!("no open directory {handle}")))?;
        if from == 0 {
            *directory.listing.lock() = Listing::default();
        }
        let mut from = from;
        let mut fetched = None;
        loop {
            let step = directory
                .listing
                .lock()
                .find(from, limit, with_attr, fetched);
            let (start, after) = match step {
                Step::Have(entries) => return Ok(entries),
                Step::Skip(next) => {
                    from = next;
                    continue;
                }
                Step::Fetch(start, after) => (start, after),
                Step::Unknown => {
                    let text = format!("directory {}: no position {from}", directory.ino);
                    return Err(Error::new(Code::Invalid, text));
                }
            };
            let op = MetaOp::Readdir {
                ino: directory.ino,
                after: after.clone(),
                limit: if start == 0 { FIRST_PAGE } else { LATER_PAGE },
                with_attr,
            };
            let mark = self.inner.mark();
            let MetaReply::Page {
                entries,
                end,
                parent,
            } = self.inner.session.meta(caller, op).await?
            else {
                return Err(unexpected());
            };
            let mut listing = directory.listing.lock();
            listing.parent = parent;
            listing.add(Page {
                start,
                mark: Some(mark),
                after,
                end: end || entries.is_empty(),
                entries,
                with_attr,
            });
            fetched = Some(start);
        }
    }
}

impl Vfs {
    /// An entry of a listing as an inode, when the listing came with attributes.
    #[must_use]
    pub fn listed(&self, entries: &Entries, entry: &DirEntry) -> Option<Found> {
        Some(self.inner.listed(entry.attr?, entries.mark?))
    }
}

enum Step {
    Have(Entries),
    Fetch(u64, Name),
    Skip(u64),
    Unknown,
}

impl Listing {
    /// What to do for position `from`, when the page at `fetched` was fetched just now.
    fn find(&mut self, from: u64, limit: usize, with_attr: bool, fetched: Option<u64>) -> Step {
        let holding = self.pages.iter_mut().find(|page| {
            let end = page.start + page.entries.len() as u64;
            from >= page.start && (from < end || page.end)
        });
        if let Some(page) = holding {
            let skip = usize::try_from(from - page.start).unwrap_or(usize::MAX);
            if page.with_attr || !with_attr || skip >= page.entries.len() {
                return Step::Have(Entries {
                    first: from,
                    entries: page
                        .entries
                        .iter()
                        .skip(skip)
                        .take(limit)
                        .cloned()
                        .collect(),
                    parent: self.parent,
                    mark: page.mark,
                });
            }
            // Attributes are wanted from here on: a new page begins behind the name before, so
            // that no name is missed or told twice.
            let before = skip.checked_sub(1).and_then(|last| page.entries.get(last));
            let after = before.map_or_else(|| page.after.clone(), |entry| entry.name.clone());
            page.entries.truncate(skip);
            page.end = false;
            self.pages.retain(|page| page.start < from);
            self.starts.retain(|(start, _)| *start < from);
            return Step::Fetch(from, after);
        }
        // The last page that starts at or before the position.
        match self.starts.iter().rev().find(|(start, _)| *start <= from) {
            // It has become shorter: what follows it comes next.
            Some((start, _)) if fetched == Some(*start) => {
                let next = self.starts.iter().find(|(next, _)| next > start);
                next.map_or(Step::Unknown, |(next, _)| Step::Skip(*next))
            }
            Some((start, after)) => Step::Fetch(*start, after.clone()),
            None if self.starts.is_empty() && from == 0 => Step::Fetch(0, Name::new()),
            None => Step::Unknown,
        }
    }

    fn add(&mut self, page: Page) {
        let next = page.start + page.entries.len() as u64;
        if self
            .starts
            .last()
            .is_none_or(|(last, _)| *last < page.start)
        {
            self.starts.push((page.start, page.after.clone()));
        }
        if let Some(last) = page.entries.last()
            && !page.end
            && self
                .starts
                .last()
                .is_some_and(|(known, _)| *known <= page.start)
        {
            self.starts.push((next, last.name.clone()));
        }
        self.pages.retain(|other| other.start != page.start);
        self.pages.push_back(page);
        if self.pages.len() > PAGES_MAX {
            self.pages.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtfs_protocol::meta::FileKind;

    fn page(start: u64, after: &str, names: &[&str], with_attr: bool, end: bool) -> Page {
        let entry = |name: &&str| DirEntry {
            name: name.as_bytes().to_vec(),
            ino: 7,
            kind: FileKind::File,
            attr: None,
        };
        Page {
            start,
            mark: None,
            after: after.as_bytes().to_vec(),
            entries: names.iter().map(entry).collect(),
            with_attr,
            end,
        }
    }

    fn names(step: Step) -> Vec<String> {
        match step {
            Step::Have(entries) => entries
                .entries
                .iter()
                .map(|entry| String::from_utf8_lossy(&entry.name).into_owned())
                .collect(),
            _ => panic!("not there"),
        }
    }

    #[test]
    fn the_next_page_continues_behind_the_last_name() {
        let mut listing = Listing::default();
        listing.add(page(0, "", &["a", "b"], false, false));
        assert_eq!(names(listing.find(1, 10, false, None)), ["b"]);
        match listing.find(2, 10, false, None) {
            Step::Fetch(2, after) => assert_eq!(after, b"b"),
            _ => panic!("the second page is not there yet"),
        }
        listing.add(page(2, "b", &["c"], false, true));
        assert_eq!(names(listing.find(2, 10, false, None)), ["c"]);
        assert!(names(listing.find(3, 10, false, None)).is_empty());
    }

    #[test]
    fn asking_for_attributes_midway_neither_misses_nor_repeats_a_name() {
        let mut listing = Listing::default();
        listing.add(page(0, "", &["a", "b", "c"], false, true));
        match listing.find(1, 10, true, None) {
            Step::Fetch(1, after) => assert_eq!(after, b"a"),
            _ => panic!("attributes were not fetched"),
        }
        // "a" is gone meanwhile; the position still means "behind a".
        listing.add(page(1, "a", &["b", "c"], true, true));
        assert_eq!(names(listing.find(1, 10, true, Some(1))), ["b", "c"]);
    }

    #[test]
    fn a_dropped_page_that_became_shorter_is_passed_over() {
        let mut listing = Listing::default();
        listing.add(page(0, "", &["a", "b"], false, false));
        listing.add(page(2, "b", &["c"], false, true));
        listing.pages.clear();
        assert!(matches!(
            listing.find(1, 10, false, None),
            Step::Fetch(0, _)
        ));
        listing.add(page(0, "", &["a"], false, false));
        assert!(matches!(listing.find(1, 10, false, Some(0)), Step::Skip(2)));
        assert!(matches!(
            listing.find(9, 10, false, None),
            Step::Fetch(2, _)
        ));
    }
}
