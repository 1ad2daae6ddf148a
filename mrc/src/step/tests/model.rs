//! Random operations against a model that is too simple to be wrong: a tree of maps.

use std::collections::BTreeMap;

use proptest::prelude::*;
use xtfs_protocol::Code;
use xtfs_protocol::ids::ROOT_INO as ROOT;
use xtfs_protocol::meta::{FileKind, MetaOp, RenameFlags};

use super::*;

/// What the model knows: for each directory its names, for each inode what it is.
#[derive(Default)]
struct Model {
    dirs: BTreeMap<Ino, (Ino, BTreeMap<String, Ino>)>,
    sizes: BTreeMap<Ino, u64>,
}

#[derive(Debug, Clone)]
enum Op {
    Mkdir(usize, u8),
    Create(usize, u8),
    Unlink(usize, u8),
    Rmdir(usize, u8),
    Link(usize, u8, usize, u8),
    Rename(usize, u8, usize, u8, u8),
    Truncate(usize, u8, u64),
    Release(usize, u8),
}

fn operation() -> impl Strategy<Value = Op> {
    let place = || (0usize..6, 0u8..5);
    prop_oneof![
        3 => place().prop_map(|(d, n)| Op::Mkdir(d, n)),
        3 => place().prop_map(|(d, n)| Op::Create(d, n)),
        2 => place().prop_map(|(d, n)| Op::Unlink(d, n)),
        2 => place().prop_map(|(d, n)| Op::Rmdir(d, n)),
        2 => (place(), place()).prop_map(|((d, n), (e, m))| Op::Link(d, n, e, m)),
        4 => (place(), place(), 0u8..3).prop_map(|((d, n), (e, m), f)| Op::Rename(d, n, e, m, f)),
        2 => (place(), 0u64..1000).prop_map(|((d, n), s)| Op::Truncate(d, n, s)),
        1 => place().prop_map(|(d, n)| Op::Release(d, n)),
    ]
}

impl Model {
    fn dir(&self, number: usize) -> Ino {
        let count = self.dirs.len();
        *self.dirs.keys().nth(number % count).unwrap()
    }

    fn get(&self, dir: Ino, name: &str) -> Option<Ino> {
        self.dirs[&dir].1.get(name).copied()
    }

    fn is_dir(&self, ino: Ino) -> bool {
        self.dirs.contains_key(&ino)
    }

    fn is_above(&self, above: Ino, mut at: Ino) -> bool {
        while at != above && at != ROOT {
            at = self.dirs[&at].0;
        }
        at == above
    }

    fn names(&mut self, dir: Ino) -> &mut BTreeMap<String, Ino> {
        &mut self.dirs.get_mut(&dir).unwrap().1
    }

    fn move_to(&mut self, ino: Ino, parent: Ino) {
        if let Some(dir) = self.dirs.get_mut(&ino) {
            dir.0 = parent;
        }
    }

    fn remove(&mut self, dir: Ino, name: &str, want_dir: bool) -> std::result::Result<(), Code> {
        let ino = self.get(dir, name).ok_or(Code::NotFound)?;
        match (want_dir, self.is_dir(ino)) {
            (true, false) => return Err(Code::NotDirectory),
            (false, true) => return Err(Code::IsDirectory),
            (true, true) if !self.dirs[&ino].1.is_empty() => return Err(Code::NotEmpty),
            _ => {}
        }
        self.dirs.remove(&ino);
        self.names(dir).remove(name);
        Ok(())
    }

    fn rename(
        &mut self,
        from: (Ino, &str),
        to: (Ino, &str),
        flags: RenameFlags,
    ) -> std::result::Result<(), Code> {
        let source = self.get(from.0, from.1).ok_or(Code::NotFound)?;
        let target = self.get(to.0, to.1);
        if flags.no_replace && target.is_some() {
            return Err(Code::Exists);
        }
        if flags.exchange && target.is_none() {
            return Err(Code::NotFound);
        }
        if self.is_dir(source) && self.is_above(source, to.0) {
            return Err(Code::Invalid);
        }
        if let Some(target) = target {
            if self.is_dir(target) && self.is_above(target, from.0) {
                let code = if flags.exchange {
                    Code::Invalid
                } else {
                    Code::NotEmpty
                };
                return Err(code);
            }
            if target == source {
                return Ok(());
            }
            if flags.exchange {
                self.names(from.0).insert(from.1.into(), target);
                self.names(to.0).insert(to.1.into(), source);
                self.move_to(target, from.0);
                self.move_to(source, to.0);
                return Ok(());
            }
            match (self.is_dir(source), self.is_dir(target)) {
                (true, false) => return Err(Code::NotDirectory),
                (false, true) => return Err(Code::IsDirectory),
                _ => {}
            }
            self.remove(to.0, to.1, self.is_dir(source))?;
        }
        self.names(from.0).remove(from.1);
        self.names(to.0).insert(to.1.into(), source);
        self.move_to(source, to.0);
        Ok(())
    }
}

fn name(number: u8) -> String {
    format!("n{number}")
}

/// Runs one operation on both; they must agree on the outcome.
fn run(world: &mut World, model: &mut Model, op: &Op) {
    match *op {
        Op::Mkdir(dir, n) => {
            let (dir, name) = (model.dir(dir), name(n));
            let op = MetaOp::Mkdir {
                parent: dir,
                name: name.clone().into(),
                mode: 0o755,
            };
            let reply = world.run(&op);
            match model.get(dir, &name) {
                Some(_) => assert_eq!(reply.unwrap_err().code, Code::Exists),
                None => {
                    let ino = attr(&reply.unwrap()).ino;
                    model.dirs.insert(ino, (dir, BTreeMap::new()));
                    model.names(dir).insert(name, ino);
                }
            }
        }
        Op::Create(dir, n) => {
            let (dir, name) = (model.dir(dir), name(n));
            let open = OpenMode {
                read: true,
                write: true,
                truncate: false,
            };
            let reply = world.run(&create(dir, &name, open));
            match model.get(dir, &name) {
                Some(ino) if model.is_dir(ino) => {
                    assert_eq!(reply.unwrap_err().code, Code::IsDirectory);
                }
                Some(ino) => assert_eq!(attr(&reply.unwrap()).ino, ino),
                None => {
                    let ino = attr(&reply.unwrap()).ino;
                    model.sizes.insert(ino, 0);
                    model.names(dir).insert(name, ino);
                }
            }
        }
        Op::Unlink(dir, n) => {
            let (dir, name) = (model.dir(dir), name(n));
            let reply = world.run(&unlink(dir, &name));
            let expected = model.remove(dir, &name, false);
            assert_eq!(reply.map(|_| ()).map_err(|error| error.code), expected);
        }
        Op::Rmdir(dir, n) => {
            let (dir, name) = (model.dir(dir), name(n));
            let reply = world.run(&rmdir(dir, &name));
            let expected = model.remove(dir, &name, true);
            assert_eq!(reply.map(|_| ()).map_err(|error| error.code), expected);
        }
        Op::Link(dir, n, to, m) => {
            let (dir, to, new) = (model.dir(dir), model.dir(to), name(m));
            let Some(ino) = model.get(dir, &name(n)) else {
                return;
            };
            let reply = world.run(&link(ino, to, &new)).map_err(|error| error.code);
            match (model.get(to, &new), model.is_dir(ino)) {
                (Some(_), _) => assert_eq!(reply, Err(Code::Exists)),
                (None, true) => assert_eq!(reply, Err(Code::NotPermitted)),
                (None, false) => {
                    assert_eq!(attr(&reply.unwrap()).ino, ino);
                    model.names(to).insert(new, ino);
                }
            }
        }
        Op::Rename(dir, n, to, m, kind) => {
            let (from, to) = ((model.dir(dir), name(n)), (model.dir(to), name(m)));
            let flags = RenameFlags {
                no_replace: kind == 1,
                exchange: kind == 2,
            };
            let op = MetaOp::Rename {
                parent: from.0,
                name: from.1.clone().into(),
                new_parent: to.0,
                new_name: to.1.clone().into(),
                flags,
            };
            let reply = world.run(&op).map(|_| ()).map_err(|error| error.code);
            let expected = model.rename((from.0, &from.1), (to.0, &to.1), flags);
            assert_eq!(reply, expected, "{op:?}");
        }
        Op::Truncate(dir, n, size) => {
            let dir = model.dir(dir);
            let Some(ino) = model.get(dir, &name(n)) else {
                return;
            };
            let reply = world.truncate(ino, size).map_err(|error| error.code);
            if model.is_dir(ino) {
                assert_eq!(reply, Err(Code::IsDirectory));
            } else {
                assert_eq!(attr(&reply.unwrap()).size, size);
                model.sizes.insert(ino, size);
            }
        }
        Op::Release(dir, n) => {
            let dir = model.dir(dir);
            if let Some(ino) = model.get(dir, &name(n)) {
                world.run(&MetaOp::Release { ino }).unwrap();
            }
        }
    }
}

/// The volume holds exactly the model's names, sizes and parents.
fn compare(world: &mut World, model: &Model) {
    for (dir, (parent, names)) in &model.dirs {
        let op = MetaOp::Readdir {
            ino: *dir,
            after: vec![],
            limit: 100,
            with_attr: true,
        };
        let MetaReply::Page {
            entries,
            parent: found,
            ..
        } = world.run(&op).unwrap()
        else {
            panic!("not a page");
        };
        assert_eq!(found, *parent);
        let entries: BTreeMap<_, _> = entries
            .into_iter()
            .map(|entry| (String::from_utf8(entry.name.clone()).unwrap(), entry))
            .collect();
        let inos: BTreeMap<_, _> = entries.iter().map(|(n, e)| (n.clone(), e.ino)).collect();
        assert_eq!(&inos, names);
        for entry in entries.values() {
            let attr = entry.attr.unwrap();
            assert_eq!(attr.kind == FileKind::Directory, model.is_dir(entry.ino));
            if attr.kind == FileKind::File {
                assert_eq!(attr.size, model.sizes[&entry.ino]);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn random_operations_agree_with_a_tree_of_maps(ops in prop::collection::vec(operation(), 1..120)) {
        let mut world = World::new();
        let mut model = Model::default();
        model.dirs.insert(ROOT, (ROOT, BTreeMap::new()));
        for op in &ops {
            run(&mut world, &mut model, op);
        }
        compare(&mut world, &model);
        // When everything is closed, what has no name is gone.
        let open: Vec<_> = world.open.borrow().own.keys().copied().collect();
        for ino in open {
            world.run(&MetaOp::Release { ino }).unwrap();
        }
        world.end_lingering();
        prop_assert_eq!(world.view.count(Table::Orphans), 0);
    }
}
