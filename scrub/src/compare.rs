//! Objects against files: does each object belong to a file, and lie where that file looks?

use std::collections::BTreeSet;

use futures_util::future::join_all;
use xtfs_client::admin::{Admin, Catalog, Verdict};
use xtfs_protocol::Result;
use xtfs_protocol::ids::ServiceId;
use xtfs_protocol::object::ObjectSummary;

use crate::report::{Finding, FindingKind, Findings, OsdReport, Report};

/// Most suspicious objects of one OSD that are judged a second time. Further ones are counted by
/// the first judgement.
const SUSPECTS_MAX: usize = 1 << 20;

/// Compares, and completes the report: names for damaged objects, findings, and OSDs that files
/// are placed on but that the directory does not know.
pub(crate) async fn objects_with_files(admin: &Admin, report: &mut Report) -> Result<()> {
    let first = Catalog::load(admin).await?;
    let walks = report.osds.iter().filter(|osd| osd.error.is_none());
    let suspects = join_all(walks.map(|osd| suspects_on(admin, &first, osd.osd))).await;
    // Files come and go during the walk: only what looks wrong in a later picture too is wrong.
    let suspicious = suspects
        .iter()
        .any(|(_, walk)| walk.as_ref().is_ok_and(|walk| !walk.is_empty()));
    let catalog = if suspicious {
        Catalog::load(admin).await?
    } else {
        first
    };
    for (osd, walk) in suspects {
        match walk {
            Ok(objects) => {
                for object in &objects {
                    record(&catalog, osd, object, &mut report.findings);
                }
            }
            Err(error) => {
                if let Some(entry) = report.osds.iter_mut().find(|entry| entry.osd == osd) {
                    entry.error = Some(error.to_string());
                }
            }
        }
    }
    add_missing_osds(&catalog, &mut report.osds);
    name_damaged(&catalog, &mut report.osds);
    report.files = catalog.files();
    Ok(())
}

/// The objects of one OSD that do not fit the first picture.
async fn suspects_on(
    admin: &Admin,
    catalog: &Catalog,
    osd: ServiceId,
) -> (ServiceId, Result<Vec<ObjectSummary>>) {
    let walk = async {
        let connection = admin.osd(osd).await?;
        let mut suspects = Vec::new();
        let mut after = None;
        loop {
            let (objects, end) = connection.objects(after).await?;
            let last = objects.last().map(|object| object.object);
            let room = SUSPECTS_MAX.saturating_sub(suspects.len());
            let odd = |object: &ObjectSummary| catalog.judge(osd, object) != Verdict::Fine;
            suspects.extend(objects.into_iter().filter(odd).take(room));
            if end || last.is_none() || last <= after {
                return Ok(suspects);
            }
            after = last;
        }
    };
    (osd, walk.await)
}

fn record(catalog: &Catalog, osd: ServiceId, object: &ObjectSummary, findings: &mut Findings) {
    let (kind, what) = match catalog.judge(osd, object) {
        Verdict::Fine => return,
        Verdict::UnknownFile | Verdict::UnknownVolume => {
            findings.orphaned = findings.orphaned.saturating_add(1);
            return;
        }
        Verdict::BeyondEnd { size } => {
            findings.beyond_end = findings.beyond_end.saturating_add(1);
            let what = format!("reaches beyond the {size} bytes of its file");
            (FindingKind::BeyondEnd, what)
        }
        Verdict::Misplaced { expected } => {
            findings.misplaced = findings.misplaced.saturating_add(1);
            let what = match expected {
                Some(expected) => format!("its file looks for it on osd {expected}"),
                None => "its file looks for it nowhere".to_owned(),
            };
            (FindingKind::Misplaced, what)
        }
    };
    if findings.list.len() < Report::FINDINGS_MAX {
        findings.list.push(Finding {
            kind,
            object: object.object.to_string(),
            osd,
            what,
        });
    }
}

/// An OSD that holds objects of files but that the directory does not know was not checked.
fn add_missing_osds(catalog: &Catalog, osds: &mut Vec<OsdReport>) {
    let known: BTreeSet<_> = osds.iter().map(|osd| osd.osd).collect();
    let placed: BTreeSet<_> = catalog.osds().into_iter().collect();
    for &missing in placed.difference(&known) {
        let mut report = OsdReport::new(missing, Vec::new());
        report.error = Some("files are placed on it, but it never registered".to_owned());
        osds.push(report);
    }
}

fn name_damaged(catalog: &Catalog, osds: &mut [OsdReport]) {
    for damaged in osds.iter_mut().flat_map(|osd| &mut osd.damaged) {
        let file = damaged.id.file;
        damaged.volume = catalog.volume_name(file.volume).map(str::to_owned);
        damaged.ino = catalog.ino(file);
    }
}

#[cfg(test)]
mod tests {
    use crate::fake::{FakeCell, osd_id};
    use crate::{Outcome, Report, Unwatched, scrub};

    async fn scrubbed(cell: FakeCell) -> Report {
        scrub(cell.connector(), &Unwatched).await.unwrap()
    }

    #[tokio::test]
    async fn a_cell_whose_objects_fit_their_files_is_clean() {
        let mut cell = FakeCell::new(2);
        cell.file(7, 70, 2 << 20);
        cell.store(0, 70, 0);
        cell.store(1, 70, 1);
        let report = scrubbed(cell).await;
        assert_eq!((report.outcome(), report.files), (Outcome::Clean, 1));
    }

    #[tokio::test]
    async fn a_damaged_object_is_named_by_volume_and_inode() {
        let mut cell = FakeCell::new(1);
        cell.file(7, 70, 1 << 20);
        cell.store(0, 70, 0);
        cell.damage(0, 70, 0);
        let report = scrubbed(cell).await;
        assert_eq!(report.outcome(), Outcome::Damaged);
        let damaged = &report.osds[0].damaged[0];
        assert_eq!(damaged.volume.as_deref(), Some("main"));
        assert_eq!(damaged.ino, Some(7));
        assert_eq!(damaged.damage[0].place, "segment 1 at 512");
    }

    #[tokio::test]
    async fn an_object_on_the_wrong_osd_is_damage_and_an_orphan_is_not() {
        let mut cell = FakeCell::new(2);
        cell.file(7, 70, 2 << 20);
        cell.store(0, 70, 1);
        cell.store(0, 99, 0);
        let report = scrubbed(cell).await;
        assert_eq!(report.outcome(), Outcome::Damaged);
        assert_eq!(
            (report.findings.misplaced, report.findings.orphaned),
            (1, 1)
        );
        assert!(
            report.findings.list[0]
                .what
                .contains(&osd_id(1).to_string())
        );
    }

    #[tokio::test]
    async fn a_file_that_appears_during_the_walk_is_no_orphan() {
        let mut cell = FakeCell::new(1);
        cell.store(0, 70, 0);
        cell.file_in_second_listing(7, 70, 1 << 20);
        let report = scrubbed(cell).await;
        assert_eq!(report.findings.orphaned, 0);
        assert_eq!(report.outcome(), Outcome::Clean);
    }

    #[tokio::test]
    async fn an_osd_that_never_registered_leaves_the_scrub_incomplete() {
        let mut cell = FakeCell::new(2);
        cell.file(7, 70, 1);
        cell.forget(1);
        let report = scrubbed(cell).await;
        assert_eq!(report.outcome(), Outcome::Incomplete);
        assert_eq!(report.osds[1].osd, osd_id(1));
    }
}
