//! Every OSD reads back its own objects; all OSDs at once, each page by page.

use futures_util::future::join_all;
use xtfs_client::admin::Admin;
use xtfs_protocol::Result;
use xtfs_protocol::directory::ServiceInfo;

use crate::Progress;
use crate::report::{DamagedObject, OsdReport, Report};

/// Verifies all of `osds`. An error of one is part of its report.
pub(crate) async fn all(
    admin: &Admin,
    osds: &[ServiceInfo],
    progress: &dyn Progress,
) -> Vec<OsdReport> {
    join_all(osds.iter().map(|osd| async move {
        let mut report = OsdReport::new(osd.id, osd.addresses.clone());
        if let Err(error) = one(admin, &mut report, progress).await {
            report.error = Some(error.to_string());
        }
        report
    }))
    .await
}

async fn one(admin: &Admin, report: &mut OsdReport, progress: &dyn Progress) -> Result<()> {
    let osd = admin.osd(report.osd).await?;
    progress.expect(osd.space().await?.objects);
    let mut after = None;
    loop {
        let page = osd.verify(after).await?;
        progress.verified(page.objects, page.bytes);
        report.objects = report.objects.saturating_add(page.objects);
        report.bytes = report.bytes.saturating_add(page.bytes);
        for damaged in page.damaged {
            report.damaged_objects = report.damaged_objects.saturating_add(1);
            if report.damaged.len() < Report::FINDINGS_MAX {
                report.damaged.push(DamagedObject {
                    object: damaged.object.to_string(),
                    volume: None,
                    ino: None,
                    damage: damaged.damage,
                    id: damaged.object,
                });
            }
        }
        // A page that does not move on ends the walk, whatever the OSD claims.
        if page.end || page.last.is_none() || page.last <= after {
            return Ok(());
        }
        after = page.last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Unwatched;
    use crate::fake::{FakeCell, osd_id};

    #[tokio::test]
    async fn every_object_of_every_osd_is_verified_over_many_pages() {
        let mut cell = FakeCell::new(2);
        for number in 0..100 {
            cell.store(number % 2, 70, number as u64);
        }
        let admin = Admin::new(cell.connector());
        let reports = all(&admin, &admin.osds().await.unwrap(), &Unwatched).await;
        let counts: Vec<_> = reports.iter().map(|r| (r.osd, r.objects)).collect();
        assert_eq!(counts, [(osd_id(0), 50), (osd_id(1), 50)]);
    }

    #[tokio::test]
    async fn one_osd_that_is_down_does_not_keep_the_others_from_being_verified() {
        let mut cell = FakeCell::new(2);
        cell.store(0, 70, 0);
        cell.store(1, 70, 1);
        cell.take_down(0);
        let admin = Admin::new(cell.connector());
        let reports = all(&admin, &admin.osds().await.unwrap(), &Unwatched).await;
        assert!(reports[0].error.as_deref().unwrap().contains("unreachable"));
        assert_eq!((reports[1].objects, reports[1].error.as_ref()), (1, None));
    }
}
