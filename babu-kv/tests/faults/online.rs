//! A database read beside its owner: one instant, however the owner goes on, and not one changed
//! byte.

use crate::scenario::{DIR, Maps, batch, content, read_all, small};
use babu_kv::{
    Batch, Database, Durability, Error, Options, backup,
    fs::{Crash, File, Fs, Lock, MemoryFs, Open, RealFs, Space},
};
use std::{
    collections::BTreeMap,
    fmt, io,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    thread,
};

fn dir() -> &'static Path {
    Path::new(DIR)
}

fn write(database: &Database, rounds: std::ops::Range<u32>) {
    for round in rounds {
        database.commit(batch(database, round).unwrap()).unwrap();
    }
}

/// Reads through a handle that may not create indices.
fn read(database: &Database) -> Maps {
    let known: Vec<_> = database.indices();
    assert_eq!(known.len(), 2);
    read_all(database).unwrap()
}

#[test]
fn it_shows_one_instant_while_the_owner_goes_on() {
    let memory = MemoryFs::new();
    let owner = Database::open(dir(), small(Arc::new(memory.clone()))).unwrap();
    let mut looks = Vec::new();
    for n in 0..12u32 {
        write(&owner, n * 9..(n + 1) * 9);
        let look = Database::open_read_only(dir(), small(Arc::new(memory.clone()))).unwrap();
        looks.push((look, (n + 1) * 9));
    }
    owner.compact().unwrap();
    write(&owner, 108..140);
    for (look, rounds) in &looks {
        assert!(read(look) == content(0..*rounds), "{rounds} rounds");
        look.verify().unwrap();
        // Also what it backs up now is of then.
        let safe = Path::new("/safe");
        let made = look.backup(safe).unwrap();
        let to = format!("/again{rounds}");
        backup::restore(&memory, safe, made.number, Path::new(&to)).unwrap();
        let again = Database::open(Path::new(&to), small(Arc::new(memory.clone()))).unwrap();
        assert!(
            read_all(&again).unwrap() == content(0..*rounds),
            "{rounds} rounds"
        );
    }
    assert!(read_all(&owner).unwrap() == content(0..140));
}

#[test]
fn whatever_would_change_something_is_refused() {
    let memory = MemoryFs::new();
    let owner = Database::open(dir(), small(Arc::new(memory.clone()))).unwrap();
    write(&owner, 0..30);
    let look = Database::open_read_only(dir(), small(Arc::new(memory.clone()))).unwrap();
    let index = look.indices()[0].clone();
    let mut put = Batch::new();
    put.put(&index, b"key", b"value");
    let refused = [
        look.commit(put.clone()).err(),
        look.write(put, Durability::Synced).err(),
        look.index("new").err(),
        look.flush().err(),
        look.compact().err(),
        look.checkpoint(Path::new("/copy")).err(),
    ];
    for error in refused {
        let error = error.unwrap();
        assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
    }
    assert!(!memory.exists(Path::new("/copy")).unwrap());
    look.close().unwrap();
    write(&owner, 30..40);
    assert!(read_all(&owner).unwrap() == content(0..40));
}

/// Everything that a change of the folder would show.
fn fingerprint(dir: &Path) -> BTreeMap<String, (u64, i64, i64, u64, Vec<u8>)> {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| {
        let entry = entry.unwrap();
        let meta = entry.metadata().unwrap();
        let times = (meta.mtime(), meta.mtime_nsec() + meta.ctime_nsec());
        let content = std::fs::read(entry.path()).unwrap();
        let name = entry.file_name().into_string().unwrap();
        (name, (meta.ino(), times.0, times.1, meta.nlink(), content))
    });
    files.collect()
}

#[test]
fn no_file_is_changed_also_where_recovery_would_cut() {
    let temporary = tempfile::tempdir().unwrap();
    let options = || small(Arc::new(RealFs));
    let database = Database::open(temporary.path(), options()).unwrap();
    write(&database, 0..40);
    // As a crash leaves it, which closes nothing: a torn end of the log and of the manifest, and files of no use.
    let names: Vec<String> = fingerprint(temporary.path()).into_keys().collect();
    for ending in [".log", "MANIFEST-"] {
        let name = names.iter().rfind(|name| name.contains(ending)).unwrap();
        let path = temporary.path().join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend_from_slice(&[7; 100]);
        std::fs::write(path, bytes).unwrap();
    }
    std::fs::write(temporary.path().join("999999.table"), b"left over").unwrap();
    std::fs::remove_file(temporary.path().join("LOCK")).unwrap();
    let before = fingerprint(temporary.path());
    let look = Database::open_read_only(temporary.path(), options()).unwrap();
    assert!(read(&look) == content(0..40));
    look.verify().unwrap();
    let safe = tempfile::tempdir().unwrap();
    look.backup(safe.path()).unwrap();
    look.close().unwrap();
    assert!(fingerprint(temporary.path()) == before);
    drop(database);
}

#[test]
fn a_checkpoint_can_be_read_where_it_lies() {
    let memory = MemoryFs::new();
    let owner = Database::open(dir(), small(Arc::new(memory.clone()))).unwrap();
    write(&owner, 0..30);
    let copy = Path::new("/copy");
    owner.checkpoint(copy).unwrap();
    write(&owner, 30..60);
    let before = memory.list(copy).unwrap();
    let look = Database::open_read_only(copy, small(Arc::new(memory.clone()))).unwrap();
    assert!(read(&look) == content(0..30));
    assert_eq!(memory.list(copy).unwrap(), before);
}

#[test]
fn damage_is_an_error_and_a_missing_database_too() {
    let memory = MemoryFs::new();
    let owner = Database::open(dir(), small(Arc::new(memory.clone()))).unwrap();
    write(&owner, 0..40);
    owner.close().unwrap();
    for name in memory.list(dir()).unwrap() {
        let image = memory.crash(Crash::Kept);
        image.remove(&dir().join(&name)).unwrap();
        let opened = Database::open_read_only(dir(), small(Arc::new(image.clone())));
        assert_eq!(opened.is_ok(), name == "LOCK", "{name}");
        let image = memory.crash(Crash::Kept);
        image.corrupt(&dir().join(&name), 30, 1).unwrap();
        let looked = Database::open_read_only(dir(), small(Arc::new(image.clone())))
            .and_then(|look| look.verify().map(|_| look));
        match looked {
            Ok(look) => {
                let found = read(&look);
                assert!(
                    name == "LOCK" || (0..40).any(|n| content(0..n) == found),
                    "{name}"
                );
            }
            Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{name}: {error}"),
        }
    }
    Database::open_read_only(Path::new("/nowhere"), small(Arc::new(memory.clone()))).unwrap_err();
    assert!(!memory.exists(Path::new("/nowhere")).unwrap());
}

/// Counts up in one key, and writes as many others, while others look.
#[test]
fn every_look_at_a_busy_database_finds_a_prefix_with_all_that_was_acknowledged() {
    let temporary = tempfile::tempdir().unwrap();
    let data = temporary.path().join("data");
    let options = || Options {
        memtable_bytes: 16 << 10,
        table_bytes: 8 << 10,
        level1_bytes: 32 << 10,
        level0_tables: 2,
        ..Options::default()
    };
    let owner = Database::open(&data, options()).unwrap();
    let index = owner.index("index").unwrap();
    let (acknowledged, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let (owner, index, acknowledged, stop) = (&owner, &index, &acknowledged, &stop);
        scope.spawn(move || {
            let mut n = 0u64;
            while !stop.load(Relaxed) {
                n += 1;
                let mut batch = Batch::new();
                batch.put(index, b"count", &n.to_be_bytes());
                batch.put(index, &(n % 301).to_be_bytes(), &n.to_be_bytes().repeat(9));
                owner.commit(batch).unwrap();
                acknowledged.store(n, Relaxed);
            }
        });
        let looks = || {
            for round in 0..40 {
                let before = acknowledged.load(Relaxed);
                let look = Database::open_read_only(&data, options()).map_err(|e| e.to_string())?;
                let Some(index) = look.indices().pop() else {
                    continue;
                };
                let count = look.get(&index, b"count").map_err(|e| e.to_string())?;
                let count = count.map_or(0, |v| u64::from_be_bytes((&*v).try_into().unwrap()));
                if count < before {
                    return Err(format!("{before} were acknowledged and {count} are there"));
                }
                for entry in look.prefix(&index, b"") {
                    let (key, value) = entry.map_err(|e| e.to_string())?;
                    if &*key == b"count" {
                        continue;
                    }
                    let residue = u64::from_be_bytes((&*key).try_into().unwrap());
                    let newest = count - (count + 301 - residue) % 301;
                    if value[..8] != newest.to_be_bytes() {
                        return Err(format!("key {residue} at {count} is not of that instant"));
                    }
                }
                look.verify().map_err(|e| e.to_string())?;
                if round % 8 == 0 {
                    let safe = temporary.path().join("safe");
                    let made = look.backup(&safe).map_err(|e| e.to_string())?;
                    let to = temporary.path().join(format!("again{round}"));
                    backup::restore(&RealFs, &safe, made.number, &to).map_err(|e| e.to_string())?;
                    let again = Database::open(&to, options()).map_err(|e| e.to_string())?;
                    let entries = |d: &Database| -> Vec<_> {
                        let entries = d.prefix(&index, b"").map(Result::unwrap);
                        entries.map(|(k, v)| (k.to_vec(), v.to_vec())).collect()
                    };
                    if entries(&look) != entries(&again) {
                        return Err(format!("the backup at {count} holds something else"));
                    }
                }
            }
            Ok(())
        };
        let seen = looks();
        stop.store(true, Relaxed);
        assert_eq!(seen, Ok(()));
    });
    assert!(owner.stats().compactions > 0);
}

/// Calls `hook` before each listing of a folder: after the manifest was read, before its files are
/// opened.
struct Hooked {
    inner: MemoryFs,
    hook: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Fs for Hooked {
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        (self.hook)();
        self.inner.list(dir)
    }

    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>> {
        assert_eq!(how, Open::Read, "{}", path.display());
        self.inner.open(path, how)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.inner.exists(path)
    }

    fn file_len(&self, path: &Path) -> io::Result<u64> {
        self.inner.file_len(path)
    }

    fn space(&self, dir: &Path) -> io::Result<Space> {
        self.inner.space(dir)
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        panic!("a change")
    }

    fn remove(&self, _: &Path) -> io::Result<()> {
        panic!("a change")
    }

    fn hard_link(&self, _: &Path, _: &Path) -> io::Result<()> {
        panic!("a change")
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        panic!("a change")
    }

    fn create_dir_all(&self, _: &Path) -> io::Result<()> {
        panic!("a change")
    }

    fn remove_dir(&self, _: &Path) -> io::Result<()> {
        panic!("a change")
    }

    fn lock(&self, _: &Path) -> io::Result<Box<dyn Lock>> {
        panic!("a lock")
    }
}

#[test]
fn files_that_vanish_while_they_are_opened_are_looked_for_anew_but_not_for_ever() {
    for times in [1, 5, u32::MAX] {
        let memory = MemoryFs::new();
        let owner = Database::open(dir(), small(Arc::new(memory.clone()))).unwrap();
        write(&owner, 0..40);
        let (calls, writer) = (AtomicU32::new(0), owner.clone());
        let hooked = Hooked {
            inner: memory.clone(),
            hook: Box::new(move || {
                let call = calls.fetch_add(1, Relaxed);
                assert!(call < 100, "it does not end");
                if call < times {
                    // All tables are replaced, and the log segment too.
                    write(&writer, 40 + call..41 + call);
                    writer.compact().unwrap();
                }
            }),
        };
        let look = Database::open_read_only(dir(), small(Arc::new(hooked)));
        if times == u32::MAX {
            look.unwrap_err();
        } else {
            assert!(read(&look.unwrap()) == content(0..40 + times));
        }
    }
}
