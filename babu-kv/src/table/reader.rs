//! Reads a table. Whatever comes from the file is checked before it is used.

use super::{TableMeta, Tables, block::Block, filter, format};
use crate::{
    error::{Context, Error, Result},
    fs::{File, Open},
    memtable::Found,
    tombstones::Tombstones,
};
use format::{CONTENT_BYTES_MAX, Content, FOOTER_BYTES, Footer, Handle, Index};
use std::{fmt, iter::repeat_n, path::PathBuf, sync::Arc};
use xxhash_rust::xxh3::Xxh3;

/// An open table: its index, filter and range tombstones stay in memory.
pub(crate) struct Reader {
    tables: Arc<Tables>,
    number: u64,
    path: PathBuf,
    file: Arc<dyn File>,
    size: u64,
    index: Index,
    filter: Vec<u8>,
    tombstones: Tombstones,
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
            filter: Vec::new(),
            tombstones: Tombstones::default(),
        };
        let ill = |reader: &Reader, handle: Handle, what: &str| {
            Error::corrupt(&reader.path, handle.offset, what)
        };
        let content = reader.content(footer.index)?;
        reader.index = Index::decode(&content)
            .ok_or_else(|| ill(&reader, footer.index, "the index is not well formed"))?;
        reader.filter = reader.content(footer.filter)?;
        if !filter::is_well_formed(&reader.filter) {
            return Err(ill(&reader, footer.filter, "the filter is not well formed"));
        }
        let content = reader.content(footer.tombstones)?;
        let tombstones = format::decode_tombstones(&content);
        let tombstones = tombstones.ok_or_else(|| {
            ill(
                &reader,
                footer.tombstones,
                "the range tombstones are not well formed",
            )
        })?;
        reader.tombstones = tombstones.into_iter().collect();
        Ok(reader)
    }

    pub(crate) fn tombstones(&self) -> &Tombstones {
        &self.tombstones
    }

    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    /// Bytes that stay in memory as long as the table is open.
    pub(crate) fn bytes(&self) -> usize {
        self.index.bytes() + self.filter.len()
    }

    pub(crate) fn may_contain(&self, hash: u64) -> bool {
        filter::may_contain(&self.filter, hash)
    }

    /// The entry of `key`, whose hash is `hash`.
    pub(crate) fn get(&self, key: &[u8], hash: u64) -> Result<Option<Found>> {
        if !self.may_contain(hash) {
            return Ok(None);
        }
        let n = self.index.find(key);
        if n == self.index.len() {
            return Ok(None);
        }
        let block = self.block(n, true)?;
        block.get(key).map_err(|what| self.corrupt(n, what))
    }

    /// [`get`](Reader::get) that looks into `last` before it reads a block, and leaves there the one
    /// that it looked into.
    pub(crate) fn get_near(
        &self,
        key: &[u8],
        hash: u64,
        last: &mut Option<(usize, Block)>,
    ) -> Result<Option<Found>> {
        if !self.may_contain(hash) {
            return Ok(None);
        }
        let n = self.index.find(key);
        if n == self.index.len() {
            return Ok(None);
        }
        let block = match last.take().filter(|(at, _)| *at == n) {
            Some((_, block)) => block,
            None => self.block(n, true)?,
        };
        let (_, block) = last.insert((n, block));
        block.get(key).map_err(|what| self.corrupt(n, what))
    }

    /// Data block `n`; `keep` puts it into the cache.
    pub(crate) fn block(&self, n: usize, keep: bool) -> Result<Block> {
        let handle = self.handle(n)?;
        if let Some(block) = self.tables.cache.get(self.number, handle.offset) {
            return Ok(block);
        }
        let block = self.read_block(n)?;
        if keep {
            self.tables.cache.insert(self.number, handle.offset, &block);
        }
        Ok(block)
    }

    /// Data block `n` from the file.
    fn read_block(&self, n: usize) -> Result<Block> {
        let handle = self.handle(n)?;
        let stored = self.stored(handle)?;
        let (data, length) =
            match format::load(&stored, handle.offset).map_err(|what| self.corrupt(n, what))? {
                Content::Plain(length) => (stored, length),
                Content::Unpacked(content) => {
                    let length = content.len();
                    (content.into(), length)
                }
            };
        Block::new(data, length)
            .ok_or_else(|| self.corrupt(n, "the restarts of the block do not fit"))
    }

    fn handle(&self, n: usize) -> Result<Handle> {
        let missing = || Error::corrupt(&self.path, 0, "a block is missing in the index");
        self.index.handle(n).ok_or_else(missing)
    }

    /// Checks every block by itself, so that damage is found where it is, and then the whole file.
    pub(crate) fn verify(&self, meta: &TableMeta) -> Result<()> {
        let mut entries = 0;
        let mut last_key = Vec::new();
        for n in 0..self.index.len() {
            let unfolded = self.read_block(n)?.unfold();
            let unfolded = unfolded.map_err(|what| self.corrupt(n, what))?;
            let ends = unfolded
                .entry(0)
                .zip(unfolded.entry(unfolded.len().wrapping_sub(1)));
            let (first, last) = ends.ok_or_else(|| self.corrupt(n, "the block is empty"))?;
            if n > 0 && first.key <= last_key.as_slice() {
                return Err(self.corrupt(n, "the block begins before the one before it ends"));
            }
            last_key = last.key.to_vec();
            entries += unfolded.len() as u64;
        }
        if entries != meta.entries {
            let what = format!("it has {entries} entries and should have {}", meta.entries);
            return Err(Error::corrupt(&self.path, 0, what));
        }
        let mut hasher = Xxh3::new();
        let mut buffer = vec![0; 256 << 10];
        let mut offset = 0;
        while offset < meta.size {
            let n = (meta.size - offset).min(buffer.len() as u64) as usize;
            let part = &mut buffer[..n];
            self.file
                .read_exact_at(part, offset)
                .at("read", &self.path)?;
            hasher.update(part);
            offset += n as u64;
        }
        if hasher.digest() == meta.hash {
            Ok(())
        } else {
            Err(Error::corrupt(
                &self.path,
                0,
                "the checksum of the file does not match",
            ))
        }
    }

    /// The error that data block `n` is damaged.
    pub(crate) fn corrupt(&self, n: usize, what: &str) -> Error {
        Error::corrupt(
            &self.path,
            self.index.handle(n).map_or(0, |h| h.offset),
            what,
        )
    }

    fn stored(&self, handle: Handle) -> Result<Arc<[u8]>> {
        let length = handle.length as usize;
        let end = handle.offset.checked_add(u64::from(handle.length));
        if length > CONTENT_BYTES_MAX || end.is_none_or(|end| end > self.size) {
            return Err(Error::corrupt(
                &self.path,
                handle.offset.min(self.size),
                "a block is said to lie where no block can be",
            ));
        }
        let mut stored: Arc<[u8]> = repeat_n(0, length).collect();
        if let Some(buffer) = Arc::get_mut(&mut stored) {
            self.file
                .read_exact_at(buffer, handle.offset)
                .at("read", &self.path)?;
        }
        Ok(stored)
    }

    fn content(&self, handle: Handle) -> Result<Vec<u8>> {
        let stored = self.stored(handle)?;
        match format::load(&stored, handle.offset)
            .map_err(|what| Error::corrupt(&self.path, handle.offset, what))?
        {
            Content::Plain(length) => Ok(stored[..length].to_vec()),
            Content::Unpacked(content) => Ok(content),
        }
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}
