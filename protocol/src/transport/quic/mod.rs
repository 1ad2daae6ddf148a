//! Calls between machines over QUIC, with TLS 1.3 that verifies both ends against the cell's
//! authority.
//!
//! - One connection for each pair of peers, one bidirectional stream for each call. The request's
//!   header, body and payload go one way, those of the reply the other; lengths say where each
//!   ends. A stream that the server opens carries one push.
//! - A server answers what it refuses: a broken message, another version and too much load are
//!   errors of one stream and do not disturb the others.
//! - Memory is bounded whatever a client sends: see [`Limits`].
//! - Versions are told apart twice: the TLS handshake agrees on `xtfs/1`, and every message says
//!   its version.
//!
//! One stream for each call was measured (two cores, loopback, development build, by
//! `examples/loopback.rs`): a small call takes 66 µs, writes of 1 MiB run at 1.2 GB/s and reads at
//! 2.2 GB/s with four in flight. So small calls share no long-lived streams.
//!
//! Read in this order: [`QuicServer`], [`QuicConnector`], [`DatagramSocket`]; then the private
//! parts: `stream` (a message on a stream), `limits`, `link` (a connection that is made anew),
//! `settings` (what quinn is told and why), `tls`.

mod connector;
mod dial;
mod limits;
mod link;
mod push;
mod resolver;
mod server;
mod settings;
#[cfg(feature = "simulation")]
pub mod simulated;
mod socket;
mod stream;
#[cfg(test)]
mod tests;
mod tls;

pub use connector::QuicConnector;
pub use limits::Limits;
pub use resolver::{DirectoryResolver, Resolver};
pub use server::QuicServer;
pub use socket::DatagramSocket;
