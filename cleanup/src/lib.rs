//! xtfs-cleanup
