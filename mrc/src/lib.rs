//! xtfs-mrc
