use super::*;
use crate::directory::{DirectoryOp, DirectoryReply};
use crate::ids::{ServiceId, VolumeId};
use crate::message::{Answer, Call, Reply, Request};
use crate::meta::{Caller, MetaOp, Push};
use bytes::Bytes;
use proptest::prelude::*;

/// Takes a message apart as a receiver does.
fn receive(message: &[u8]) -> Result<(Header, Body)> {
    let (head, rest) = message
        .split_first_chunk::<HEADER_BYTES>()
        .ok_or_else(|| Error::new(Code::Protocol, "short"))?;
    let header = Header::decode(head)?;
    let body = rest
        .get(..header.body_bytes)
        .ok_or_else(|| Error::new(Code::Protocol, "short"))?;
    header.check(head, body)?;
    let mut buffer = body_buffer(body.len());
    buffer.extend_from_slice(body);
    Ok((header, buffer))
}

fn lookup(name: Vec<u8>, header: CallHeader, payload: Vec<u8>) -> Call {
    Call {
        header,
        request: Request::Meta {
            caller: Caller {
                uid: 1,
                gid: 2,
                groups: vec![3, 4],
                umask: 0o22,
            },
            op: MetaOp::Lookup { parent: 5, name },
        },
        payload: Bytes::from(payload),
    }
}

fn any_header() -> impl Strategy<Value = CallHeader> {
    (
        any::<[u8; 16]>(),
        any::<u64>(),
        any::<u64>(),
        any::<u32>(),
        any::<u64>(),
    )
        .prop_map(
            |(session, sequence, answered, deadline_ms, trace)| CallHeader {
                session: SessionId(session),
                sequence,
                answered,
                deadline_ms,
                trace,
            },
        )
}

#[test]
fn the_layout_is_the_picture() {
    let header = CallHeader {
        session: SessionId([0x11; 16]),
        sequence: 0x22,
        answered: 0x33,
        deadline_ms: 0x44,
        trace: 0x55,
    };
    let head = encode_request(&lookup(b"name".to_vec(), header, vec![0; 7])).unwrap();
    assert_eq!(&head[0..8], b"XTFS\x01\0\x01\0");
    assert_eq!(
        head[8..12],
        u32::try_from(head.len() - HEADER_BYTES)
            .unwrap()
            .to_le_bytes()
    );
    assert_eq!(head[12..16], 7_u32.to_le_bytes());
    assert_eq!(head[16..32], [0x11; 16]);
    assert_eq!(head[32..40], 0x22_u64.to_le_bytes());
    assert_eq!(head[40..48], 0x33_u64.to_le_bytes());
    assert_eq!(head[48..56], 0x55_u64.to_le_bytes());
    assert_eq!(head[56..60], 0x44_u32.to_le_bytes());
}

#[test]
fn answers_and_pushes_read_back() {
    let answers = [
        Ok(Reply::Directory(DirectoryReply::Services(Vec::new()))),
        Ok(Reply::Directory(DirectoryReply::Registered {
            interval_ms: 1000,
            capability_keys: vec![(1, [2; 32])],
        })),
        Err(Error::retryable(Code::Busy, "osd 1", 20)),
    ];
    for reply in answers {
        let head = encode_reply(&Answer::new(reply.clone()), 9).unwrap();
        let (header, body) = receive(&head).unwrap();
        assert_eq!((header.kind, header.call.trace), (Kind::Reply, 9));
        assert_eq!(decode_reply(&body), reply);
    }
    let push = Push::Recall {
        volume: VolumeId([7; 16]),
        ino: 8,
    };
    let (header, body) = receive(&encode_push(&push).unwrap()).unwrap();
    assert_eq!(header.kind, Kind::Push);
    assert_eq!(decode_push(&body), Ok(push));
}

#[test]
fn another_version_is_told_apart_from_a_broken_message() {
    let request = Request::Directory(DirectoryOp::Resolve {
        id: ServiceId::default(),
    });
    let head = encode_request(&Call::new(request, 1)).unwrap();
    let mut newer = head.to_vec();
    newer[4] = 2;
    assert_eq!(receive(&newer).unwrap_err().code, Code::Version);
    let mut broken = head.to_vec();
    broken[0] = b'Y';
    assert_eq!(receive(&broken).unwrap_err().code, Code::Protocol);
}

#[test]
fn lengths_out_of_bounds_are_refused_by_the_header_alone() {
    let head = encode_request(&Call::new(Request::Directory(DirectoryOp::List), 1)).unwrap();
    for (at, most) in [(8, BODY_BYTES_MAX), (12, PAYLOAD_BYTES_MAX)] {
        let mut header: [u8; HEADER_BYTES] = head[..HEADER_BYTES].try_into().unwrap();
        let mut with = |length: usize| {
            header[at..at + 4].copy_from_slice(&u32::try_from(length).unwrap().to_le_bytes());
            Header::decode(&header)
        };
        assert!(with(most).is_ok());
        assert_eq!(with(most + 1).unwrap_err().code, Code::Protocol);
    }
    let call = lookup(
        b"x".to_vec(),
        CallHeader::default(),
        vec![0; PAYLOAD_BYTES_MAX + 1],
    );
    assert_eq!(encode_request(&call).unwrap_err().code, Code::Protocol);
    let call = lookup(vec![0; BODY_BYTES_MAX], CallHeader::default(), Vec::new());
    assert_eq!(encode_request(&call).unwrap_err().code, Code::Protocol);
}

proptest! {
    #[test]
    fn a_request_reads_back(
        header in any_header(),
        name in proptest::collection::vec(any::<u8>(), 0..300),
        payload in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let call = lookup(name, header, payload);
        let (read, body) = receive(&encode_request(&call).unwrap()).unwrap();
        prop_assert_eq!(read.kind, Kind::Request);
        prop_assert_eq!(read.call, call.header);
        prop_assert_eq!(read.payload_bytes, call.payload.len());
        prop_assert_eq!(decode_request(&body).unwrap(), call.request);
    }

    #[test]
    fn a_flipped_bit_is_noticed(header in any_header(), at in any::<proptest::sample::Index>(), bit in 0_u32..8) {
        let mut message = encode_request(&lookup(b"some name".to_vec(), header, Vec::new())).unwrap().to_vec();
        let at = at.index(message.len());
        message[at] ^= 1 << bit;
        prop_assert!(receive(&message).is_err());
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = receive(&bytes);
        let mut body = body_buffer(bytes.len());
        body.extend_from_slice(&bytes);
        let _ = decode_request(&body);
        let _ = decode_reply(&body);
        let _ = decode_push(&body);
    }

    #[test]
    fn damaged_bodies_never_panic(damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8)) {
        let head = encode_request(&lookup(b"some name".to_vec(), CallHeader::default(), Vec::new())).unwrap();
        let mut body = body_buffer(head.len());
        body.extend_from_slice(&head[HEADER_BYTES..]);
        for (at, byte) in damage {
            let at = at.index(body.len());
            body[at] = byte;
        }
        let _ = decode_request(&body);
    }
}
