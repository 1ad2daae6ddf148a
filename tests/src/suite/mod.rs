//! What a user does with a file system, in pieces that run in any directory.
//!
//! Each piece works in a folder of its own and is verified later as often as wanted: at once, after
//! a restart, on another mount. They are tested on the local file system themselves.

pub mod big_file;
pub mod build;
pub mod copy;
pub mod fsx;
pub mod git;
pub mod pjdfstest;
pub mod sqlite;

use std::path::Path;

/// One piece of work with what must be true of it afterwards.
pub trait Suite {
    /// Its name: the folder that it works in.
    fn name(&self) -> &'static str;
    /// Works in the new folder `at`; may keep what it needs for comparison in `outside`.
    ///
    /// # Panics
    /// When the file system does not do what it should.
    fn work(&mut self, at: &Path, outside: &Path);
    /// Verifies what the work left.
    ///
    /// # Panics
    /// When it is not what it should be.
    fn verify(&self, at: &Path, outside: &Path);
}

/// Runs suites one after the other in a directory, verifying each at once, and prints how long
/// each takes.
///
/// # Panics
/// When one fails.
pub fn work_all(suites: &mut [Box<dyn Suite>], directory: &Path, outside: &Path) {
    for suite in suites {
        let at = directory.join(suite.name());
        std::fs::create_dir(&at).expect("make the folder of a suite");
        let started = std::time::Instant::now();
        suite.work(&at, outside);
        let worked = started.elapsed();
        suite.verify(&at, outside);
        let verified = started.elapsed() - worked;
        println!(
            "{}: worked {worked:.1?}, verified {verified:.1?}",
            suite.name()
        );
    }
}

/// Verifies suites that worked before.
///
/// # Panics
/// When one fails.
pub fn verify_all(suites: &[Box<dyn Suite>], directory: &Path, outside: &Path) {
    for suite in suites {
        let started = std::time::Instant::now();
        suite.verify(&directory.join(suite.name()), outside);
        println!("{}: verified again {:.1?}", suite.name(), started.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scratch;

    fn on_a_local_disk(suite: Box<dyn Suite>) {
        let scratch = Scratch::new(suite.name());
        let (inside, outside) = (scratch.folder("inside"), scratch.folder("outside"));
        let mut suites = [suite];
        work_all(&mut suites, &inside, &outside);
        verify_all(&suites, &inside, &outside);
    }

    #[test]
    fn copying_works_on_a_local_disk() {
        on_a_local_disk(Box::new(copy::Copy::of(200, 50)));
    }

    #[test]
    fn git_works_on_a_local_disk() {
        on_a_local_disk(Box::new(git::Git::of(60)));
    }

    #[test]
    fn building_works_on_a_local_disk() {
        on_a_local_disk(Box::new(build::Build));
    }

    #[test]
    fn sqlite_works_on_a_local_disk() {
        on_a_local_disk(Box::new(sqlite::Sqlite::of(5)));
    }

    #[test]
    fn a_big_file_works_on_a_local_disk() {
        on_a_local_disk(Box::new(big_file::BigFile::of(8)));
    }
}
