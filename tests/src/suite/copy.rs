//! Copying a source tree.

use std::path::Path;

use super::Suite;
use crate::exec::{command, run};
use crate::manifest::Manifest;
use crate::{secs, tree};

/// A generated tree with real sources in it, copied with all attributes.
pub struct Copy {
    generated: usize,
    real: usize,
    source: Option<Manifest>,
}

impl Copy {
    /// Copies so many generated files and at most so many real ones.
    #[must_use]
    pub fn of(generated: usize, real: usize) -> Self {
        Self {
            generated,
            real,
            source: None,
        }
    }
}

impl Suite for Copy {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn work(&mut self, at: &Path, outside: &Path) {
        let source = outside.join("tree");
        std::fs::create_dir(&source).expect("make the source");
        tree::generate(&source, self.generated, 20_261_130);
        let real = tree::add_real_sources(&source.join("real"), self.real);
        println!("copying {} generated and {real} real files", self.generated);
        self.source = Some(Manifest::of(&source));
        run(
            command("cp", &["-a"]).arg(&source).arg(at.join("tree")),
            secs(600),
        );
    }

    fn verify(&self, at: &Path, outside: &Path) {
        let (source, copy) = (outside.join("tree"), at.join("tree"));
        run(
            command("diff", &["-r", "--no-dereference"])
                .arg(&source)
                .arg(&copy),
            secs(600),
        );
        let differing = run(
            command(
                "rsync",
                &["-aHc", "--dry-run", "--itemize-changes", "--delete"],
            )
            .arg(source.join(""))
            .arg(copy.join("")),
            secs(600),
        );
        assert_eq!(differing, "", "rsync sees differences");
        if let Some(expected) = &self.source {
            expected.assert_same(&Manifest::of(&copy), "the copied tree");
        }
    }
}
