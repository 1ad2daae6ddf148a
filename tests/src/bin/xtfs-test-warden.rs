//! Cleans up after a test that was killed: `xtfs-test-warden FOLDER` reads its input to the end;
//! when that comes without the line `done`, the test is dead and all that works in FOLDER goes.

use std::io::Read;

fn main() {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: xtfs-test-warden FOLDER");
        std::process::exit(2);
    };
    let mut heard = String::new();
    let _ = std::io::stdin().read_to_string(&mut heard);
    if heard.contains("done") {
        return;
    }
    let left = xtfs_tests::scratch::clean(folder.as_ref());
    if !left.is_empty() {
        eprintln!("warden: {}", left.join("; "));
        std::process::exit(1);
    }
}
