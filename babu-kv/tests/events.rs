//! A listener hears what happens, may call the database, and can do no harm.

use babu_kv::{
    Background, Batch, Database, Durability, Error, Event, Index, Listener, Options,
    fs::{Fault, FaultyFs, Fs, MemoryFs, Open},
};
use std::{
    io::ErrorKind,
    path::Path,
    sync::{Arc, Condvar, Mutex},
};

#[derive(Default)]
struct Heard {
    names: Mutex<Vec<&'static str>>,
    more: Condvar,
    /// Called by the listener, once, when it is set.
    database: Mutex<Option<Database>>,
    panics: bool,
}

impl std::fmt::Debug for Heard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Heard")
    }
}

impl Listener for Heard {
    fn event(&self, event: &Event) {
        self.names.lock().unwrap().push(event.name());
        self.more.notify_all();
        let database = self.database.lock().unwrap().take();
        if let Some(database) = database {
            // Each needs locks that are held while events are noted.
            let index = database.index("heard").unwrap();
            write(&database, &index, 0..1000);
            database.compact().unwrap();
        }
        if self.panics {
            std::panic::resume_unwind(Box::new("a listener that fails"));
        }
    }
}

impl Heard {
    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.names.lock().unwrap())
    }

    fn wait_for(&self, name: &str) {
        let names = self.names.lock().unwrap();
        let lacks = |names: &mut Vec<&str>| !names.contains(&name);
        drop(self.more.wait_while(names, lacks).unwrap());
    }
}

fn open(heard: &Arc<Heard>, fs: &Arc<dyn Fs>, background: Background) -> (Database, Index) {
    let options = Options {
        memtable_bytes: 16 << 10,
        memtables_waiting: 1,
        table_bytes: 16 << 10,
        listener: Some(heard.clone()),
        fs: fs.clone(),
        background,
        ..Options::default()
    };
    let database = Database::open(Path::new("/db"), options).unwrap();
    let index = database.index("names").unwrap();
    (database, index)
}

fn write(database: &Database, index: &Index, keys: std::ops::Range<u32>) {
    for n in keys {
        let mut batch = Batch::new();
        batch.put(index, &n.to_be_bytes(), &[7; 100]);
        database.write(batch, Durability::Buffered).unwrap();
    }
}

fn memory() -> Arc<dyn Fs> {
    Arc::new(MemoryFs::new())
}

#[test]
fn the_listener_hears_what_happened_in_order() {
    let heard = Arc::new(Heard::default());
    let fs = memory();
    let (database, index) = open(&heard, &fs, Background::Inline);
    write(&database, &index, 0..10);
    assert_eq!(heard.take(), [""; 0]);
    database.flush().unwrap();
    assert_eq!(heard.take(), ["flush_begin", "flush_end"]);
    write(&database, &index, 5..15);
    // An idle compaction may have been in between.
    heard.take();
    database.compact().unwrap();
    let all = [
        "flush_begin",
        "flush_end",
        "compaction_begin",
        "compaction_end",
    ];
    assert_eq!(heard.take(), all);
    database.checkpoint(Path::new("/copy")).unwrap();
    database.backup(Path::new("/backup")).unwrap();
    assert_eq!(heard.take(), ["checkpoint", "backup"]);
    let snapshot = database.snapshot();
    write(&database, &index, 0..1);
    database.release_snapshots_before(snapshot.sequence() + 1);
    assert_eq!(heard.take(), ["snapshots_released"]);
}

#[test]
fn damage_is_told_wherever_it_is_met() {
    let heard = Arc::new(Heard::default());
    let fs = memory();
    let (database, index) = open(&heard, &fs, Background::Inline);
    write(&database, &index, 0..100);
    database.compact().unwrap();
    database.close().unwrap();
    let names = fs.list(Path::new("/db")).unwrap();
    let table = names.iter().find(|name| name.ends_with(".table")).unwrap();
    let file = fs.open(&Path::new("/db").join(table), Open::Write).unwrap();
    let (database, index) = open(&heard, &fs, Background::Inline);
    file.write_at(&[0xff; 64], 100).unwrap();
    heard.take();
    assert!(matches!(
        database.get(&index, &1u32.to_be_bytes()),
        Err(Error::Corrupt { .. })
    ));
    assert_eq!(heard.take(), ["corruption"]);
    assert!(database.prefix(&index, b"").any(|entry| entry.is_err()));
    assert!(database.verify().is_err());
    assert_eq!(heard.take(), ["corruption", "corruption"]);
}

#[test]
fn a_listener_may_call_the_database() {
    for background in [Background::Inline, Background::Threads] {
        let heard = Arc::new(Heard::default());
        let fs = memory();
        let (database, index) = open(&heard, &fs, background);
        *heard.database.lock().unwrap() = Some(database.clone());
        write(&database, &index, 0..2000);
        database.compact().unwrap();
        heard.wait_for("compaction_end");
        database.close().unwrap();
    }
}

#[test]
fn a_listener_that_panics_harms_nothing() {
    for background in [Background::Inline, Background::Threads] {
        let heard = Arc::new(Heard {
            panics: true,
            ..Heard::default()
        });
        let fs = memory();
        let (database, index) = open(&heard, &fs, background);
        write(&database, &index, 0..2000);
        database.compact().unwrap();
        heard.wait_for("compaction_end");
        database.close().unwrap();
        let (database, index) = open(&heard, &fs, background);
        assert_eq!(
            database.prefix(&index, b"").map(Result::unwrap).count(),
            2000
        );
    }
}

/// Blocks at its first event until it is let go.
#[derive(Debug, Default)]
struct Blocks(Mutex<bool>, Condvar);

impl Listener for Blocks {
    fn event(&self, _event: &Event) {
        let held = self.0.lock().unwrap();
        drop(self.1.wait_while(held, |let_go| !*let_go).unwrap());
    }
}

#[test]
fn a_listener_that_blocks_holds_nobody_up_and_loses_events() {
    let blocks = Arc::new(Blocks::default());
    let options = Options {
        listener: Some(blocks.clone()),
        fs: memory(),
        ..Options::default()
    };
    let database = Database::open(Path::new("/db"), options).unwrap();
    let index = database.index("names").unwrap();
    for n in 0..600 {
        write(&database, &index, n..n + 1);
        database.flush().unwrap();
    }
    database.compact().unwrap();
    let lost = database.stats().events_lost;
    assert!(lost > 0);
    *blocks.0.lock().unwrap() = true;
    blocks.1.notify_all();
    database.close().unwrap();
}

/// Keeps syncs from ending until it is let go.
#[derive(Default)]
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    fn set(&self, shut: bool) {
        *self.0.lock().unwrap() = shut;
        self.1.notify_all();
    }

    fn pass(&self) {
        let shut = self.0.lock().unwrap();
        drop(self.1.wait_while(shut, |shut| *shut).unwrap());
    }
}

#[test]
fn writers_that_are_slowed_and_that_wait_are_told_and_counted() {
    let heard = Arc::new(Heard::default());
    let faulty = FaultyFs::new(memory());
    let fs: Arc<dyn Fs> = Arc::new(faulty.clone());
    let (database, index) = open(&heard, &fs, Background::Threads);
    let gate = Arc::new(Gate::default());
    gate.set(true);
    let held = gate.clone();
    faulty.after_sync(move || held.pass());
    let before = database.stats();
    assert_eq!((before.pauses, before.stalls), (0, 0));
    std::thread::scope(|scope| {
        scope.spawn(|| write(&database, &index, 0..1000));
        heard.wait_for("stall_begin");
        assert!(database.stats().pauses > 0);
        assert_eq!(database.stats().stalls, 1);
        gate.set(false);
    });
    heard.wait_for("stall_end");
    database.settle().unwrap();
    heard.wait_for("slow_end");
    let mut names = heard.take();
    names.retain(|name| name.starts_with("slow") || name.starts_with("stall"));
    assert_eq!(names[..2], ["slow_begin", "stall_begin"]);
    database.close().unwrap();
}

#[test]
fn a_log_that_goes_on_after_a_failed_sync_is_told() {
    let heard = Arc::new(Heard::default());
    let faulty = FaultyFs::new(memory());
    let fs: Arc<dyn Fs> = Arc::new(faulty.clone());
    let (database, index) = open(&heard, &fs, Background::Inline);
    write(&database, &index, 0..10);
    faulty.arm(Some(Fault {
        at: 0,
        count: 1,
        kind: ErrorKind::Other,
        changes_only: true,
    }));
    database.sync().unwrap();
    // Delivered at the end of the next call that may have something to tell.
    write(&database, &index, 10..11);
    assert_eq!(heard.take(), ["log_restart"]);
}

#[test]
fn a_flush_that_fails_in_the_background_is_told_and_tried_again() {
    let heard = Arc::new(Heard::default());
    let faulty = FaultyFs::new(memory());
    let fs: Arc<dyn Fs> = Arc::new(faulty.clone());
    let (database, index) = open(&heard, &fs, Background::Inline);
    // The first write and the first that rotates make a segment: its name, zeros, their sync. Then
    // comes the record, and after it the creation of the table. Other writes have one change.
    let table = Fault {
        at: 4,
        count: 1,
        kind: ErrorKind::StorageFull,
        changes_only: true,
    };
    for n in 0..1000 {
        faulty.arm(Some(table));
        write(&database, &index, n..n + 1);
        if database.stats().background_failures > 0 {
            break;
        }
    }
    assert_eq!(
        heard.take(),
        ["flush_begin", "flush_end", "background_error"]
    );
    assert!(database.stats().background_error.is_some());
    faulty.arm(None);
    write(&database, &index, 0..1);
    assert_eq!(heard.take()[..2], ["flush_begin", "flush_end"]);
    assert_eq!(database.stats().memtables_waiting, 0);
}
