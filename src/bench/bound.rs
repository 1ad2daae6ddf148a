//! The bound: an empty FUSE file system, mounted for one run.

use std::path::Path;

use anyhow::{Context, Result};
use xtfs_client::fuse::{Mounted, bound};

use crate::mountpoint::{self, Busy};

/// An empty FUSE file system in a temporary folder.
pub struct BoundMount {
    folder: tempfile::TempDir,
    mounted: Mounted,
}

impl BoundMount {
    /// Mounts it.
    pub async fn new() -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("xtfs-bound-")
            .tempdir()
            .context("temporary folder")?;
        let mounted = bound::mount(folder.path()).context("empty FUSE file system")?;
        Ok(Self { folder, mounted })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Unmounts it and removes its folder.
    pub async fn end(self) -> Result<()> {
        let path = self.folder.path().to_owned();
        tokio::task::spawn_blocking(move || mountpoint::unmount(&path, Busy::Refuse))
            .await
            .context("empty FUSE file system")?
            .context("empty FUSE file system: cannot be unmounted")?;
        self.mounted.wait_unmounted().await;
        self.folder.close().context("temporary folder")
    }
}
