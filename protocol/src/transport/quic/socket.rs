//! The UDP socket below an endpoint.
//!
//! quinn hands ten datagrams to the kernel at once, whatever their size; above 65 507 bytes the
//! kernel refuses the whole batch. And it takes receive buffers for as many datagrams as the
//! socket says may come joined together. So the socket here says less of both, by the size of our
//! largest datagram.

use std::io::{self, IoSliceMut};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Runtime, TokioRuntime, UdpPoller};
use socket2::{Domain, Protocol, Socket, Type};

use super::settings::DATAGRAM_BYTES_MAX;
use crate::error::{Code, Error, Result};

/// Bytes of the kernel's buffers, each way: the default loses packets at every burst.
const BUFFER_BYTES: usize = 4 << 20;

/// Most bytes of one UDP send.
const BATCH_BYTES_MAX: usize = 65_507;

/// Most bytes that the kernel joins to one receive.
const JOINED_BYTES_MAX: usize = 65_535;

/// Where an endpoint sends and receives datagrams, and what runs its tasks and timers.
pub struct DatagramSocket {
    pub(super) socket: Arc<dyn AsyncUdpSocket>,
    pub(super) runtime: Arc<dyn Runtime>,
}

impl DatagramSocket {
    /// A socket of one's own, for simulation.
    #[must_use]
    pub fn new(socket: Arc<dyn AsyncUdpSocket>, runtime: Arc<dyn Runtime>) -> Self {
        Self { socket, runtime }
    }

    /// A UDP socket of this machine on tokio's current runtime. An unspecified IPv6 address takes
    /// IPv4 as well.
    ///
    /// # Errors
    /// [`Code::Io`] that names the address.
    pub fn bind(address: SocketAddr) -> Result<Self> {
        let runtime = Arc::new(TokioRuntime);
        open(address)
            .and_then(|socket| runtime.wrap_udp_socket(socket))
            .map(|socket| Self {
                socket: Arc::new(Bounded(socket)),
                runtime,
            })
            .map_err(|error| Error::new(Code::Io, format!("UDP socket {address}: {error}")))
    }

    /// Where it is bound: what others are to be told before a service starts to use it.
    ///
    /// # Errors
    /// [`Code::Io`].
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.socket
            .local_addr()
            .map_err(|error| Error::new(Code::Io, format!("UDP socket: {error}")))
    }

    /// A socket for outgoing connections, to IPv6 and IPv4 where the machine has both.
    pub(super) fn bind_any() -> Result<Self> {
        Self::bind((Ipv6Addr::UNSPECIFIED, 0).into())
            .or_else(|_| Self::bind((Ipv4Addr::UNSPECIFIED, 0).into()))
    }
}

fn open(address: SocketAddr) -> io::Result<std::net::UdpSocket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_nonblocking(true)?;
    enlarge_buffers(&socket);
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Asks for large buffers, past the system's limit where that is allowed; says so when they stay
/// small.
fn enlarge_buffers(socket: &Socket) {
    use rustix::net::sockopt;
    if sockopt::set_socket_recv_buffer_size_force(socket, BUFFER_BYTES).is_err() {
        let _ = socket.set_recv_buffer_size(BUFFER_BYTES);
    }
    let _ = socket.set_send_buffer_size(BUFFER_BYTES);
    // The kernel reports twice what it grants.
    let granted = socket.recv_buffer_size().unwrap_or_default() / 2;
    if granted < BUFFER_BYTES {
        tracing::warn!(
            granted,
            wanted = BUFFER_BYTES,
            "the UDP receive buffer is small, bursts will be slow: raise net.core.rmem_max"
        );
    }
}

/// A socket whose batches fit the kernel and whose receive buffers stay small.
#[derive(Debug)]
struct Bounded(Arc<dyn AsyncUdpSocket>);

impl AsyncUdpSocket for Bounded {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.0.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.0.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        let fitting = BATCH_BYTES_MAX / usize::from(DATAGRAM_BYTES_MAX);
        self.0.max_transmit_segments().min(fitting)
    }

    fn max_receive_segments(&self) -> usize {
        let needed = JOINED_BYTES_MAX.div_ceil(usize::from(DATAGRAM_BYTES_MAX));
        self.0.max_receive_segments().min(needed)
    }

    fn may_fragment(&self) -> bool {
        self.0.may_fragment()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_batch_of_the_largest_datagrams_fits_one_send() {
        let socket = DatagramSocket::bind_any().unwrap().socket;
        let largest = usize::from(DATAGRAM_BYTES_MAX);
        assert!(socket.max_transmit_segments() * largest <= BATCH_BYTES_MAX);
        assert!(socket.max_receive_segments() <= 8);
    }
}
