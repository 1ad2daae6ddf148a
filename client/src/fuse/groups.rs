//! Who calls: the kernel tells user and primary group; further groups are looked up.

use std::io::Read;

use xtfs_protocol::meta::Caller;

use super::kernel::request::Request;

/// The caller of a request whose groups do not matter: the kernel checked permission when the
/// file was opened.
pub(crate) fn holder(request: &Request<'_>) -> Caller {
    Caller {
        uid: request.uid,
        gid: request.gid,
        groups: Vec::new(),
        umask: 0,
    }
}

/// The caller of a request with all its groups. Root needs none.
pub(crate) fn caller(request: &Request<'_>) -> Caller {
    let groups = if request.uid == 0 {
        Vec::new()
    } else {
        supplementary(request.pid)
    };
    Caller {
        groups,
        ..holder(request)
    }
}

/// The caller of a request that makes something.
pub(crate) fn maker(request: &Request<'_>, umask: u32) -> Caller {
    Caller {
        umask: (umask & 0o777) as u16,
        ..caller(request)
    }
}

/// Supplementary groups of a thread; none when it is gone. Not cached: a thread may change them
/// between two calls, as servers that act for several users do.
fn supplementary(pid: u32) -> Vec<u32> {
    let mut status = [0; 4096];
    let mut length = 0;
    let Ok(mut file) = std::fs::File::open(format!("/proc/{pid}/status")) else {
        return Vec::new();
    };
    while let Some(room) = status.get_mut(length..) {
        match file.read(room) {
            Ok(0) | Err(_) => break,
            Ok(read) => length += read,
        }
    }
    parse(status.get(..length).unwrap_or(&[]))
}

fn parse(status: &[u8]) -> Vec<u32> {
    let line = status
        .split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(b"Groups:"));
    let text = line.and_then(|line| std::str::from_utf8(line).ok());
    text.unwrap_or("")
        .split_ascii_whitespace()
        .filter_map(|group| group.parse().ok())
        .take(Caller::GROUPS_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_from_the_status_of_a_thread() {
        let status = b"Name:\tcat\nUid:\t1 1 1 1\nGroups:\t4 24 1000 \nNgid:\t0\n";
        assert_eq!(parse(status), [4, 24, 1000]);
        assert!(parse(b"Name:\tcat\nGroups:\t\n").is_empty());
        assert!(parse(b"").is_empty());
    }
}
