//! Advisory locks: between clients in this process, with an MRC that restarts and messages that
//! are lost; and between mounts.

mod clients;
mod mounts;
