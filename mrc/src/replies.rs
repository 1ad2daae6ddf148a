//! Kept replies as bytes: a version byte, then the message as rkyv archives it.

use rkyv::rancor::Error as Refused;
use rkyv::util::AlignedVec;
use xtfs_protocol::meta::MetaReply;
use xtfs_protocol::{Code, Error, Result};

const VERSION: u8 = 1;

pub(crate) fn encode(reply: &MetaReply) -> Result<Vec<u8>> {
    let body = rkyv::to_bytes::<Refused>(reply)
        .map_err(|error| Error::new(Code::Io, format!("reply to keep: {error}")))?;
    let mut bytes = Vec::with_capacity(body.len() + 1);
    bytes.push(VERSION);
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

pub(crate) fn decode(bytes: &[u8]) -> Result<MetaReply> {
    let Some((&version, body)) = bytes.split_first() else {
        return Err(Error::new(Code::Corrupt, "kept reply is empty"));
    };
    if version != VERSION {
        return Err(Error::new(
            Code::Version,
            format!("kept reply of version {version}; this program reads {VERSION}"),
        ));
    }
    let mut aligned = AlignedVec::<16>::with_capacity(body.len());
    aligned.extend_from_slice(body);
    rkyv::from_bytes::<MetaReply, Refused>(&aligned)
        .map_err(|error| Error::new(Code::Corrupt, format!("kept reply: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_reads_back_and_damage_is_seen() {
        let reply = MetaReply::Bytes(b"target".to_vec());
        let mut bytes = encode(&reply).unwrap();
        assert_eq!(decode(&bytes).unwrap(), reply);
        assert!(decode(&bytes[..bytes.len() - 3]).is_err());
        assert!(decode(&[]).is_err());
        bytes[0] = 9;
        assert_eq!(decode(&bytes).unwrap_err().code, Code::Version);
    }
}
