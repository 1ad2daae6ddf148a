//! The identity of one peer: its certificate, its key, and the authority it trusts.

use std::fmt;
use std::path::Path;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::{files, subject};
use crate::error::{Code, Error, Result};
use crate::ids::CellId;
use crate::transport::Peer;

/// Who a process is in its cell, with the key that proves it.
///
/// One PEM file holds the certificate, the authority's certificate and the key, in this order, so
/// they can never be out of step.
pub struct Identity {
    pem: String,
    certificate: CertificateDer<'static>,
    authority: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    cell: CellId,
    peer: Peer,
}

impl Identity {
    /// Reads an identity from its text.
    ///
    /// # Errors
    /// [`Code::Invalid`] that says what is wrong with it.
    pub fn from_pem(pem: String) -> Result<Self> {
        let invalid = |why: &str| Error::new(Code::Invalid, format!("identity: {why}"));
        let mut certificates = Vec::new();
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            certificates.push(certificate.map_err(|error| invalid(&error.to_string()))?);
        }
        let Ok([certificate, authority]) = <[_; 2]>::try_from(certificates) else {
            return Err(invalid(
                "must hold two certificates: its own and the cell's",
            ));
        };
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes())
            .map_err(|error| invalid(&format!("key: {error}")))?;
        let cell = subject::cell_of(&authority)?;
        let peer = subject::peer_of(&certificate)?;
        Ok(Self {
            pem,
            certificate,
            authority,
            key,
            cell,
            peer,
        })
    }

    /// Reads an identity from a file.
    ///
    /// # Errors
    /// [`Code::NotFound`], [`Code::Io`], or [`Code::Invalid`] that names the file.
    pub fn load(path: &Path) -> Result<Self> {
        let pem = files::read_text(path)?;
        Self::from_pem(pem).map_err(|error| error.within(path.display()))
    }

    /// Puts it into a file that only its owner may read, whole and durable.
    ///
    /// # Errors
    /// [`Code::Io`] that names the file.
    pub fn save(&self, path: &Path) -> Result<()> {
        files::write_private(path, self.pem.as_bytes())
    }

    /// Whom it speaks for.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The cell it belongs to.
    #[must_use]
    pub fn cell(&self) -> CellId {
        self.cell
    }

    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        self.certificate.clone()
    }

    pub(crate) fn authority(&self) -> CertificateDer<'static> {
        self.authority.clone()
    }

    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("cell", &self.cell)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

/// The DNS name that all services of a cell share.
pub(crate) fn server_name(cell: CellId) -> String {
    format!("{cell}.xtfs.internal")
}

pub(super) fn first_certificate(pem: &str) -> Result<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|error| Error::new(Code::Invalid, format!("certificate: {error}")))
}
