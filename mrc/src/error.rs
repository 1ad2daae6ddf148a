//! What the database says, in the words of the protocol.

use xtfs_protocol::{Code, Error};

/// An error of the database as one that crosses the wire. It names the file, which is for the
/// administrator's log as much as for the caller.
pub(crate) fn database(error: babu_kv::Error) -> Error {
    if matches!(error, babu_kv::Error::Closed) {
        // The call was overtaken by the end of this MRC; the next one answers it.
        return Error::retryable(Code::ShuttingDown, error.to_string(), 1000);
    }
    let code = match &error {
        babu_kv::Error::NoSpace { .. } => Code::NoSpace,
        babu_kv::Error::Corrupt { .. } => Code::Corrupt,
        babu_kv::Error::Locked { .. } => Code::Busy,
        babu_kv::Error::InvalidArgument(_) => Code::Invalid,
        _ => Code::Io,
    };
    Error::new(code, error.to_string())
}

/// A file operation outside a database that failed.
pub(crate) fn file(what: &std::path::Path, error: &std::io::Error) -> Error {
    let code = match error.kind() {
        std::io::ErrorKind::StorageFull => Code::NoSpace,
        _ => Code::Io,
    };
    Error::new(code, format!("{}: {error}", what.display()))
}

/// Blocking work that ended in a panic.
pub(crate) fn lost_work(what: &str) -> Error {
    Error::new(Code::Io, format!("{what} ended unexpectedly"))
}

#[cfg(test)]
mod tests {
    use xtfs_protocol::Retry;

    use super::*;

    #[test]
    fn a_call_that_the_end_of_the_mrc_overtook_is_sent_again() {
        let told = database(babu_kv::Error::Closed);
        assert_eq!(told.code, Code::ShuttingDown);
        assert!(matches!(told.retry, Retry::After(_)));
    }
}
