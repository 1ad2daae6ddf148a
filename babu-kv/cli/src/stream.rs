//! Where streams of backups come from and go to: a file, or standard input and output.

use anyhow::{Context, Result, bail};
use std::{
    fs::{self, File},
    io::{self, BufReader, BufWriter, IsTerminal, Read, Write},
    path::Path,
};

/// Bytes that gather for one call of the operating system.
const BUFFER_BYTES: usize = 256 << 10;

/// Lets `read` read the file, or standard input for `-`.
pub fn input<T>(path: &Path, read: impl FnOnce(&mut dyn Read) -> Result<T>) -> Result<T> {
    if path == Path::new("-") {
        return read(&mut io::stdin().lock());
    }
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    read(&mut BufReader::with_capacity(BUFFER_BYTES, file))
}

/// Lets `write` write to the new file, or to standard output for `-`. A file is on disk as a whole
/// when this returns, or gone after an error.
pub fn output<T>(path: &Path, write: impl FnOnce(&mut dyn Write) -> Result<T>) -> Result<T> {
    if path == Path::new("-") {
        let out = io::stdout().lock();
        if out.is_terminal() {
            bail!("a stream is not for a terminal: send standard output to a file or a command");
        }
        return write(&mut BufWriter::with_capacity(BUFFER_BYTES, out));
    }
    let file = File::create_new(path).with_context(|| format!("create {}", path.display()))?;
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, file);
    let written = write(&mut out).and_then(|made| {
        out.flush()?;
        out.get_ref().sync_all()?;
        Ok(made)
    });
    if written.is_err() {
        // What is left has no end, so that nobody takes it for a backup.
        let _ = fs::remove_file(path);
    }
    written
}
