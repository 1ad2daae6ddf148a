//! xtfs-tests
