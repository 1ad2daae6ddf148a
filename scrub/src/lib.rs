//! Verifies every object on every OSD of a cell.
//!
//! A scrub has two halves. First every OSD, all at once, reads back its own objects and checks
//! them against their checksums and fingerprints. Then the objects that exist are held against the
//! files that the MRC knows: do they lie where their file looks for them, and does their file
//! exist?
//!
//! What always holds:
//! - a scrub changes nothing;
//! - an OSD that cannot be checked is reported as such and never passes for clean, and never
//!   keeps the others from being checked;
//! - the cell works on meanwhile: what looks wrong between objects and files is judged twice,
//!   against two pictures of the files;
//! - memory is bounded: lists of findings end at [`Report::FINDINGS_MAX`], their counts go on.
//!
//! Read in this order: [`Report`] (what comes out), `verify` (the bytes), `compare` (the files).
#![warn(missing_docs)]

mod compare;
#[cfg(test)]
mod fake;
mod report;
mod verify;

use std::sync::Arc;

use xtfs_client::admin::Admin;
use xtfs_protocol::Result;
use xtfs_protocol::transport::Connector;

pub use report::{DamagedObject, Finding, FindingKind, Findings, OsdReport, Outcome, Report};

/// Is told how far a scrub has come. Called from several tasks at once.
pub trait Progress: Send + Sync {
    /// So many objects will be verified, as far as the OSDs know now.
    fn expect(&self, objects: u64);
    /// So many further objects with so many stored bytes were verified.
    fn verified(&self, objects: u64, bytes: u64);
    /// All objects are verified; they are now compared with the files.
    fn comparing(&self);
}

/// Progress that nobody watches.
pub struct Unwatched;

impl Progress for Unwatched {
    fn expect(&self, _: u64) {}
    fn verified(&self, _: u64, _: u64) {}
    fn comparing(&self) {}
}

/// Scrubs the cell that `connector` leads to.
///
/// # Errors
/// Only when the MRC cannot say which services and files exist; an OSD's trouble is part of the
/// report.
pub async fn scrub(connector: Arc<dyn Connector>, progress: &dyn Progress) -> Result<Report> {
    let admin = Admin::new(connector);
    let known = admin.osds().await?;
    let mut report = Report {
        osds: verify::all(&admin, &known, progress).await,
        ..Report::default()
    };
    progress.comparing();
    compare::objects_with_files(&admin, &mut report).await?;
    Ok(report)
}
