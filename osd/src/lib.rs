//! xtfs-osd
