//! A backup as one stream of bytes, for pipes and stores that are not folders.
//!
//! ```text
//! stream   = magic "babustrm" · version u32 · frame*                                integers little endian
//! frame    = check u32 · kind u8 · length u32 · hash u64 · payload (length bytes, at most 1 MiB)
//!            hash   XXH3-64 of the payload
//!            check  low 32 bits of the XXH3-64 of the 13 bytes after it
//!            both with seed = number of the frame, counted from 0, so that none is left out or moved
//! kind     = 1 · a piece of the manifest, as a folder has it (see the head of the module)
//!          | 2 · name of a content file that begins here
//!          | 3 · a piece of that file
//!          | 4 · the end; no payload
//! order    = 1 · 1* · (2 · 3*)* · 4
//! ```
//!
//! The manifest comes first, so that a receiver knows what belongs to it. Files that the sender was
//! told to be there already are left out. Nothing after the end is read.

use super::{
    Backup,
    copy::{CHUNK_BYTES, Source},
    folder,
    format::Manifest,
    restore,
};
use crate::{
    coding::{u32_at, u64_at},
    error::{Context, Error, Result},
    fs::{Fs, Open},
    progress::{Meter, Progress},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

const MAGIC: [u8; 8] = *b"babustrm";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 17;
const MANIFEST: u8 = 1;
const FILE: u8 = 2;
const PIECE: u8 = 3;
const END: u8 = 4;

/// What a stream is called in errors.
fn stream() -> &'static Path {
    Path::new("stream")
}

/// Writes the frames of a stream.
pub(super) struct FrameWriter<'a> {
    output: &'a mut dyn Write,
    frames: u64,
}

impl<'a> FrameWriter<'a> {
    pub(super) fn new(output: &'a mut dyn Write) -> Result<FrameWriter<'a>> {
        output.write_all(&MAGIC).at("write", stream())?;
        let version = VERSION.to_le_bytes();
        output.write_all(&version).at("write", stream())?;
        Ok(FrameWriter { output, frames: 0 })
    }

    fn frame(&mut self, kind: u8, payload: &[u8]) -> Result<()> {
        debug_assert!(payload.len() as u64 <= CHUNK_BYTES);
        let mut header = [0; HEADER_BYTES];
        header[4] = kind;
        header[5..9].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        header[9..].copy_from_slice(&xxh3_64_with_seed(payload, self.frames).to_le_bytes());
        let check = xxh3_64_with_seed(&header[4..], self.frames) as u32;
        header[..4].copy_from_slice(&check.to_le_bytes());
        self.frames += 1;
        self.output.write_all(&header).at("write", stream())?;
        self.output.write_all(payload).at("write", stream())
    }

    pub(super) fn manifest(&mut self, manifest: &Manifest) -> Result<()> {
        for piece in manifest.encode().chunks(CHUNK_BYTES as usize) {
            self.frame(MANIFEST, piece)?;
        }
        Ok(())
    }

    pub(super) fn file(
        &mut self,
        source: &Source<'_>,
        hash: u64,
        name: &str,
        meter: &mut Meter<'_>,
    ) -> Result<()> {
        self.frame(FILE, name.as_bytes())?;
        source.give(hash, meter, |chunk, _| self.frame(PIECE, chunk))
    }

    pub(super) fn end(&mut self) -> Result<()> {
        self.frame(END, &[])?;
        self.output.flush().at("write", stream())
    }
}

/// Writes backup `number` of a folder as a stream, without the content files that the receiver
/// has (see [`contents`](super::contents)). `observe` is told how far it is after each piece of at
/// most 1 MiB, and may sleep. A damaged file gives an error, and a stream that nobody takes.
pub fn send(
    fs: &dyn Fs,
    dir: &Path,
    number: u64,
    have: &BTreeSet<String>,
    output: &mut dyn Write,
    observe: &mut dyn FnMut(Progress),
) -> Result<Backup> {
    let manifest = folder::load(fs, dir, number)?;
    let backup = manifest.backup();
    let files = || backup.files.iter().filter(|f| !have.contains(&f.name));
    let mut meter = Meter::new(observe);
    files().for_each(|file| meter.expect(file.bytes));
    let mut frames = FrameWriter::new(output)?;
    frames.manifest(&manifest)?;
    for file in files() {
        restore::with_source(fs, dir, &file.name, file.bytes, |source| {
            frames.file(source, file.hash, &file.name, &mut meter)
        })?;
    }
    frames.end()?;
    Ok(backup)
}

/// Reads the frames of a stream; nothing that does not check leaves it.
struct FrameReader<'a> {
    input: &'a mut dyn Read,
    frames: u64,
    /// Bytes read, for errors.
    offset: u64,
    payload: Vec<u8>,
}

impl<'a> FrameReader<'a> {
    fn new(input: &'a mut dyn Read) -> Result<FrameReader<'a>> {
        let mut reader = FrameReader {
            input,
            frames: 0,
            offset: 0,
            payload: Vec::new(),
        };
        let mut start = [0; 12];
        reader.read(&mut start)?;
        if !start.starts_with(&MAGIC) || u32_at(&start, MAGIC.len()) != Some(VERSION) {
            return Err(Error::corrupt(
                stream(),
                0,
                "it is not a backup of a known version",
            ));
        }
        Ok(reader)
    }

    fn ill(&self, what: &str) -> Error {
        Error::corrupt(stream(), self.offset, what)
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<()> {
        match self.input.read_exact(buffer) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.ill("it ends in the middle"))
            }
            result => {
                result.at("read", stream())?;
                self.offset += buffer.len() as u64;
                Ok(())
            }
        }
    }

    /// The kind of the next frame; its payload is in `payload`.
    fn next(&mut self) -> Result<u8> {
        let mut header = [0; HEADER_BYTES];
        self.read(&mut header)?;
        let check = xxh3_64_with_seed(&header[4..], self.frames) as u32;
        let length = u32_at(&header, 5).filter(|n| u64::from(*n) <= CHUNK_BYTES);
        let length = length.filter(|_| u32_at(&header, 0) == Some(check));
        let length = length.ok_or_else(|| self.ill("a frame does not check"))?;
        let mut payload = std::mem::take(&mut self.payload);
        payload.resize(length as usize, 0);
        self.read(&mut payload)?;
        self.payload = payload;
        if u64_at(&header, 9) != Some(xxh3_64_with_seed(&self.payload, self.frames)) {
            return Err(self.ill("a frame does not check"));
        }
        self.frames += 1;
        Ok(header[4])
    }
}

/// Reads a stream: `begin` learns the manifest, `place` says where a content file goes, and `end`
/// which files came.
struct Receiver<'a, P> {
    fs: &'a dyn Fs,
    frames: FrameReader<'a>,
    manifest: Manifest,
    /// Files of the backup by name.
    files: BTreeMap<String, (u64, u64)>,
    came: BTreeSet<String>,
    place: P,
}

impl<'a, P> Receiver<'a, P>
where
    P: FnMut(&Manifest, &str, &mut dyn FnMut(&Path) -> Result<()>) -> Result<()>,
{
    /// Reads the manifest; gives the kind of the frame after it.
    fn begin(fs: &'a dyn Fs, input: &'a mut dyn Read, place: P) -> Result<(Receiver<'a, P>, u8)> {
        let mut frames = FrameReader::new(input)?;
        let mut bytes = Vec::new();
        let kind = loop {
            match frames.next()? {
                MANIFEST => bytes.extend_from_slice(&frames.payload),
                kind => break kind,
            }
        };
        let manifest = Manifest::decode(&bytes).map_err(|what| frames.ill(what))?;
        let files = manifest.backup().files.into_iter();
        let files = files.map(|file| (file.name, (file.bytes, file.hash)));
        let receiver = Receiver {
            fs,
            frames,
            manifest,
            files: files.collect(),
            came: BTreeSet::new(),
            place,
        };
        Ok((receiver, kind))
    }

    fn run(&mut self, mut kind: u8, meter: &mut Meter<'_>) -> Result<()> {
        meter.expect(self.manifest.bytes_new);
        while kind == FILE {
            let name = String::from_utf8_lossy(&self.frames.payload).into_owned();
            let known = self.files.get(&name).copied();
            let known = known.filter(|_| self.came.insert(name.clone()));
            let (bytes, hash) =
                known.ok_or_else(|| self.frames.ill("a file does not belong to the backup"))?;
            let (fs, frames) = (self.fs, &mut self.frames);
            (self.place)(&self.manifest, &name, &mut |to: &Path| {
                kind = take_file(fs, frames, to, bytes, hash, meter)?;
                Ok(())
            })?;
        }
        if kind == END {
            Ok(())
        } else {
            Err(self.frames.ill("a frame is out of order"))
        }
    }
}

/// Writes the pieces of a file and syncs it; gives the kind of the frame after them.
fn take_file(
    fs: &dyn Fs,
    frames: &mut FrameReader<'_>,
    to: &Path,
    bytes: u64,
    hash: u64,
    meter: &mut Meter<'_>,
) -> Result<u8> {
    let target = fs.open(to, Open::CreateNew).at("create", to)?;
    let (mut at, mut hasher) = (0, Xxh3::new());
    let kind = loop {
        let kind = frames.next()?;
        if kind != PIECE {
            break kind;
        }
        hasher.update(&frames.payload);
        target.write_at(&frames.payload, at).at("write", to)?;
        at += frames.payload.len() as u64;
        meter.add(frames.payload.len() as u64);
    };
    if (at, hasher.digest()) != (bytes, hash) {
        return Err(frames.ill("a file is not what the manifest says"));
    }
    target.sync_data().at("sync", to)?;
    Ok(kind)
}

/// Takes a stream into a backup folder, as its newest backup. `observe` is told how far it is after
/// each piece of at most 1 MiB.
///
/// The stream may leave out files that the folder has; when it leaves out others, that is
/// [`Error::InvalidArgument`] and it must be sent again with less left out. A stream that is torn or
/// has a flipped byte gives [`Error::Corrupt`](crate::Error::Corrupt), and no backup; files of it
/// that came whole do not need to travel again. Otherwise as
/// [`Database::backup`](crate::Database::backup).
pub fn receive(
    fs: &dyn Fs,
    input: &mut dyn Read,
    dir: &Path,
    observe: &mut dyn FnMut(Progress),
) -> Result<Backup> {
    fs.create_dir_all(dir).at("create", dir)?;
    let _lock = folder::lock(fs, dir)?;
    if let Some(parent) = dir.parent() {
        fs.sync_dir(parent).at("sync", parent)?;
    }
    folder::remove_parts(fs, dir)?;
    let place = |_: &Manifest, name: &str, write: &mut dyn FnMut(&Path) -> Result<()>| {
        folder::take_in(fs, dir, name, write)
    };
    let (mut receiver, kind) = Receiver::begin(fs, input, place)?;
    let mut meter = Meter::new(observe);
    receiver.run(kind, &mut meter)?;
    for (name, (bytes, _)) in &receiver.files {
        if !folder::has(fs, dir, name, *bytes)? {
            return Err(Error::invalid(format!(
                "the stream leaves out {name}, which is not in {}",
                dir.display()
            )));
        }
    }
    fs.sync_dir(dir).at("sync", dir)?;
    let mut manifest = receiver.manifest;
    manifest.number = folder::next_number(fs, dir)?;
    folder::store(fs, dir, &manifest)?;
    Ok(manifest.backup())
}

/// Makes a database of a full stream in the folder `destination`, which must be empty or missing.
///
/// Otherwise as [`restore`](super::restore()): whatever is wrong with the stream ends the call with
/// an error and with an empty destination.
pub fn restore_stream(
    fs: &dyn Fs,
    input: &mut dyn Read,
    destination: &Path,
    observe: &mut dyn FnMut(Progress),
) -> Result<Backup> {
    restore::into_empty(fs, destination, || {
        let place =
            |manifest: &Manifest, name: &str, write: &mut dyn FnMut(&Path) -> Result<()>| {
                let files = manifest.backup().files.into_iter();
                let mut places = files.zip(restore::places(manifest));
                let to = places.find(|(file, _)| file.name == name);
                write(&destination.join(to.map_or_else(PathBuf::new, |(_, to)| to.into())))
            };
        let (mut receiver, kind) = Receiver::begin(fs, input, place)?;
        receiver.run(kind, &mut Meter::new(observe))?;
        if let Some(name) = receiver.files.keys().find(|n| !receiver.came.contains(*n)) {
            return Err(Error::invalid(format!(
                "the stream is incremental: it leaves out {name}; take it into the folder that has it"
            )));
        }
        restore::finish(fs, &receiver.manifest, destination)?;
        Ok(receiver.manifest.backup())
    })
}
