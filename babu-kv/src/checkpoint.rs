//! Checkpoints: the database as of now in another folder, at the cost of a few hard links.
//!
//! Tables never change and closed log segments never change either. So the log goes on in a new
//! segment, and then tables and closed segments are linked, and a manifest is written that names
//! them. What else must be durable before CURRENT appears is synced at the same time: beside a
//! compaction each sync may have to wait for what that writes.

use crate::{
    core::Core,
    error::{Context, Error, Result},
    fs::Open,
    log::{format, seal::Seal},
    manifest::{Manifest, edit::Edit, version::Version},
    options::Background,
    threads::{Task, together},
};
use std::{path::Path, sync::atomic::Ordering::Relaxed};

impl Core {
    /// Makes a database in `destination`, on the same file system, with all that was committed
    /// before.
    pub(crate) fn checkpoint(&self, destination: &Path) -> Result<()> {
        self.check_writable()?;
        let fs = &*self.tables.fs;
        fs.create_dir_all(destination).at("create", destination)?;
        if !fs.list(destination).at("list", destination)?.is_empty() {
            return Err(Error::invalid(format!(
                "{} is not empty",
                destination.display()
            )));
        }
        let copied = self.copy(destination);
        if copied.is_err() {
            // So that it can be tried again. Without CURRENT nobody takes it for a database.
            for name in fs.list(destination).unwrap_or_default().iter().rev() {
                let _ = fs.remove(&destination.join(name));
            }
        }
        copied
    }

    fn copy(&self, destination: &Path) -> Result<()> {
        let fs = &*self.tables.fs;
        // Before the version is taken: a flush makes batches durable too, in tables that an older
        // version does not have, and their segments are not synced any more.
        let current = self.close_log()?.segment;
        // As long as the manifest stands still, no table and no segment that it needs is removed.
        let manifest = self.manifest.lock();
        let state = self.state();
        for table in state.version.tables() {
            let name = crate::table::format::table_name(table.meta.number);
            self.link(destination, &name)?;
        }
        let log_number = state.version.log_number;
        for number in log_number..current {
            let name = format::segment_name(number);
            // Failed rotations leave numbers without a file.
            if fs
                .exists(&self.tables.dir.join(&name))
                .at("look up", &self.tables.dir)?
            {
                self.link(destination, &name)?;
            }
        }
        if log_number >= current {
            let path = destination.join(format::segment_name(log_number));
            let file = fs.open(&path, Open::CreateNew).at("create", &path)?;
            file.write_at(&format::segment_header(log_number), 0)
                .at("write", &path)?;
            file.sync_data().at("sync", &path)?;
        }
        // From here on the folder is not looked at.
        self.check_open()?;
        let number = self.next_file.load(Relaxed);
        let edit = Edit {
            next_file: Some(number + 1),
            last_index: Some(manifest.last_index),
            sealed: self.seals(&state.version, current),
            ..state.version.as_edit()
        };
        let indices = manifest.indices.clone();
        drop(manifest);
        let draft = Manifest::draft(fs, destination, number, edit, indices)?;
        let parent = destination.parent();
        self.all(&[
            &|| draft.sync_manifest(),
            &|| draft.sync_current(),
            &|| fs.sync_dir(destination).at("sync", destination),
            &|| parent.map_or(Ok(()), |parent| fs.sync_dir(parent).at("sync", parent)),
        ])?;
        draft.make_current().map(drop)
    }

    fn all(&self, tasks: &[Task<'_>]) -> Result<()> {
        match self.options.background {
            Background::Threads => together(tasks),
            Background::Inline => tasks.iter().try_for_each(|task| task()),
        }
    }

    /// What is known of the closed segments before `end` that a version needs.
    pub(crate) fn seals(&self, version: &Version, end: u64) -> Vec<Seal> {
        let mut seals = self.closed_logs.before(end);
        seals.retain(|seal| seal.segment >= version.log_number);
        seals
    }

    fn link(&self, destination: &Path, name: &str) -> Result<()> {
        let to = destination.join(name);
        self.tables
            .fs
            .hard_link(&self.tables.dir.join(name), &to)
            .at("link", &to)
    }
}
