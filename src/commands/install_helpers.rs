//! `xtfs install-helpers`: lets mount(8) find this program.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;

use super::Process;
use super::helper::NAMES;
use crate::output;

/// Let `mount -t xtfs` and /etc/fstab work
///
/// mount(8) calls the program /sbin/mount.TYPE for a type that the kernel does not know by itself.
/// This makes symbolic links from mount.xtfs and mount.fuse.xtfs in /sbin to this program, which
/// acts by the name it is called by. Links, because then they are never older than the program.
/// What is not such a link is never replaced.
#[derive(Debug, Args)]
#[command(after_long_help = "\
EXAMPLES:
    On this machine:
        xtfs install-helpers
        mount -t xtfs home/docs /mnt/docs
    Into a package, for a program that will be /usr/bin/xtfs:
        xtfs install-helpers --dir \"$DESTDIR/usr/sbin\" --program /usr/bin/xtfs
    And away again:
        xtfs install-helpers --remove")]
pub struct InstallHelpers {
    /// Folder for the links
    #[arg(long, value_name = "DIR", default_value = "/sbin")]
    dir: PathBuf,
    /// What the links lead to [default: this program]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Remove the links
    #[arg(long)]
    remove: bool,
}

impl InstallHelpers {
    pub fn run(self, process: &Process) -> Result<ExitCode> {
        process.log_as_tool()?;
        let program = match self.program {
            Some(program) => program,
            None => std::env::current_exe().context("this program: cannot be found")?,
        };
        for name in NAMES {
            let link = self.dir.join(name);
            clear(&link, &program)?;
            if !self.remove {
                std::os::unix::fs::symlink(&program, &link)
                    .with_context(|| format!("{}: cannot be made", link.display()))?;
                output::print(&format!("{} -> {}", link.display(), program.display()))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Removes a link that an earlier call made: one that leads to a program of the same name.
fn clear(link: &Path, program: &Path) -> Result<()> {
    match fs::read_link(link) {
        Ok(target) if target.file_name() == program.file_name() => {
            fs::remove_file(link).with_context(|| format!("{}: cannot be removed", link.display()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // EINVAL: there is something, but no link.
        Ok(_) | Err(_) => bail!(
            "{}: is there and does not lead to {}; remove it, or choose another --dir",
            link.display(),
            program.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_links_are_replaced_and_foreign_files_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("mount.xtfs");
        let new = Path::new("/new/xtfs");
        clear(&link, new).unwrap();
        std::os::unix::fs::symlink("/old/xtfs", &link).unwrap();
        clear(&link, new).unwrap();
        assert!(fs::symlink_metadata(&link).is_err());
        std::os::unix::fs::symlink("/usr/bin/other", &link).unwrap();
        assert!(clear(&link, new).is_err());
        fs::remove_file(&link).unwrap();
        fs::write(&link, "a script").unwrap();
        assert!(clear(&link, new).is_err());
    }
}
