//! What a client can be told, with good defaults.

use std::time::Duration;

use xtfs_protocol::env::Env;

/// Options of a client.
#[derive(Clone)]
pub struct ClientOptions {
    /// Clock, randomness, blocking work.
    pub env: Env,
    /// Name of the volume.
    pub volume: String,
    /// What this client calls itself across its own restarts, so that its earlier session ends
    /// when it is started anew after a crash. No two clients that run at the same time on one host
    /// may use the same. Empty: the earlier session runs out.
    pub client: String,
    /// How long an operation tries before it fails with `EIO`. Doubling it makes applications
    /// ride out longer restarts of servers, and wait longer for servers that never return.
    pub op_deadline: Duration,
    /// How long one attempt of an operation waits for its answer before the server is asked again.
    /// Doubling it asks slow servers less often, and notices a replaced one later.
    pub attempt_deadline: Duration,
    /// Bytes of file content that may be cached. Doubling it keeps more of what was read.
    pub cache_bytes: usize,
    /// Bytes that may be written but not yet sent. Doubling it lets writers run further ahead of
    /// the OSDs, and puts more at risk where nobody calls fsync.
    pub dirty_bytes_max: u64,
    /// Bytes that are fetched ahead of a sequential reader at most. Doubling it helps where the
    /// way to the OSDs is long.
    pub read_ahead_max: u64,
    /// Age at which written bytes are sent without being asked for.
    pub dirty_age_max: Duration,
    /// Nothing is changed: no access times are reported either.
    pub read_only: bool,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            env: Env::real(),
            volume: "default".to_owned(),
            client: String::new(),
            op_deadline: Duration::from_secs(60),
            attempt_deadline: Duration::from_secs(10),
            cache_bytes: 256 << 20,
            dirty_bytes_max: 64 << 20,
            read_ahead_max: 8 << 20,
            dirty_age_max: Duration::from_secs(5),
            read_only: false,
        }
    }
}
