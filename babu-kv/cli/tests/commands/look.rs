//! The commands that look at a database, and those that need it for themselves.

use crate::{babu_kv, file, json, with_a_database};
use babu_kv::{Batch, Database, Durability, Options};
use std::fs;

#[test]
fn stats_say_what_is_there() {
    let dir = with_a_database();
    let said = babu_kv(dir.path(), &["stats", "db"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out.contains("operations so far  2001"), "{}", said.out);
    assert!(said.out.contains("names") && said.out.contains("owners"));
    let stats = json(&babu_kv(dir.path(), &["stats", "db", "--json"]));
    assert_eq!(stats["sequence"], 2001);
    assert_eq!(stats["indices"][1]["name"], "owners");
    // Compaction may have moved them down already.
    let levels = stats["levels"].as_array().unwrap().iter();
    let entries: Option<u64> = levels.map(|level| level["entries"].as_u64()).sum();
    assert_eq!(entries, Some(2000));
    assert_eq!(stats["files"]["tables"]["files"], 1);
    let said = babu_kv(dir.path(), &["stats", "db", "--prometheus"]);
    let line = "\nbabu_kv_sequence_visible 2001\n";
    assert!(said.out.contains(line), "{}", said.out);
}

#[test]
fn verify_passes_what_is_well_and_names_the_file_with_a_flipped_byte() {
    let dir = with_a_database();
    let said = babu_kv(dir.path(), &["verify", "db"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out.starts_with("no damage: 1 tables"), "{}", said.out);
    let verified = json(&babu_kv(dir.path(), &["verify", "db", "--json"]));
    assert_eq!(
        (&verified["damaged"], &verified["entries"]),
        (&false.into(), &2000.into())
    );

    for (ending, at) in [(".table", 3000), ("MANIFEST-000001", 20)] {
        let path = file(dir.path(), ending);
        let whole = fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        flipped[at] ^= 4;
        fs::write(&path, flipped).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let said = babu_kv(dir.path(), &["verify", "db"]);
        assert_eq!(said.code, Some(2), "{name}: {}", said.err);
        assert!(said.err.contains(name), "{}", said.err);
        assert!(said.err.contains("is damaged at byte"), "{}", said.err);
        let said = babu_kv(dir.path(), &["verify", "db", "--json"]);
        assert_eq!(said.code, Some(2));
        let damage = json(&said);
        assert_eq!(damage["damaged"], true);
        assert!(damage["file"].as_str().unwrap().ends_with(name));
        assert!(damage["offset"].as_u64().unwrap() <= at as u64);
        fs::write(&path, whole).unwrap();
    }
    assert_eq!(babu_kv(dir.path(), &["verify", "db"]).code, Some(0));

    fs::remove_file(dir.path().join("db/CURRENT")).unwrap();
    let said = babu_kv(dir.path(), &["verify", "db"]);
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("CURRENT"), "{}", said.err);
}

#[test]
fn dump_prints_what_was_asked_for_one_entry_a_line() {
    let dir = with_a_database();
    let dump = |words: &[&str]| {
        let said = babu_kv(dir.path(), &[&["dump", "db"], words].concat());
        assert_eq!(said.code, Some(0), "{}", said.err);
        said.out
    };
    assert_eq!(dump(&["owners"]), "root\t\\x00\n");
    let all = dump(&[]);
    assert_eq!(all.lines().count(), 2001);
    assert_eq!(
        all.lines().next(),
        Some("names\t\\x00\\x00\\x00\\x00\tfile\\t0")
    );
    assert_eq!(all.lines().last(), Some("owners\troot\t\\x00"));
    assert_eq!(
        dump(&["names", "--prefix", "000001", "--limit", "2", "--keys-only"]),
        "\\x00\\x00\\x01\\x00\n\\x00\\x00\\x01\\x01\n"
    );
    let said = babu_kv(dir.path(), &["dump", "db", "ownrs"]);
    assert_eq!(said.code, Some(1));
    assert!(
        said.err.contains("there are: names, owners"),
        "{}",
        said.err
    );
    let said = babu_kv(dir.path(), &["dump", "db", "names", "--prefix", "0"]);
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("hexadecimal"), "{}", said.err);
}

#[test]
fn a_checkpoint_is_a_database_of_its_own_and_compaction_changes_no_entry() {
    let dir = with_a_database();
    let before = babu_kv(dir.path(), &["dump", "db"]).out;
    let said = babu_kv(dir.path(), &["checkpoint", "db", "copy"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let said = babu_kv(dir.path(), &["checkpoint", "db", "copy"]);
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("is not empty"), "{}", said.err);
    let said = babu_kv(dir.path(), &["compact", "copy"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let stats = json(&babu_kv(dir.path(), &["stats", "copy", "--json"]));
    assert_eq!(stats["levels"][0]["tables"], 0);
    for database in ["db", "copy"] {
        assert_eq!(babu_kv(dir.path(), &["dump", database]).out, before);
        assert_eq!(babu_kv(dir.path(), &["verify", database]).code, Some(0));
    }
}

#[test]
fn where_there_is_no_database_none_is_made() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("empty")).unwrap();
    for command in ["stats", "verify", "dump", "compact", "repair"] {
        for place in ["missing", "empty"] {
            let said = babu_kv(dir.path(), &[command, place]);
            assert_eq!(said.code, Some(1), "{command} {place}: {}", said.err);
            let what = format!("no database in {place}");
            assert!(said.err.contains(&what), "{}", said.err);
        }
    }
    let said = babu_kv(dir.path(), &["checkpoint", "missing", "copy"]);
    assert_eq!(said.code, Some(1));
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "{names:?}");
    assert_eq!(fs::read_dir(dir.path().join("empty")).unwrap().count(), 0);
}

#[test]
fn beside_the_owner_one_can_look_and_nothing_else() {
    let dir = with_a_database();
    let database = Database::open(&dir.path().join("db"), Options::default()).unwrap();
    let owners = database.index("owners").unwrap();
    let mut batch = Batch::new();
    batch.put(&owners, b"wheel", b"0");
    database.write(batch, Durability::Buffered).unwrap();
    for command in ["stats", "verify", "dump"] {
        let said = babu_kv(dir.path(), &[command, "db"]);
        assert_eq!(said.code, Some(0), "{command}: {}", said.err);
    }
    let dump = babu_kv(dir.path(), &["dump", "db", "owners"]).out;
    assert_eq!(dump, "root\t\\x00\nwheel\t0\n");
    for words in [
        &["compact", "db"][..],
        &["checkpoint", "db", "copy"],
        &["repair", "db"],
    ] {
        let said = babu_kv(dir.path(), words);
        assert_eq!(said.code, Some(1), "{words:?}");
        assert!(said.err.contains("in db is in use"), "{}", said.err);
    }
    assert_eq!(database.stats().sequence_visible, 2002);
    database.close().unwrap();
}
