//! Random verified reads and writes with `fsx`.

use std::path::Path;

use crate::exec::{find, outcome};
use crate::secs;

/// A mixture of operations.
#[derive(Debug, Clone, Copy)]
pub struct Profile {
    /// Its name.
    pub name: &'static str,
    /// Longest file in bytes.
    file_bytes_max: u32,
    /// Longest read or write in bytes.
    op_bytes_max: u32,
    weights: &'static [(&'static str, u32)],
}

/// Everything at once in a file of one object, and reads and writes in one of many objects.
pub const PROFILES: &[Profile] = &[
    Profile {
        name: "all",
        file_bytes_max: 1 << 20,
        op_bytes_max: 65_536,
        weights: &[
            ("read", 10),
            ("write", 10),
            ("mapread", 5),
            ("mapwrite", 5),
            ("truncate", 3),
            ("close_open", 1),
            ("invalidate", 1),
            ("fsync", 1),
            ("fdatasync", 1),
            ("posix_fallocate", 2),
            ("punch_hole", 3),
            ("copy_file_range", 3),
            ("sendfile", 1),
            ("posix_fadvise", 1),
        ],
    },
    Profile {
        name: "striped",
        file_bytes_max: 16 << 20,
        op_bytes_max: 1 << 20,
        weights: &[
            ("read", 10),
            ("write", 10),
            ("mapread", 3),
            ("mapwrite", 3),
            ("truncate", 1),
            ("close_open", 1),
            ("invalidate", 1),
            ("fsync", 1),
            ("fdatasync", 1),
            ("posix_fallocate", 0),
            ("punch_hole", 1),
            ("copy_file_range", 1),
            ("sendfile", 1),
            ("posix_fadvise", 0),
        ],
    },
];

/// Runs so many operations of a profile on a file in the directory. Operations that the file system
/// refuses as a whole (`without`) are left out. On a failure the artifacts of fsx are printed.
///
/// # Panics
/// When something read is not what was written.
pub fn run(
    profile: Profile,
    operations: u64,
    seed: u64,
    without: &[&str],
    directory: &Path,
    outside: &Path,
) {
    crate::require(&["fsx"]);
    let configuration = outside.join(format!("fsx-{}.toml", profile.name));
    std::fs::write(&configuration, profile.configuration(without))
        .expect("write the configuration");
    let program = find("fsx").expect("fsx");
    let result = outcome(
        std::process::Command::new(program)
            .args([
                "-q",
                "-N",
                &operations.to_string(),
                "-S",
                &seed.to_string(),
                "-f",
            ])
            .arg(&configuration)
            .arg("-P")
            .arg(outside)
            .arg(directory.join(profile.name)),
        secs(1200),
    );
    assert!(
        result.status.success(),
        "fsx {} with seed {seed}: {}\n{}{}",
        profile.name,
        result.status,
        result.stdout,
        result.stderr
    );
}

impl Profile {
    fn configuration(&self, without: &[&str]) -> String {
        let mut text = format!(
            "flen = {}\n[opsize]\nmin = 1\nmax = {}\n[weights]\n",
            self.file_bytes_max, self.op_bytes_max
        );
        for (name, weight) in self.weights {
            let weight = if without.contains(name) { 0 } else { *weight };
            text.push_str(&format!("{name} = {weight}\n"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scratch;

    #[test]
    fn a_local_disk_passes() {
        let scratch = Scratch::new("fsx-local");
        for profile in PROFILES {
            run(
                *profile,
                300,
                1,
                &[],
                &scratch.folder("inside"),
                scratch.path(),
            );
        }
    }
}
