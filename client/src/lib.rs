//! xtfs-client
pub mod admin;
