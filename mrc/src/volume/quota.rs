//! Quotas of a volume: setting, listing and checking them.

use std::sync::Arc;

use babu_kv::{Batch, Durability};
use xtfs_protocol::Result;
use xtfs_protocol::meta::{MetaOp, MetaReply};
use xtfs_protocol::quota::{QuotaEntry, QuotaLimits, QuotaMismatch, QuotaSubject};

use super::Volume;
use crate::error::database;
use crate::keys::Table;
use crate::quota;
use crate::step::{self, Usages};

const PAGE_MAX: usize = MetaOp::PAGE_ENTRIES_MAX as usize;

impl Volume {
    /// Sets what a subject may use, durably. May wait for the disk.
    pub fn set_quota(&self, subject: QuotaSubject, limits: QuotaLimits) -> Result<()> {
        {
            let _writer = self.writer.lock();
            let mut batch = Batch::new();
            let index = self.tables.index(Table::Usage)?;
            let key = quota::limits_key(subject);
            if limits.is_empty() {
                batch.delete(index, &key);
            } else {
                batch.put(index, &key, &quota::encode_limits(&limits));
            }
            self.database
                .write(batch, Durability::Buffered)
                .map_err(database)?;
            let mut known = self.limits.write();
            let all = Arc::make_mut(&mut known);
            if limits.is_empty() {
                all.remove(&subject);
            } else {
                all.insert(subject, limits);
            }
        }
        self.sync()
    }

    /// The limits of the volume as a whole.
    pub fn own_limits(&self) -> QuotaLimits {
        let limits = self.limits.read();
        limits
            .get(&QuotaSubject::Volume)
            .copied()
            .unwrap_or_default()
    }

    /// A page of the subjects behind `after` with what they use and may use.
    pub fn quotas(&self, after: Option<QuotaSubject>, limit: u32) -> Result<MetaReply> {
        let (usages, limits) = step::all(&self.view())?;
        let mut subjects: Vec<_> = usages.keys().chain(limits.keys()).copied().collect();
        subjects.sort_unstable();
        subjects.dedup();
        let mut behind = subjects
            .into_iter()
            .filter(|subject| Some(*subject) > after);
        let entry = |subject| QuotaEntry {
            subject,
            limits: limits.get(&subject).copied().unwrap_or_default(),
            usage: quota::answer(&usage_of(&usages, subject)),
        };
        let most = (limit as usize).clamp(1, PAGE_MAX);
        let entries = behind.by_ref().take(most).map(entry).collect();
        let end = behind.next().is_none();
        Ok(MetaReply::Quotas { entries, end })
    }

    /// Counts every inode, on a snapshot, and compares. Takes long.
    pub fn check_quotas(&self) -> Result<MetaReply> {
        let view = self.view();
        let (recorded, _) = step::all(&view)?;
        let counted = step::recount(&view)?;
        let mut subjects: Vec<_> = recorded.keys().chain(counted.keys()).copied().collect();
        subjects.sort_unstable();
        subjects.dedup();
        let mismatch = |subject| QuotaMismatch {
            subject,
            recorded: quota::answer(&usage_of(&recorded, subject)),
            counted: quota::answer(&usage_of(&counted, subject)),
        };
        let wrong = subjects
            .into_iter()
            .map(mismatch)
            .filter(|mismatch| mismatch.recorded != mismatch.counted)
            .take(PAGE_MAX)
            .collect();
        let inodes = usage_of(&counted, QuotaSubject::Volume).inodes;
        Ok(MetaReply::QuotasChecked { inodes, wrong })
    }
}

fn usage_of(usages: &Usages, subject: QuotaSubject) -> crate::records::Usage {
    usages.get(&subject).copied().unwrap_or_default()
}
