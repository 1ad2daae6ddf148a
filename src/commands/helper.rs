//! What mount(8) calls: this program under the names `mount.xtfs` and `mount.fuse.xtfs`.
//!
//! fstab says `xtfs`, the kernel's mount table says `fuse.xtfs`, and either name leads here. Command
//! line and exit codes are those of mount(8). There is no helper for umount(8), which does not look
//! for one by our names when it knows from the kernel that a mount is FUSE's.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use clap::error::ErrorKind;
use rustix::mount::MountFlags;

use super::mount::{Wanted, locate};
use crate::mount_options::MountSettings;
use crate::mountpoint;
use crate::reach::Where;
use crate::{background, output};

/// The names.
pub const NAMES: [&str; 2] = ["mount.xtfs", "mount.fuse.xtfs"];

/// Exit code of mount(8): the command line is wrong.
const USAGE_EXIT: u8 = 1;
/// Exit code of mount(8): it failed.
const FAILURE_EXIT: u8 = 32;

/// Mount a volume of xtfs for mount(8); see `xtfs help mount`.
#[derive(Debug, Parser)]
#[command(name = "mount.xtfs", version)]
struct MountLine {
    /// FOLDER/VOLUME, or VOLUME with -o cell=DIR or data=DIR
    source: String,
    /// Directory to mount at
    mountpoint: PathBuf,
    /// Mount options
    #[arg(short, value_name = "OPTIONS", allow_hyphen_values = true)]
    options: Vec<String>,
    /// Read-only, as -o ro
    #[arg(short, conflicts_with = "writable")]
    read_only: bool,
    /// Read-write, as -o rw
    #[arg(short)]
    writable: bool,
    /// Pass over options that are not understood
    #[arg(short)]
    sloppy: bool,
    /// Only check the command line
    #[arg(short)]
    fake: bool,
    /// Say what is done
    #[arg(short)]
    verbose: bool,
    /// Do not write a mount table: there is none beside the kernel's
    #[arg(short)]
    no_table: bool,
    /// Type, `xtfs` or `fuse.xtfs`
    #[arg(short, value_name = "TYPE")]
    type_name: Option<String>,
    #[arg(long, hide = true)]
    background_child: bool,
}

/// Is this program called as a helper?
pub fn is_called_as_one() -> bool {
    std::env::args_os()
        .next()
        .is_some_and(|name| is_helper(Path::new(&name)))
}

fn is_helper(called: &Path) -> bool {
    let name = called.file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| NAMES.contains(&name))
}

/// Does what mount(8) asks for; the exit code is one of mount(8)'s.
pub fn run() -> ExitCode {
    let line = match MountLine::try_parse() {
        Ok(line) => line,
        Err(error) => {
            let _ = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::from(USAGE_EXIT),
            };
        }
    };
    let is_child = line.background_child;
    let Err(error) = line.run() else {
        return ExitCode::SUCCESS;
    };
    if is_child {
        background::report_failure(&error);
    }
    // Where it cannot be written, nobody can be told.
    let _ = writeln!(std::io::stderr(), "mount.xtfs: {error:#}");
    ExitCode::from(FAILURE_EXIT)
}

impl MountLine {
    fn run(self) -> Result<()> {
        let lines = self.options.iter().map(String::as_str);
        let mut settings = MountSettings::parse(lines, self.sloppy).map_err(anyhow::Error::msg)?;
        if self.read_only || self.writable {
            settings.flags.set(MountFlags::RDONLY, self.read_only);
        }
        if settings.remount {
            return if self.fake {
                Ok(())
            } else {
                remount(&self.mountpoint, settings.flags)
            };
        }
        let (place, volume) = locate(Some(&self.source), Where::default(), &settings)?;
        if self.fake {
            return Ok(());
        }
        if !self.background_child {
            mountpoint::require(&self.mountpoint)?;
        }
        let wanted = Wanted {
            place,
            volume,
            source: Some(self.source),
            mountpoint: self.mountpoint,
            settings,
        };
        if self.background_child {
            return wanted.serve(true);
        }
        let line = wanted.start()?;
        if self.verbose {
            output::print(&line)?;
        }
        Ok(())
    }
}

/// Changes the flags of a mount: the kernel does that by itself. It ignores the rest of what the
/// file system was mounted with.
fn remount(path: &Path, flags: MountFlags) -> Result<()> {
    let place = mountpoint::resolve(path)?;
    match mountpoint::find(&place)? {
        Some(entry) if entry.fs_type == mountpoint::FS_TYPE => {}
        _ => bail!("{}: no xtfs is mounted there", place.display()),
    }
    rustix::mount::mount_remount(&place, flags, "")
        .with_context(|| format!("{}: cannot be changed", place.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_last_part_of_the_name_decides() {
        for name in ["/sbin/mount.xtfs", "mount.xtfs", "/x/mount.fuse.xtfs"] {
            assert!(is_helper(Path::new(name)), "{name}");
        }
        for name in ["/usr/bin/xtfs", "/mount.xtfs/xtfs", "", "mount.xtfs.old"] {
            assert!(!is_helper(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn command_lines_of_mount_are_understood_in_either_order() {
        MountLine::command().debug_assert();
        for line in [
            "mount.xtfs home/docs /mnt -o rw,noatime",
            "mount.xtfs -o rw home/docs /mnt -o noatime",
            "mount.fuse.xtfs home/docs /mnt -sfnv -t fuse.xtfs",
            "mount.xtfs home/docs /mnt -r",
        ] {
            let parsed = MountLine::try_parse_from(line.split_whitespace());
            assert_eq!(parsed.unwrap().source, "home/docs", "{line}");
        }
        assert!(MountLine::try_parse_from(["mount.xtfs", "/mnt"]).is_err());
    }
}
