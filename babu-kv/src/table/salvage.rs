//! What can still be read of a table that does not check.
//!
//! Where the index can be read, it says where the blocks are, and each is tried by itself. Where it
//! cannot, blocks are found by their checksums alone: it covers the offset of a block, so that
//! nothing else in a file matches by chance. Blocks of the index are not taken for data, because no
//! entry has the number 0.

use super::{
    Tables,
    block::Block,
    block_cursor::BlockCursor,
    codec::Dictionary,
    format::{self, CONTENT_BYTES_MAX, FOOTER_BYTES, Footer, Handle, TRAILER_BYTES},
    index::IndexCursor,
    reader::{Reader, Reading},
};
use crate::{
    error::{Context, Result},
    fs::{File, Open},
    iter::Entry,
    keys::{INDEX_BYTES, RangeTombstone},
    manifest::read_file,
    slice::Value,
};
use std::{path::PathBuf, sync::Arc};
use xxhash_rust::xxh3::Xxh3;

/// A part of a table that is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    pub offset: u64,
    pub what: String,
    /// Whether entries or deletions are lost with it.
    pub entries: bool,
    /// Full keys between which entries are lost, as far as that is known.
    pub after: Option<Vec<u8>>,
    pub before: Option<Vec<u8>>,
}

/// The readable part of a table.
pub(crate) struct Salvaged {
    pub path: PathBuf,
    file: Arc<dyn File>,
    dictionary: Option<Dictionary>,
    blocks: Vec<Handle>,
    pub tombstones: Vec<RangeTombstone>,
    /// The first key that is left.
    pub first_key: Option<Vec<u8>>,
    pub entries: u64,
    pub sequence_max: u64,
    /// Highest index number in its keys.
    pub index_max: u32,
    pub lost: Vec<Lost>,
    /// Where the entry of the next readable block ends the range of lost keys.
    open_losses: usize,
    last_key: Vec<u8>,
}

/// Blocks are at most this long when they are sought by checksum, or twice as long as the longest
/// found so far.
const SOUGHT_BYTES: usize = 64 << 10;

/// Reads all of the table `number`; an error when it cannot even be opened.
pub(crate) fn salvage(tables: &Arc<Tables>, number: u64) -> Result<Salvaged> {
    let path = tables.path(number);
    let file = tables.fs.open(&path, Open::Read).at("open", &path)?;
    let size = file.len().at("measure", &path)?;
    let mut salvaged = Salvaged {
        path,
        file,
        dictionary: None,
        blocks: Vec::new(),
        tombstones: Vec::new(),
        first_key: None,
        entries: 0,
        sequence_max: 0,
        index_max: 0,
        lost: Vec::new(),
        open_losses: 0,
        last_key: Vec::new(),
    };
    let reader = Reader::open(tables.clone(), number, size);
    match reader.and_then(|reader| Ok((handles(&reader)?, reader))) {
        Ok((handles, reader)) => salvaged.take_by_index(handles, reader),
        Err(_) => salvaged.take_by_checksum(&*tables.fs)?,
    }
    if salvaged.lost.is_empty() {
        salvaged.lost.push(Lost {
            offset: size,
            what: "what leads to the entries; no entry is lost".into(),
            entries: false,
            after: None,
            before: None,
        });
    }
    for tombstone in &salvaged.tombstones {
        salvaged.sequence_max = salvaged.sequence_max.max(tombstone.sequence);
        for key in [&tombstone.from, &tombstone.to] {
            let index = crate::keys::index_of(key).unwrap_or(0);
            salvaged.index_max = salvaged.index_max.max(index);
        }
    }
    Ok(salvaged)
}

/// Where the index says that blocks are.
fn handles(reader: &Reader) -> Result<Vec<Handle>> {
    let mut index = IndexCursor::default();
    let mut handles = Vec::new();
    let mut place = index.first(reader, Reading::Fresh)?;
    while let Some(at) = place {
        handles.push(at.handle);
        place = index.next(reader, Reading::Fresh)?;
    }
    Ok(handles)
}

impl Salvaged {
    fn take_by_index(&mut self, handles: Vec<Handle>, reader: Reader) {
        let all = crate::keys::Range::all();
        self.tombstones = reader.tombstones().within(&all, u64::MAX).collect();
        self.dictionary = reader.into_dictionary();
        for handle in handles {
            if let Err(what) = self.take(handle) {
                self.lose(handle.offset, what);
            }
        }
    }

    fn take_by_checksum(&mut self, fs: &dyn crate::fs::Fs) -> Result<()> {
        let bytes = read_file(fs, &self.path)?;
        let footer = bytes.len().checked_sub(FOOTER_BYTES);
        let footer = footer.and_then(|at| Footer::decode(&bytes[at..]).ok());
        let data_end = footer.map_or(u64::MAX, |footer| footer.tombstones.offset);
        self.dictionary = find_dictionary(&bytes, footer.map_or(0, |f| f.dictionary.offset));
        let (mut at, mut longest) = (0, SOUGHT_BYTES / 2);
        let mut after_data = None;
        let mut gap = None;
        while at + TRAILER_BYTES <= bytes.len() && (at as u64) < data_end {
            let Some(length) = stored_length(&bytes, at, longest.saturating_mul(2)) else {
                gap.get_or_insert(at);
                at += 1;
                continue;
            };
            longest = longest.max(length);
            let handle = Handle {
                offset: at as u64,
                length: length as u32,
            };
            if let Some(from) = gap.take() {
                self.lose(from as u64, "bytes that do not check".into());
                after_data = None;
            }
            match self.take(handle) {
                Ok(()) => after_data = None,
                Err(_) => {
                    after_data.get_or_insert(handle);
                }
            }
            at += length;
        }
        if let Some(from) = gap {
            self.lose(from as u64, "bytes that do not check".into());
        }
        let tombstones = footer.map(|f| f.tombstones).or(after_data);
        let tombstones = tombstones.and_then(|handle| self.deleted_ranges(handle));
        match tombstones {
            Some(tombstones) => self.tombstones = tombstones,
            None => {
                let what = "which ranges it deletes; keys in them may be back";
                self.lose(bytes.len() as u64, what.into());
            }
        }
        Ok(())
    }

    fn deleted_ranges(&self, handle: Handle) -> Option<Vec<RangeTombstone>> {
        let stored = self.stored(handle).ok()?;
        let content = format::load(&stored, handle.offset, None).ok()?;
        let tombstones = format::decode_tombstones(&content);
        let sound = |t: &RangeTombstone| {
            t.from < t.to && t.from.len() >= INDEX_BYTES && t.to.len() >= INDEX_BYTES
        };
        tombstones.filter(|all| all.iter().all(|t| sound(t) && t.sequence > 0))
    }

    fn lose(&mut self, offset: u64, what: String) {
        self.lost.push(Lost {
            offset,
            what,
            entries: true,
            after: (!self.last_key.is_empty()).then(|| self.last_key.clone()),
            before: None,
        });
        self.open_losses += 1;
    }

    /// Takes a block of entries in, or says what is wrong with it.
    fn take(&mut self, handle: Handle) -> Result<(), String> {
        let mut block = self.block(handle)?;
        let first = block.entry().ok_or("the block is empty")?;
        if self.blocks.is_empty() && self.first_key.is_none() {
            self.first_key = Some(first.key.to_vec());
        } else if first.key <= self.last_key.as_slice() {
            return Err("the block begins before the one before it ends".into());
        }
        let first_key = first.key.to_vec();
        while let Some(entry) = block.entry() {
            self.entries += 1;
            self.sequence_max = self.sequence_max.max(entry.sequence);
            let index = crate::keys::index_of(entry.key).unwrap_or(0);
            self.index_max = self.index_max.max(index);
            self.last_key = entry.key.to_vec();
            if !block.next()? {
                break;
            }
        }
        let from = self.lost.len() - self.open_losses.min(self.lost.len());
        for lost in &mut self.lost[from..] {
            lost.before = Some(first_key.clone());
        }
        self.open_losses = 0;
        self.blocks.push(handle);
        Ok(())
    }

    fn stored(&self, handle: Handle) -> Result<Vec<u8>, String> {
        let length = handle.length as usize;
        if length > CONTENT_BYTES_MAX {
            return Err("the length of the block is out of range".into());
        }
        let mut stored = vec![0; length];
        let read = self.file.read_exact_at(&mut stored, handle.offset);
        read.map_err(|e| format!("the block cannot be read: {e}"))?;
        Ok(stored)
    }

    /// The entries of a block, at the first of them; the error says what is wrong with it.
    fn block(&self, handle: Handle) -> Result<BlockCursor, String> {
        let stored = self.stored(handle)?;
        let content = format::load(&stored, handle.offset, self.dictionary.as_ref())?;
        let block = Block::new(content).ok_or("the restarts of the block do not fit")?;
        let mut cursor = BlockCursor::default();
        cursor.enter(block);
        let mut is_there = cursor.first()?;
        while let Some(entry) = cursor.entry().filter(|_| is_there) {
            if entry.sequence == 0 || entry.key.len() < INDEX_BYTES {
                return Err("the block does not hold entries".into());
            }
            is_there = cursor.next()?;
        }
        cursor.first()?;
        Ok(cursor)
    }

    pub(crate) fn cursor(self) -> Result<SalvageCursor> {
        let mut cursor = SalvageCursor {
            salvaged: self,
            next_block: 0,
            block: None,
        };
        cursor.enter()?;
        Ok(cursor)
    }
}

/// Walks the readable entries of a table in order of their keys.
pub(crate) struct SalvageCursor {
    salvaged: Salvaged,
    next_block: usize,
    block: Option<BlockCursor>,
}

impl SalvageCursor {
    fn enter(&mut self) -> Result<()> {
        self.block = match self.salvaged.blocks.get(self.next_block) {
            Some(handle) => {
                let block = self.salvaged.block(*handle);
                let ill =
                    |what: String| crate::Error::corrupt(&self.salvaged.path, handle.offset, what);
                Some(block.map_err(ill)?)
            }
            None => None,
        };
        self.next_block += 1;
        Ok(())
    }

    pub(crate) fn next(&mut self) -> Result<()> {
        // The block was walked to its end before.
        match self.block.as_mut().map(BlockCursor::next) {
            Some(Ok(false)) => self.enter(),
            _ => Ok(()),
        }
    }

    pub(crate) fn entry(&self) -> Option<(Entry<'_>, Value)> {
        let block = self.block.as_ref()?;
        Some((block.entry()?, block.value()))
    }
}

/// The dictionary among the blocks that begin at `from` or later: it is the only one that begins as
/// those of zstd do.
fn find_dictionary(bytes: &[u8], from: u64) -> Option<Dictionary> {
    const MAGIC: [u8; 4] = 0xec30_a437_u32.to_le_bytes();
    let from = usize::try_from(from).ok()?;
    let mut places = (from..bytes.len()).filter(|at| bytes[*at..].starts_with(&MAGIC));
    places.find_map(|at| {
        let length = stored_length(bytes, at, SOUGHT_BYTES)?;
        let content = format::load(&bytes[at..at + length], at as u64, None).ok()?;
        Dictionary::new(&content)
    })
}

/// Bytes of the stored block at `at`, if one of at most `most` bytes is there.
fn stored_length(bytes: &[u8], at: usize, most: usize) -> Option<usize> {
    const TAG_MAX: u8 = 3;
    let end = bytes.len().min(at.saturating_add(most));
    let mut hasher = Xxh3::with_seed(at as u64);
    let mut hashed = at;
    // Only where a tag can be it is worth to look at the sum.
    for tag in at..end.checked_sub(8)? {
        if bytes[tag] > TAG_MAX {
            continue;
        }
        hasher.update(&bytes[hashed..=tag]);
        hashed = tag + 1;
        if crate::coding::u64_at(bytes, hashed) == Some(hasher.digest()) {
            return Some(hashed + 8 - at);
        }
    }
    None
}
