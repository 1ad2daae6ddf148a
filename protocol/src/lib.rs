//! xtfs-protocol
