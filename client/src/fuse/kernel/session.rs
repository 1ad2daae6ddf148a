//! The threads that take requests from the kernel.
//!
//! They share one descriptor. The kernel gives each request to one of them, and takes answers from
//! any thread, in any order.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::thread;

use super::abi::{IN_HEADER_BYTES, MAJOR, REQUEST_ROOM, init};
use super::decode::{Malformed, decode, pairs};
use super::encode::{Agreed, Message};
use super::interrupts::Interrupts;
use super::reply::Reply;
use super::request::{Op, Request};

/// Largest write, and what is read ahead at a time, in bytes.
pub(crate) const TRANSFER_MAX: u32 = 1 << 20;
/// Pages of one transfer.
const PAGES_MAX: u16 = 256;
/// Reads and writes in the background that the kernel keeps going at a time.
const BACKGROUND_MAX: u16 = 64;

/// What answers the kernel.
pub(crate) trait Serve: Send + Sync + 'static {
    /// What to agree on at the start beside the ordinary (see `abi::init`); what the kernel does
    /// not offer is left out.
    fn wanted(&self) -> u64;

    /// Takes a request. May return before it is answered.
    fn serve(&self, request: Request<'_>, reply: Reply);

    /// The kernel forgot an inode so many times.
    fn forget(&self, ino: u64, count: u64);

    /// The requests of whose interrupts something wants to hear.
    fn interrupts(&self) -> Option<&Interrupts>;
}

/// A mount whose first exchange is done.
pub(crate) struct Session<S> {
    device: Arc<File>,
    serve: Arc<S>,
}

/// Threads that serve a mount.
pub(crate) struct Serving(Vec<thread::JoinHandle<io::Result<()>>>);

impl<S: Serve> Session<S> {
    /// Agrees with the kernel on how to go on.
    ///
    /// # Errors
    /// The mount is gone, or the kernel speaks an older major version.
    pub(crate) fn start(device: File, serve: S) -> io::Result<Self> {
        let device = Arc::new(device);
        let mut buffer = buffer();
        loop {
            let Some(length) = receive(&device, &mut buffer)? else {
                return Err(io::Error::from_raw_os_error(libc::ENOTCONN));
            };
            let bytes = buffer.get(..length).unwrap_or(&[]);
            let Ok(Request { unique, op, .. }) = decode(bytes) else {
                return Err(io::Error::other("the first message is no request"));
            };
            let Op::Init {
                major,
                readahead,
                flags,
                ..
            } = op
            else {
                Reply::new(Arc::clone(&device), unique).error(libc::EIO);
                return Err(io::Error::other("the first request is not for the start"));
            };
            let reply = Reply::new(Arc::clone(&device), unique);
            if major < MAJOR {
                reply.error(libc::EPROTO);
                return Err(io::Error::other(format!("the kernel speaks FUSE {major}")));
            }
            let mut message = Message::default();
            if major > MAJOR {
                // It asks again in this version.
                reply.data(message.version().as_bytes());
                continue;
            }
            let ordinary = init::ASYNC_READ | init::BIG_WRITES | init::MAX_PAGES | init::INIT_EXT;
            let agreed = Agreed {
                readahead: readahead.min(TRANSFER_MAX),
                flags: flags & (ordinary | serve.wanted()),
                background: BACKGROUND_MAX,
                write_bytes: TRANSFER_MAX,
                pages: PAGES_MAX,
            };
            tracing::debug!(offered = flags, agreed = agreed.flags, "FUSE");
            reply.data(message.agreed(&agreed).as_bytes());
            let serve = Arc::new(serve);
            return Ok(Self { device, serve });
        }
    }

    /// The descriptor, to tell the kernel something unasked.
    pub(crate) fn device(&self) -> Arc<File> {
        Arc::clone(&self.device)
    }

    /// Serves from so many threads until the mount is gone.
    pub(crate) fn spawn(self, threads: usize) -> io::Result<Serving> {
        let spawn = |number: usize| {
            let (device, serve) = (Arc::clone(&self.device), Arc::clone(&self.serve));
            thread::Builder::new()
                .name(format!("xtfs-fuse-{number}"))
                .spawn(move || run(&device, &*serve))
        };
        (0..threads)
            .map(spawn)
            .collect::<io::Result<_>>()
            .map(Serving)
    }
}

impl Serving {
    /// Waits until the mount is gone.
    ///
    /// # Errors
    /// Reading from the kernel failed.
    pub(crate) fn join(self) -> io::Result<()> {
        let mut outcome = Ok(());
        for thread in self.0 {
            let ended = thread.join();
            let ended = ended.unwrap_or_else(|_| Err(io::Error::other("a thread of FUSE failed")));
            outcome = outcome.and(ended);
        }
        outcome
    }
}

fn buffer() -> Vec<u8> {
    vec![0; TRANSFER_MAX as usize + REQUEST_ROOM]
}

/// The next message; `None` when the mount is gone.
fn receive(device: &File, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    let mut device = device;
    loop {
        let error = match device.read(buffer) {
            Ok(length) => return Ok(Some(length)),
            Err(error) => error,
        };
        match error.raw_os_error() {
            // The request was interrupted before it was read, or this thread was.
            Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => {}
            Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(None),
            _ => return Err(error),
        }
    }
}

fn run(device: &Arc<File>, serve: &impl Serve) -> io::Result<()> {
    let mut buffer = buffer();
    while let Some(length) = receive(device, &mut buffer)? {
        let bytes = buffer.get(..length).unwrap_or(&[]);
        match decode(bytes) {
            Ok(request) => take(device, serve, request),
            Err(Malformed::Body { unique }) => {
                tracing::error!(length, "a request of the kernel is malformed");
                Reply::new(Arc::clone(device), unique).error(libc::EIO);
            }
            Err(Malformed::NoHeader) => {
                tracing::error!(length, "a message of fewer than {IN_HEADER_BYTES} bytes");
            }
        }
    }
    Ok(())
}

fn take(device: &Arc<File>, serve: &impl Serve, request: Request<'_>) {
    match request.op {
        // These three are not answered.
        Op::Forget { count } => serve.forget(request.ino, count),
        Op::BatchForget { pairs: bytes } => {
            for (ino, count) in pairs(bytes) {
                serve.forget(ino, count);
            }
        }
        Op::Interrupt { unique } => {
            if let Some(interrupts) = serve.interrupts() {
                interrupts.interrupt(unique);
            }
        }
        _ => {
            let reply = Reply::new(Arc::clone(device), request.unique);
            match request.op {
                Op::Destroy => reply.ok(),
                Op::Ioctl => reply.error(libc::ENOTTY),
                Op::Init { .. } | Op::Other => reply.error(libc::ENOSYS),
                _ => serve.serve(request, reply),
            }
        }
    }
}
