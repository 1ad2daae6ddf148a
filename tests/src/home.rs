//! `xtfs up --detach` as people type it, with a data folder of its own.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::cell::binary;
use crate::exec::{Outcome, outcome, run};
use crate::scratch::{Scratch, mounts_below};
use crate::{require, secs};

/// A data folder and a mount point for `xtfs up --detach`.
pub struct Home {
    /// The folder of the test.
    pub scratch: Scratch,
    /// The data folder, made by the first `xtfs up`.
    pub data: PathBuf,
    /// Where to mount: `mount` in the scratch folder.
    pub mountpoint: PathBuf,
}

impl Home {
    /// Nothing is made yet.
    #[must_use]
    pub fn empty() -> Self {
        require(&[]);
        let scratch = Scratch::new("command");
        Self {
            data: scratch.path().join("data"),
            mountpoint: scratch.path().join("mount"),
            scratch,
        }
    }

    /// A command of the program under test.
    #[must_use]
    pub fn xtfs(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command
            .args(arguments)
            .current_dir(self.scratch.path())
            .env("XTFS_TEST_SCRATCH", self.scratch.path())
            .env("XTFS_RUN_DIR", self.scratch.path().join("run"))
            .env("XTFS_DATA", &self.data)
            .env_remove("XTFS_CELL");
        command
    }

    /// Runs a command that has to succeed; returns what it prints.
    ///
    /// # Panics
    /// When it fails.
    pub fn does(&self, arguments: &[&str]) -> String {
        run(&mut self.xtfs(arguments), secs(120))
    }

    /// Runs a command that has to fail with `reason` on stderr.
    ///
    /// # Panics
    /// When it does not.
    pub fn refuses(&self, arguments: &[&str], reason: &str) -> Outcome {
        let result = outcome(&mut self.xtfs(arguments), secs(120));
        assert!(!result.status.success(), "{arguments:?}: {result:?}");
        assert!(result.stderr.contains(reason), "{reason}: {result:?}");
        result
    }

    /// Runs a command that prints JSON.
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    pub fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.does(arguments)).unwrap()
    }

    /// Is anything mounted at the mount point?
    #[must_use]
    pub fn is_mounted(&self) -> bool {
        !mounts_below(&self.mountpoint).is_empty()
    }

    /// The process of `xtfs up`, as `xtfs status` knows it.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn pid(&self) -> i32 {
        let status = self.json(&["status", "--json"]);
        i32::try_from(status["process"]["pid"].as_i64().unwrap()).unwrap()
    }
}
