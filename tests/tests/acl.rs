//! Access control lists on a mount, through the tools that people use.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::Duration;

use xtfs_tests::exec::{command, outcome, run};
use xtfs_tests::{TestCell, require};

const NOBODY: u32 = 65_534;
const PATIENCE: Duration = Duration::from_secs(60);

fn tool(program: &str, arguments: &[&str], at: &Path) -> String {
    run(command(program, arguments).current_dir(at), PATIENCE)
}

/// May the user without rights read the file?
fn nobody_reads(path: &Path) -> bool {
    let mut cat = command("cat", &[path]);
    outcome(cat.uid(NOBODY).gid(NOBODY), PATIENCE)
        .status
        .success()
}

#[test]
fn lists_are_set_enforced_inherited_copied_and_kept() {
    require(&["setfacl", "getfacl", "cat", "cp"]);
    let mut cell = TestCell::up(1);
    let root = cell.path().to_path_buf();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
    let file = root.join("file");
    fs::write(&file, "content").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!nobody_reads(&file));
    tool("setfacl", &["-m", "u:65534:r", "file"], &root);
    assert!(nobody_reads(&file));
    let listed = "user::rw-\nuser:65534:r--\ngroup::---\nmask::r--\nother::---\n\n";
    assert_eq!(tool("getfacl", &["-cn", "file"], &root), listed);

    tool("cp", &["-a", "file", "copy"], &root);
    assert!(nobody_reads(&root.join("copy")));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!nobody_reads(&file), "chmod took the mask away");

    fs::create_dir(root.join("dir")).unwrap();
    tool("setfacl", &["-d", "-m", "u:65534:rx", "dir"], &root);
    let umask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    fs::write(root.join("dir/made"), "made").unwrap();
    fs::write(root.join("plain"), "plain").unwrap();
    rustix::process::umask(umask);
    assert!(nobody_reads(&root.join("dir/made")), "the umask won");
    assert!(!nobody_reads(&root.join("plain")), "the umask was lost");

    let before = tool("getfacl", &["-Rn", "."], &root);
    cell.restart();
    assert_eq!(tool("getfacl", &["-Rn", "."], &root), before);
    assert!(nobody_reads(&root.join("copy")));
    tool("setfacl", &["-b", "copy"], &root);
    assert!(!nobody_reads(&root.join("copy")));
    cell.stop();
}
