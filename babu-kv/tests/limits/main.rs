//! The limits of a real machine: a disk that is full, syncs that fail, descriptors that run out.
//!
//! Needs root, `mkfs.ext4` and `strace`. Each test starts this program again as a process of its
//! own; what that one mounts lies in a mount namespace that ends with it, also when it is killed.

mod descriptors;
mod failing_sync;
mod full_disk;
mod process;
