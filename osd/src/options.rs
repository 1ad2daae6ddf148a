//! What can be chosen when an OSD is opened.

use std::path::PathBuf;
use std::sync::Arc;

use babu_kv::Background;
use babu_kv::fs::{Fs, RealFs};
use xtfs_protocol::env::Env;
use xtfs_protocol::ids::ServiceId;

/// Options of [`Osd::open`](crate::Osd::open). Only the folder and the identity must be the same
/// at every open.
#[derive(Clone)]
pub struct OsdOptions {
    /// The folder with everything that the OSD keeps.
    pub dir: PathBuf,
    /// The OSD's identity; a folder belongs to one identity for ever.
    pub id: ServiceId,
    /// Clock, randomness and the place for blocking work.
    pub env: Env,
    /// The file system of segments and index. Default: the real one.
    pub fs: Arc<dyn Fs>,
    /// Who does the index's background work. Default: threads.
    pub background: Background,
    /// Bytes after which a segment is sealed; at most half the reserve. Default 32 MiB. Doubling:
    /// half as many files, space comes back in larger steps.
    pub segment_bytes: u64,
    /// Bytes of new records after which the index catches up with them. Default 64 MiB. Doubling:
    /// less index work, and twice as long a start after a crash.
    pub checkpoint_bytes: u64,
    /// Free bytes of the disk that writes leave alone, so that the index and deletions can go on;
    /// at most a sixteenth of the disk. Default 64 MiB. Doubling: more room for them, less for
    /// data.
    pub reserve_bytes: u64,
    /// Bytes of blocks, filters and block indices of the index in memory, beside its memtables.
    /// Default 32 MiB. Doubling: more objects are found without reading the disk.
    pub index_cache_bytes: usize,
    /// Whether blocks are compressed where a sample says that it pays. Default true.
    pub compress: bool,
}

impl OsdOptions {
    /// Defaults on the real file system.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>, id: ServiceId, env: Env) -> Self {
        Self {
            dir: dir.into(),
            id,
            env,
            fs: Arc::new(RealFs),
            background: Background::Threads,
            segment_bytes: 32 << 20,
            checkpoint_bytes: 64 << 20,
            reserve_bytes: 64 << 20,
            index_cache_bytes: 32 << 20,
            compress: true,
        }
    }

    /// The same on another file system and without threads: for simulation and tests.
    #[must_use]
    pub fn on(mut self, fs: Arc<dyn Fs>) -> Self {
        self.fs = fs;
        self.background = Background::Inline;
        self
    }
}
