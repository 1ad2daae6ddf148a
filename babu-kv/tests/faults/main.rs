//! What happens when the file system fails, the machine stops, or bytes decay; also to backups; and what
//! somebody sees who reads beside the owner.

mod ahead;
mod backup;
mod decay;
mod drop;
mod failures;
mod online;
mod repair;
mod replay;
mod scenario;
mod stream;
