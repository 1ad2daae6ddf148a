//! Building programs inside the file system and running them from it.

use std::path::Path;

use super::Suite;
use crate::exec::{command, run, shell};
use crate::secs;

/// A Rust project with two crates, built by cargo, and a C program, built by cc.
pub struct Build;

const RUST: &[(&str, &str)] = &[
    (
        "rust/Cargo.toml",
        "[workspace]\nmembers = [\"sum\"]\n[package]\nname = \"hello\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\
         [dependencies]\nsum = { path = \"sum\" }\n",
    ),
    (
        "rust/src/main.rs",
        "mod words;\nfn main() { println!(\"{} {}\", words::GREETING, sum::sum(&[1, 2, 3, 36])); }\n",
    ),
    (
        "rust/src/words.rs",
        "pub const GREETING: &str = \"hello from rust\";\n",
    ),
    (
        "rust/sum/Cargo.toml",
        "[package]\nname = \"sum\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
    ),
    (
        "rust/sum/src/lib.rs",
        "pub fn sum(all: &[u32]) -> u32 { all.iter().sum() }\n",
    ),
];

const C: &[(&str, &str)] = &[
    ("c/greet.h", "int greet(const char *who);\n"),
    (
        "c/greet.c",
        "#include <stdio.h>\n#include \"greet.h\"\nint greet(const char *who) { return printf(\"hello from %s\\n\", who); }\n",
    ),
    (
        "c/main.c",
        "#include \"greet.h\"\nint main(void) { return greet(\"c\") < 0; }\n",
    ),
];

impl Suite for Build {
    fn name(&self) -> &'static str {
        "build"
    }

    fn work(&mut self, at: &Path, _outside: &Path) {
        for (path, text) in RUST.iter().chain(C) {
            let path = at.join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("make a folder");
            std::fs::write(path, text).expect("write a source");
        }
        run(
            command("cargo", &["build", "--offline", "-q"])
                .current_dir(at.join("rust"))
                .env_remove("CARGO_TARGET_DIR")
                .env_remove("RUSTFLAGS"),
            secs(300),
        );
        shell(
            &at.join("c"),
            "for f in greet main; do cc -O1 -c $f.c -o $f.o; done
             ar rcs libgreet.a greet.o
             cc main.o -L. -lgreet -o hello",
            secs(120),
        );
    }

    fn verify(&self, at: &Path, _outside: &Path) {
        let rust = run(
            &mut std::process::Command::new(at.join("rust/target/debug/hello")),
            secs(60),
        );
        assert_eq!(rust, "hello from rust 42\n");
        let c = run(
            &mut std::process::Command::new(at.join("c/hello")),
            secs(60),
        );
        assert_eq!(c, "hello from c\n");
    }
}
