//! What happens when the file system fails, the machine stops, or bytes decay; also to backups.

mod backup;
mod decay;
mod failures;
mod scenario;
