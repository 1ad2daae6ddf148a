//! Measures commits, gets and scans on a real disk, in DIR or in a temporary folder:
//! `cargo run --release -p babu-kv --example profile [DIR]`.

use babu_kv::{Batch, Database, Durability, Options};
use std::{path::PathBuf, time::Instant};

fn key(n: u64) -> [u8; 24] {
    let mut key = [0; 24];
    key[8..16].copy_from_slice(&(n / 50).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key[16..].copy_from_slice(&n.wrapping_mul(0xd6e8_feb8_6659_fd93).to_be_bytes());
    key
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let temporary = tempfile::tempdir()?;
    let given = std::env::args_os().nth(1).map(PathBuf::from);
    let dir = given.as_deref().unwrap_or(temporary.path());
    let database = Database::open(dir, Options::default())?;
    let (inodes, names) = (database.index("inodes")?, database.index("names")?);
    let count = 300_000u64;
    let report = |what: &str, n: u64, start: Instant| {
        println!(
            "{what:32} {:8.2} us",
            start.elapsed().as_secs_f64() * 1e6 / n as f64
        );
    };
    let start = Instant::now();
    for n in 0..count {
        let mut batch = Batch::new();
        batch.put(&inodes, &key(n), &[n as u8; 160]);
        batch.put(&names, &n.to_be_bytes(), &key(n));
        database.write(batch, Durability::Buffered)?;
    }
    report("two puts, buffered", count, start);
    let start = Instant::now();
    for n in 0..2000 {
        let mut batch = Batch::new();
        batch.put(&inodes, &key(n), &[n as u8; 160]);
        batch.put(&names, &n.to_be_bytes(), &key(n));
        database.write(batch, Durability::Synced)?;
    }
    report("two puts, synced", 2000, start);
    for (threads, durability, rounds) in [
        (4u64, Durability::Buffered, 50_000u64),
        (16, Durability::Buffered, 10_000),
        (16, Durability::Synced, 200),
    ] {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (database, inodes) = (&database, &inodes);
                scope.spawn(move || {
                    for n in 0..rounds {
                        let mut batch = Batch::new();
                        batch.put(
                            inodes,
                            &[&[0xff; 8][..], &key(n + thread * rounds)].concat(),
                            &[1; 160],
                        );
                        if let Err(error) = database.write(batch, durability) {
                            panic!("{error}");
                        }
                    }
                });
            }
        });
        report(
            &format!("{threads} threads, {durability:?}"),
            threads * rounds,
            start,
        );
    }
    let gets = |what: &str, from: u64| -> Result<(), Box<dyn std::error::Error>> {
        let start = Instant::now();
        for n in 0..200_000u64 {
            let found = database.get(&inodes, &key(from + n.wrapping_mul(7919) % 20_000))?;
            assert!(found.is_some());
        }
        report(what, 200_000, start);
        Ok(())
    };
    gets("get", count - 20_000)?;
    database.flush()?;
    gets("get, in tables, first", 0)?;
    gets("get, in tables, hot", 0)?;
    database.compact()?;
    gets("get, compacted, first", 0)?;
    gets("get, compacted, hot", 0)?;
    let start = Instant::now();
    for n in 0..200_000u64 {
        assert!(database.get(&inodes, &key(count + n))?.is_none());
    }
    report("get, missing", 200_000, start);
    let start = Instant::now();
    let mut entries = 0;
    for n in 0..20_000 {
        entries += database.prefix(&inodes, &key(n * 7 % count)[..16]).count() as u64;
    }
    report("prefix of 50", 20_000, start);
    assert!(entries >= 20_000 * 50);
    let start = Instant::now();
    let all = database.prefix(&inodes, b"").count() as u64;
    report("scan, each entry", all, start);
    let start = Instant::now();
    for _ in 0..1_000_000 {
        std::hint::black_box(database.snapshot());
    }
    report("snapshot", 1_000_000, start);
    println!("{:#?}", database.stats());
    database.close()?;
    Ok(())
}
