//! TLS 1.3 with certificates of the cell at both ends.
//!
//! Sessions are not resumed and no data goes before the handshake, so every connection verifies
//! both certificates.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::cell::{Identity, peer_of};
use crate::env::Env;
use crate::error::{Code, Error, Result};
use crate::transport::Peer;

/// What both ends must agree on.
const APPLICATION: &[u8] = b"xtfs/1";

/// How a service proves itself and whom it lets in.
pub(super) fn server(identity: &Identity, env: &Env) -> Result<Arc<QuicServerConfig>> {
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots(identity)?), provider())
            .build()
            .map_err(failed)?;
    let mut config = ServerConfig::builder_with_details(provider(), time(env))
        .with_protocol_versions(&[&TLS13])
        .map_err(failed)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![identity.certificate()], identity.key())
        .map_err(failed)?;
    config.alpn_protocols = vec![APPLICATION.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    QuicServerConfig::try_from(config)
        .map(Arc::new)
        .map_err(failed)
}

/// How a client proves itself and whom it trusts.
pub(super) fn client(identity: &Identity, env: &Env) -> Result<Arc<QuicClientConfig>> {
    let mut config = ClientConfig::builder_with_details(provider(), time(env))
        .with_protocol_versions(&[&TLS13])
        .map_err(failed)?
        .with_root_certificates(roots(identity)?)
        .with_client_auth_cert(vec![identity.certificate()], identity.key())
        .map_err(failed)?;
    config.alpn_protocols = vec![APPLICATION.to_vec()];
    config.resumption = Resumption::disabled();
    QuicClientConfig::try_from(config)
        .map(Arc::new)
        .map_err(failed)
}

/// Who is at the other end of a connection whose handshake is done.
pub(super) fn peer(connection: &quinn::Connection) -> Result<Peer> {
    let chain = connection
        .peer_identity()
        .and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok());
    match chain.as_deref().and_then(|chain| chain.first()) {
        Some(certificate) => peer_of(certificate),
        None => Err(Error::new(
            Code::AccessDenied,
            "the peer showed no certificate",
        )),
    }
}

/// AES-128-GCM first: the fastest where processors have AES.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        ..aws_lc_rs::default_provider()
    })
}

fn roots(identity: &Identity) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(identity.authority()).map_err(failed)?;
    Ok(roots)
}

fn time(env: &Env) -> Arc<dyn TimeProvider> {
    Arc::new(EnvTime(env.clone()))
}

/// The time at which certificates must be valid.
struct EnvTime(Env);

impl TimeProvider for EnvTime {
    fn current_time(&self) -> Option<UnixTime> {
        let secs = u64::try_from(self.0.now().secs).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(secs)))
    }
}

impl fmt::Debug for EnvTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EnvTime")
    }
}

fn failed(error: impl fmt::Display) -> Error {
    Error::new(Code::Invalid, format!("TLS: {error}"))
}
