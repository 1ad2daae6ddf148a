//! What the client of the simulation does, and what it must find afterwards.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use xtfs_client::admin::Admin;
use xtfs_client::{ClientOptions, OpenOptions, Vfs, Write};
use xtfs_layout::Layout;
use xtfs_protocol::env::Env;
use xtfs_protocol::ids::{Ino, ROOT_INO};
use xtfs_protocol::meta::Caller;
use xtfs_protocol::transport::quic::{QuicConnector, simulated};
use xtfs_protocol::{Identity, Result};

use super::{PORT, Switch, Trace, VOLUME};

/// More than two objects, so that both OSDs have some of every file.
const FILE_BYTES: usize = (2 << 20) + 4321;
/// Bytes of one write or read.
const PIECE_BYTES: usize = 128 << 10;
/// Time after which written bytes were sent without being asked for.
const SENT_BY: Duration = Duration::from_secs(8);
/// Longest time for anything that has to succeed in the end.
const PATIENCE: Duration = Duration::from_secs(120);

struct User {
    vfs: Vfs,
    trace: Trace,
    /// Files whose content was synced.
    synced: BTreeMap<String, Vec<u8>>,
}

/// Works through a partition and through the loss of power of each kind of server.
///
/// # Errors
/// When the network of the simulation cannot be used.
pub async fn story(identity: Identity, env: Env, trace: Trace, switch: Switch) -> turmoil::Result {
    let mrc = format!("{}:{PORT}", turmoil::lookup("mrc"));
    let connect = async || -> turmoil::Result<Arc<QuicConnector>> {
        let socket = simulated::bind(0).await?;
        let connector =
            QuicConnector::with_socket(socket, &identity, vec![mrc.clone()], None, &env)?;
        Ok(Arc::new(connector))
    };
    let connector = connect().await?;
    let admin = Admin::new(connector.clone());
    persist(|| async {
        let ready = admin.osds().await.is_ok_and(|osds| osds.len() == 2);
        if !ready {
            return None;
        }
        let made = admin.create_volume(VOLUME, Layout::striped(2), (0, 0), 0o755);
        made.await.ok()
    })
    .await;
    let options = ClientOptions {
        env: env.clone(),
        volume: VOLUME.to_owned(),
        ..ClientOptions::default()
    };
    let mut user = User {
        vfs: Vfs::open(connector, options.clone()).await?,
        trace: trace.clone(),
        synced: BTreeMap::new(),
    };

    user.write_synced("calm").await?;

    turmoil::partition("client", "osd1");
    trace.note("client", "is cut off from osd1");
    let heal = async {
        tokio::time::sleep(Duration::from_secs(4)).await;
        turmoil::repair("client", "osd1");
        trace.note("client", "reaches osd1 again");
    };
    let (written, ()) = futures_util::future::join(user.write_synced("cut off"), heal).await;
    written?;

    for host in ["osd0", "mrc", "osd1"] {
        user.write(&format!("loose before {host}")).await?;
        switch.cut(host);
        tokio::time::sleep(Duration::from_millis(50)).await;
        user.write_synced(&format!("through the loss of {host}"))
            .await?;
        user.check().await;
    }

    for host in ["osd0", "mrc", "osd1"] {
        user.sync_after_loss(&switch, host).await?;
        user.check().await;
    }

    // Another client has nothing cached: what it reads is on the servers.
    let User { vfs, synced, .. } = user;
    vfs.close().await?;
    let fresh = User {
        vfs: Vfs::open(connect().await?, options).await?,
        trace: trace.clone(),
        synced,
    };
    fresh.check().await;
    fresh.vfs.close().await?;
    trace.note("client", "is done");
    Ok(())
}

impl User {
    /// Makes a file without syncing it; it stays open until the end.
    async fn write(&self, name: &str) -> Result<(u64, Vec<u8>)> {
        let bytes = content(name);
        let caller = Caller::root();
        let open = OpenOptions {
            read: true,
            write: true,
            ..OpenOptions::default()
        };
        let at = (ROOT_INO, name.as_bytes());
        let file = self.vfs.create(&caller, at, 0o644, true, open).await?;
        for (number, data) in bytes.chunks(PIECE_BYTES).enumerate() {
            let write = Write {
                offset: (number * PIECE_BYTES) as u64,
                data,
                exact: false,
                kill_set_id: false,
            };
            let count = self.vfs.write(file.handle, write).await?;
            assert_eq!(count as usize, data.len());
        }
        self.trace.note("client", &format!("wrote {name}"));
        Ok((file.handle, bytes))
    }

    async fn write_synced(&mut self, name: &str) -> Result<()> {
        let (handle, bytes) = self.write(name).await?;
        self.vfs.fsync(handle).await?;
        self.trace.note("client", &format!("synced {name}"));
        self.synced.insert(name.to_owned(), bytes);
        self.vfs.release(handle).await
    }

    /// Syncs what a server had taken before it lost power: that is told, or nothing is lost.
    async fn sync_after_loss(&mut self, switch: &Switch, host: &str) -> Result<()> {
        let name = format!("taken by {host}");
        let (handle, bytes) = self.write(&name).await?;
        tokio::time::sleep(SENT_BY).await;
        switch.cut(host);
        tokio::time::sleep(Duration::from_millis(50)).await;
        match self.vfs.fsync(handle).await {
            Ok(()) => {
                self.trace.note("client", &format!("synced {name}"));
                self.synced.insert(name, bytes);
            }
            Err(error) => self
                .trace
                .note("client", &format!("is told of {name}: {error}")),
        }
        self.vfs.release(handle).await
    }

    /// Everything that was synced is there.
    async fn check(&self) {
        for (name, bytes) in &self.synced {
            let found = persist(|| async { self.read(name).await.ok() }).await;
            assert!(found == *bytes, "'{name}' is not what was synced");
            self.trace.note("client", &format!("found {name}"));
        }
    }

    async fn read(&self, name: &str) -> Result<Vec<u8>> {
        let caller = Caller::root();
        let found = self.vfs.lookup(&caller, ROOT_INO, name.as_bytes()).await?;
        let ino: Ino = found.attr.ino;
        let open = OpenOptions {
            read: true,
            ..OpenOptions::default()
        };
        let file = self.vfs.open_file(&caller, ino, open).await?;
        let mut bytes = Vec::new();
        loop {
            let offset = bytes.len() as u64;
            let piece = self
                .vfs
                .read(file.handle, offset, PIECE_BYTES as u32)
                .await?;
            if piece.is_empty() {
                break;
            }
            bytes.extend_from_slice(&piece);
        }
        self.vfs.release(file.handle).await?;
        Ok(bytes)
    }
}

/// The content of a file follows from its name.
fn content(name: &str) -> Vec<u8> {
    let seed = name.bytes().fold(17_u64, |seed, byte| {
        seed.wrapping_mul(31).wrapping_add(byte.into())
    });
    let mut bytes = vec![0; FILE_BYTES];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// Tries until it succeeds.
async fn persist<T, F: Future<Output = Option<T>>>(attempt: impl Fn() -> F) -> T {
    let trying = async {
        loop {
            if let Some(value) = attempt().await {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    };
    tokio::time::timeout(PATIENCE, trying)
        .await
        .expect("it does not succeed, however often it is tried")
}
