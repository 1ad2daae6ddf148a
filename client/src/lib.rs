//! xtfs-client
