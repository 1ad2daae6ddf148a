//! The files of a cell: the only place in this crate that touches a file system.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::error::{Code, Error, Result};

/// Largest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Makes a folder with what lies above it.
pub(super) fn make_dir(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).map_err(|error| failed(dir, &error))
}

pub(super) fn exists(path: &Path) -> bool {
    path.exists()
}

/// The whole text of a file of bounded length.
pub(super) fn read_text(path: &Path) -> Result<String> {
    let length = fs::metadata(path)
        .map_err(|error| failed(path, &error))?
        .len();
    if length > FILE_BYTES_MAX {
        let context = format!("{}: {length} bytes are too many", path.display());
        return Err(Error::new(Code::Invalid, context));
    }
    fs::read_to_string(path).map_err(|error| failed(path, &error))
}

/// Puts a file in place, whole and durable, readable to its owner only.
pub(super) fn write_private(path: &Path, bytes: &[u8]) -> Result<()> {
    replace(path, bytes, 0o600).map_err(|error| failed(path, &error))
}

/// Puts a file in place, whole and durable, readable to all.
pub(super) fn write_public(path: &Path, bytes: &[u8]) -> Result<()> {
    replace(path, bytes, 0o644).map_err(|error| failed(path, &error))
}

/// The name of this host, in the characters that an identity may have.
pub(super) fn host_name() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String = text
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
        .take(64)
        .collect();
    if name.is_empty() {
        "localhost".to_owned()
    } else {
        name
    }
}

fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let beside = beside(path);
    let written = write_new(&beside, bytes, mode).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

fn failed(path: &Path, error: &io::Error) -> Error {
    let code = match error.kind() {
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::PermissionDenied => Code::AccessDenied,
        ErrorKind::StorageFull => Code::NoSpace,
        ErrorKind::InvalidData => Code::Invalid,
        _ => Code::Io,
    };
    Error::new(code, format!("{}: {error}", path.display()))
}
