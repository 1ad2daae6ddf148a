//! The kernel's side of FUSE: requests are read from `/dev/fuse` and answered there.
//!
//! Messages are what the kernel's public header for FUSE says, in the machine's byte order. This is
//! spoken here rather than through a library because file locks need two things that the library
//! used before (fuser 0.18) does not pass on: whether a lock is of a range or of the whole file, and that the
//! waiting process was interrupted.
//!
//! What always holds:
//! - a message of any length and content is decoded without a panic, or refused;
//! - every request that wants an answer gets exactly one, also when the work on it is given up;
//! - memory is one buffer of the largest request for each thread.
//!
//! - `abi` — the numbers;
//! - `request`, `decode` — requests, and how they are read from bytes;
//! - `encode` — answers to bytes;
//! - `reply` — the one answer of a request;
//! - `interrupts` — requests whose process does not want to wait any more;
//! - `session` — the threads that read and the first exchange;
//! - `fusermount` — mounting for those who may not do it themselves.

pub(crate) mod abi;
pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod fusermount;
pub(crate) mod interrupts;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod session;
