//! `kill -9` of any process in the middle of the work: what was synced is there, nothing is torn,
//! and the work goes on.
//!
//! `XTFS_KILL_SEED` repeats a run, `XTFS_KILL_ROUNDS` makes it longer.

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
