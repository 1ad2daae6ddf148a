//! A repository: cloned, worked in, checked.

use std::path::Path;

use super::Suite;
use crate::exec::shell;
use crate::{secs, tree};

/// `git clone` of a repository that is made outside, then a change, a commit and a push.
pub struct Git {
    files: usize,
}

impl Git {
    /// With so many files in the repository.
    #[must_use]
    pub fn of(files: usize) -> Self {
        Self { files }
    }
}

/// git that asks nobody and does nothing in the background.
const QUIET: &str = "
    export HOME=\"$PWD\" GIT_CONFIG_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0
    export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
    git() { command git -c gc.auto=0 -c maintenance.auto=false -c protocol.file.allow=always \\
        -c init.defaultBranch=main -c core.fsync=all \"$@\"; }
";

impl Suite for Git {
    fn name(&self) -> &'static str {
        "git"
    }

    fn work(&mut self, at: &Path, outside: &Path) {
        let source = outside.join("repository");
        std::fs::create_dir(&source).expect("make the repository");
        tree::generate(&source, self.files, 11);
        let make = "find . -type d -empty -delete
            git init -q . && git add -A && git commit -qm one
            for n in 1 2 3; do
                echo \"change $n\" >> changing; git add -A; git commit -qm \"change $n\"
            done
            git clone -q --bare . ../bare.git";
        shell(&source, &format!("{QUIET}{make}"), secs(300));
        let work = format!(
            "git clone -q --no-local '{}' clone
            cd clone
            git fsck --full --strict
            test -z \"$(git status --porcelain)\"
            git checkout -q HEAD~2 && git checkout -q main
            echo more >> changing && git mv changing changed && git commit -qam four
            git repack -adq && git push -q origin main
            git rev-parse HEAD > ../head",
            outside.join("bare.git").display()
        );
        shell(at, &format!("{QUIET}{work}"), secs(600));
    }

    fn verify(&self, at: &Path, outside: &Path) {
        let check = format!(
            "cd clone
            git fsck --full --strict
            test -z \"$(git status --porcelain)\"
            test \"$(git rev-parse HEAD)\" = \"$(cat ../head)\"
            test \"$(git rev-parse HEAD)\" = \"$(git -C '{0}' rev-parse main)\"
            test \"$(tail -n1 changed)\" = more
            diff -r --no-dereference -x .git -x changed -x changing . '{1}'",
            outside.join("bare.git").display(),
            outside.join("repository").display()
        );
        shell(at, &format!("{QUIET}{check}"), secs(600));
    }
}
