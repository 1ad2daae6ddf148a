//! Finds objects whose file no longer exists.
//!
//! A client that dies leaves no garbage: the MRC deletes the objects of removed files itself.
//! Orphans are what remains after worse accidents, such as an MRC restored from an old backup.
//!
//! What always holds:
//! - finding changes nothing;
//! - nothing is called an orphan on one look: objects and files are listed twice with a pause
//!   between, and only what is stored, and unknown to the MRC, both times is reported. Content
//!   numbers are never used twice, so a file that was unknown twice is not on its way in;
//! - an OSD that cannot be asked is reported and does not keep the others from being asked;
//! - memory is bounded by the number of orphaned files, up to [`Report::FILES_MAX`].
//!
//! Read in this order: [`Report`] (what comes out), `find` (how).
#![warn(missing_docs)]

mod find;
mod report;

pub use find::find;
pub use report::{OrphanFile, OsdError, Report};
