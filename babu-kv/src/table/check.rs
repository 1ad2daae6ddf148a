//! Verification of one table: all that its parts say of each other.

use super::{
    TableMeta,
    block_cursor::BlockCursor,
    filter,
    format::Properties,
    index::{IndexCursor, Place},
    reader::{Reader, Reading},
};
use crate::{
    error::{Context, Result},
    keys::{self, Kind},
};
use xxhash_rust::xxh3::Xxh3;

impl Reader {
    /// Checks every block by itself, so that damage is found where it is, and then the whole file.
    pub(crate) fn verify(&self, meta: &TableMeta) -> Result<()> {
        let mut entries = 0;
        let mut last_key = None;
        let mut index = IndexCursor::default();
        let mut place = index.first(self, Reading::Fresh)?;
        while let Some(at) = place {
            self.verify_block(&at, &mut last_key)?;
            entries += u64::from(at.entries);
            place = index.next(self, Reading::Fresh)?;
            // The next block is where the index says that keys after these are.
            let found = match &last_key {
                Some(key) => IndexCursor::default().seek(self, key, Reading::Fresh)?,
                None => None,
            };
            if found != Some(at) {
                return Err(self.corrupt(at.handle, "the index does not lead to the block"));
            }
        }
        if entries != meta.entries {
            let what = format!("it has {entries} entries and should have {}", meta.entries);
            return Err(self.corrupt_at(0, what));
        }
        let expected = Properties {
            prefixes: self.properties().prefixes.clone(),
            // Tables that a repair made are put in order by a number that may be higher.
            sequence_max: self.properties().sequence_max.min(meta.sequence_max),
            ..meta.properties()
        };
        if *self.properties() != expected {
            return Err(self.corrupt_at(0, "it says other things of itself than the manifest"));
        }
        self.verify_file(meta)
    }

    fn verify_block(&self, place: &Place, last_key: &mut Option<Vec<u8>>) -> Result<()> {
        let ill = |what| self.corrupt(place.handle, what);
        let mut cursor = BlockCursor::default();
        cursor.enter(self.block(place.handle, Reading::Fresh)?);
        let (mut entries, mut tombstones) = (0, 0);
        let mut is_there = cursor.first().map_err(ill)?;
        while let Some(entry) = cursor.entry().filter(|_| is_there) {
            if last_key.as_deref().is_some_and(|last| entry.key <= last) {
                return Err(ill("a key is not after the one before it"));
            }
            if !self.filter_has(entry.key) {
                return Err(ill("the filter does not know a key"));
            }
            entries += 1;
            tombstones += u32::from(entry.kind == Kind::Delete);
            let last = last_key.get_or_insert_default();
            last.clear();
            last.extend_from_slice(entry.key);
            is_there = cursor.next().map_err(ill)?;
        }
        if (entries, tombstones) != (place.entries, place.tombstones) || entries == 0 {
            return Err(ill(
                "the block has another number of entries than the index says",
            ));
        }
        Ok(())
    }

    fn filter_has(&self, key: &[u8]) -> bool {
        let index = keys::index_of(key);
        let prefixes = &self.properties().prefixes;
        let declared = prefixes.iter().find(|(of, _)| Some(*of) == index);
        let prefix =
            declared.and_then(|(_, bytes)| key.get(..keys::INDEX_BYTES + usize::from(*bytes)));
        self.may_contain(filter::hash(key))
            && prefix.is_none_or(|prefix| self.may_contain(filter::hash(prefix)))
    }

    fn verify_file(&self, meta: &TableMeta) -> Result<()> {
        let mut hasher = Xxh3::new();
        let mut buffer = vec![0; 256 << 10];
        let mut offset = 0;
        while offset < meta.size {
            let n = (meta.size - offset).min(buffer.len() as u64) as usize;
            let part = &mut buffer[..n];
            self.file
                .read_exact_at(part, offset)
                .at("read", self.path())?;
            hasher.update(part);
            offset += n as u64;
        }
        if hasher.digest() == meta.hash {
            Ok(())
        } else {
            Err(self.corrupt_at(0, "the checksum of the file does not match"))
        }
    }
}
