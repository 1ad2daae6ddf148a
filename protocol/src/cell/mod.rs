//! A cell: one installation with its own certificate authority.
//!
//! A cell's folder:
//!
//! ```text
//! cell.toml    the cell's id and the addresses of its MRCs
//! ca.pem       certificate and key of the authority (mode 0600); only where identities are made
//! host.pem     identity of this host: certificate, authority's certificate, key (mode 0600)
//! ```
//!
//! Certificates say who their holder is in a URI, `xtfs:service:UUID`, `xtfs:host:NAME` or
//! `xtfs:user:UID:GID,GID`. Only services may act as servers, all of them under one DNS name that
//! belongs to the cell, so no address ever has to match a certificate. Keys are Ed25519: their
//! signatures all have one length, so a handshake has the same size each time.
//!
//! Whatever is written here is written beside its place and moved there when it is on the disk.

mod authority;
mod files;
mod identity;
mod subject;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use identity::Identity;
pub(crate) use identity::server_name;
pub(crate) use subject::peer_of;

use authority::Authority;

use crate::env::Env;
use crate::error::{Code, Error, Result};
use crate::ids::{CellId, ServiceId};
use crate::transport::Peer;

const CONFIG_FILE: &str = "cell.toml";
const AUTHORITY_FILE: &str = "ca.pem";
const HOST_FILE: &str = "host.pem";

/// An open cell folder.
pub struct Cell {
    dir: PathBuf,
    config: Config,
    env: Env,
}

/// `cell.toml`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// The cell's id.
    cell: CellId,
    /// Addresses of the MRCs, `HOST:PORT`, best first.
    #[serde(default)]
    mrc: Vec<String>,
}

impl Cell {
    /// Makes a new cell in a folder: its id, its authority and the identity of this host. The
    /// folder is made if needed.
    ///
    /// # Errors
    /// [`Code::Exists`] when the folder holds a cell already, [`Code::Io`].
    pub fn init(dir: &Path, env: &Env) -> Result<Self> {
        files::make_dir(dir)?;
        if files::exists(&dir.join(CONFIG_FILE)) {
            let context = format!("{}: holds a cell already", dir.display());
            return Err(Error::new(Code::Exists, context));
        }
        let cell = CellId::from_random(env.random());
        let authority = Authority::create(cell, env)?;
        files::write_private(&dir.join(AUTHORITY_FILE), authority.to_pem().as_bytes())?;
        let host = authority.issue(&Peer::Host(files::host_name()), env)?;
        host.save(&dir.join(HOST_FILE))?;
        let this = Self {
            dir: dir.to_owned(),
            config: Config {
                cell,
                mrc: Vec::new(),
            },
            env: env.clone(),
        };
        this.save_config()?;
        Ok(this)
    }

    /// Opens a cell's folder.
    ///
    /// # Errors
    /// [`Code::NotFound`] when there is no cell, [`Code::Invalid`] when `cell.toml` cannot be
    /// understood, [`Code::Io`].
    pub fn open(dir: &Path, env: &Env) -> Result<Self> {
        let path = dir.join(CONFIG_FILE);
        let text = files::read_text(&path)?;
        let config = toml::from_str(&text).map_err(|error| {
            let context = format!("{}: {}", path.display(), error.message());
            Error::new(Code::Invalid, context)
        })?;
        Ok(Self {
            dir: dir.to_owned(),
            config,
            env: env.clone(),
        })
    }

    /// Opens the cell of a folder, or makes one when there is none.
    ///
    /// # Errors
    /// As [`Cell::open`] and [`Cell::init`].
    pub fn open_or_init(dir: &Path, env: &Env) -> Result<Self> {
        if files::exists(&dir.join(CONFIG_FILE)) {
            Self::open(dir, env)
        } else {
            Self::init(dir, env)
        }
    }

    /// The cell's id.
    #[must_use]
    pub fn id(&self) -> CellId {
        self.config.cell
    }

    /// Addresses of the MRCs, `HOST:PORT`, best first.
    #[must_use]
    pub fn mrc_addresses(&self) -> &[String] {
        &self.config.mrc
    }

    /// Replaces the addresses of the MRCs, also in `cell.toml`.
    ///
    /// # Errors
    /// [`Code::Io`].
    pub fn set_mrc_addresses(&mut self, addresses: Vec<String>) -> Result<()> {
        self.config.mrc = addresses;
        self.save_config()
    }

    /// The identity of this host.
    ///
    /// # Errors
    /// As [`Identity::load`].
    pub fn host(&self) -> Result<Identity> {
        Identity::load(&self.dir.join(HOST_FILE))
    }

    /// A new identity for a service. Keep it with the service's data ([`Identity::save`]).
    ///
    /// # Errors
    /// [`Code::NotFound`] when the authority's key is not in this folder, [`Code::Io`].
    pub fn issue_service(&self, id: ServiceId) -> Result<Identity> {
        self.issue(&Peer::Service(id))
    }

    /// A new identity for a host, which may act for all of its users and administer the cell.
    ///
    /// # Errors
    /// As [`Cell::issue_service`]; [`Code::Invalid`] when the name is not 1 to 64 of
    /// `A-Za-z0-9._-`.
    pub fn issue_host(&self, name: &str) -> Result<Identity> {
        self.issue(&Peer::Host(name.to_owned()))
    }

    /// A new identity for one user, who may act only as themself.
    ///
    /// # Errors
    /// As [`Cell::issue_service`]; [`Code::Invalid`] for more than 256 groups.
    pub fn issue_user(&self, uid: u32, gids: &[u32]) -> Result<Identity> {
        self.issue(&Peer::User {
            uid,
            gids: gids.to_vec(),
        })
    }

    fn issue(&self, peer: &Peer) -> Result<Identity> {
        let path = self.dir.join(AUTHORITY_FILE);
        let pem = files::read_text(&path)
            .map_err(|error| error.within("the cell's authority is needed to make identities"))?;
        Authority::from_pem(self.config.cell, &pem)
            .and_then(|authority| authority.issue(peer, &self.env))
            .map_err(|error| error.within(path.display()))
    }

    fn save_config(&self) -> Result<()> {
        let text = toml::to_string(&self.config)
            .map_err(|error| Error::new(Code::Invalid, format!("{CONFIG_FILE}: {error}")))?;
        files::write_public(&self.dir.join(CONFIG_FILE), text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn new_cell() -> (tempfile::TempDir, Cell) {
        let dir = tempfile::tempdir().unwrap();
        let cell = Cell::init(&dir.path().join("cell"), &Env::real()).unwrap();
        (dir, cell)
    }

    #[test]
    fn a_cell_opens_as_it_was_made() {
        let (dir, mut cell) = new_cell();
        let place = dir.path().join("cell");
        cell.set_mrc_addresses(vec!["localhost:7000".into()])
            .unwrap();
        let again = Cell::open_or_init(&place, &Env::real()).unwrap();
        assert_eq!(again.id(), cell.id());
        assert_eq!(again.mrc_addresses(), ["localhost:7000"]);
        assert!(matches!(again.host().unwrap().peer(), Peer::Host(_)));
        let refused = Cell::init(&place, &Env::real()).err().unwrap();
        assert_eq!(refused.code, Code::Exists);
        let absent = Cell::open(dir.path(), &Env::real()).err().unwrap();
        assert_eq!(absent.code, Code::NotFound);
    }

    #[test]
    fn identities_say_who_they_are_and_survive_their_file() {
        let (dir, cell) = new_cell();
        let id = ServiceId::from_random([5; 16]);
        let cases = [
            (cell.issue_service(id).unwrap(), Peer::Service(id)),
            (
                cell.issue_host("node-1.example").unwrap(),
                Peer::Host("node-1.example".into()),
            ),
            (
                cell.issue_user(1000, &[4, 24]).unwrap(),
                Peer::User {
                    uid: 1000,
                    gids: vec![4, 24],
                },
            ),
            (
                cell.issue_user(7, &[]).unwrap(),
                Peer::User {
                    uid: 7,
                    gids: vec![],
                },
            ),
        ];
        for (identity, peer) in cases {
            assert_eq!(identity.peer(), &peer);
            let path = dir.path().join("identity.pem");
            identity.save(&path).unwrap();
            let loaded = Identity::load(&path).unwrap();
            assert_eq!(loaded.peer(), &peer);
            assert_eq!(loaded.cell(), cell.id());
        }
        assert_eq!(
            cell.issue_host("a:b").err().unwrap().code,
            Code::Invalid,
            "a name that could pass for another identity"
        );
    }

    #[test]
    fn keys_are_for_their_owner_only_and_no_temporary_file_stays() {
        let (dir, _cell) = new_cell();
        let mut names = Vec::new();
        for entry in std::fs::read_dir(dir.path().join("cell")).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
            if name.ends_with(".pem") {
                assert_eq!(mode, 0o600, "{name}");
            }
            names.push(name);
        }
        names.sort();
        assert_eq!(names, ["ca.pem", "cell.toml", "host.pem"]);
    }

    #[test]
    fn broken_files_are_refused_by_name() {
        let (dir, cell) = new_cell();
        let host = dir.path().join("cell/host.pem");
        std::fs::write(&host, "-----BEGIN CERTIFICATE-----\nAAAA\n").unwrap();
        let error = cell.host().err().unwrap();
        assert_eq!(error.code, Code::Invalid);
        assert!(error.context.contains("host.pem"), "{error}");

        let (_other_dir, other) = new_cell();
        let foreign = other.dir.join(AUTHORITY_FILE);
        std::fs::copy(foreign, cell.dir.join(AUTHORITY_FILE)).unwrap();
        let error = cell.issue_host("h").err().unwrap();
        assert!(error.context.contains("another cell"), "{error}");

        std::fs::write(dir.path().join("cell/cell.toml"), "cell = 5").unwrap();
        let error = Cell::open(&dir.path().join("cell"), &Env::real())
            .err()
            .unwrap();
        assert!(error.context.contains("cell.toml"), "{error}");
    }
}
