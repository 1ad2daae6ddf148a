//! Mounting without root's rights: `fusermount3` has them, mounts, and passes the descriptor on.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};

/// Mounts with options as `fusermount3 -o` takes them.
///
/// # Errors
/// `fusermount3` is not there or refuses; what it said is in the error.
pub(crate) fn mount(mountpoint: &Path, options: &str) -> io::Result<File> {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // As its standard input, because no other descriptor can be passed on without any child that is
    // started at the same time getting it as well.
    let child = Command::new("fusermount3")
        .arg("-o")
        .arg(options)
        .arg("--")
        .arg(mountpoint)
        .env("_FUSE_COMMFD", "0")
        .stdin(theirs)
        .stderr(Stdio::piped())
        .spawn();
    let received = match &child {
        Ok(_) => receive(&ours),
        Err(_) => None,
    };
    let output = child?.wait_with_output()?;
    received.ok_or_else(|| {
        let text = String::from_utf8_lossy(&output.stderr);
        io::Error::other(format!("fusermount3: {}", text.trim()))
    })
}

/// The descriptor that comes with the one byte that is sent.
fn receive(socket: &impl AsFd) -> Option<File> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    recvmsg(socket, &mut parts, &mut ancillary, flags).ok()?;
    ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next().map(File::from),
        _ => None,
    })
}
