//! Requests of the kernel become calls of the vfs: translation, nothing else.
//!
//! A request is answered on the thread that received it where that needs no waiting, which is
//! always so when the servers are in the same process; otherwise it goes on as a task, and the
//! thread takes the next request.
//!
//! - `kernel` — the messages of the kernel, and the threads that read them;
//! - `filesystem` — which call a request becomes; `names`, `files`, `locks` — the requests;
//! - `reply` — protocol types to kernel types;
//! - `groups` — who calls;
//! - `mount` — mounting, waiting, unmounting;
//! - `bound` — a file system that does nothing, to measure the kernel's share.

pub mod bound;
mod files;
mod filesystem;
mod groups;
mod kernel;
mod locks;
pub mod mount;
mod names;
mod reply;

pub use mount::{MountFlags, MountOptions, Mounted, mount};
