//! A bad network: a UDP relay on loopback that loses, doubles and reorders datagrams.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::net::UdpSocket;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

/// Most datagrams that are held back at a time; more are dropped, as a full switch does.
const HELD_MAX: usize = 4096;
/// Receive buffer of a socket in bytes.
const BUFFER_BYTES: usize = 4 << 20;
/// Largest datagram.
const DATAGRAM_BYTES_MAX: usize = 65_536;

/// What the network does to a datagram: chances from 0 to 1.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    /// It is lost.
    pub loss: f64,
    /// It comes twice.
    pub double: f64,
    /// It is held back and comes behind later ones.
    pub late: f64,
    /// Longest time that it is held back.
    pub late_max: Duration,
}

/// What happened so far.
#[derive(Debug, Default)]
pub struct Counts {
    /// Datagrams that came.
    pub seen: AtomicU64,
    /// Lost.
    pub lost: AtomicU64,
    /// Doubled.
    pub doubled: AtomicU64,
    /// Held back.
    pub late: AtomicU64,
}

/// A relay in front of one server. Ends when dropped.
pub struct Proxy {
    address: SocketAddr,
    counts: Arc<Counts>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a relay to `server` and gives it an address of its own.
    ///
    /// # Panics
    /// When no socket can be had.
    #[must_use]
    pub fn start(server: SocketAddr, weather: Weather, seed: u64) -> Self {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind a socket");
        // A burst must be lost by the weather only; the kernel may grant less.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, BUFFER_BYTES);
        socket.set_nonblocking(true).expect("a socket for tokio");
        let address = socket.local_addr().expect("its address");
        let counts = Arc::new(Counts::default());
        let (stop, stopped) = oneshot::channel();
        let sky = Arc::new(Sky {
            weather,
            rng: Mutex::new(StdRng::seed_from_u64(seed)),
            counts: Arc::clone(&counts),
        });
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let front = Arc::new(UdpSocket::from_std(socket).expect("a socket of tokio"));
                tokio::select! {
                    () = relay(front, server, sky) => {}
                    _ = stopped => {}
                }
            });
        });
        Self {
            address,
            counts,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Where clients find the server.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Sky {
    weather: Weather,
    rng: Mutex<StdRng>,
    counts: Arc<Counts>,
}

impl Sky {
    /// When each copy of a datagram is to go out, counted from now; none when it is lost.
    fn fate(&self) -> Vec<Duration> {
        let mut rng = self.rng.lock();
        self.counts.seen.fetch_add(1, Ordering::Relaxed);
        if rng.random_bool(self.weather.loss) {
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
            return Vec::new();
        }
        let mut delay = Duration::ZERO;
        if rng.random_bool(self.weather.late) {
            self.counts.late.fetch_add(1, Ordering::Relaxed);
            delay = self.weather.late_max.mul_f64(rng.random());
        }
        if rng.random_bool(self.weather.double) {
            self.counts.doubled.fetch_add(1, Ordering::Relaxed);
            return vec![delay, delay + self.weather.late_max.mul_f64(rng.random())];
        }
        vec![delay]
    }
}

/// Relays between the front and one socket per client towards the server.
async fn relay(front: Arc<UdpSocket>, server: SocketAddr, sky: Arc<Sky>) {
    let mut clients: BTreeMap<SocketAddr, (Arc<UdpSocket>, Held)> = BTreeMap::new();
    let mut backs = tokio::task::JoinSet::new();
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let due = clients.values().filter_map(|(_, held)| held.due()).min();
        let received = tokio::select! {
            received = front.recv_from(&mut buffer) => Some(received),
            () = until(due) => None,
        };
        if let Some(Ok((length, client))) = received {
            if let Entry::Vacant(new) = clients.entry(client) {
                let Some(back) = connect(server).await else {
                    continue;
                };
                backs.spawn(relay_back(
                    Arc::clone(&back),
                    Arc::clone(&front),
                    client,
                    Arc::clone(&sky),
                ));
                new.insert((back, Held::default()));
            }
            if let Some((_, held)) = clients.get_mut(&client) {
                held.push(&buffer[..length], &sky.fate());
            }
        }
        for (back, held) in clients.values_mut() {
            while let Some(bytes) = held.pop(Instant::now()) {
                let _ = back.send(&bytes).await;
            }
        }
    }
}

async fn connect(server: SocketAddr) -> Option<Arc<UdpSocket>> {
    let socket = UdpSocket::bind("127.0.0.1:0").await.ok()?;
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, BUFFER_BYTES);
    socket.connect(server).await.ok()?;
    Some(Arc::new(socket))
}

async fn relay_back(
    back: Arc<UdpSocket>,
    front: Arc<UdpSocket>,
    client: SocketAddr,
    sky: Arc<Sky>,
) {
    let mut held = Held::default();
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let received = tokio::select! {
            received = back.recv(&mut buffer) => Some(received),
            () = until(held.due()) => None,
        };
        if let Some(Ok(length)) = received {
            held.push(&buffer[..length], &sky.fate());
        }
        while let Some(bytes) = held.pop(Instant::now()) {
            let _ = front.send_to(&bytes, client).await;
        }
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Datagrams by the time at which they go out.
#[derive(Default)]
struct Held {
    queue: BinaryHeap<Reverse<(Instant, u64, Vec<u8>)>>,
    next: u64,
}

impl Held {
    fn push(&mut self, bytes: &[u8], delays: &[Duration]) {
        for delay in delays {
            if self.queue.len() < HELD_MAX {
                self.queue.push(Reverse((
                    Instant::now() + *delay,
                    self.next,
                    bytes.to_vec(),
                )));
                self.next += 1;
            }
        }
    }

    fn due(&self) -> Option<Instant> {
        self.queue.peek().map(|Reverse((due, _, _))| *due)
    }

    fn pop(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.due()? > now {
            return None;
        }
        self.queue.pop().map(|Reverse((_, _, bytes))| bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUNDS: usize = 150;

    /// Sends numbers through the relay to an echo and returns those that came back, in order.
    fn echoed(weather: Weather) -> (Vec<usize>, Proxy) {
        let server = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let proxy = Proxy::start(address, weather, 3);
        let echo = std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((length @ 1.., from)) = server.recv_from(&mut buffer) {
                server.send_to(&buffer[..length], from).unwrap();
            }
        });
        let client = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(proxy.address()).unwrap();
        client
            .set_read_timeout(Some(Duration::from_millis(500)))
            .unwrap();
        for number in 0..ROUNDS {
            client.send(&number.to_le_bytes()).unwrap();
        }
        let mut got = Vec::new();
        let mut buffer = [0; 64];
        while let Ok(length) = client.recv(&mut buffer) {
            got.push(usize::from_le_bytes(buffer[..length].try_into().unwrap()));
        }
        // An empty datagram, sent past the relay, ends the echo.
        let end = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        end.send_to(&[], address).unwrap();
        echo.join().unwrap();
        (got, proxy)
    }

    #[test]
    fn fair_weather_changes_nothing() {
        let fair = Weather {
            loss: 0.0,
            double: 0.0,
            late: 0.0,
            late_max: Duration::ZERO,
        };
        let (got, _) = echoed(fair);
        assert_eq!(got, (0..ROUNDS).collect::<Vec<_>>());
    }

    #[test]
    fn bad_weather_loses_doubles_and_reorders() {
        let bad = Weather {
            loss: 0.1,
            double: 0.1,
            late: 0.2,
            late_max: Duration::from_millis(20),
        };
        let (got, proxy) = echoed(bad);
        let mut distinct = got.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() < ROUNDS && distinct.len() > ROUNDS / 3);
        assert!(got.len() > distinct.len());
        assert!(got.windows(2).any(|pair| pair[0] > pair[1]));
        assert!(proxy.counts().lost.load(Ordering::Relaxed) > 0);
    }
}
