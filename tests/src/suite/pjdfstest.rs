//! The POSIX suite `pjdfstest`, and the list of its cases that are known to fail.

use std::collections::BTreeMap;
use std::path::Path;

use rustix::mount::MountFlags;
use serde::Deserialize;

use crate::Scratch;
use crate::exec::{find, outcome};
use crate::secs;

/// How one case went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As POSIX says.
    Passed,
    /// Otherwise.
    Failed,
    /// Not run: it needs what the machine or the configuration does not offer.
    Skipped,
}

/// All optional features of Linux; users and times as the suite wants them. Remounting is left
/// out: it is not the file system that does it.
const CONFIGURATION: &str = "
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
stat_st_birthtime = {}
[settings]
naptime = 0.03
allow_remount = false
[dummy_auth]
entries = [[\"nobody\", \"GROUP\"], [\"tests\", \"tests\"]]
";

/// Runs the suite in a directory.
///
/// # Panics
/// When it cannot be run to its end.
#[must_use]
pub fn run(directory: &Path, scratch: &Scratch) -> BTreeMap<String, Verdict> {
    crate::require(&["pjdfstest"]);
    let second = scratch.folder("second-file-system");
    rustix::mount::mount(
        "tmpfs",
        &second,
        "tmpfs",
        MountFlags::empty(),
        Some(c"size=16m,mode=1777"),
    )
    .expect("mount a tmpfs");
    let configuration = scratch.path().join("pjdfstest.toml");
    let groups = std::fs::read_to_string("/etc/group").expect("read the groups");
    let nogroup = groups.lines().any(|line| line.starts_with("nogroup:"));
    let group = if nogroup { "nogroup" } else { "nobody" };
    std::fs::write(&configuration, CONFIGURATION.replace("GROUP", group))
        .expect("write the configuration");
    let program = find("pjdfstest").expect("pjdfstest");
    let result = outcome(
        std::process::Command::new(program)
            .arg("-c")
            .arg(&configuration)
            .arg("-p")
            .arg(directory)
            .arg("-s")
            .arg(&second),
        secs(900),
    );
    assert!(
        result.stdout.contains("\nSummary: "),
        "pjdfstest did not come to its end: {}\n{}{}",
        result.status,
        result.stdout,
        result.stderr
    );
    for line in result.stdout.lines().filter(|line| !line.ends_with(" ok")) {
        println!("{line}");
    }
    verdicts(&result.stdout)
}

fn verdicts(printed: &str) -> BTreeMap<String, Verdict> {
    let mut all = BTreeMap::new();
    for line in printed.lines() {
        let mut words = line.split_whitespace();
        let (Some(case), Some(end), None) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let verdict = match end {
            "ok" => Verdict::Passed,
            "FAILED" => Verdict::Failed,
            "skipped" => Verdict::Skipped,
            _ => continue,
        };
        if case.contains("::") {
            all.insert(case.to_owned(), verdict);
        }
    }
    all
}

/// The checked-in list: cases that do not pass, each with the reason.
#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// Cases that fail, with the reason.
    #[serde(default)]
    pub failing: BTreeMap<String, String>,
    /// Cases that cannot be run, with the reason.
    #[serde(default)]
    pub skipped: BTreeMap<String, String>,
}

impl Known {
    /// Reads the list.
    ///
    /// # Panics
    /// When it is malformed, or a reason is missing.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let known: Self = toml::from_str(text).expect("parse the list of known failures");
        for (case, reason) in known.failing.iter().chain(&known.skipped) {
            assert!(!reason.trim().is_empty(), "{case} has no reason");
        }
        known
    }

    /// Everything in which the result is not what the list says.
    #[must_use]
    pub fn surprises(&self, verdicts: &BTreeMap<String, Verdict>) -> Vec<String> {
        let mut all = Vec::new();
        for (case, verdict) in verdicts {
            let expected = match (self.failing.get(case), self.skipped.get(case)) {
                (Some(_), _) => Verdict::Failed,
                (None, Some(_)) => Verdict::Skipped,
                (None, None) => Verdict::Passed,
            };
            if *verdict != expected {
                all.push(format!("{case}: {verdict:?}, but by the list {expected:?}"));
            }
        }
        let unknown = self
            .failing
            .keys()
            .chain(self.skipped.keys())
            .filter(|case| !verdicts.contains_key(*case));
        all.extend(unknown.map(|case| format!("{case} is listed but does not exist")));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "a::works    ok\na::breaks   FAILED\na::needs    skipped\n\tnot ok here\n\nSummary: 1 failed\n";

    #[test]
    fn verdicts_are_read() {
        let all = verdicts(PRINTED);
        assert_eq!(all["a::works"], Verdict::Passed);
        assert_eq!(all["a::breaks"], Verdict::Failed);
        assert_eq!(all["a::needs"], Verdict::Skipped);
        assert_eq!(all.len(), 3);
    }

    #[test]
    fn every_surprise_is_named() {
        let surprises = |list: &str| Known::parse(list).surprises(&verdicts(PRINTED));
        let right = "[failing]\n\"a::breaks\" = \"w\"\n[skipped]\n\"a::needs\" = \"w\"";
        assert!(surprises(right).is_empty());
        assert_eq!(
            surprises(""),
            [
                "a::breaks: Failed, but by the list Passed",
                "a::needs: Skipped, but by the list Passed"
            ]
        );
        let wrong = "[failing]\n\"a::works\" = \"w\"\n\"a::needs\" = \"w\"\n\"b::gone\" = \"w\"";
        assert_eq!(surprises(wrong).len(), 4);
    }

    #[test]
    #[should_panic(expected = "no reason")]
    fn a_case_without_reason_is_refused() {
        let _ = Known::parse("[failing]\n\"a::b\" = \" \"");
    }

    /// The list and the way to run the suite are right: a local disk passes all.
    #[test]
    fn a_local_disk_passes() {
        let scratch = Scratch::new("pjd");
        let verdicts = run(&scratch.folder("inside"), &scratch);
        let count = |wanted| verdicts.values().filter(|one| **one == wanted).count();
        assert_eq!(count(Verdict::Failed), 0);
        assert!(count(Verdict::Passed) >= 380);
    }
}
