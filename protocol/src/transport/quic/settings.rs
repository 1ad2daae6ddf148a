//! What quinn is told, and why.

use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use quinn::crypto::{CryptoError, HmacKey};
use quinn::{
    AckFrequencyConfig, ClientConfig, ConnectionId, ConnectionIdGenerator, Endpoint,
    EndpointConfig, IdleTimeout, MtuDiscoveryConfig, ServerConfig, TransportConfig, VarInt,
};
use sha2::Sha256;

use super::limits::Limits;
use super::socket::DatagramSocket;
use super::tls;
use crate::cell::Identity;
use crate::env::Env;
use crate::error::{Code, Error, Result};

/// Largest datagram: what fits an Ethernet frame of 9 000 bytes. Path discovery finds out what
/// really passes, starting from 1 200.
pub(super) const DATAGRAM_BYTES_MAX: u16 = 8952;

/// A peer that is silent for so long is gone.
const IDLE_LIMIT_MS: u32 = 10_000;

/// How often a silent connection shows that it is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// Unread bytes of one stream: a largest payload flows without a stop.
const STREAM_WINDOW: u32 = 16 << 20;

/// Unread, and unacknowledged, bytes of one connection.
const CONNECTION_WINDOW: u32 = 64 << 20;

/// Packets for which one acknowledgement is enough.
const ACK_EVERY: u32 = 10;

/// Most pushes that a client has open at once.
pub(super) const PUSHES_MAX: u32 = 64;

/// Connections that wait for their handshake.
const INCOMING_MAX: usize = 1024;

/// An endpoint that only connects.
pub(super) fn client_endpoint(
    socket: DatagramSocket,
    identity: &Identity,
    env: &Env,
) -> Result<(Endpoint, ClientConfig)> {
    let mut transport = transport()?;
    transport.max_concurrent_bidi_streams(VarInt::from_u32(0));
    transport.max_concurrent_uni_streams(VarInt::from_u32(PUSHES_MAX));
    let mut config = ClientConfig::new(tls::client(identity, env)?);
    config.transport_config(Arc::new(transport));
    let random = env.clone();
    config.initial_dst_cid_provider(Arc::new(move || ConnectionId::new(&random.random::<16>())));
    Ok((endpoint(socket, None, identity, env)?, config))
}

/// An endpoint that takes connections.
pub(super) fn server_endpoint(
    socket: DatagramSocket,
    identity: &Identity,
    limits: &Limits,
    env: &Env,
) -> Result<Endpoint> {
    let mut transport = transport()?;
    // More streams than requests are let in, so that too much load can be answered.
    let streams = limits.requests_per_connection.saturating_mul(2);
    transport.max_concurrent_bidi_streams(streams.into());
    transport.max_concurrent_uni_streams(VarInt::from_u32(0));
    let mut config = ServerConfig::with_crypto(tls::server(identity, env)?);
    config.transport_config(Arc::new(transport));
    config.max_incoming(INCOMING_MAX);
    endpoint(socket, Some(config), identity, env)
}

fn endpoint(
    socket: DatagramSocket,
    server: Option<ServerConfig>,
    identity: &Identity,
    env: &Env,
) -> Result<Endpoint> {
    let mut config = EndpointConfig::new(Arc::new(ResetKey::new(identity)?));
    config
        .max_udp_payload_size(DATAGRAM_BYTES_MAX)
        .map_err(|error| failed(&error))?;
    let random = env.clone();
    config.cid_generator(move || Box::new(RandomIds(random.clone())));
    config.rng_seed(Some(env.random()));
    Endpoint::new_with_abstract_socket(config, server, socket.socket, socket.runtime)
        .map_err(|error| Error::new(Code::Io, format!("QUIC endpoint: {error}")))
}

fn transport() -> Result<TransportConfig> {
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(DATAGRAM_BYTES_MAX);
    let mut acknowledge = AckFrequencyConfig::default();
    acknowledge.ack_eliciting_threshold(VarInt::from_u32(ACK_EVERY));
    let mut transport = TransportConfig::default();
    transport
        .mtu_discovery_config(Some(discovery))
        .ack_frequency_config(Some(acknowledge))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW))
        .send_window(u64::from(CONNECTION_WINDOW))
        .send_fairness(false)
        .datagram_receive_buffer_size(None)
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(IDLE_LIMIT_MS))))
        .keep_alive_interval(Some(KEEP_ALIVE));
    Ok(transport)
}

fn failed(error: &dyn std::fmt::Display) -> Error {
    Error::new(Code::Invalid, format!("QUIC settings: {error}"))
}

/// Connection ids from the surroundings' random numbers.
struct RandomIds(Env);

/// Bytes of a connection id.
const ID_BYTES: usize = 8;

impl ConnectionIdGenerator for RandomIds {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&self.0.random::<ID_BYTES>())
    }

    fn cid_len(&self) -> usize {
        ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Proves that a connection is unknown here. Made from the identity, so that a service that
/// started anew can tell its old clients at once that their connections are gone.
struct ResetKey(Hmac<Sha256>);

impl ResetKey {
    fn new(identity: &Identity) -> Result<Self> {
        let key = identity.key();
        let mut derive = <Hmac<Sha256> as KeyInit>::new_from_slice(key.secret_der())
            .map_err(|error| failed(&error))?;
        derive.update(b"xtfs stateless reset");
        let derived = derive.finalize().into_bytes();
        <Hmac<Sha256> as KeyInit>::new_from_slice(&derived)
            .map(Self)
            .map_err(|error| failed(&error))
    }

    fn code(&self, data: &[u8]) -> Hmac<Sha256> {
        let mut code = self.0.clone();
        code.update(data);
        code
    }
}

impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        let code = self.code(data).finalize().into_bytes();
        for (to, from) in signature_out.iter_mut().zip(code) {
            *to = from;
        }
    }

    fn signature_len(&self) -> usize {
        32
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> std::result::Result<(), CryptoError> {
        self.code(data)
            .verify_slice(signature)
            .map_err(|_| CryptoError)
    }
}
