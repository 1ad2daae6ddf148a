//! What a volume holds, as it is recorded and as a count of everything gives it.

use std::collections::BTreeMap;
use std::ops::Bound;

use xtfs_protocol::quota::QuotaSubject;
use xtfs_protocol::{Code, Error, Result};

use super::transaction::Transaction;
use crate::inode::Inode;
use crate::keys::{self, Table};
use crate::quota::{self, Limits};
use crate::records::Usage;
use crate::view::View;

/// Usage by subject.
pub(crate) type Usages = BTreeMap<QuotaSubject, Usage>;

/// What the volume holds.
pub(crate) fn usage(view: &dyn View) -> Result<Usage> {
    let recorded = recorded(view, QuotaSubject::Volume)?;
    recorded.ok_or_else(|| Error::new(Code::Corrupt, "the volume has no usage record"))
}

fn recorded(view: &dyn View, subject: QuotaSubject) -> Result<Option<Usage>> {
    let found = view.get(Table::Usage, &quota::usage_key(subject))?;
    found.map(|bytes| Usage::decode(&bytes)).transpose()
}

/// Everything that is recorded: usage and limits.
pub(crate) fn all(view: &dyn View) -> Result<(Usages, Limits)> {
    let (mut usages, mut limits) = (Usages::new(), Limits::new());
    view.scan(
        Table::Usage,
        Bound::Unbounded,
        Bound::Unbounded,
        &mut |key, value| {
            match quota::split_key(key)? {
                (subject, false) => drop(usages.insert(subject, Usage::decode(value)?)),
                (subject, true) => drop(limits.insert(subject, quota::decode_limits(value)?)),
            }
            Ok(true)
        },
    )?;
    Ok((usages, limits))
}

/// Counts every inode.
pub(crate) fn recount(view: &dyn View) -> Result<Usages> {
    let mut counted = Usages::new();
    view.scan(
        Table::Inodes,
        Bound::Unbounded,
        Bound::Unbounded,
        &mut |key, value| {
            let inode = Inode::decode(keys::ino(key)?, value)?;
            for subject in quota::subjects(&inode) {
                add(counted.entry(subject).or_default(), &inode);
            }
            Ok(true)
        },
    )?;
    Ok(counted)
}

fn add(usage: &mut Usage, inode: &Inode) {
    let share = quota::share(inode);
    usage.bytes = usage.bytes.saturating_add(share.bytes);
    usage.inodes = usage.inodes.saturating_add(share.inodes);
}

/// Usage as a step found it, and as it leaves it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted {
    before: Usage,
    after: Usage,
}

impl Transaction<'_> {
    /// Counts an inode that came, went, or changed its size or owner.
    pub(super) fn count(&mut self, before: Option<&Inode>, after: Option<&Inode>) -> Result<()> {
        let share = |inode: Option<&Inode>| inode.map(quota::share);
        let whose = |inode: Option<&Inode>| inode.map(quota::subjects);
        if share(before) == share(after) && whose(before) == whose(after) {
            return Ok(());
        }
        if let Some(inode) = before {
            for subject in quota::subjects(inode) {
                let share = quota::share(inode);
                let usage = self.counted(subject)?;
                usage.bytes = usage.bytes.saturating_sub(share.bytes);
                usage.inodes = usage.inodes.saturating_sub(share.inodes);
            }
        }
        if let Some(inode) = after {
            for subject in quota::subjects(inode) {
                add(self.counted(subject)?, inode);
            }
        }
        Ok(())
    }

    fn counted(&mut self, subject: QuotaSubject) -> Result<&mut Usage> {
        if !self.usages.contains_key(&subject) {
            let before = recorded(self.view(), subject)?.unwrap_or_default();
            let after = before;
            self.usages.insert(subject, Counted { before, after });
        }
        let counted = self.usages.get_mut(&subject);
        let missing = || Error::new(Code::Corrupt, "usage that was just read");
        counted
            .map(|counted| &mut counted.after)
            .ok_or_else(missing)
    }

    /// Enters what was counted, unless it is more than allowed.
    pub(super) fn settle_usage(&mut self) -> Result<()> {
        for (subject, Counted { before, after }) in std::mem::take(&mut self.usages) {
            if before == after {
                continue;
            }
            quota::check(self.context.limits, subject, &before, &after)?;
            let gone = after == Usage::default() && subject != QuotaSubject::Volume;
            let value = (!gone).then(|| after.encode());
            self.put(Table::Usage, quota::usage_key(subject), value);
        }
        Ok(())
    }
}
