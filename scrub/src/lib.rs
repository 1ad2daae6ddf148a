//! xtfs-scrub
