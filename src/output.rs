//! What commands print: tables for people, JSON for programs.

pub mod progress;

use std::io::{self, Write};

use anyhow::{Context, Result};
use comfy_table::{Table, presets};
use serde::Serialize;
use serde_json::{Value, json};
use xtfs_cleanup::Report as Orphans;
use xtfs_protocol::directory::{ServiceInfo, ServiceKind};
use xtfs_protocol::meta::VolumeInfo;
use xtfs_scrub::{Outcome, Report};

use crate::data_dir::RunInfo;
use crate::sizes::human;

/// Prints a text and ends its line. Whoever reads us may go away (`| head`): that is no error.
pub fn print(text: &impl std::fmt::Display) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("stdout: cannot be written")
        }
        _ => Ok(()),
    }
}

/// Prints a value as JSON.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).context("JSON")?;
    print(&text)
}

/// The process behind a data folder.
pub fn process(info: Option<&RunInfo>) -> String {
    match info {
        Some(RunInfo {
            pid,
            mountpoint: Some(mountpoint),
            volume: Some(volume),
            ..
        }) => format!(
            "process {pid}: volume {volume} mounted at {}",
            mountpoint.display()
        ),
        Some(RunInfo { pid, role, .. }) => format!("process {pid}: xtfs {role}"),
        None => "services".to_owned(),
    }
}

/// Services with their state and room.
pub fn services(services: &[ServiceInfo]) -> Table {
    let mut table = table(&[
        "service",
        "kind",
        "state",
        "addresses",
        "free",
        "of",
        "objects",
    ]);
    for service in services {
        let is_osd = service.kind == ServiceKind::Osd;
        let osd_only = |text: String| if is_osd { text } else { String::new() };
        table.add_row([
            service.id.to_string(),
            word(&service.kind),
            word(&service.state),
            service.addresses.join(" "),
            osd_only(human(service.space.free_bytes)),
            osd_only(human(service.space.total_bytes)),
            osd_only(service.space.objects.to_string()),
        ]);
    }
    table
}

/// A service for programs.
pub fn service_json(service: &ServiceInfo) -> Value {
    json!({
        "id": service.id,
        "kind": service.kind,
        "state": service.state,
        "addresses": service.addresses,
        "space": service.space,
        "heard_at_ns": service.heard_at.as_nanos(),
        "version": service.version,
    })
}

/// Volumes with their layout and use.
pub fn volumes(volumes: &[VolumeInfo]) -> Table {
    let mut table = table(&["volume", "id", "width", "object size", "used", "inodes"]);
    for volume in volumes {
        table.add_row([
            volume.name.clone(),
            volume.id.to_string(),
            volume.layout.width.to_string(),
            human(u64::from(volume.layout.object_size)),
            human(volume.used_bytes),
            volume.used_inodes.to_string(),
        ]);
    }
    table
}

/// OSDs as a scrub left them.
pub fn scrub_osds(report: &Report) -> Table {
    let mut table = table(&["osd", "objects", "verified", "damaged", "result"]);
    for osd in &report.osds {
        let result = match (&osd.error, osd.damaged_objects) {
            (Some(error), _) => format!("not checked to its end: {error}"),
            (None, 0) => "clean".to_owned(),
            (None, _) => "damaged".to_owned(),
        };
        table.add_row([
            osd.osd.to_string(),
            osd.objects.to_string(),
            human(osd.bytes),
            osd.damaged_objects.to_string(),
            result,
        ]);
    }
    table
}

/// A scrub in a few lines.
pub fn scrub_summary(report: &Report) -> String {
    let findings = &report.findings;
    let mut lines = Vec::new();
    if findings.beyond_end > 0 {
        lines.push(format!(
            "{} objects reach beyond the end of their file: written, but the size was never \
             reported; nobody can read those bytes",
            findings.beyond_end
        ));
    }
    if findings.orphaned > 0 {
        lines.push(format!(
            "{} objects belong to no file; `xtfs cleanup` lists them",
            findings.orphaned
        ));
    }
    let files = report.files;
    lines.push(match report.outcome() {
        Outcome::Clean => format!("clean: every object of {files} files was verified"),
        Outcome::Damaged => format!(
            "damaged: {} objects do not match their checksums, {} lie on the wrong OSD",
            report.damaged_objects(),
            findings.misplaced
        ),
        Outcome::Incomplete => {
            "incomplete: nothing damaged was found, but not every OSD could be checked".to_owned()
        }
    });
    lines.join("\n")
}

/// Orphaned objects by file.
pub fn orphans(report: &Orphans) -> String {
    let mut lines = Vec::new();
    if !report.files.is_empty() {
        let mut table = table(&["volume", "content", "objects", "stored"]);
        for file in &report.files {
            let volume = match &file.volume_name {
                Some(name) => name.clone(),
                None => format!("{} (unknown)", file.volume),
            };
            table.add_row([
                volume,
                file.content.to_string(),
                file.objects.to_string(),
                human(file.bytes),
            ]);
        }
        lines.push(table.to_string());
    }
    for error in &report.errors {
        lines.push(format!(
            "osd {}: not asked to its end: {}",
            error.osd, error.error
        ));
    }
    let more = if report.more_files { " (and more)" } else { "" };
    lines.push(format!(
        "{} of {} objects are orphaned{more}, {} in {} files; nothing was changed",
        report.orphaned_objects,
        report.objects,
        human(report.orphaned_bytes),
        report.files.len()
    ));
    lines.join("\n")
}

/// An empty table with a head.
pub fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(head);
    table
}

/// The name of a plain enum value as JSON has it.
fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(text)) => text,
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtfs_layout::Layout;
    use xtfs_protocol::ids::VolumeId;

    #[test]
    fn a_volume_is_listed_with_its_layout() {
        let volume = VolumeInfo {
            id: VolumeId([3; 16]),
            name: "home".to_owned(),
            layout: Layout::striped(3),
            used_bytes: 2048,
            used_inodes: 9,
        };
        let text = volumes(&[volume]).to_string();
        for part in ["home", "1 MiB", "2 KiB", "9"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_clean_scrub_says_so_and_orphans_are_pointed_out() {
        let mut report = Report::default();
        assert!(scrub_summary(&report).starts_with("clean"));
        report.findings.orphaned = 4;
        assert!(scrub_summary(&report).contains("xtfs cleanup"));
        report.findings.misplaced = 1;
        assert!(scrub_summary(&report).contains("damaged"));
    }

    #[test]
    fn a_search_without_orphans_says_that_nothing_was_changed() {
        let text = orphans(&Orphans::default());
        assert!(text.contains("0 of 0 objects") && text.contains("nothing was changed"));
    }
}
