//! Writes a table.

use super::{
    TableMeta, Tables,
    block::BlockBuilder,
    block::shared_prefix,
    codec::{Packer, SAMPLES_BYTES, TAG_PLAIN},
    filter::{self, Filter},
    format,
    index::{Index, Place},
};
use crate::{
    error::{Context, Error, Result},
    fs::{File, Open},
    iter::Entry,
    keys::{self, Kind, RangeTombstone},
    options::{Compression, Options},
};
use format::{Footer, Handle, Properties};
use std::{path::PathBuf, sync::Arc};
use xxhash_rust::xxh3::Xxh3;

/// Bytes that gather before they are written.
const WRITE_BYTES: usize = 256 << 10;
/// An index of more blocks of data has two levels.
const INDEX_BLOCKS_MAX: usize = 64;

/// A table being written. Entries come in ascending order of their keys, range tombstones in
/// ascending order of their start, each in one sequence; [`TableBuilder::finish`] makes the file
/// durable (the caller syncs the folder). Dropped without it, the file is removed.
pub(crate) struct TableBuilder {
    tables: Arc<Tables>,
    file: Arc<dyn File>,
    path: PathBuf,
    block_bytes: usize,
    bits_per_key: usize,
    packer: Packer,
    buffer: Vec<u8>,
    written: u64,
    block: BlockBuilder,
    /// Blocks that wait until there are enough of them to train a dictionary from; `None` when none
    /// will be trained any more.
    samples: Option<Vec<Sample>>,
    samples_bytes: usize,
    dictionary: Vec<u8>,
    index: Index,
    hashes: Vec<u64>,
    prefixes: Prefixes,
    tombstones: Vec<RangeTombstone>,
    hasher: Xxh3,
    meta: TableMeta,
    finished: bool,
}

/// A block that is not written yet.
struct Sample {
    content: Vec<u8>,
    key: Vec<u8>,
    place: Place,
}

/// The prefixes that go into the filter.
struct Prefixes {
    declared: super::Prefixes,
    /// Those of the indices seen so far, and the length of the full prefix of the last.
    seen: Vec<(u32, u8)>,
    index: Option<u32>,
    length: Option<usize>,
    last: Vec<u8>,
}

impl Prefixes {
    /// The prefix of a key, if it is another than that of the key before.
    fn next<'a>(&mut self, key: &'a [u8]) -> Option<&'a [u8]> {
        let index = keys::index_of(key);
        if index != self.index {
            self.index = index;
            let bytes = index
                .and_then(|index| Some((index, *self.declared.get(&index).filter(|n| **n > 0)?)));
            self.seen.extend(bytes);
            self.length = bytes.map(|(_, bytes)| keys::INDEX_BYTES + usize::from(bytes));
        }
        let prefix = key.get(..self.length?)?;
        if prefix == self.last.as_slice() {
            return None;
        }
        self.last.clear();
        self.last.extend_from_slice(prefix);
        Some(prefix)
    }
}

impl TableBuilder {
    /// `level` decides on compression.
    pub(crate) fn new(
        tables: &Arc<Tables>,
        number: u64,
        level: usize,
        options: &Options,
    ) -> Result<TableBuilder> {
        let path = tables.path(number);
        let file = tables.fs.open(&path, Open::CreateNew).at("create", &path)?;
        let packer = Packer::new(match options.compression {
            Compression::Zstd(_) if level < 2 => Compression::Lz4,
            compression => compression,
        });
        Ok(TableBuilder {
            tables: tables.clone(),
            file,
            path,
            block_bytes: options.block_bytes,
            bits_per_key: options.filter_bits_per_key,
            samples: packer.wants_dictionary().then(Vec::new),
            packer,
            buffer: Vec::new(),
            written: 0,
            block: BlockBuilder::default(),
            samples_bytes: 0,
            dictionary: Vec::new(),
            index: Index::default(),
            hashes: Vec::new(),
            prefixes: Prefixes {
                declared: tables.prefixes.read().clone(),
                seen: Vec::new(),
                index: None,
                length: None,
                last: Vec::new(),
            },
            tombstones: Vec::new(),
            hasher: Xxh3::new(),
            meta: TableMeta {
                number,
                size: 0,
                hash: 0,
                entries: 0,
                tombstones: 0,
                sequence_max: 0,
                from: Vec::new(),
                to: Vec::new(),
            },
            finished: false,
        })
    }

    pub(crate) fn add(&mut self, entry: &Entry<'_>, value: &[u8]) -> Result<()> {
        if self.meta.entries == 0 {
            self.meta.from = entry.key.to_vec();
        }
        if self.block.len() >= self.block_bytes {
            // The shortest key that separates the two blocks: what is shared and one byte.
            let shared = shared_prefix(self.block.last_key(), entry.key);
            let key = entry.key.get(..=shared).unwrap_or(entry.key);
            self.end_block(key)?;
        }
        self.block.add(entry, value);
        self.hashes.push(filter::hash(entry.key));
        if let Some(prefix) = self.prefixes.next(entry.key) {
            self.hashes.push(filter::hash(prefix));
        }
        self.meta.entries += 1;
        self.meta.tombstones += u64::from(entry.kind == Kind::Delete);
        self.meta.sequence_max = self.meta.sequence_max.max(entry.sequence);
        Ok(())
    }

    pub(crate) fn add_tombstone(&mut self, tombstone: RangeTombstone) {
        self.meta.sequence_max = self.meta.sequence_max.max(tombstone.sequence);
        self.meta.tombstones += 1;
        self.tombstones.push(tombstone);
    }

    /// Bytes so far.
    pub(crate) fn len(&self) -> u64 {
        self.offset() + (self.samples_bytes + self.block.len()) as u64
    }

    fn offset(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Ends the block; `key` is after all keys in it and not after the next.
    fn end_block(&mut self, key: &[u8]) -> Result<()> {
        let place = Place {
            handle: Handle::default(),
            entries: self.block.entries(),
            tombstones: self.block.tombstones(),
        };
        let content = self.block.finish();
        if let Some(samples) = &mut self.samples {
            self.samples_bytes += content.len();
            samples.push(Sample {
                content: content.to_vec(),
                key: key.to_vec(),
                place,
            });
            self.block.clear();
            if self.samples_bytes >= SAMPLES_BYTES {
                self.write_samples()?;
            }
            return Ok(());
        }
        let from = self.buffer.len();
        let tag = self.packer.pack(content, &mut self.buffer);
        self.block.clear();
        let handle = self.seal(from, tag)?;
        self.index.push(key, Place { handle, ..place });
        Ok(())
    }

    /// Trains the dictionary, and writes the blocks that waited for it.
    fn write_samples(&mut self) -> Result<()> {
        let Some(samples) = self.samples.take() else {
            return Ok(());
        };
        self.samples_bytes = 0;
        let trained = self
            .packer
            .train(samples.iter().map(|s| s.content.as_slice()));
        self.dictionary = trained.unwrap_or_default();
        for sample in samples {
            let from = self.buffer.len();
            let tag = self.packer.pack(&sample.content, &mut self.buffer);
            let handle = self.seal(from, tag)?;
            self.index.push(
                &sample.key,
                Place {
                    handle,
                    ..sample.place
                },
            );
        }
        Ok(())
    }

    /// Ends the stored block that begins at `from` in the buffer.
    fn seal(&mut self, from: usize, tag: u8) -> Result<Handle> {
        let offset = self.written + from as u64;
        format::seal(&mut self.buffer, from, tag, offset);
        let stored = &self.buffer[from..];
        self.hasher.update(stored);
        let length = u32::try_from(stored.len())
            .map_err(|_| Error::invalid("a block of a table is too large"))?;
        if self.buffer.len() >= WRITE_BYTES {
            self.write()?;
        }
        Ok(Handle { offset, length })
    }

    /// Stores what is small or does not compress.
    fn store(&mut self, content: &[u8]) -> Result<Handle> {
        let from = self.buffer.len();
        self.buffer.extend_from_slice(content);
        self.seal(from, TAG_PLAIN)
    }

    fn write(&mut self) -> Result<()> {
        self.file
            .write_at(&self.buffer, self.written)
            .at("write", &self.path)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Writes the index and gives its top level and how many levels it has.
    fn write_index(&mut self) -> Result<(Handle, u32)> {
        let mut index = std::mem::take(&mut self.index);
        let mut levels = 1;
        if index.encoded_bytes() > INDEX_BLOCKS_MAX * self.block_bytes {
            levels = 2;
            let mut top = Index::default();
            index.encode(self.block_bytes, |content, key, sum| {
                let handle = self.store(content)?;
                top.push(key, Place { handle, ..sum });
                Ok(())
            })?;
            index = top;
        }
        let mut handle = None;
        index.encode(usize::MAX, |content, _, _| {
            handle = Some(self.store(content)?);
            Ok(())
        })?;
        match handle {
            Some(handle) => Ok((handle, levels)),
            None => Ok((self.store(BlockBuilder::default().finish())?, levels)),
        }
    }

    /// Ends the file and makes it durable.
    pub(crate) fn finish(mut self) -> Result<TableMeta> {
        if self.meta.entries > 0 {
            self.meta.to = self.block.last_key().to_vec();
            self.meta.to.push(0);
            let to = self.meta.to.clone();
            self.end_block(&to)?;
        }
        self.write_samples()?;
        for tombstone in &self.tombstones {
            if self.meta.to.is_empty() || tombstone.from < self.meta.from {
                self.meta.from = tombstone.from.clone();
            }
            if tombstone.to > self.meta.to {
                self.meta.to = tombstone.to.clone();
            }
        }
        let tombstones = self.store(&format::encode_tombstones(&self.tombstones))?;
        let dictionary = std::mem::take(&mut self.dictionary);
        let dictionary = self.store(&dictionary)?;
        let filter = Filter::build(&self.hashes, self.bits_per_key).encode();
        let filter = self.store(&filter)?;
        let (index, index_levels) = self.write_index()?;
        let properties = Properties {
            prefixes: std::mem::take(&mut self.prefixes.seen),
            ..self.meta.properties()
        };
        let properties = self.store(&properties.encode())?;
        let footer = Footer {
            dictionary,
            tombstones,
            filter,
            index,
            properties,
            index_levels,
        };
        let footer = footer.encode();
        self.hasher.update(&footer);
        self.buffer.extend_from_slice(&footer);
        self.write()?;
        self.file.sync_data().at("sync", &self.path)?;
        self.meta.size = self.written;
        self.meta.hash = self.hasher.digest();
        self.finished = true;
        Ok(self.meta.clone())
    }
}

impl TableMeta {
    /// What the table itself says of this.
    pub(crate) fn properties(&self) -> Properties {
        Properties {
            entries: self.entries,
            tombstones: self.tombstones,
            sequence_max: self.sequence_max,
            from: self.from.clone(),
            to: self.to.clone(),
            prefixes: Vec::new(),
        }
    }
}

impl Drop for TableBuilder {
    fn drop(&mut self) {
        if !self.finished {
            // No manifest names it; what cannot be removed now is removed at the next open.
            let _ = self.tables.fs.remove(&self.path);
        }
    }
}
