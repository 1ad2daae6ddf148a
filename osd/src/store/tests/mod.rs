//! Stories about whole stores, on file systems that forget, fill up and fail.

mod crash;
mod crowd;
mod damage;
mod faults;
mod model;
mod space;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use babu_kv::fs::{Fs, MemoryFs};
use xtfs_protocol::env::Env;
use xtfs_protocol::ids::{FileId, ObjectId, ServiceId, VolumeId};

use super::values::FileState;
use super::{Store, Turn};
use crate::error::{Result, StoreError};
use crate::options::OsdOptions;

const DIR: &str = "/osd";

/// Options for small stores without threads.
fn options(fs: Arc<dyn Fs>) -> OsdOptions {
    let mut options = OsdOptions::new(DIR, ServiceId([5; 16]), Env::simulated(1)).on(fs);
    options.segment_bytes = 96 << 10;
    options.index_cache_bytes = 1 << 20;
    options
}

fn open(fs: &MemoryFs) -> Store {
    Store::open(&options(Arc::new(fs.clone()))).unwrap()
}

fn segment_path(segment: u64) -> PathBuf {
    PathBuf::from(DIR)
        .join("segments")
        .join(super::segment::file_name(segment))
}

/// Bytes of segment files.
fn segment_bytes(store: &Store) -> u64 {
    store.space().unwrap().segment_bytes
}

fn file(data: u64) -> FileId {
    FileId {
        volume: VolumeId([1; 16]),
        data,
    }
}

fn object(data: u64, object: u64) -> ObjectId {
    ObjectId {
        file: file(data),
        object,
        shard: 0,
    }
}

/// Bytes without a pattern, the same for the same seed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// An object's bytes, holes as zeros.
fn content(store: &Store, id: ObjectId, length: u32) -> Result<Vec<u8>> {
    let (ranges, payload) = store.read(id, 0, length)?;
    let mut bytes = vec![0; length as usize];
    let mut rest = &payload[..];
    for range in ranges {
        let (piece, behind) = rest.split_at(range.length as usize);
        bytes[range.offset as usize..][..piece.len()].copy_from_slice(piece);
        rest = behind;
    }
    assert!(rest.is_empty(), "more bytes than ranges");
    Ok(bytes)
}

/// Everything that can be seen of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct State {
    objects: BTreeMap<ObjectId, Vec<u8>>,
    files: BTreeMap<FileId, FileState>,
}

/// Looks at all of a store with files 1 to 3.
fn observe(store: &Store) -> State {
    let mut state = State::default();
    let (objects, end) = store.list(None, 1000).unwrap();
    assert!(end);
    let mut live = 0;
    for summary in objects {
        let bytes = content(store, summary.object, summary.length).unwrap();
        state.objects.insert(summary.object, bytes);
        live += u64::from(summary.stored_bytes);
    }
    let space = store.space().unwrap();
    assert_eq!(space.live_bytes, live, "live bytes are miscounted");
    assert_eq!(space.objects, state.objects.len() as u64);
    for data in 1..=3 {
        let found = store.file_state(file(data)).unwrap();
        if found != FileState::default() {
            state.files.insert(file(data), found);
        }
    }
    state
}

/// Looks at all of a store without changing it, not even by a checkpoint.
fn observe_quietly(store: &Store) -> State {
    let mut state = State::default();
    for data in 1..=3 {
        let found = store.file_state(file(data)).unwrap();
        if found != FileState::default() {
            state.files.insert(file(data), found);
        }
        for number in 0..3 {
            let id = object(data, number);
            if let Some(map) = store.lookup(id).unwrap() {
                let bytes = content(store, id, map.length).unwrap();
                state.objects.insert(id, bytes);
            }
        }
    }
    state
}

/// A change, as a test makes it.
#[derive(Debug, Clone)]
enum Step {
    Write {
        id: ObjectId,
        offset: u32,
        bytes: Vec<u8>,
    },
    Punch {
        id: ObjectId,
        offset: u32,
        length: u32,
    },
    /// Truncates a file to some bytes of an object, under the next epoch.
    Truncate {
        file: FileId,
        object: u64,
        length: u32,
    },
    Delete {
        file: FileId,
    },
}

impl Step {
    const fn file(&self) -> FileId {
        match self {
            Self::Write { id, .. } | Self::Punch { id, .. } => id.file,
            Self::Truncate { file, .. } | Self::Delete { file } => *file,
        }
    }

    fn run(&self, store: &Store) -> Result<()> {
        let epoch = |file| store.file_state(file).map(|state| state.epoch);
        match self {
            Self::Write { id, offset, bytes } => store
                .write(Turn::default(), *id, epoch(id.file)?, *offset, bytes, false)
                .map(drop),
            Self::Punch { id, offset, length } => store
                .punch(Turn::default(), *id, epoch(id.file)?, *offset, *length)
                .map(drop),
            Self::Truncate {
                file,
                object,
                length,
            } => store
                .truncate(
                    *file,
                    epoch(*file)? + 1,
                    object + 1,
                    Some((*object, *length)),
                )
                .map(drop),
            Self::Delete { file } => store.delete(*file, 100),
        }
    }

    /// What it makes of a state; false when it is refused because the file was deleted.
    fn apply(&self, state: &mut State) -> bool {
        let deleted = |file: &FileState| file.deleted_secs.is_some();
        if state.files.get(&self.file()).is_some_and(deleted) {
            return matches!(self, Self::Delete { .. });
        }
        match self {
            Self::Write { id, offset, bytes } => {
                let (from, to) = (*offset as usize, *offset as usize + bytes.len());
                if !bytes.is_empty() {
                    let content = state.objects.entry(*id).or_default();
                    content.resize(content.len().max(to), 0);
                    content[from..to].copy_from_slice(bytes);
                }
            }
            Self::Punch { id, offset, length } => {
                if let Some(content) = state.objects.get_mut(id) {
                    let to = (offset + length).min(content.len() as u32) as usize;
                    if let Some(hole) = content.get_mut(*offset as usize..to) {
                        hole.fill(0);
                    }
                }
            }
            Self::Truncate {
                file,
                object,
                length,
            } => {
                state
                    .objects
                    .retain(|id, _| id.file != *file || id.object <= *object);
                let last = ObjectId {
                    file: *file,
                    object: *object,
                    shard: 0,
                };
                if let Some(content) = state.objects.get_mut(&last) {
                    content.truncate(*length as usize);
                }
                state.files.entry(*file).or_default().epoch += 1;
            }
            Self::Delete { file } => {
                state.objects.retain(|id, _| id.file != *file);
                state.files.entry(*file).or_default().deleted_secs = Some(100);
            }
        }
        true
    }

    /// Runs it on both and checks that they agree on whether it is allowed.
    fn run_on_both(&self, store: &Store, state: &mut State) {
        let outcome = self.run(store);
        if self.apply(state) {
            outcome.unwrap();
        } else {
            assert!(matches!(outcome, Err(StoreError::Outdated { .. })));
        }
    }
}

fn write(id: ObjectId, offset: u32, bytes: Vec<u8>) -> Step {
    Step::Write { id, offset, bytes }
}

/// A scenario with every kind of change: overwrites, holes, packing, several segments.
fn scenario() -> Vec<Step> {
    let mut zeros_inside = noise(4, 40_000);
    zeros_inside[4096..20_480].fill(0);
    vec![
        write(object(1, 0), 0, noise(1, 3000)),
        write(object(1, 1), 0, noise(2, 70_000)),
        write(object(2, 0), 100, vec![7; 30_000]),
        write(object(1, 1), 500, noise(3, 2000)),
        write(object(2, 1), 0, zeros_inside),
        Step::Punch {
            id: object(1, 1),
            offset: 10_000,
            length: 5_000,
        },
        Step::Truncate {
            file: file(1),
            object: 1,
            length: 60_000,
        },
        write(object(3, 0), 0, noise(5, 50_000)),
        Step::Delete { file: file(2) },
        write(object(3, 0), 49_000, noise(6, 5_000)),
        Step::Truncate {
            file: file(1),
            object: 0,
            length: 1_000,
        },
        write(object(1, 0), 2_000, noise(7, 10)),
    ]
}

/// Objects that cannot be read whole.
fn observe_damage(store: &Store) -> usize {
    let (objects, _) = store.list(None, 1000).unwrap();
    let broken = |id, length| content(store, id, length).is_err();
    objects
        .iter()
        .filter(|o| broken(o.object, o.length))
        .count()
}
