//! Syncs that the kernel lets fail.

use crate::process;
use babu_kv::{Background, Batch, Database, Durability, Options};
use std::{collections::BTreeSet, fs, path::Path};

const ROUNDS: u32 = 40;

fn options(background: Background) -> Options {
    Options {
        memtable_bytes: 4 << 10,
        table_bytes: 4 << 10,
        level0_tables: 2,
        background,
        ..Options::default()
    }
}

/// Synced writes; notes those that were acknowledged in a file beside the database.
fn write(folder: &Path) {
    let database = Database::open(&folder.join("database"), options(Background::Inline)).unwrap();
    let index = database.index("index").unwrap();
    let mut acknowledged = String::new();
    for n in 0..ROUNDS {
        let mut batch = Batch::new();
        batch.put(&index, &n.to_be_bytes(), &[n as u8; 300]);
        let written = database.write(batch, Durability::Synced);
        if written.is_ok() {
            acknowledged += &format!("{n}\n");
        }
    }
    fs::write(folder.join("acknowledged"), acknowledged).unwrap();
    // The last sync may be the one that fails.
    let _ = database.close();
}

/// The file of each `fdatasync` in a trace, and whether it was made to fail.
fn syncs(trace: &str) -> Vec<(&str, bool)> {
    trace
        .lines()
        .filter_map(|line| {
            let (_, rest) = line.split_once("fdatasync(")?;
            let (_, rest) = rest.split_once('<')?;
            let (path, rest) = rest.split_once('>')?;
            Some((path, rest.contains("EIO")))
        })
        .collect()
}

#[test]
fn a_log_segment_whose_sync_failed_is_never_synced_again_and_loses_nothing() {
    if let Some(folder) = process::folder() {
        write(&folder);
        return;
    }
    let mut logs_failed = 0;
    for (call, when) in (1..13u32)
        .map(|n| ("fdatasync", n.to_string()))
        .chain((1..7).map(|n| ("fsync", n.to_string())))
        .chain([("fdatasync", "5..7".into()), ("fdatasync", "9+4".into())])
    {
        let dir = tempfile::tempdir().unwrap();
        let trace = dir.path().join("trace");
        let name =
            "failing_sync::a_log_segment_whose_sync_failed_is_never_synced_again_and_loses_nothing";
        let inject = format!("inject={call}:error=EIO:when={when}");
        let wrapper = ["strace", "-f", "-y", "-e", "trace=fdatasync,fsync", "-e"];
        let to = ["-o", trace.to_str().unwrap()];
        let wrapper = [&wrapper[..], &[&inject], &to].concat();
        let opened = std::panic::catch_unwind(|| process::again(name, dir.path(), &wrapper, &[]));
        let trace = fs::read_to_string(&trace).unwrap();
        assert!(trace.contains("INJECTED"), "{call} {when}: nothing failed");
        let syncs = syncs(&trace);
        for (n, (path, failed)) in syncs.iter().enumerate() {
            if *failed && path.ends_with(".log") {
                logs_failed += 1;
                let again = syncs[n + 1..].iter().any(|(other, _)| other == path);
                assert!(!again, "{call} {when}: {path} was synced again");
            }
        }
        if opened.is_err() {
            // It was the making of the database that failed.
            continue;
        }
        let acknowledged = fs::read_to_string(dir.path().join("acknowledged")).unwrap();
        let acknowledged: BTreeSet<u32> =
            acknowledged.lines().map(|l| l.parse().unwrap()).collect();
        assert!(acknowledged.len() > 20, "{call} {when}: {acknowledged:?}");
        let options = options(Background::Inline);
        let database = Database::open(&dir.path().join("database"), options).unwrap();
        let index = database.index("index").unwrap();
        for n in acknowledged {
            let found = database.get(&index, &n.to_be_bytes()).unwrap();
            assert_eq!(found.as_deref(), Some([n as u8; 300].as_slice()), "{n}");
        }
        database.verify().unwrap();
    }
    assert!(logs_failed > 5, "{logs_failed} syncs of the log failed");
}
