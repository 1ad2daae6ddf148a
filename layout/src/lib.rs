//! xtfs-layout
