//! What happens when the file system fails, the machine stops, or bytes decay.

mod decay;
mod failures;
mod scenario;
