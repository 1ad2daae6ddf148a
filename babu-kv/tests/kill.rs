//! `kill -9` of a real process in the middle of its work, in a loop. This file is its own main
//! program: started with a folder it writes there until it is killed, and names each write that was
//! acknowledged on standard output.

use babu_kv::{Batch, Database, Durability, Options};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    env,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
};

const FOLDER: &str = "BABU_KV_KILL_FOLDER";
const KEYS: u64 = 500;

fn options() -> Options {
    Options {
        memtable_bytes: 64 << 10,
        table_bytes: 64 << 10,
        level0_tables: 2,
        level1_bytes: 128 << 10,
        ..Options::default()
    }
}

fn key(n: u64) -> [u8; 24] {
    let mut key = [b'k'; 24];
    key[16..].copy_from_slice(&(n % KEYS).to_be_bytes());
    key
}

/// Round `n` writes key `n`, deletes the one of 100 rounds before, and counts in another index.
fn batch(database: &Database, n: u64) -> Batch {
    let (entries, counter) = (
        database.index("entries").unwrap(),
        database.index("counter").unwrap(),
    );
    let mut batch = Batch::new();
    batch.put(&entries, &key(n), &n.to_be_bytes().repeat(20));
    if n >= 100 {
        batch.delete(&entries, &key(n - 100));
    }
    batch.put(&counter, b"rounds", &(n + 1).to_be_bytes());
    batch
}

fn rounds(database: &Database) -> u64 {
    let counter = database.index("counter").unwrap();
    database
        .get(&counter, b"rounds")
        .unwrap()
        .map_or(0, |v| u64::from_be_bytes((&*v).try_into().unwrap()))
}

fn write_until_killed(dir: &Path) -> ! {
    let database = Database::open(dir, options()).unwrap();
    let mut out = std::io::stdout().lock();
    let mut n = rounds(&database);
    loop {
        let durability = if n.is_multiple_of(7) {
            Durability::Synced
        } else {
            Durability::Buffered
        };
        database.write(batch(&database, n), durability).unwrap();
        n += 1;
        writeln!(out, "{n}").unwrap();
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() {
    if let Some(dir) = env::var_os(FOLDER) {
        write_until_killed(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let mut random = StdRng::seed_from_u64(7);
    let mut acknowledged = 0;
    for kill in 0..25 {
        let mut command = Command::new(env::current_exe().unwrap());
        let child = command
            .env(FOLDER, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut child = Killed(child);
        let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        let enough = random.random_range(1..2500);
        for line in lines.by_ref().take(enough) {
            acknowledged = line.unwrap().parse().unwrap();
        }
        child.0.kill().unwrap();
        // What was on its way through the pipe was acknowledged too; the last line may be cut.
        for line in lines.map_while(Result::ok) {
            acknowledged = line
                .parse()
                .map_or(acknowledged, |n: u64| n.max(acknowledged));
        }
        drop(child);
        let database = Database::open(dir.path(), options()).unwrap();
        let rounds = rounds(&database);
        assert!(
            rounds >= acknowledged,
            "kill {kill}: {acknowledged} acknowledged, {rounds} there"
        );
        assert!(
            rounds <= acknowledged + 1,
            "kill {kill}: {acknowledged} acknowledged, {rounds} there"
        );
        let entries = database.index("entries").unwrap();
        let found: Vec<(Vec<u8>, Vec<u8>)> = database
            .prefix(&entries, b"")
            .map(|e| e.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap())
            .collect();
        let mut expected: Vec<_> = (rounds.saturating_sub(100)..rounds)
            .map(|n| (key(n).to_vec(), n.to_be_bytes().repeat(20)))
            .collect();
        expected.sort();
        assert_eq!(found, expected, "kill {kill}");
        database.close().unwrap();
    }
    println!("killed 25 times, {acknowledged} batches are there");
}
