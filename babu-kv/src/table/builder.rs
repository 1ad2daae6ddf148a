//! Writes a table.

use super::{TableMeta, Tables, block::BlockBuilder, filter, format};
use crate::{
    error::{Context, Error, Result},
    fs::{File, Open},
    iter::Entry,
    keys::{Kind, RangeTombstone},
    options::Options,
};
use format::{Footer, Handle, Index};
use std::{path::PathBuf, sync::Arc};
use xxhash_rust::xxh3::Xxh3;

/// Bytes that gather before they are written.
const WRITE_BYTES: usize = 256 << 10;

/// A table being written. Entries come in ascending order of their keys, range tombstones in
/// ascending order of their start, each in one sequence; [`TableBuilder::finish`] makes the file
/// durable (the caller syncs the folder). Dropped without it, the file is removed.
pub(crate) struct TableBuilder {
    tables: Arc<Tables>,
    file: Arc<dyn File>,
    path: PathBuf,
    block_bytes: usize,
    bits_per_key: usize,
    compression: i32,
    buffer: Vec<u8>,
    written: u64,
    block: BlockBuilder,
    index: Vec<u8>,
    hashes: Vec<u64>,
    tombstones: Vec<RangeTombstone>,
    hasher: Xxh3,
    meta: TableMeta,
    finished: bool,
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
        Ok(TableBuilder {
            tables: tables.clone(),
            file,
            path,
            block_bytes: options.block_bytes,
            bits_per_key: options.filter_bits_per_key,
            compression: if level >= 2 { options.compression } else { 0 },
            buffer: Vec::new(),
            written: 0,
            block: BlockBuilder::default(),
            index: Vec::new(),
            hashes: Vec::new(),
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
        self.block.add(entry, value);
        self.hashes.push(filter::hash(entry.key));
        self.meta.entries += 1;
        self.meta.tombstones += u64::from(entry.kind == Kind::Delete);
        self.meta.sequence_max = self.meta.sequence_max.max(entry.sequence);
        if self.block.len() >= self.block_bytes {
            self.end_block()
        } else {
            Ok(())
        }
    }

    pub(crate) fn add_tombstone(&mut self, tombstone: RangeTombstone) {
        self.meta.sequence_max = self.meta.sequence_max.max(tombstone.sequence);
        self.meta.tombstones += 1;
        self.tombstones.push(tombstone);
    }

    /// Bytes so far.
    pub(crate) fn len(&self) -> u64 {
        self.written + (self.buffer.len() + self.block.len()) as u64
    }

    fn offset(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    fn end_block(&mut self) -> Result<()> {
        let last_key = self.block.last_key().to_vec();
        self.meta.to = last_key;
        let content = self.block.finish();
        let handle = self.store(&content, self.compression)?;
        Index::put(&mut self.index, &self.meta.to, handle);
        Ok(())
    }

    fn store(&mut self, content: &[u8], compression: i32) -> Result<Handle> {
        let offset = self.offset();
        let stored = format::store(content, offset, compression);
        let length = u32::try_from(stored.len())
            .map_err(|_| Error::invalid("a block of a table is too large"))?;
        self.append(&stored)?;
        Ok(Handle { offset, length })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.hasher.update(bytes);
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= WRITE_BYTES {
            self.write()
        } else {
            Ok(())
        }
    }

    fn write(&mut self) -> Result<()> {
        self.file
            .write_at(&self.buffer, self.written)
            .at("write", &self.path)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Ends the file and makes it durable.
    pub(crate) fn finish(mut self) -> Result<TableMeta> {
        if !self.block.is_empty() {
            self.end_block()?;
        }
        if self.meta.entries > 0 {
            self.meta.to.push(0);
        }
        for tombstone in &self.tombstones {
            if self.meta.to.is_empty() || tombstone.from < self.meta.from {
                self.meta.from = tombstone.from.clone();
            }
            if tombstone.to > self.meta.to {
                self.meta.to = tombstone.to.clone();
            }
        }
        let tombstones = self.store(&format::encode_tombstones(&self.tombstones), 0)?;
        let filter = self.store(&filter::build(&self.hashes, self.bits_per_key), 0)?;
        let index = std::mem::take(&mut self.index);
        let index = self.store(&index, 0)?;
        let properties = self.store(&self.meta.properties(), 0)?;
        self.append(
            &Footer {
                tombstones,
                filter,
                index,
                properties,
            }
            .encode(),
        )?;
        self.write()?;
        self.file.sync_data().at("sync", &self.path)?;
        self.meta.size = self.written;
        self.meta.hash = self.hasher.digest();
        self.finished = true;
        Ok(self.meta.clone())
    }
}

impl TableMeta {
    fn properties(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for number in [self.entries, self.tombstones, self.sequence_max] {
            crate::coding::put_varint(&mut out, number);
        }
        crate::coding::put_bytes(&mut out, &self.from);
        crate::coding::put_bytes(&mut out, &self.to);
        out
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
