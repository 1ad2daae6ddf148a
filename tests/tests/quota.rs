//! Quotas as users meet them: `EDQUOT` where they end, `df` that shows them, a check that counts.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;

use xtfs_tests::exec::shell;
use xtfs_tests::{TestCell, require, secs};

const LIMIT: std::time::Duration = secs(60);

fn is_quota(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::EDQUOT)
}

/// Writes until the file system refuses; the refusal may come with a later write or the sync.
fn write_until_refused(file: &mut File) -> std::io::Error {
    for _ in 0..64 {
        if let Err(error) = file
            .write_all(&[7; 64 << 10])
            .and_then(|()| file.sync_all())
        {
            return error;
        }
    }
    panic!("4 MiB were accepted");
}

#[test]
fn a_full_quota_refuses_and_nothing_refused_comes_back() {
    require(&["df", "find"]);
    let mut cell = TestCell::up(2);
    cell.quota(&["set", "volume", "--bytes", "1M", "--inodes", "20"]);
    let path = cell.path().join("file");
    let mut file = File::create(&path).expect("create");
    let error = write_until_refused(&mut file);
    assert!(is_quota(&error), "{error}");
    drop(file);
    let size = fs::metadata(&path).expect("stat").len();
    assert!(size <= 1 << 20, "{size}");
    let df = shell(cell.path(), "df -B1 --output=size . | tail -1", LIMIT);
    assert_eq!(df.trim(), (1 << 20).to_string());

    // Room for more: what was refused must not show now.
    cell.quota(&["set", "volume", "--bytes", "8M"]);
    let file = File::options()
        .read(true)
        .write(true)
        .open(&path)
        .expect("open");
    file.set_len(4 << 20).expect("make it longer");
    let mut tail = vec![1; (4 << 20) - size as usize];
    file.read_exact_at(&mut tail, size).expect("read");
    assert!(
        tail.iter().all(|byte| *byte == 0),
        "refused bytes came back"
    );
    drop(file);

    let made = (0..30).map(|number| File::create(cell.path().join(format!("f{number}"))));
    let refused = made.filter_map(Result::err).next().expect("an end");
    assert!(is_quota(&refused), "{refused}");
    fs::remove_file(cell.path().join("f0")).expect("remove");
    File::create(cell.path().join("again")).expect("room for one more");
    cell.quota(&["check"]);
    cell.restart();
    let text = cell.quota(&["list", "--json"]);
    let list: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(list[0]["subject"], "volume");
    assert_eq!(list[0]["bytes_hard"], 8 << 20);
    assert_eq!(list[0]["usage"]["bytes"], 4 << 20);
    let inodes = shell(cell.path(), "find . | wc -l", LIMIT);
    let inodes: u64 = inodes.trim().parse().expect("a number");
    assert_eq!(list[0]["usage"]["inodes"], inodes);
    cell.assert_scrub_clean();
    cell.stop();
}
