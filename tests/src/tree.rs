//! A file tree like a large source tree, the same for the same seed.

use std::fs::{File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

/// Words that sources are made of: they compress and repeat as real ones do.
const WORDS: &[&str] = &[
    "let", "mut", "fn", "pub", "struct", "impl", "match", "return", "self", "value", "buffer",
    "index", "offset", "length", "Result", "Error", "Some", "None", "(", ")", "{", "}", ";", "=>",
    "->", "&", "\n", "\n    ", "// note", "0", "1", "u64", "usize", "Vec<u8>", "if", "else",
];

/// Makes a tree of `files` regular files, with directories, links, odd names, modes and times.
///
/// # Panics
/// When the disk refuses.
pub fn generate(root: &Path, files: usize, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut folders = vec![root.to_owned()];
    for number in 0..files {
        if number.is_multiple_of(12) {
            let parent = folders[rng.random_range(0..folders.len())].clone();
            folders.push(new_folder(&parent, number, &mut rng));
        }
        let folder = folders[rng.random_range(0..folders.len())].clone();
        let path = folder.join(name(number, &mut rng));
        std::fs::write(&path, content(&mut rng)).expect("write a file");
        if number.is_multiple_of(40) {
            add_links(&folder, &path, number, &mut rng);
        }
        dress(&path, number, &mut rng);
    }
}

fn new_folder(parent: &Path, number: usize, rng: &mut StdRng) -> PathBuf {
    let deep = parent.components().count() > 24;
    let parent = if deep {
        parent.parent().unwrap_or(parent)
    } else {
        parent
    };
    let path = parent.join(format!("module_{number}_{}", rng.random_range(0..1000)));
    std::fs::create_dir(&path).expect("make a folder");
    if number.is_multiple_of(60) {
        std::fs::create_dir(path.join("empty")).expect("make a folder");
        let mode = [0o700, 0o2775, 0o1777][rng.random_range(0..3)];
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set a mode");
    }
    path
}

fn name(number: usize, rng: &mut StdRng) -> String {
    match rng.random_range(0..50) {
        0 => format!("ein Name mit Leerzeichen {number}.txt"),
        1 => format!("größe-日本語-{number}"),
        2 => format!("{number}-{}", "long".repeat(60)),
        3 => format!(".hidden-{number}"),
        4 => format!("odd'\"$*?[{number}]\n"),
        _ => format!("file_{number}.rs"),
    }
}

fn content(rng: &mut StdRng) -> Vec<u8> {
    let length = match rng.random_range(0..1000) {
        0..20 => 0,
        20..600 => rng.random_range(1..4096),
        600..950 => rng.random_range(4096..32_768),
        950..998 => rng.random_range(32_768..200_000),
        _ => rng.random_range(1_000_000..3_500_000),
    };
    if length > 200_000 || rng.random_range(0..8) == 0 {
        let mut bytes = vec![0; length];
        rng.fill_bytes(&mut bytes);
        return bytes;
    }
    let mut text = Vec::with_capacity(length + 16);
    while text.len() < length {
        text.extend_from_slice(WORDS[rng.random_range(0..WORDS.len())].as_bytes());
        text.push(b' ');
    }
    text.truncate(length);
    text
}

fn add_links(folder: &Path, path: &Path, number: usize, rng: &mut StdRng) {
    let target = path.file_name().expect("a name");
    let link = |name: String, target: &Path, time: Duration| {
        let at = folder.join(name);
        symlink(target, &at).expect("make a link");
        let time = rustix::fs::Timespec {
            tv_sec: i64::try_from(time.as_secs()).expect("a time"),
            tv_nsec: time.subsec_nanos().into(),
        };
        let times = rustix::fs::Timestamps {
            last_access: time,
            last_modification: time,
        };
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::utimensat(rustix::fs::CWD, &at, &times, flags).expect("set a time");
    };
    link(format!("link_{number}"), target.as_ref(), moment(rng));
    let nowhere = "../nowhere/at all".as_ref();
    link(format!("dangling_{number}"), nowhere, moment(rng));
    if number.is_multiple_of(80) {
        std::fs::hard_link(path, folder.join(format!("hard_{number}"))).expect("make a link");
    }
}

/// Some time since 1970.
fn moment(rng: &mut StdRng) -> Duration {
    Duration::new(
        rng.random_range(0..1_900_000_000),
        rng.random_range(0..1_000_000_000),
    )
}

fn dress(path: &Path, number: usize, rng: &mut StdRng) {
    let mode = [0o644, 0o644, 0o644, 0o755, 0o600, 0o444, 0o640][number % 7];
    std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("set a mode");
    File::open(path)
        .and_then(|file| file.set_modified(UNIX_EPOCH + moment(rng)))
        .expect("set a time");
}

/// The unpacked sources of the crates that this build used, if there are any: real files to copy.
/// At most `files` of them are copied.
///
/// # Panics
/// When they cannot be copied.
pub fn add_real_sources(root: &Path, files: usize) -> usize {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    let Some(registry) = home.map(|home| home.join("registry/src")) else {
        return 0;
    };
    let mut copied = 0;
    let mut pending = vec![(registry, root.to_owned())];
    while let Some((from, to)) = pending.pop() {
        let Ok(entries) = std::fs::read_dir(&from) else {
            continue;
        };
        let mut entries: Vec<_> = entries.flatten().collect();
        entries.sort_by_key(std::fs::DirEntry::file_name);
        std::fs::create_dir_all(&to).expect("make a folder");
        for entry in entries {
            let target = to.join(entry.file_name());
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => pending.push((entry.path(), target)),
                Ok(kind) if kind.is_file() && copied < files => {
                    std::fs::copy(entry.path(), target).expect("copy a source file");
                    copied += 1;
                }
                _ => {}
            }
        }
        if copied >= files {
            break;
        }
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;

    #[test]
    fn the_same_seed_gives_the_same_tree() {
        let make = |seed| {
            let folder = tempfile::tempdir().unwrap();
            generate(folder.path(), 150, seed);
            Manifest::of(folder.path())
        };
        let first = make(1);
        assert!(first.0.values().filter(|item| item.kind == 'f').count() >= 150);
        assert!(first.0.values().any(|item| item.kind == 'l'));
        first.assert_same(&make(1), "second time");
        assert_ne!(first, make(2));
    }
}
