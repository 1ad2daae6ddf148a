//! A cell of xtfs under test: everything in one process, or every part in its own.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::exec::{Outcome, outcome, run};
use crate::process::{Daemon, tail};
use crate::scratch::{self, Scratch};
use crate::secs;

/// Time for a part to get ready or to end.
const LIMIT: Duration = secs(90);
/// Time for a scrub.
const SCRUB_LIMIT: Duration = secs(600);
const VOLUME: &str = "test";

/// A process of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// `xtfs up`: everything.
    Whole,
    /// `xtfs mrc`.
    Mrc,
    /// `xtfs osd`, by number from 0.
    Osd(usize),
    /// `xtfs mount`.
    Mount,
}

/// How a cell is put together.
#[derive(Debug, Clone)]
struct Plan {
    separate: bool,
    osds: usize,
    width: usize,
    data: PathBuf,
    /// Address to tell others instead of one's own, by part.
    advertised: BTreeMap<Part, SocketAddr>,
}

/// A cell with one volume, mounted.
pub struct TestCell {
    plan: Plan,
    mountpoint: PathBuf,
    running: BTreeMap<Part, Daemon>,
    /// Processes that are there but have not been let go.
    standby: BTreeMap<Part, Daemon>,
    /// Where each daemon listened first; it listens there again after a restart.
    addresses: BTreeMap<Part, SocketAddr>,
    scratch: Scratch,
}

impl TestCell {
    /// `xtfs up` with so many OSDs, files striped over all of them.
    #[must_use]
    pub fn up(osds: usize) -> Self {
        let scratch = Scratch::new("up");
        let data = scratch.folder("data");
        Self::up_on(scratch, data, osds)
    }

    /// The same with its data in a given folder of the scratch folder.
    #[must_use]
    pub fn up_on(scratch: Scratch, data: PathBuf, osds: usize) -> Self {
        crate::require(&[]);
        let mut cell = Self::planned(scratch, data, osds, false);
        cell.start(Part::Whole);
        cell
    }

    /// One MRC, so many OSDs and a mount, each a process of its own, over QUIC on loopback; files
    /// striped over all OSDs.
    #[must_use]
    pub fn cluster(osds: usize) -> Self {
        Self::cluster_with(osds, |_, _| None)
    }

    /// A cluster whose daemons tell others another address than the one they listen at: before
    /// each daemon starts, `front` is asked with its part and the address that it will have.
    #[must_use]
    pub fn cluster_with(
        osds: usize,
        mut front: impl FnMut(Part, SocketAddr) -> Option<SocketAddr>,
    ) -> Self {
        crate::require(&[]);
        let scratch = Scratch::new("cluster");
        let data = scratch.folder("data");
        let mut cell = Self::planned(scratch, data, osds, true);
        let home = cell.home();
        run(cell.xtfs(&["cell", "init", "--data"]).arg(&home), LIMIT);
        for part in std::iter::once(Part::Mrc).chain((0..osds).map(Part::Osd)) {
            let address = free_address();
            cell.addresses.insert(part, address);
            if let Some(shown) = front(part, address) {
                cell.plan.advertised.insert(part, shown);
            }
            cell.start(part);
        }
        let width = osds.to_string();
        run(
            cell.xtfs(&["mkfs", VOLUME, "--width", &width, "--cell"])
                .arg(&home),
            LIMIT,
        );
        cell.start(Part::Mount);
        cell
    }

    fn planned(scratch: Scratch, data: PathBuf, osds: usize, separate: bool) -> Self {
        let mountpoint = scratch.folder("mount");
        Self {
            plan: Plan {
                separate,
                osds,
                width: osds,
                data,
                advertised: BTreeMap::new(),
            },
            mountpoint,
            running: BTreeMap::new(),
            standby: BTreeMap::new(),
            addresses: BTreeMap::new(),
            scratch,
        }
    }

    /// The mounted volume.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.mountpoint
    }

    /// The folder of the test: for what has to stay out of the mount.
    #[must_use]
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// The folder with the data of all parts.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.plan.data
    }

    /// The processes of the cell, in the order in which they start.
    #[must_use]
    pub fn parts(&self) -> Vec<Part> {
        if self.plan.separate {
            std::iter::once(Part::Mrc)
                .chain((0..self.plan.osds).map(Part::Osd))
                .chain(std::iter::once(Part::Mount))
                .collect()
        } else {
            vec![Part::Whole]
        }
    }

    /// OSDs that a file is striped over.
    #[must_use]
    pub fn width(&self) -> usize {
        self.plan.width
    }

    /// Starts a part and waits until it is ready.
    ///
    /// # Panics
    /// When it does not get ready.
    pub fn start(&mut self, part: Part) {
        assert!(!self.running.contains_key(&part), "{part:?} runs already");
        if matches!(part, Part::Whole | Part::Mount) {
            scratch::release_mount(&self.mountpoint);
        }
        let standby = self.standby.remove(&part);
        let mut daemon = standby.unwrap_or_else(|| self.process_of(part));
        daemon.go();
        match part {
            Part::Whole | Part::Mount => {
                daemon.await_line("mounted ", LIMIT);
                assert!(
                    self.is_mounted(),
                    "{part:?} says that it has mounted, but {} is no mount point",
                    self.mountpoint.display()
                );
            }
            Part::Mrc | Part::Osd(_) => {
                let line = daemon.await_line(" ready at ", LIMIT);
                let address = line.rsplit(' ').next().unwrap_or_default();
                let address = address
                    .parse()
                    .unwrap_or_else(|_| panic!("no address at the end of '{line}'"));
                self.addresses.insert(part, address);
            }
        }
        self.running.insert(part, daemon);
    }

    /// Makes the process for the next start of every part beforehand, so that a part can be
    /// started while its absence holds up threads of the test (see [`Daemon::standby`]).
    pub fn stand_by(&mut self) {
        for part in self.parts() {
            if !self.standby.contains_key(&part) {
                let daemon = self.process_of(part);
                self.standby.insert(part, daemon);
            }
        }
    }

    fn process_of(&self, part: Part) -> Daemon {
        let command = self.command_of(part);
        Daemon::standby(&format!("{part:?}"), &command, &self.log(part))
    }

    fn command_of(&self, part: Part) -> Command {
        let data = &self.plan.data;
        let mut command;
        match part {
            Part::Whole => {
                let osds = self.plan.osds.to_string();
                command = self.xtfs(&["up", "--foreground", "--osds", &osds, "--data"]);
                command.arg(data).arg(&self.mountpoint);
            }
            Part::Mount => {
                command = self.xtfs(&["mount", "--foreground", "--cell"]);
                command.arg(self.home()).arg(VOLUME).arg(&self.mountpoint);
            }
            Part::Mrc | Part::Osd(_) => {
                let (kind, folder) = match part {
                    Part::Osd(number) => ("osd", format!("osd{number}")),
                    _ => ("mrc", "mrc".to_owned()),
                };
                command = self.xtfs(&[kind, "--cell"]);
                command.arg(self.home());
                command.arg("--data").arg(data.join(folder));
                let listen = self.addresses.get(&part).copied();
                let listen = listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
                command.args(["--listen", &listen.to_string()]);
                if let Some(shown) = self.plan.advertised.get(&part) {
                    command.args(["--advertise", &shown.to_string()]);
                }
            }
        }
        command
    }

    /// `kill -9` of a part. A mount that dies with it is taken away when the part starts again.
    ///
    /// # Panics
    /// When the part does not run, or has ended by itself before.
    pub fn kill(&mut self, part: Part) {
        let mut daemon = self.running.remove(&part).expect("a part that runs");
        assert!(
            !daemon.has_ended(),
            "{part:?} ended by itself\n{}",
            tail(&self.log(part), 60)
        );
        daemon.kill();
    }

    /// Ends a part cleanly.
    ///
    /// # Panics
    /// When it does not end, or not with success.
    pub fn stop_part(&mut self, part: Part) {
        let mut daemon = self.running.remove(&part).expect("a part that runs");
        let status = daemon.terminate(LIMIT);
        assert!(
            status.success(),
            "{part:?} ended with {status}\n{}",
            tail(&self.log(part), 60)
        );
        if matches!(part, Part::Whole | Part::Mount) {
            assert!(!self.is_mounted(), "{part:?} left its mount behind");
        }
    }

    /// Ends everything cleanly, the mount first.
    pub fn stop(&mut self) {
        for part in self.parts().into_iter().rev() {
            self.stop_part(part);
        }
    }

    /// Starts everything.
    pub fn start_all(&mut self) {
        for part in self.parts() {
            self.start(part);
        }
    }

    /// Ends everything cleanly and starts it again: what is there afterwards was on the disk.
    pub fn restart(&mut self) {
        self.stop();
        self.start_all();
    }

    /// Forgets what the client has cached: a new mount sees only what the servers have.
    pub fn remount(&mut self) {
        if self.plan.separate {
            self.stop_part(Part::Mount);
            self.start(Part::Mount);
        } else {
            self.restart();
        }
    }

    /// `xtfs scrub --json` of all OSDs.
    pub fn scrub(&self) -> Outcome {
        let mut command = self.xtfs(&["scrub", "--json"]);
        if self.plan.separate {
            command.arg("--cell").arg(self.home());
        } else {
            command.arg("--data").arg(&self.plan.data);
        }
        outcome(&mut command, SCRUB_LIMIT)
    }

    /// `xtfs quota SUBCOMMAND` on the volume, with the arguments behind it; what it prints.
    ///
    /// # Panics
    /// When it fails.
    pub fn quota(&self, arguments: &[&str]) -> String {
        let (subcommand, rest) = arguments.split_first().expect("a subcommand");
        let mut command = self.xtfs(&["quota", subcommand]);
        if self.plan.separate {
            command.arg("--cell").arg(self.home()).arg(VOLUME);
        } else {
            command.arg("--data").arg(&self.plan.data).arg("main");
        }
        run(command.args(rest), LIMIT)
    }

    /// # Panics
    /// When a scrub finds damage.
    pub fn assert_scrub_clean(&self) {
        let result = self.scrub();
        assert!(
            result.status.success(),
            "scrub: {}\n{}{}",
            result.status,
            result.stdout,
            result.stderr
        );
    }

    /// A command of the program under test.
    #[must_use]
    pub fn xtfs(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command
            .args(arguments)
            .current_dir(self.scratch.path())
            .env("XTFS_TEST_SCRATCH", self.scratch.path())
            .env("XTFS_RUN_DIR", self.scratch.path().join("run"));
        command
    }

    /// The folder with the cell's authority.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.plan.data.join("cell")
    }

    /// Where a part logs.
    #[must_use]
    pub fn log(&self, part: Part) -> PathBuf {
        let name = match part {
            Part::Whole => "up".to_owned(),
            Part::Mrc => "mrc".to_owned(),
            Part::Osd(number) => format!("osd{number}"),
            Part::Mount => "mount".to_owned(),
        };
        self.scratch.path().join(name + ".log")
    }

    /// What all parts logged.
    #[must_use]
    pub fn logs(&self) -> String {
        self.parts()
            .into_iter()
            .map(|part| std::fs::read(self.log(part)).unwrap_or_default())
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .collect()
    }

    fn is_mounted(&self) -> bool {
        !scratch::mounts_below(&self.mountpoint).is_empty()
    }
}

impl Drop for TestCell {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for part in self.parts() {
                eprintln!("{}", tail(&self.log(part), 60));
            }
        }
        for mount in scratch::mounts_below(&self.mountpoint) {
            if std::thread::panicking() {
                scratch::abort_fuse(mount.minor, self.scratch.path());
            }
        }
        self.standby.clear();
        self.running.clear();
    }
}

/// The program under test: beside this one, or named by `XTFS_BIN`.
///
/// # Panics
/// When it is not there.
#[must_use]
pub fn binary() -> PathBuf {
    match std::env::var_os("XTFS_BIN") {
        Some(path) => PathBuf::from(path),
        None => scratch::program("xtfs"),
    }
}

/// An address on loopback that no one listens at.
fn free_address() -> SocketAddr {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind a socket");
    socket.local_addr().expect("its address")
}
