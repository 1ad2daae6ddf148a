//! `xtfs mount`: mounts a volume of a cell. What mount(8) calls ends here as well.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use xtfs_protocol::Code;
use xtfs_protocol::env::Env;

use super::{Process, block_on};
use crate::data_dir;
use crate::mount_options::MountSettings;
use crate::reach::{Place, Where};
use crate::serving::{self, Live, MountSpec};
use crate::{background, logging, mountpoint, output};

/// Where the folders of cells are that a source names without a path.
const CELLS: &str = "/etc/xtfs";

/// Mount a volume of a cell
///
/// VOLUME is a volume of the cell that --cell names, or of a running `xtfs up` whose data folder
/// --data names: there, without VOLUME, the one that it has mounted itself. Without either option
/// VOLUME may say both: FOLDER/VOLUME, where FOLDER is a cell's folder or a data folder, by an
/// absolute path or below /etc/xtfs.
///
/// Prints `mounted VOLUME at MOUNTPOINT` when the mount answers. Ends cleanly, with everything
/// written to the OSDs, on Ctrl-C, SIGTERM, `xtfs down MOUNTPOINT` and `umount MOUNTPOINT`. A mount
/// at MOUNTPOINT whose process was killed is taken away first. While a server is away, operations
/// wait for it.
///
/// After `xtfs install-helpers`, mount(8) and fstab(5) do the same:
/// `mount -t xtfs FOLDER/VOLUME MOUNTPOINT -o OPTIONS`.
#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
#[command(
    after_long_help = r#"MOUNT OPTIONS (-o, separated by commas; of two that contradict each other the later one counts):
    ro, rw                   nothing can be changed; everything can (the default)
    noatime, nodiratime      reading leaves access times as they are
    relatime                 access times move when they are older than the last change or than a
                             day (the default)
    nosuid, nodev, noexec    set-id bits, device files, programs have no effect; suid, dev, exec
                             undo them. Without root, nosuid and nodev are always on
    sync, dirsync            every write, every change of names reaches the disk before it returns
    allow_other              other users may use the mount (always on for root; without root it
                             needs user_allow_other in /etc/fuse.conf)
    cell=DIR, data=DIR       as --cell and --data; DIR is an absolute path
    cache=SIZE               file content that is cached in memory (256M)
    timeout=SECONDS          how long operations wait for a server before they fail with EIO (60)
    log=FILTER               as --log
    log_file=FILE            as --log-file
    remount                  with mount(8) only: change ro, rw, nosuid, nodev, noexec, noatime, sync
                             of a mount that is there
    defaults, auto, noauto, user, users, owner, group, nofail, _netdev, comment=TEXT, x-*, async,
    atime, diratime, lazytime, strictatime, acl, user_xattr, default_permissions, nonempty, silent
                             are understood; user and users imply noexec, nosuid and nodev, owner
                             and group imply nosuid and nodev. Access times are never strict
    A value with a comma: -o 'cell="/srv/a,b"' or -o 'cell=/srv/a\,b'

FILES:
    /run/xtfs                a record of each mount, for `xtfs down`; for users other than root
                             $XDG_RUNTIME_DIR/xtfs or /tmp/xtfs-UID
    DIR/mount-VOLUME.log     log of a mount in the background, in the folder of --cell or --data
                             (mount.log when no VOLUME is named)

EXAMPLES:
    Until Ctrl-C:
        xtfs mount --cell /etc/xtfs/home home /mnt/home
    In the background, read-only, and its end:
        xtfs mount --cell /etc/xtfs/home home /mnt/home --detach -o ro
        xtfs down /mnt/home
    A second mount of a running `xtfs up`:
        xtfs up --data /srv/xtfs --detach /mnt/one
        xtfs mount --data /srv/xtfs --detach /mnt/two
    As any other file system, volume `docs` of the cell in /etc/xtfs/home:
        mount -t xtfs home/docs /mnt/docs -o noatime
        umount /mnt/docs
    In /etc/fstab:
        home/docs  /mnt/docs  xtfs  noatime,nofail,_netdev,timeout=30  0  0"#
)]
pub struct Mount {
    #[command(flatten)]
    place: Where,
    /// Stay in the foreground (the default)
    #[arg(long, conflicts_with = "detach")]
    foreground: bool,
    /// Return when the mount answers and go on in the background; errors before that are printed,
    /// later ones are in the log
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    options: serving::Options,
    /// Volume, or FOLDER/VOLUME
    #[arg(value_name = "VOLUME")]
    source: Option<String>,
    /// Directory to mount at; made when it does not exist
    mountpoint: PathBuf,
}

/// What is mounted, where, and how.
pub struct Wanted {
    /// A folder that leads to a cell.
    pub place: Place,
    /// The volume; without one, what the `xtfs up` of a data folder has mounted.
    pub volume: Option<String>,
    /// What the mount table shows as source, where that is said.
    pub source: Option<String>,
    /// The directory.
    pub mountpoint: PathBuf,
    /// Options.
    pub settings: MountSettings,
}

impl Mount {
    pub fn run(self, process: &Process) -> Result<ExitCode> {
        let settings = self.options.settings()?;
        if settings.remount {
            bail!("mount option remount: is for `mount -o remount,... MOUNTPOINT`");
        }
        let (place, volume) = locate(self.source.as_deref(), self.place, &settings)?;
        let wanted = Wanted {
            place,
            volume,
            source: self.source.filter(|source| source.contains('/')),
            mountpoint: self.mountpoint,
            settings: MountSettings {
                log: process.log.clone().or(settings.log.clone()),
                log_file: process.log_file.clone().or(settings.log_file.clone()),
                ..settings
            },
        };
        if self.detach && !process.is_background_child() {
            output::print(&wanted.start()?)?;
        } else {
            wanted.serve(process.is_background_child())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Where a source leads: what `--cell`, `--data` and their options say, or else its own folder.
pub fn locate(
    source: Option<&str>,
    given: Where,
    settings: &MountSettings,
) -> Result<(Place, Option<String>)> {
    let given = given.or(settings.cell.clone(), settings.data.clone());
    let Some(source) = source else {
        return Ok((given.place()?, None));
    };
    let Some((folder, volume)) = source.rsplit_once('/') else {
        return Ok((given.place()?, Some(source.to_owned())));
    };
    if given.is_named() {
        bail!("{source}: names a folder, and so does an option; leave one of them away");
    }
    let whole = Path::new(CELLS).join(source);
    if data_dir::is_made(&whole) {
        return Ok((Place::Data(whole), None));
    }
    if folder.is_empty() || volume.is_empty() {
        bail!("{source}: is not FOLDER/VOLUME");
    }
    let folder = Path::new(CELLS).join(folder);
    let place = if data_dir::is_made(&folder) {
        Place::Data(folder)
    } else {
        Place::Cell(folder)
    };
    Ok((place, Some(volume.to_owned())))
}

impl Wanted {
    /// Mounts in a process of its own; returns what it says when the mount answers, or the reason
    /// why there is none.
    pub fn start(&self) -> Result<String> {
        self.place.look()?;
        let log = self.settings.log_file.clone().unwrap_or_else(|| {
            let name = match &self.volume {
                Some(volume) => format!("mount-{volume}.log"),
                None => "mount.log".to_owned(),
            };
            self.place.dir().join(name)
        });
        background::spawn(&log)
    }

    /// Mounts and serves until the end of the mount.
    pub fn serve(self, is_child: bool) -> Result<()> {
        let filter = self.settings.log.as_deref().unwrap_or(logging::SERVICE);
        logging::start(filter, self.settings.log_file.as_deref())?;
        let process = self.place.look()?;
        let volume = self
            .volume
            .or_else(|| process.and_then(|run| run.volume))
            .context("which volume? `xtfs mount --cell DIR VOLUME MOUNTPOINT`")?;
        let spec = MountSpec {
            mountpoint: mountpoint::prepare(&self.mountpoint)?,
            source: self.source.unwrap_or_else(|| format!("xtfs:{volume}")),
            volume,
            settings: self.settings,
            env: Env::real(),
            live: Live::default(),
            background: is_child,
        };
        let place = self.place.absolute()?;
        if is_child {
            background::become_independent()?;
        }
        let (mountpoint, live) = (spec.mountpoint.clone(), spec.live.clone());
        let volume = spec.volume.clone();
        block_on(serving::recorded(&mountpoint, &volume, &live, async {
            let reach = place.running().await?;
            let served = serving::serve(reach.connector(), spec, || Ok(())).await;
            let served = served.map_err(|error| match unreachable(&error) {
                true => error.context(format!("{reach}: does not answer")),
                false => error,
            });
            served.and(reach.close().await)
        }))?
    }
}

/// Is the reason that a server did not answer?
fn unreachable(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<xtfs_protocol::Error>()
            .is_some_and(|error| matches!(error.code, Code::TimedOut | Code::Unreachable))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(line: &str) -> MountSettings {
        MountSettings::parse([line], false).unwrap()
    }

    #[test]
    fn a_source_leads_to_a_cell_below_etc_or_by_its_path_or_to_a_data_folder() {
        let at = |source| locate(Some(source), Where::default(), &settings("")).unwrap();
        let cell = |dir: &str| Place::Cell(dir.into());
        assert_eq!(
            at("home/docs"),
            (cell("/etc/xtfs/home"), Some("docs".into()))
        );
        assert_eq!(at("/srv/c/docs"), (cell("/srv/c"), Some("docs".into())));

        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("up.toml"), "osds = 1").unwrap();
        let data = Place::Data(dir.path().to_owned());
        let text = dir.path().to_str().unwrap();
        assert_eq!(at(text), (data.clone(), None));
        assert_eq!(at(&format!("{text}/docs")), (data, Some("docs".into())));
    }

    #[test]
    fn options_name_the_folder_and_the_source_is_the_volume() {
        let at = |source, line| locate(source, Where::default(), &settings(line));
        let (place, volume) = at(Some("docs"), "cell=/srv/c").unwrap();
        assert_eq!(
            (place, volume),
            (Place::Cell("/srv/c".into()), Some("docs".into()))
        );
        let (place, volume) = at(None, "data=/srv/d").unwrap();
        assert_eq!((place, volume), (Place::Data("/srv/d".into()), None));
        assert!(at(Some("home/docs"), "cell=/srv/c").is_err());
        assert!(at(Some("/docs"), "").is_err());
    }
}
