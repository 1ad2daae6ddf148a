//! What must be found in a folder after a crash.
//!
//! A [`Model`] is what the finished operations left. An operation that was under way when the crash
//! came may have happened or not; what exactly may be found then is [`Op::allows`]. Everything else
//! must be there to the byte, and nothing more.

use std::collections::BTreeMap;
use std::path::Path;

/// A file of the folder.
#[derive(Clone, PartialEq, Eq)]
pub enum Node {
    /// A directory.
    Folder,
    /// A file whose content was synced.
    Synced(Vec<u8>),
    /// A file that was made and written without a sync: it must be there, with a prefix of this.
    Loose(Vec<u8>),
    /// A symbolic link.
    Link(String),
}

impl std::fmt::Debug for Node {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Folder => write!(out, "folder"),
            Self::Synced(bytes) => write!(out, "{} synced bytes", bytes.len()),
            Self::Loose(bytes) => write!(out, "up to {} loose bytes", bytes.len()),
            Self::Link(target) => write!(out, "link to {target}"),
        }
    }
}

/// Files by their path within the folder, as text with slashes.
pub type Model = BTreeMap<String, Node>;

/// An operation of the workload; it is finished when its last step is acknowledged.
#[derive(Clone, PartialEq, Eq)]
pub enum Op {
    /// Writes `PATH~`, syncs it, and renames it to the path.
    Replace {
        /// Path.
        path: String,
        /// Content.
        bytes: Vec<u8>,
    },
    /// Creates or truncates a file, writes and closes it, without a sync.
    WriteLoose {
        /// Path.
        path: String,
        /// Content.
        bytes: Vec<u8>,
    },
    /// Syncs a loose file.
    Settle {
        /// Path.
        path: String,
    },
    /// Appends and syncs.
    Append {
        /// Path.
        path: String,
        /// What.
        bytes: Vec<u8>,
    },
    /// Writes at an offset within the file, and syncs.
    Overwrite {
        /// Path.
        path: String,
        /// Where.
        offset: usize,
        /// What; ends at most at the end of the file.
        bytes: Vec<u8>,
    },
    /// Sets the length and syncs.
    Truncate {
        /// Path.
        path: String,
        /// New length.
        length: usize,
    },
    /// Renames a file or a folder with all below it; an old file of the new name goes.
    Rename {
        /// Old path.
        from: String,
        /// New path.
        to: String,
    },
    /// Removes a file or a link.
    Remove {
        /// Path.
        path: String,
    },
    /// Makes a folder.
    MakeFolder {
        /// Path.
        path: String,
    },
    /// Removes an empty folder.
    RemoveFolder {
        /// Path.
        path: String,
    },
    /// Makes a symbolic link.
    Link {
        /// Path.
        path: String,
        /// Target.
        target: String,
    },
}

impl std::fmt::Debug for Op {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Replace { path, bytes } => write!(out, "replace {path} ({})", bytes.len()),
            Self::WriteLoose { path, bytes } => write!(out, "write {path} ({})", bytes.len()),
            Self::Settle { path } => write!(out, "sync {path}"),
            Self::Append { path, bytes } => write!(out, "append to {path} ({})", bytes.len()),
            Self::Overwrite {
                path,
                offset,
                bytes,
            } => {
                write!(out, "overwrite {path} at {offset} ({})", bytes.len())
            }
            Self::Truncate { path, length } => write!(out, "truncate {path} to {length}"),
            Self::Rename { from, to } => write!(out, "rename {from} to {to}"),
            Self::Remove { path } => write!(out, "remove {path}"),
            Self::MakeFolder { path } => write!(out, "mkdir {path}"),
            Self::RemoveFolder { path } => write!(out, "rmdir {path}"),
            Self::Link { path, target } => write!(out, "link {path} to {target}"),
        }
    }
}

/// Is `path` this file or something below it?
fn within(path: &str, top: &str) -> bool {
    path.strip_prefix(top)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The name under which new content is written before it replaces the old.
#[must_use]
pub fn temporary(path: &str) -> String {
    format!("{path}~")
}

impl Op {
    /// Does the operation change what is at this path?
    #[must_use]
    pub fn touches(&self, at: &str) -> bool {
        match self {
            Self::Replace { path, .. } => at == path || at == temporary(path),
            Self::Rename { from, to } => within(at, from) || within(at, to),
            Self::WriteLoose { path, .. }
            | Self::Settle { path }
            | Self::Append { path, .. }
            | Self::Overwrite { path, .. }
            | Self::Truncate { path, .. }
            | Self::Remove { path }
            | Self::MakeFolder { path }
            | Self::RemoveFolder { path }
            | Self::Link { path, .. } => at == path,
        }
    }

    /// Changes the model as the finished operation changes the folder.
    ///
    /// # Panics
    /// When the operation does not fit the model.
    pub fn apply(&self, model: &mut Model) {
        match self {
            Self::Replace { path, bytes } => {
                model.insert(path.clone(), Node::Synced(bytes.clone()));
            }
            Self::WriteLoose { path, bytes } => {
                model.insert(path.clone(), Node::Loose(bytes.clone()));
            }
            Self::Settle { path } => {
                if let Some(Node::Loose(bytes)) = model.remove(path) {
                    model.insert(path.clone(), Node::Synced(bytes));
                }
            }
            Self::Append { path, bytes } => synced(model, path).extend_from_slice(bytes),
            Self::Overwrite {
                path,
                offset,
                bytes,
            } => {
                synced(model, path)[*offset..offset + bytes.len()].copy_from_slice(bytes);
            }
            Self::Truncate { path, length } => synced(model, path).resize(*length, 0),
            Self::Rename { from, to } => {
                let moved: Vec<String> = model
                    .keys()
                    .filter(|at| within(at, from))
                    .cloned()
                    .collect();
                for at in moved {
                    if let Some(node) = model.remove(&at) {
                        model.insert(format!("{to}{}", &at[from.len()..]), node);
                    }
                }
            }
            Self::Remove { path } | Self::RemoveFolder { path } => {
                model.remove(path);
            }
            Self::MakeFolder { path } => {
                model.insert(path.clone(), Node::Folder);
            }
            Self::Link { path, target } => {
                model.insert(path.clone(), Node::Link(target.clone()));
            }
        }
    }

    /// May `found` be there when the operation was interrupted? All three hold only what the
    /// operation touches: before it, after it, and now.
    #[must_use]
    pub fn allows(&self, before: &Model, after: &Model, found: &Model) -> bool {
        if fits(before, found) || fits(after, found) {
            return true;
        }
        match self {
            Self::Replace { path, bytes } => {
                let scratch = temporary(path);
                let mut rest = found.clone();
                let partial = match rest.remove(&scratch) {
                    Some(Node::Synced(now)) => bytes.starts_with(&now),
                    Some(_) => false,
                    None => true,
                };
                partial && fits(before, &rest)
            }
            Self::WriteLoose { path, bytes } => match (found.get(path), before.get(path)) {
                (Some(Node::Synced(now)), _) => bytes.starts_with(now),
                (None, before) => before.is_none(),
                _ => false,
            },
            Self::Append { path, bytes } => {
                let (Some(old), Some(now)) = (content(before, path), content(found, path)) else {
                    return false;
                };
                now.strip_prefix(old)
                    .is_some_and(|added| bytes.starts_with(added))
            }
            Self::Overwrite { path, .. } => {
                let (Some(old), Some(new), Some(now)) = (
                    content(before, path),
                    content(after, path),
                    content(found, path),
                ) else {
                    return false;
                };
                now.len() == old.len()
                    && (now.iter().zip(old).zip(new))
                        .all(|((now, old), new)| now == old || now == new)
            }
            _ => false,
        }
    }
}

fn synced<'a>(model: &'a mut Model, path: &str) -> &'a mut Vec<u8> {
    match model.get_mut(path) {
        Some(Node::Synced(bytes)) => bytes,
        other => panic!("{path} is {other:?} and no synced file"),
    }
}

fn content<'a>(model: &'a Model, path: &str) -> Option<&'a [u8]> {
    match model.get(path) {
        Some(Node::Synced(bytes) | Node::Loose(bytes)) => Some(bytes),
        _ => None,
    }
}

/// Is what was found what the model says?
fn fits(model: &Model, found: &Model) -> bool {
    model.len() == found.len()
        && model
            .iter()
            .zip(found)
            .all(|((path, node), (found_path, found))| path == found_path && node_fits(node, found))
}

fn node_fits(node: &Node, found: &Node) -> bool {
    match (node, found) {
        (Node::Loose(bytes), Node::Synced(now)) => bytes.starts_with(now),
        _ => node == found,
    }
}

/// Compares what was found with the model and the operation that was under way, if any.
///
/// # Errors
/// One line for each path that is wrong.
pub fn check(model: &Model, pending: Option<&Op>, found: &Model) -> Result<(), Vec<String>> {
    let touched = |path: &str| pending.is_some_and(|op| op.touches(path));
    let mut wrong = Vec::new();
    for (path, node) in model.iter().filter(|(path, _)| !touched(path)) {
        match found.get(path) {
            None => wrong.push(format!("{path}: {node:?} is missing")),
            Some(now) if !node_fits(node, now) => {
                wrong.push(format!("{path}: {}", difference(node, now)));
            }
            Some(_) => {}
        }
    }
    for (path, now) in found.iter().filter(|(path, _)| !touched(path)) {
        if !model.contains_key(path) {
            wrong.push(format!("{path}: {now:?} should not be there"));
        }
    }
    if let Some(op) = pending {
        let part = |whole: &Model| -> Model {
            let mut part = whole.clone();
            part.retain(|path, _| op.touches(path));
            part
        };
        let mut after = model.clone();
        op.apply(&mut after);
        let (before, after, now) = (part(model), part(&after), part(found));
        if !op.allows(&before, &after, &now) {
            wrong.push(format!(
                "interrupted '{op:?}': neither {before:?} nor {after:?}, but {now:?}{}",
                before
                    .iter()
                    .filter_map(|(path, node)| Some(format!(
                        "; {}",
                        difference(node, now.get(path)?)
                    )))
                    .collect::<String>()
            ));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

fn difference(expected: &Node, found: &Node) -> String {
    let (Node::Synced(old) | Node::Loose(old), Node::Synced(now)) = (expected, found) else {
        return format!("expected {expected:?}, found {found:?}");
    };
    let same = old
        .iter()
        .zip(now)
        .take_while(|(old, now)| old == now)
        .count();
    let bytes = |from: &[u8]| from.iter().skip(same).take(8).copied().collect::<Vec<u8>>();
    format!(
        "expected {expected:?}, found {found:?}; first difference at byte {same}: expected {:?}, found {:?}",
        bytes(old),
        bytes(now)
    )
}

/// Reads a folder.
///
/// # Errors
/// When something in it cannot be read; says what.
pub fn read(root: &Path) -> Result<Model, String> {
    let mut model = Model::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        let at = root.join(&folder);
        let fail = |error: std::io::Error| format!("read {}: {error}", at.display());
        for entry in std::fs::read_dir(&at).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if folder.is_empty() {
                name
            } else {
                format!("{folder}/{name}")
            };
            let node = read_node(&root.join(&path))
                .map_err(|error| format!("read {path} in {}: {error}", root.display()))?;
            if node == Node::Folder {
                folders.push(path.clone());
            }
            model.insert(path, node);
        }
    }
    Ok(model)
}

fn read_node(path: &Path) -> std::io::Result<Node> {
    let kind = std::fs::symlink_metadata(path)?.file_type();
    if kind.is_dir() {
        Ok(Node::Folder)
    } else if kind.is_symlink() {
        let target = std::fs::read_link(path)?;
        Ok(Node::Link(target.to_string_lossy().into_owned()))
    } else {
        Ok(Node::Synced(std::fs::read(path)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Node {
        Node::Synced(text.as_bytes().to_vec())
    }

    fn model(files: &[(&str, Node)]) -> Model {
        files
            .iter()
            .map(|(path, node)| ((*path).to_owned(), node.clone()))
            .collect()
    }

    #[test]
    fn lost_changed_and_added_files_are_found() {
        let expected = model(&[("a", file("1")), ("b", file("2")), ("c", file("3"))]);
        let found = model(&[("a", file("1")), ("b", file("x")), ("d", file("4"))]);
        assert_eq!(check(&expected, None, &found).unwrap_err().len(), 3);
    }

    #[test]
    fn an_interrupted_append_leaves_a_prefix() {
        let expected = model(&[("a", file("old"))]);
        let op = Op::Append {
            path: "a".into(),
            bytes: b"new".to_vec(),
        };
        let with = |text| check(&expected, Some(&op), &model(&[("a", file(text))]));
        assert!(with("old").is_ok());
        assert!(with("oldne").is_ok());
        assert!(with("oldnew").is_ok());
        assert!(with("oldn\0").is_err());
        assert!(with("ol").is_err());
    }

    #[test]
    fn an_interrupted_rename_loses_neither_name() {
        let expected = model(&[("a", file("1")), ("b", file("2"))]);
        let op = Op::Rename {
            from: "a".into(),
            to: "b".into(),
        };
        let check = |found: &[_]| check(&expected, Some(&op), &model(found));
        assert!(check(&[("a", file("1")), ("b", file("2"))]).is_ok());
        assert!(check(&[("b", file("1"))]).is_ok());
        assert!(check(&[("b", file("2"))]).is_err());
        assert!(check(&[("a", file("1")), ("b", file("1"))]).is_err());
        assert!(check(&[]).is_err());
    }

    #[test]
    fn an_interrupted_replacement_may_leave_its_temporary_file() {
        let expected = model(&[("a", file("old"))]);
        let op = Op::Replace {
            path: "a".into(),
            bytes: b"fresh".to_vec(),
        };
        let check = |found: &[_]| check(&expected, Some(&op), &model(found));
        assert!(check(&[("a", file("old")), ("a~", file("fre"))]).is_ok());
        assert!(check(&[("a", file("fresh"))]).is_ok());
        assert!(check(&[("a", file("fre"))]).is_err());
        assert!(check(&[("a~", file("fresh"))]).is_err());
    }

    #[test]
    fn a_folder_moves_as_a_whole() {
        let expected = model(&[("d", Node::Folder), ("d/a", file("1")), ("dx", file("2"))]);
        let op = Op::Rename {
            from: "d".into(),
            to: "e".into(),
        };
        let mut moved = expected.clone();
        op.apply(&mut moved);
        assert_eq!(
            moved,
            model(&[("dx", file("2")), ("e", Node::Folder), ("e/a", file("1"))])
        );
        assert!(check(&expected, Some(&op), &moved).is_ok());
        moved.remove("e/a");
        assert!(check(&expected, Some(&op), &moved).is_err());
    }
}
