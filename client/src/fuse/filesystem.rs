//! Which call of the vfs a request of the kernel becomes.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Waker};

use tokio::runtime::Handle;

use super::kernel::abi::init;
use super::kernel::interrupts::Interrupts;
use super::kernel::reply::Reply;
use super::kernel::request::{Op, Request};
use super::kernel::session::Serve;
use crate::background::Tasks;
use crate::vfs::Vfs;

/// The kernel's side of a mounted volume. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Adaptor {
    pub(crate) vfs: Vfs,
    pub(crate) runtime: Handle,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) interrupts: Arc<Interrupts>,
}

impl Adaptor {
    /// Runs an operation here as far as it needs no waiting; the rest runs as a task. The kernel
    /// bounds how many requests are open.
    pub(super) fn run(&self, operation: impl Future<Output = ()> + Send + 'static) {
        let mut operation = Box::pin(operation);
        if !self.is_done(&mut operation) {
            self.tasks.spawn(operation);
        }
    }

    /// The same for one that may be given up when its process is about to die.
    pub(super) fn run_killable<F>(
        &self,
        request: &Request<'_>,
        reply: Reply,
        operation: impl FnOnce(Reply) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let (unique, pid) = (request.unique, request.pid);
        let mut operation = Box::pin(operation(reply.interruptible()));
        if self.is_done(&mut operation) {
            return;
        }
        let interruptible = self.interrupts.enter(unique);
        self.tasks.spawn(async move {
            tokio::select! {
                () = operation => {}
                () = interruptible.killed(pid) => {}
            }
        });
    }

    fn is_done(
        &self,
        operation: &mut std::pin::Pin<Box<impl Future<Output = ()> + ?Sized>>,
    ) -> bool {
        let _runtime = self.runtime.enter();
        let mut context = Context::from_waker(Waker::noop());
        operation.as_mut().poll(&mut context).is_ready()
    }
}

impl Serve for Adaptor {
    fn wanted(&self) -> u64 {
        // Not ATOMIC_O_TRUNC: with it the kernel asks to truncate before it has looked whether the
        // file is a running program, when it is opened with O_RDONLY | O_TRUNC.
        init::ASYNC_DIO
            | init::DO_READDIRPLUS
            | init::READDIRPLUS_AUTO
            | init::PARALLEL_DIROPS
            | init::HANDLE_KILLPRIV_V2
            | init::CACHE_SYMLINKS
            | init::EXPORT_SUPPORT
            // Files that several clients have open are not cached, and mapped all the same.
            | init::DIRECT_IO_ALLOW_MMAP
            | init::POSIX_LOCKS
            | init::FLOCK_LOCKS
            // Lists are kept, inherited and enforced by the MRC, which needs the umask to itself.
            | init::POSIX_ACL
            | init::DONT_MASK
    }

    fn serve(&self, request: Request<'_>, reply: Reply) {
        match request.op {
            Op::Lookup { .. }
            | Op::Getattr
            | Op::Setattr(_)
            | Op::Readlink
            | Op::Symlink { .. }
            | Op::Mknod { .. }
            | Op::Mkdir { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. }
            | Op::Link { .. }
            | Op::Statfs
            | Op::Setxattr { .. }
            | Op::Getxattr { .. }
            | Op::Listxattr { .. }
            | Op::Removexattr { .. }
            | Op::Access { .. } => self.names(&request, reply),
            Op::Getlk(_) | Op::Setlk { .. } => self.locks(&request, reply),
            _ => self.files(&request, reply),
        }
    }

    fn forget(&self, ino: u64, count: u64) {
        self.vfs.forget(ino, count);
    }

    fn interrupts(&self) -> Option<&Interrupts> {
        Some(&self.interrupts)
    }
}
