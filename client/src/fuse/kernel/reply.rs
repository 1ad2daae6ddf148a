//! The one answer of a request, and what the kernel is told unasked.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::sync::Arc;
use std::time::Duration;

use super::abi::{NOTIFY_INVAL_INODE, OUT_HEADER_BYTES};
use super::encode::{FileAttr, Listing, Message, Room, Ttl};

/// Writes one message.
fn send(device: &File, unique: u64, error: i32, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(OUT_HEADER_BYTES + body.len()).map_err(io::Error::other)?;
    let mut head = Message::with_capacity(OUT_HEADER_BYTES);
    head.u32s(&[length, error.cast_unsigned()]).u64s(&[unique]);
    let parts = [IoSlice::new(head.as_bytes()), IoSlice::new(body)];
    let mut device = device;
    device.write_vectored(&parts).map(|_| ())
}

/// Answers a request, once. One that is dropped answers with an error.
pub(crate) struct Reply {
    device: Option<Arc<File>>,
    unique: u64,
    if_dropped: i32,
}

impl Reply {
    pub(crate) fn new(device: Arc<File>, unique: u64) -> Self {
        Self {
            device: Some(device),
            unique,
            if_dropped: libc::EIO,
        }
    }

    /// The work on the request may be given up: then its process hears that it was interrupted.
    pub(crate) fn interruptible(mut self) -> Self {
        self.if_dropped = libc::EINTR;
        self
    }

    fn send(mut self, error: i32, body: &[u8]) {
        if let Some(device) = self.device.take() {
            tell(&device, self.unique, error, body);
        }
    }

    pub(crate) fn error(self, errno: i32) {
        self.send(-errno, &[]);
    }

    pub(crate) fn ok(self) {
        self.send(0, &[]);
    }

    pub(crate) fn data(self, bytes: &[u8]) {
        self.send(0, bytes);
    }

    fn message(self, message: &Message) {
        self.send(0, message.as_bytes());
    }

    pub(crate) fn entry(self, ttl: Ttl, attr: &FileAttr) {
        self.message(Message::with_capacity(128).entry(ttl, attr));
    }

    pub(crate) fn attributes(self, ttl: Duration, attr: &FileAttr) {
        self.message(Message::with_capacity(104).attributes(ttl, attr));
    }

    pub(crate) fn opened(self, handle: u64, flags: u32) {
        self.message(Message::with_capacity(16).opened(handle, flags));
    }

    pub(crate) fn created(self, ttl: Ttl, attr: &FileAttr, handle: u64, flags: u32) {
        let mut message = Message::with_capacity(144);
        self.message(message.entry(ttl, attr).opened(handle, flags));
    }

    pub(crate) fn written(self, bytes: u32) {
        self.message(Message::with_capacity(8).u32s(&[bytes, 0]));
    }

    /// Length of an attribute.
    pub(crate) fn size(self, bytes: u32) {
        self.written(bytes);
    }

    pub(crate) fn offset(self, offset: u64) {
        self.message(Message::with_capacity(8).u64s(&[offset]));
    }

    pub(crate) fn room(self, room: &Room) {
        self.message(Message::with_capacity(80).room(room));
    }

    pub(crate) fn lock(self, start: u64, end: u64, kind: i32, pid: u32) {
        self.message(Message::with_capacity(24).lock(start, end, kind, pid));
    }

    pub(crate) fn listing(self, listing: &Listing) {
        self.data(listing.as_bytes());
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(device) = self.device.take() {
            tell(&device, self.unique, -self.if_dropped, &[]);
        }
    }
}

fn tell(device: &File, unique: u64, error: i32, body: &[u8]) {
    if let Err(error) = send(device, unique, error, body)
        // The request was aborted, or the mount is gone.
        && !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV))
    {
        tracing::error!(unique, %error, "the kernel did not take an answer");
    }
}

/// Tells the kernel what it must not rely on any more.
#[derive(Clone)]
pub(crate) struct Notifier(pub(crate) Arc<File>);

impl Notifier {
    /// Attributes of an inode, and its content from `offset` on; a negative one leaves the content.
    /// May wait for reads of the content that are under way.
    pub(crate) fn inval_inode(&self, ino: u64, offset: i64) -> io::Result<()> {
        let mut body = Message::with_capacity(24);
        body.u64s(&[ino, offset.cast_unsigned(), 0]);
        send(&self.0, 0, NOTIFY_INVAL_INODE, body.as_bytes())
    }
}
