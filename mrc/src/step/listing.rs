//! Pages: of a directory by name, and of all files of a volume by inode number.

use std::collections::BTreeMap;
use std::ops::Bound;

use xtfs_protocol::ids::Ino;
use xtfs_protocol::meta::{DirEntry, FileSummary, MetaOp, MetaReply};
use xtfs_protocol::{Code, Error, Result};

use super::permission::{EXECUTE, READ};
use super::transaction::Transaction;
use crate::inode::{Body, Inode};
use crate::keys::{self, Table};
use crate::records::DirentRecord;
use crate::view::View;

/// A page ends when it would become longer than this, well below the longest body of a message.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// What an entry costs in a page besides its name.
const ENTRY_BYTES: usize = 192;

fn check_limit(limit: u32) -> Result<usize> {
    if (1..=MetaOp::PAGE_ENTRIES_MAX).contains(&limit) {
        Ok(limit as usize)
    } else {
        Err(Error::new(
            Code::Invalid,
            format!("page of {limit} entries"),
        ))
    }
}

impl Transaction<'_> {
    /// The permission to read is checked where a listing starts; whoever has begun one goes on.
    pub(super) fn readdir(
        &self,
        ino: Ino,
        after: &[u8],
        limit: u32,
        with_attr: bool,
    ) -> Result<MetaReply> {
        let limit = check_limit(limit)?;
        let (inode, directory) = self.directory(ino)?;
        if after.is_empty() || !self.context.trusted {
            self.need(&inode, READ)?;
        }
        let mut entries = Vec::new();
        let mut end = true;
        let mut bytes = 0;
        self.scan_named(Table::Dirents, ino, after, &mut |key, value| {
            if entries.len() == limit || bytes > PAGE_BYTES_MAX {
                end = false;
                return Ok(false);
            }
            let (_, name) = keys::split(key)?;
            let record = DirentRecord::decode(value)?;
            bytes += name.len() + ENTRY_BYTES;
            entries.push(DirEntry {
                name: name.to_vec(),
                ino: record.ino,
                kind: record.kind,
                attr: None,
            });
            Ok(true)
        })?;
        let may_stat = self.context.trusted || self.allows(&inode, EXECUTE)?;
        if with_attr && may_stat {
            self.add_attributes(&mut entries)?;
        }
        Ok(MetaReply::Page {
            entries,
            end,
            parent: directory.parent,
        })
    }

    /// Reads the inodes of a page in their order, which is mostly one run of neighbours.
    fn add_attributes(&self, entries: &mut [DirEntry]) -> Result<()> {
        let mut wanted: Vec<Ino> = entries.iter().map(|entry| entry.ino).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let keys: Vec<_> = wanted.iter().map(|ino| keys::number(*ino)).collect();
        let values = self.view().get_ascending(Table::Inodes, &keys)?;
        let mut found = BTreeMap::new();
        for (ino, value) in wanted.into_iter().zip(values) {
            if let Some(value) = value {
                found.insert(ino, Inode::decode(ino, &value)?.attr());
            }
        }
        for entry in entries {
            entry.attr = found.get(&entry.ino).copied();
        }
        Ok(())
    }
}

/// The regular files behind an inode number, those that are unlinked but open too.
pub(crate) fn list_files(view: &dyn View, after: Ino, limit: u32) -> Result<MetaReply> {
    let limit = check_limit(limit)?;
    let mut files = Vec::new();
    let mut end = true;
    let mut bytes = 0;
    let from = keys::number(after);
    view.scan(
        Table::Inodes,
        Bound::Excluded(&from),
        Bound::Unbounded,
        &mut |key, value| {
            if files.len() == limit || bytes > PAGE_BYTES_MAX {
                end = false;
                return Ok(false);
            }
            let inode = Inode::decode(keys::ino(key)?, value)?;
            if let Body::File(file) = inode.body {
                bytes += ENTRY_BYTES + 16 * file.placement.osds.len();
                files.push(FileSummary {
                    ino: inode.ino,
                    data: file.data,
                    size: inode.size,
                    placement: file.placement,
                });
            }
            Ok(true)
        },
    )?;
    Ok(MetaReply::Files { files, end })
}
