//! Everything that crosses the wire of an xtfs cell.
//!
//! A *cell* is one installation with its own certificate authority. Its parts talk by *calls*: a
//! [`Request`] with a [`CallHeader`] and raw payload bytes goes one way, a [`Reply`] or an
//! [`Error`] with payload bytes comes back. The same messages travel over QUIC between machines
//! and as plain values inside one process.
//!
//! What always holds:
//! - every call has a deadline, every length a bound that is checked before memory is taken;
//! - bodies that arrive are validated before anything reads them;
//! - an [`Error`] says what failed, which errno that is, and whether a retry can help.
//!
//! Read in this order:
//! - [`ids`], [`time`], [`error`] — the vocabulary;
//! - [`lock`] — advisory locks and how their ranges join and split;
//! - [`meta`], [`object`], [`directory`] — what can be asked of an MRC, an OSD and the directory;
//! - [`message`] — the envelope around them;
//! - [`capability`], [`keyring`] — what lets a client talk to OSDs, and the keys that sign it;
//! - [`cell`] — the certificate authority of an installation and the identities it gives out;
//! - [`frame`] — the bytes of a message;
//! - [`mod@env`] — clock, randomness and blocking work, replaceable in simulation;
//! - [`transport`] — how a call reaches its service.
#![warn(missing_docs)]

pub mod capability;
pub mod cell;
pub mod directory;
pub mod env;
pub mod error;
pub mod frame;
pub mod ids;
pub mod keyring;
pub mod lock;
pub mod message;
pub mod meta;
pub mod object;
pub mod quota;
pub mod time;
pub mod transport;

pub use cell::{Cell, Identity};
pub use error::{Code, Error, Result, Retry};
pub use keyring::KeyRing;
pub use message::{Answer, Call, CallHeader, Reply, Request};
/// How files are cut: part of the messages, so that whoever speaks them needs nothing else.
pub use xtfs_layout as layout;
