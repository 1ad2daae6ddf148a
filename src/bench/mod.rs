//! Measures any directory, so that a mount can be compared with others in one run.
//!
//! Directories take turns: every round measures one group of rows on each of them before it goes
//! on to the next group, and the median of all rounds counts, so that a machine that is busy for a
//! while is busy for all of them.
//!
//! Read in this order: [`measures`] (what is measured), [`workload`] (how), [`summary`] (medians
//! and ratios).

pub mod bound;
pub mod measures;
mod stopwatch;
pub mod summary;
pub mod workload;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};

use measures::{Group, Measure};
use workload::Workload;

/// How much is done.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Sizes {
    /// Bytes of the large file.
    pub file_bytes: u64,
    /// Random reads and writes of 4 KiB.
    pub random_ops: u64,
    /// Files that are made, looked at and removed.
    pub files: u64,
    /// Bytes of a small file.
    pub small_bytes: u64,
    /// Operations that each end with fsync.
    pub fsyncs: u64,
    /// Times everything is done.
    pub rounds: u32,
}

/// A directory that is measured.
pub struct Subject {
    /// Its name in the table.
    pub label: String,
    /// The directory.
    pub dir: PathBuf,
    /// Rates by measure, one a round.
    pub rates: BTreeMap<Measure, Vec<f64>>,
}

impl Subject {
    /// A directory that was not measured yet.
    pub fn new(label: String, dir: PathBuf) -> Self {
        Self {
            label,
            dir,
            rates: BTreeMap::new(),
        }
    }
}

/// Measures all directories. Everything that was made in them is removed again, also after an
/// error or when `stop` becomes true.
pub fn run(
    subjects: &mut [Subject],
    sizes: &Sizes,
    stop: &AtomicBool,
    mut step_done: impl FnMut(),
) -> Result<()> {
    for round in 0..sizes.rounds {
        for group in Group::ALL {
            for subject in subjects.iter_mut() {
                let mut workload = Workload::new(&subject.dir, sizes, stop, round)
                    .with_context(|| format!("{}: cannot be measured", subject.dir.display()))?;
                let rates = workload.run(*group);
                if stop.load(Ordering::Relaxed) {
                    bail!("interrupted");
                }
                let rates = rates.with_context(|| format!("in {}", subject.dir.display()))?;
                for (measure, rate) in rates {
                    subject.rates.entry(measure).or_default().push(rate);
                }
                step_done();
            }
        }
    }
    Ok(())
}

/// Number of steps that [`run`] reports.
pub fn steps(subjects: usize, sizes: &Sizes) -> u64 {
    u64::from(sizes.rounds) * (Group::ALL.len() as u64) * (subjects as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Sizes = Sizes {
        file_bytes: 3 << 20,
        random_ops: 5,
        files: 7,
        small_bytes: 100,
        fsyncs: 3,
        rounds: 2,
    };

    #[test]
    fn every_measure_of_every_directory_has_one_rate_a_round_and_nothing_stays() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let mut subjects = dirs
            .each_ref()
            .map(|dir| Subject::new("x".to_owned(), dir.path().to_owned()));
        let mut done = 0;
        run(&mut subjects, &SMALL, &AtomicBool::new(false), || done += 1).unwrap();
        assert_eq!(done, steps(2, &SMALL));
        for subject in &subjects {
            for measure in Measure::ALL {
                let rates = &subject.rates[measure];
                assert_eq!(rates.len(), 2, "{measure:?}");
                assert!(rates.iter().all(|rate| *rate > 0.0), "{measure:?}");
            }
            assert_eq!(std::fs::read_dir(&subject.dir).unwrap().count(), 0);
        }
    }

    #[test]
    fn an_interrupted_run_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let mut subjects = [Subject::new("x".to_owned(), dir.path().to_owned())];
        let error = run(&mut subjects, &SMALL, &AtomicBool::new(true), || {}).unwrap_err();
        assert_eq!(error.to_string(), "interrupted");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
