//! QUIC over a simulated network: the socket of a [`turmoil`] host as quinn wants it.
//!
//! A simulated socket drops what does not fit its queue, by default 64 datagrams: give the
//! simulation a `udp_capacity` of some thousands, or bulk transfers crawl.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, TokioRuntime, UdpPoller};
use turmoil::net::UdpSocket;

use super::DatagramSocket;

/// Binds a socket of the turmoil host that runs this; port 0 takes a free one. The host's address
/// is `(0.0.0.0, port)` to itself, and what [`turmoil::lookup`] says to others.
///
/// # Errors
/// What turmoil says.
pub async fn bind(port: u16) -> io::Result<DatagramSocket> {
    let socket = Arc::new(UdpSocket::bind(("0.0.0.0", port)).await?);
    let adapter = Simulated {
        socket,
        readable: Mutex::new(None),
    };
    Ok(DatagramSocket::new(
        Arc::new(adapter),
        Arc::new(TokioRuntime),
    ))
}

struct Simulated {
    socket: Arc<UdpSocket>,
    /// Waits for the next datagram.
    readable: Mutex<Option<BoxFuture<'static, io::Result<()>>>>,
}

impl std::fmt::Debug for Simulated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.socket.fmt(f)
    }
}

/// The network of a simulation takes everything at once.
#[derive(Debug)]
struct AlwaysWritable;

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncUdpSocket for Simulated {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket
            .try_send_to(transmit.contents, transmit.destination)
            .map(drop)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let (Some(buf), Some(meta)) = (bufs.first_mut(), meta.first_mut()) else {
            return Poll::Ready(Ok(0));
        };
        let mut readable = self.readable.lock();
        loop {
            let socket = self.socket.clone();
            let waiting =
                readable.get_or_insert_with(|| Box::pin(async move { socket.readable().await }));
            let ready = ready!(waiting.as_mut().poll(cx));
            *readable = None;
            ready?;
            match self.socket.try_recv_from(buf) {
                Ok((len, addr)) => {
                    *meta = RecvMeta {
                        addr,
                        len,
                        stride: len,
                        ..RecvMeta::default()
                    };
                    return Poll::Ready(Ok(1));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}
