//! Requests about names and attributes.

use xtfs_protocol::meta::{self, SetAttr, XattrMode};

use super::filesystem::Adaptor;
use super::groups::{caller, holder, maker};
use super::kernel::reply::Reply;
use super::kernel::request::{Op, Request};
use super::reply;

impl Adaptor {
    pub(super) fn names(&self, request: &Request<'_>, reply: Reply) {
        let (vfs, ino) = (self.vfs.clone(), request.ino);
        match request.op {
            Op::Lookup { name } => {
                let (caller, name) = (caller(request), name.to_vec());
                self.run_killable(request, reply, |reply| async move {
                    let found = vfs.lookup(&caller, ino, &name).await;
                    reply::entry(&vfs, found, reply);
                });
            }
            Op::Getattr => {
                let caller = holder(request);
                self.run_killable(request, reply, |reply| async move {
                    reply::attributes(vfs.getattr(&caller, ino).await, reply);
                });
            }
            Op::Setattr(set) => {
                let by_handle = set.handle.is_some();
                let set = SetAttr {
                    mode: set.mode.map(reply::permission),
                    uid: set.uid,
                    gid: set.gid,
                    size: set.size,
                    atime: set.atime.map(reply::set_time),
                    mtime: set.mtime.map(reply::set_time),
                };
                let caller = caller(request);
                self.run(async move {
                    let found = vfs.setattr(&caller, ino, set, by_handle).await;
                    reply::attributes(found, reply);
                });
            }
            Op::Readlink => {
                let caller = holder(request);
                self.run_killable(request, reply, |reply| async move {
                    reply::bytes(vfs.readlink(&caller, ino).await, reply);
                });
            }
            Op::Statfs => self.run_killable(request, reply, |reply| async move {
                match vfs.statfs().await {
                    Ok(space) => reply.room(&reply::room(&space)),
                    Err(error) => reply.error(reply::errno(&error)),
                }
            }),
            Op::Access { mask } => {
                let (caller, mask) = (caller(request), (mask & 7) as u8);
                self.run_killable(request, reply, |reply| async move {
                    reply::empty(vfs.access(&caller, ino, mask).await, reply);
                });
            }
            Op::Setxattr { .. }
            | Op::Getxattr { .. }
            | Op::Listxattr { .. }
            | Op::Removexattr { .. } => self.xattrs(request, reply),
            _ => self.changes(request, reply),
        }
    }

    fn changes(&self, request: &Request<'_>, reply: Reply) {
        let (vfs, parent) = (self.vfs.clone(), request.ino);
        match request.op {
            Op::Mknod {
                name,
                mode,
                rdev,
                umask,
            } => {
                let Some(kind) = reply::kind_of_mode(mode) else {
                    return reply.error(libc::EINVAL);
                };
                let (caller, name) = (maker(request, umask), name.to_vec());
                let mode = reply::permission(mode);
                self.run(async move {
                    let found = vfs.mknod(&caller, parent, &name, kind, mode, rdev).await;
                    reply::entry(&vfs, found, reply);
                });
            }
            Op::Mkdir { name, mode, umask } => {
                let (caller, name) = (maker(request, umask), name.to_vec());
                let mode = reply::permission(mode);
                self.run(async move {
                    let found = vfs.mkdir(&caller, parent, &name, mode).await;
                    reply::entry(&vfs, found, reply);
                });
            }
            Op::Symlink { name, target } => {
                let (caller, name) = (caller(request), name.to_vec());
                let target = target.to_vec();
                self.run(async move {
                    let found = vfs.symlink(&caller, parent, &name, &target).await;
                    reply::entry(&vfs, found, reply);
                });
            }
            Op::Link { ino, name } => {
                let (caller, name) = (caller(request), name.to_vec());
                self.run(async move {
                    let found = vfs.link(&caller, ino, parent, &name).await;
                    reply::entry(&vfs, found, reply);
                });
            }
            Op::Unlink { name } => {
                let (caller, name) = (caller(request), name.to_vec());
                self.run(async move {
                    reply::empty(vfs.unlink(&caller, parent, &name).await, reply);
                });
            }
            Op::Rmdir { name } => {
                let (caller, name) = (caller(request), name.to_vec());
                self.run(async move {
                    reply::empty(vfs.rmdir(&caller, parent, &name).await, reply);
                });
            }
            Op::Rename {
                name,
                new_parent,
                new_name,
                flags,
            } => {
                let known = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE;
                if flags & !known != 0 {
                    return reply.error(libc::EINVAL);
                }
                let flags = meta::RenameFlags {
                    no_replace: flags & libc::RENAME_NOREPLACE != 0,
                    exchange: flags & libc::RENAME_EXCHANGE != 0,
                };
                let (old, new) = (name.to_vec(), new_name.to_vec());
                let caller = caller(request);
                self.run(async move {
                    let done = vfs
                        .rename(&caller, (parent, &old), (new_parent, &new), flags)
                        .await;
                    reply::empty(done, reply);
                });
            }
            _ => reply.error(libc::ENOSYS),
        }
    }

    fn xattrs(&self, request: &Request<'_>, reply: Reply) {
        let (vfs, caller, ino) = (self.vfs.clone(), caller(request), request.ino);
        match request.op {
            Op::Setxattr { name, value, flags } => {
                let mode = match flags {
                    0 => XattrMode::Set,
                    libc::XATTR_CREATE => XattrMode::Create,
                    libc::XATTR_REPLACE => XattrMode::Replace,
                    _ => return reply.error(libc::EINVAL),
                };
                let (name, value) = (name.to_vec(), value.to_vec());
                self.run(async move {
                    let done = vfs.setxattr(&caller, ino, &name, &value, mode).await;
                    reply::empty(done, reply);
                });
            }
            Op::Getxattr { name, size } => {
                let name = name.to_vec();
                self.run_killable(request, reply, |reply| async move {
                    let value = vfs.getxattr(&caller, ino, &name).await;
                    reply::xattr(value, size, reply);
                });
            }
            Op::Listxattr { size } => self.run_killable(request, reply, |reply| async move {
                reply::xattr(vfs.listxattr(&caller, ino).await, size, reply);
            }),
            Op::Removexattr { name } => {
                let name = name.to_vec();
                self.run(async move {
                    reply::empty(vfs.removexattr(&caller, ino, &name).await, reply);
                });
            }
            _ => reply.error(libc::ENOSYS),
        }
    }
}
