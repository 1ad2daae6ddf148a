//! A small disk: an image file with ext4 on it, mounted in the scratch folder.

use std::path::PathBuf;

use crate::exec::{command, run};
use crate::scratch::Scratch;
use crate::secs;

/// Makes a disk of so many MiB and mounts it. It goes with the scratch folder.
///
/// # Panics
/// When it cannot be made.
#[must_use]
pub fn make(scratch: &Scratch, name: &str, mebibytes: u64) -> PathBuf {
    crate::require(&["mkfs.ext4", "mount"]);
    let image = scratch.path().join(format!("{name}.img"));
    let file = std::fs::File::create(&image).expect("make the image");
    file.set_len(mebibytes << 20).expect("size the image");
    run(
        command("mkfs.ext4", &["-q", "-F", "-m", "0"]).arg(&image),
        secs(60),
    );
    let point = scratch.folder(name);
    run(
        command("mount", &["-o", "loop"]).arg(&image).arg(&point),
        secs(60),
    );
    point
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_small_disk_gets_full() {
        let scratch = Scratch::new("small");
        let disk = make(&scratch, "disk", 8);
        let mut file = std::fs::File::create(disk.join("file")).unwrap();
        let error = file.write_all(&vec![1; 16 << 20]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }
}
