//! The chapter on file formats says what the sources say.

use std::fs;
use std::path::Path;

/// The sources that draw a format, each in one picture.
const SOURCES: [&str; 5] = [
    "log/format.rs",
    "table/format.rs",
    "manifest/format.rs",
    "backup/mod.rs",
    "backup/stream.rs",
];

/// The first picture in the documentation of a module.
fn picture(source: &str) -> Option<String> {
    let lines: Vec<&str> = source
        .lines()
        .map_while(|l| l.strip_prefix("//!"))
        .collect();
    let lines: Vec<&str> = lines
        .iter()
        .map(|l| l.strip_prefix(' ').unwrap_or(l))
        .collect();
    let from = lines.iter().position(|l| *l == "```text")?;
    let length = lines[from + 1..].iter().position(|l| *l == "```")?;
    Some(lines[from..=from + 1 + length].join("\n"))
}

#[test]
fn the_chapter_on_formats_has_every_picture_as_it_is() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let chapter = fs::read_to_string(here.join("../docs/babu-kv-formats.md")).unwrap();
    for name in SOURCES {
        let source = fs::read_to_string(here.join("src").join(name)).unwrap();
        let picture = picture(&source).unwrap();
        assert!(
            chapter.contains(&picture),
            "docs/babu-kv-formats.md does not have the picture of {name}:\n{picture}"
        );
    }
}

#[test]
fn the_chapter_on_formats_has_the_numbers_of_the_filter() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let chapter = fs::read_to_string(here.join("../docs/babu-kv-formats.md")).unwrap();
    let source = fs::read_to_string(here.join("src/table/filter.rs")).unwrap();
    let numbers = source.lines().map(|line| line.trim().trim_end_matches(','));
    let numbers: Vec<&str> = numbers.filter(|line| line.starts_with("0x")).collect();
    assert!(!numbers.is_empty());
    for number in numbers {
        assert!(chapter.contains(number), "{number} is missing");
    }
}
