//! Requests as the kernel writes them, and bytes that are none.

use proptest::prelude::*;

use super::*;

/// A request as the kernel writes it.
fn request(code: u32, body: &[&[u8]]) -> Vec<u8> {
    let body = body.concat();
    let length = (IN_HEADER_BYTES + body.len()) as u32;
    let numbers = [length.to_ne_bytes(), code.to_ne_bytes()].concat();
    let long = [6u64.to_ne_bytes(), 9u64.to_ne_bytes()].concat();
    let ids = [1u32, 2, 3].map(u32::to_ne_bytes).concat();
    [numbers, long, ids, vec![0; 4], body].concat()
}

fn op(bytes: &[u8]) -> Op<'_> {
    let request = decode(bytes).unwrap();
    assert_eq!((request.unique, request.ino), (6, 9));
    assert_eq!((request.uid, request.gid, request.pid), (1, 2, 3));
    request.op
}

fn quads(numbers: &[u32]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_ne_bytes())
        .collect()
}

fn longs(numbers: &[u64]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_ne_bytes())
        .collect()
}

#[test]
fn a_lock_says_whose_it_is_and_of_which_kind() {
    let body = [longs(&[5, 77, 10, 19]), quads(&[1, 123, 1, 0])].concat();
    let bytes = request(opcode::SETLKW, &[&body]);
    let lock = Lock {
        handle: 5,
        owner: 77,
        start: 10,
        end: 19,
        kind: 1,
        pid: 123,
        whole: true,
    };
    assert_eq!(op(&bytes), Op::Setlk { lock, wait: true });
    let body = [longs(&[5, 77, 10, 19]), quads(&[1, 123, 0, 0])].concat();
    let bytes = request(opcode::GETLK, &[&body]);
    assert_eq!(
        op(&bytes),
        Op::Getlk(Lock {
            whole: false,
            ..lock
        })
    );
}

#[test]
fn names_and_what_stands_before_them_are_told_apart() {
    let bytes = request(
        opcode::RENAME2,
        &[&longs(&[8]), &quads(&[2, 0]), b"old\0new\0"],
    );
    let rename = Op::Rename {
        name: b"old",
        new_parent: 8,
        new_name: b"new",
        flags: 2,
    };
    assert_eq!(op(&bytes), rename);
    let bytes = request(opcode::CREATE, &[&quads(&[2, 0o644, 0o22, 0]), b"f\0"]);
    assert_eq!(
        op(&bytes),
        Op::Create {
            name: b"f",
            flags: 2,
            mode: 0o644,
            umask: 0o22
        }
    );
    let bytes = request(opcode::MKNOD, &[&quads(&[0o644, 7, 0o22, 0]), b"f\0"]);
    assert_eq!(
        op(&bytes),
        Op::Mknod {
            name: b"f",
            mode: 0o644,
            rdev: 7,
            umask: 0o22
        }
    );
    let bytes = request(opcode::SETXATTR, &[&quads(&[3, 1]), b"user.a\0abc"]);
    assert_eq!(
        op(&bytes),
        Op::Setxattr {
            name: b"user.a",
            value: b"abc",
            flags: 1
        }
    );
}

#[test]
fn a_write_and_a_read_are_read_in_full() {
    let head = [
        longs(&[5, 4096]),
        quads(&[3, 1]),
        longs(&[77]),
        quads(&[0, 0]),
    ]
    .concat();
    let bytes = request(opcode::WRITE, &[&head, b"abc"]);
    assert_eq!(
        op(&bytes),
        Op::Write {
            handle: 5,
            offset: 4096,
            flags: 1,
            data: b"abc"
        }
    );
    let bytes = request(opcode::READ, &[&head]);
    assert_eq!(
        op(&bytes),
        Op::Read(Part {
            handle: 5,
            offset: 4096,
            size: 3
        })
    );
    let flush = [longs(&[5, 0]), longs(&[77])].concat();
    let bytes = request(opcode::FLUSH, &[&flush]);
    assert_eq!(
        op(&bytes),
        Op::Flush {
            handle: 5,
            owner: 77
        }
    );
    let copy = longs(&[1, 2, 3, 4, 5, 6, 0]);
    let copy = Op::CopyFileRange {
        handle: 1,
        offset: 2,
        to_handle: 4,
        to_offset: 5,
        length: 6,
    }
    .eq(&op(&request(opcode::COPY_FILE_RANGE, &[&copy])));
    assert!(copy);
}

#[test]
fn only_the_attributes_that_are_named_are_set() {
    let valid = setattr::SIZE | setattr::ATIME_NOW | setattr::ATIME | setattr::MTIME;
    let head = [quads(&[valid, 0]), longs(&[5, 100, 0, 1])].concat();
    let times = [longs(&[u64::MAX, 3]), quads(&[4, 250, 6])].concat();
    let bytes = request(
        opcode::SETATTR,
        &[&head, &times, &quads(&[0o777, 0, 1, 2, 0])],
    );
    let stamp = Stamp {
        secs: -1,
        nanos: 250,
    };
    let wanted = Attributes {
        size: Some(100),
        atime: Some(SetStamp::Now),
        mtime: Some(SetStamp::At(stamp)),
        ..Attributes::default()
    };
    assert_eq!(op(&bytes), Op::Setattr(wanted));
}

#[test]
fn the_first_message_of_an_older_kernel_is_understood() {
    let bytes = request(opcode::INIT, &[&quads(&[7, 31, 65_536, 1 << 10])]);
    let init = Op::Init {
        major: 7,
        minor: 31,
        readahead: 65_536,
        flags: 1 << 10,
    };
    assert_eq!(op(&bytes), init);
    let bytes = request(
        opcode::INIT,
        &[&quads(&[7, 45, 65_536, 1 << 10, 2]), &[0; 44]],
    );
    let flags = 1 << 10 | 2 << 32;
    assert_eq!(
        op(&bytes),
        Op::Init {
            major: 7,
            minor: 45,
            readahead: 65_536,
            flags
        }
    );
}

#[test]
fn many_are_forgotten_at_once() {
    let bytes = request(
        opcode::BATCH_FORGET,
        &[&quads(&[2, 0]), &longs(&[5, 1, 6, 2])],
    );
    let Op::BatchForget { pairs: bytes } = op(&bytes) else {
        panic!("another request");
    };
    assert_eq!(pairs(bytes).collect::<Vec<_>>(), [(5, 1), (6, 2)]);
}

#[test]
fn a_name_without_end_and_a_length_that_lies_are_refused() {
    let bytes = request(opcode::LOOKUP, &[b"name"]);
    assert_eq!(decode(&bytes), Err(Malformed::Body { unique: 6 }));
    let bytes = request(
        opcode::WRITE,
        &[&longs(&[5, 0]), &quads(&[100, 0]), &[0; 16], b"abc"],
    );
    assert_eq!(decode(&bytes), Err(Malformed::Body { unique: 6 }));
    let bytes = request(opcode::BATCH_FORGET, &[&quads(&[u32::MAX, 0])]);
    assert_eq!(decode(&bytes), Err(Malformed::Body { unique: 6 }));
    assert_eq!(decode(&[0; 39]), Err(Malformed::NoHeader));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn no_bytes_upset_the_decoder(
        code in 0u32..60,
        body in prop::collection::vec(any::<u8>(), 0..200),
        lie in prop_oneof![3 => Just(None), 1 => any::<u32>().prop_map(Some)],
        extension in prop_oneof![3 => Just(0u16), 1 => any::<u16>()],
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = request(code, &[&body]);
        if let Some(length) = lie {
            bytes[..4].copy_from_slice(&length.to_ne_bytes());
        }
        bytes[36..38].copy_from_slice(&extension.to_ne_bytes());
        if let Ok(Request { op: Op::BatchForget { pairs: of }, .. }) = decode(&bytes) {
            prop_assert_eq!(pairs(of).count(), of.len() / 16);
        }
        // Cut anywhere: what is left is refused, or a request within what is left.
        let _ = decode(&bytes[..cut.index(bytes.len())]);
    }
}
