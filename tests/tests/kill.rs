//! `kill -9` of any process in the middle of the work: what was synced is there, nothing is torn,
//! and the work goes on.
//!
//! `XTFS_KILL_SEED` repeats a run, `XTFS_KILL_ROUNDS` makes it longer.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use xtfs_tests::exec::shell;
use xtfs_tests::workload::{Ground, Progress, Turn};
use xtfs_tests::{Part, TestCell, number_from_env, require, secs, seed_from_env};

const WORKERS: usize = 3;
/// A server that is away for a moment may hold operations up, but not for longer.
const LIMIT: std::time::Duration = secs(100);

struct Work {
    stop: Arc<AtomicBool>,
    progress: Arc<Progress>,
    workers: Vec<JoinHandle<Turn>>,
}

impl Work {
    fn start(grounds: Vec<Ground>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let progress = Arc::new(Progress::default());
        let workers = grounds
            .into_iter()
            .map(|ground| ground.work(Arc::clone(&stop), Arc::clone(&progress)))
            .collect();
        Self {
            stop,
            progress,
            workers,
        }
    }

    fn end(self) -> Vec<Turn> {
        self.stop.store(true, Ordering::Relaxed);
        self.workers
            .into_iter()
            .map(|worker| worker.join().expect("a worker"))
            .collect()
    }
}

fn survives(mut cell: TestCell, rounds: u64) {
    let seed = seed_from_env("XTFS_KILL_SEED");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut grounds: Vec<Ground> = (0..WORKERS)
        .map(|worker| {
            let root = cell.path().join(format!("worker{worker}"));
            Ground::new(root, seed.wrapping_add(worker as u64 + 1))
        })
        .collect();
    for round in 0..rounds {
        cell.stand_by();
        let work = Work::start(grounds);
        work.progress.await_more(rng.random_range(5..150), LIMIT);
        let parts = cell.parts();
        let choice = rng.random_range(0..=parts.len());
        let victims = parts.get(choice).map_or(parts.clone(), |part| vec![*part]);
        println!(
            "round {round} of seed {seed}: kill -9 of {victims:?} after {} operations",
            work.progress.count()
        );
        for victim in &victims {
            cell.kill(*victim);
        }
        let mount_died = victims
            .iter()
            .any(|part| matches!(part, Part::Whole | Part::Mount));
        let turns = if mount_died {
            // The workers have to be out of the dead mount before a new one takes its place.
            let turns = work.end();
            for victim in &victims {
                cell.start(*victim);
            }
            turns
        } else {
            for victim in &victims {
                cell.start(*victim);
            }
            work.progress.await_more(20, LIMIT);
            let turns = work.end();
            cell.remount();
            turns
        };
        grounds = turns
            .into_iter()
            .map(|(ground, error)| {
                assert!(
                    mount_died || error.is_none(),
                    "'{:?}' failed while {victims:?} was restarted: {error:?}",
                    ground.pending()
                );
                ground
            })
            .collect();
        for ground in &mut grounds {
            ground.verify();
        }
        cell.assert_scrub_clean();
        let files = shell(cell.path(), "find . | wc -l", secs(120));
        assert!(files.trim().parse::<usize>().expect("a count") > WORKERS);
        shell(cell.path(), "du -s .", secs(120));
    }
    cell.stop();
}

#[test]
fn synced_work_survives_kills_of_one_process() {
    require(&["find", "du"]);
    survives(TestCell::up(2), number_from_env("XTFS_KILL_ROUNDS", 30));
}

#[test]
fn synced_work_survives_kills_of_separate_processes() {
    require(&["find", "du"]);
    survives(
        TestCell::cluster(3),
        number_from_env("XTFS_KILL_ROUNDS", 40),
    );
}

/// Where the files end that are made longer again.
const END: usize = 3 << 20;

/// Makes a file whose last bytes are on the OSDs when it returns, but not yet in its size.
fn write_past_the_end(path: &Path) -> File {
    let file = OpenOptions::new()
        .create_new(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .expect("make a file");
    file.write_all_at(&[1; 4096], 0).expect("write");
    file.sync_all().expect("sync");
    file.write_all_at(&[2; END / 2], 4096)
        .expect("write past the end");
    file
}

/// Every byte behind what the file held before it was made longer is zero.
fn assert_zeros(path: &Path, from: usize, to: usize) {
    let found = std::fs::read(path).expect("read");
    assert_eq!(found.len(), END, "{}", path.display());
    let wrong = found[from..to].iter().position(|byte| *byte != 0);
    assert_eq!(
        wrong.map(|at| from + at),
        None,
        "{}: bytes that were never part of the file",
        path.display()
    );
}

fn brings_nothing_back(mut cell: TestCell, victim: Part) {
    let grown = cell.path().join("grown");
    let written = cell.path().join("written");
    let files = [write_past_the_end(&grown), write_past_the_end(&written)];
    cell.kill(victim);
    drop(files);
    cell.start(victim);
    let size = |path: &Path| std::fs::metadata(path).expect("stat").len() as usize;
    let sizes = [size(&grown), size(&written)];
    let open = |path: &Path| OpenOptions::new().write(true).open(path).expect("open");
    open(&grown).set_len(END as u64).expect("make it longer");
    open(&written)
        .write_all_at(&[3; 8], END as u64 - 8)
        .expect("write behind a hole");
    for _ in 0..2 {
        assert_zeros(&grown, sizes[0], END);
        assert_zeros(&written, sizes[1], END - 8);
        cell.remount();
    }
    cell.assert_scrub_clean();
    cell.stop();
}

#[test]
fn what_a_killed_process_had_not_told_never_comes_to_light() {
    brings_nothing_back(TestCell::up(2), Part::Whole);
}

#[test]
fn what_a_killed_mount_had_not_told_never_comes_to_light() {
    brings_nothing_back(TestCell::cluster(2), Part::Mount);
}
