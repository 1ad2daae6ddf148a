//! Reads a table. Whatever comes from the file is checked before it is used.

use super::{
    Tables,
    block::Block,
    codec::Dictionary,
    filter::{self, Filter},
    format,
    index::{Index, IndexCursor, Place},
};
use crate::{
    error::{Context, Error, Result},
    fs::{File, Open},
    keys,
    memtable::Found,
    tombstones::Tombstones,
};
use format::{CONTENT_BYTES_MAX, FOOTER_BYTES, Footer, Handle, Properties};
use std::{cell::Cell, fmt, path::PathBuf, sync::Arc};

/// A buffer for stored blocks that is larger is not kept.
const BUFFER_BYTES_KEPT: usize = 256 << 10;

/// Where blocks come from and go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// From the cache if they are there, else from the file and into the cache.
    Keep,
    /// From the cache if they are there, else from the file.
    Pass,
    /// From the file, whatever is in the cache.
    Fresh,
}

/// An open table: the top level of its index, its filter, dictionary and range tombstones stay in
/// memory.
pub(crate) struct Reader {
    tables: Arc<Tables>,
    number: u64,
    path: PathBuf,
    pub(super) file: Arc<dyn File>,
    size: u64,
    index: Index,
    index_levels: u32,
    filter: Filter,
    dictionary: Option<Dictionary>,
    tombstones: Tombstones,
    properties: Properties,
}

impl Reader {
    pub(crate) fn open(tables: Arc<Tables>, number: u64, size: u64) -> Result<Reader> {
        let path = tables.path(number);
        let file = tables.fs.open(&path, Open::Read).at("open", &path)?;
        let length = file.len().at("measure", &path)?;
        if length != size {
            return Err(Error::corrupt(
                &path,
                length.min(size),
                format!("it has {length} bytes and should have {size}"),
            ));
        }
        let footer_at = size
            .checked_sub(FOOTER_BYTES as u64)
            .ok_or_else(|| Error::corrupt(&path, 0, "it is too short"))?;
        let mut footer = [0; FOOTER_BYTES];
        file.read_exact_at(&mut footer, footer_at)
            .at("read", &path)?;
        let footer =
            Footer::decode(&footer).map_err(|what| Error::corrupt(&path, footer_at, what))?;
        let mut reader = Reader {
            tables,
            number,
            path,
            file,
            size,
            index: Index::default(),
            index_levels: footer.index_levels,
            filter: Filter::default(),
            dictionary: None,
            tombstones: Tombstones::default(),
            properties: Properties::default(),
        };
        reader.read_parts(&footer)?;
        Ok(reader)
    }

    fn read_parts(&mut self, footer: &Footer) -> Result<()> {
        let block = self.block(footer.index, Reading::Fresh)?;
        let index = Index::decode(block);
        self.index = index.map_err(|what| self.corrupt(footer.index, what))?;
        let filter = Filter::decode(&self.content(footer.filter)?);
        self.filter =
            filter.ok_or_else(|| self.corrupt(footer.filter, "the filter is not well formed"))?;
        let dictionary = self.content(footer.dictionary)?;
        if !dictionary.is_empty() {
            let prepared = Dictionary::new(&dictionary).ok_or_else(|| {
                self.corrupt(footer.dictionary, "the dictionary is not well formed")
            })?;
            self.dictionary = Some(prepared);
        }
        let tombstones = format::decode_tombstones(&self.content(footer.tombstones)?);
        let tombstones = tombstones.ok_or_else(|| {
            self.corrupt(
                footer.tombstones,
                "the range tombstones are not well formed",
            )
        })?;
        self.tombstones = tombstones.into_iter().collect();
        let properties = Properties::decode(&self.content(footer.properties)?);
        self.properties = properties
            .ok_or_else(|| self.corrupt(footer.properties, "the properties are not well formed"))?;
        Ok(())
    }

    pub(crate) fn tombstones(&self) -> &Tombstones {
        &self.tombstones
    }

    pub(crate) fn properties(&self) -> &Properties {
        &self.properties
    }

    /// The top level of the index.
    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    /// Whether the places of the index are parts of it, and not data blocks.
    pub(crate) fn has_index_parts(&self) -> bool {
        self.index_levels > 1
    }

    /// Bytes that stay in memory as long as the table is open.
    pub(crate) fn bytes(&self) -> usize {
        let dictionary = self.dictionary.as_ref().map_or(0, Dictionary::bytes);
        self.index.bytes() + self.filter.bytes() + dictionary
    }

    /// Keeps nothing but the dictionary.
    pub(crate) fn into_dictionary(self) -> Option<Dictionary> {
        self.dictionary
    }

    pub(crate) fn may_contain(&self, hash: u64) -> bool {
        self.filter.may_contain(hash)
    }

    /// Whether keys of `range` may be in it, as far as its filter can tell: it knows prefixes.
    pub(crate) fn may_share(&self, range: &keys::Range) -> bool {
        let prefixes = &self.properties.prefixes;
        let index = keys::index_of(&range.from);
        let declared = prefixes.iter().find(|(of, _)| Some(*of) == index);
        let prefix = declared.and_then(|(_, bytes)| {
            let prefix = range.from.get(..keys::INDEX_BYTES + usize::from(*bytes))?;
            range.is_within_prefix(prefix).then_some(prefix)
        });
        prefix.is_none_or(|prefix| self.may_contain(filter::hash(prefix)))
    }

    /// The entry of `key`, whose hash is `hash`.
    pub(crate) fn get(&self, key: &[u8], hash: u64) -> Result<Option<Found>> {
        self.get_near(key, hash, &mut None)
    }

    /// [`get`](Reader::get) that looks into `last` before it reads a block, and leaves there the one
    /// that it looked into.
    pub(crate) fn get_near(
        &self,
        key: &[u8],
        hash: u64,
        last: &mut Option<(Handle, Block)>,
    ) -> Result<Option<Found>> {
        if !self.may_contain(hash) {
            return Ok(None);
        }
        let place = IndexCursor::default().seek(self, key, Reading::Keep)?;
        let Some(Place { handle, .. }) = place else {
            return Ok(None);
        };
        let block = match last.take().filter(|(at, _)| *at == handle) {
            Some((_, block)) => block,
            None => self.block(handle, Reading::Keep)?,
        };
        let (_, block) = last.insert((handle, block));
        block.get(key).map_err(|what| self.corrupt(handle, what))
    }

    pub(crate) fn block(&self, handle: Handle, reading: Reading) -> Result<Block> {
        if reading != Reading::Fresh
            && let Some(block) = self.tables.cache.get(self.number, handle.offset)
        {
            return Ok(block);
        }
        let block = Block::new(self.content(handle)?)
            .ok_or_else(|| self.corrupt(handle, "the restarts of the block do not fit"))?;
        if reading == Reading::Keep {
            self.tables.cache.insert(self.number, handle.offset, &block);
        }
        Ok(block)
    }

    /// The content of a stored block, from the file.
    fn content(&self, handle: Handle) -> Result<Arc<[u8]>> {
        thread_local! {
            static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
        }
        let length = handle.length as usize;
        let end = handle.offset.checked_add(u64::from(handle.length));
        if length > CONTENT_BYTES_MAX || end.is_none_or(|end| end > self.size) {
            let at = handle.offset.min(self.size);
            return Err(self.corrupt_at(at, "a block is said to lie where no block can be"));
        }
        let mut buffer = BUFFER.take();
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        let stored = &mut buffer[..length];
        let content = self
            .file
            .read_exact_at(stored, handle.offset)
            .at("read", &self.path)
            .and_then(|()| {
                format::load(stored, handle.offset, self.dictionary.as_ref())
                    .map_err(|what| self.corrupt(handle, what))
            });
        if buffer.len() <= BUFFER_BYTES_KEPT {
            BUFFER.set(buffer);
        }
        content
    }

    /// The error that a stored block is damaged.
    pub(crate) fn corrupt(&self, handle: Handle, what: impl Into<String>) -> Error {
        self.corrupt_at(handle.offset, what)
    }

    pub(crate) fn corrupt_at(&self, offset: u64, what: impl Into<String>) -> Error {
        Error::corrupt(&self.path, offset, what)
    }

    pub(super) fn path(&self) -> &std::path::Path {
        &self.path
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}
