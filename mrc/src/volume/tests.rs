//! A volume on a disk that loses power.

use std::path::Path;
use std::sync::Arc;

use babu_kv::Options;
use babu_kv::fs::{Crash, Fs, MemoryFs};
use proptest::prelude::*;
use xtfs_layout::Layout;
use xtfs_protocol::ids::{ROOT_INO, ServiceId};
use xtfs_protocol::meta::{FileUpdate, OpenMode, RenameFlags};
use xtfs_protocol::transport::Peer;

use super::*;
use crate::step::tests::check_volume;

const DIR: &str = "/volume";
const BOOT: u64 = 3;
const SESSION: SessionId = SessionId([5; 16]);

const TIMES: Times = Times {
    session: Duration::from_secs(60),
    lease: Duration::from_secs(1),
};

fn options(fs: &MemoryFs) -> Options {
    let fs: Arc<dyn Fs> = Arc::new(fs.clone());
    Options {
        memtable_bytes: 64 << 10,
        ..Options::simulated(fs)
    }
}

fn time(secs: i64) -> Time {
    Time { secs, nanos: 0 }
}

fn create(fs: &MemoryFs) -> Volume {
    let record = VolumeRecord {
        id: VolumeId([1; 16]),
        name: "home".into(),
        layout: Layout::striped(1),
    };
    let root = Root {
        uid: 0,
        gid: 0,
        mode: 0o755,
        time: time(0),
    };
    let volume = Volume::create(Path::new(DIR), options(fs), record, root, TIMES, BOOT).unwrap();
    let peer = Peer::Host("test".into());
    volume.open_session(SESSION, &peer, "", &[], None).unwrap();
    volume.sync().unwrap();
    volume
}

fn operation(kind: u8, name: u8, other: u8, ino: Ino) -> MetaOp {
    let name = vec![b'a' + name % 6];
    let parent = ROOT_INO;
    match kind % 8 {
        0 | 1 => MetaOp::Create {
            parent,
            name,
            mode: 0o644,
            exclusive: false,
            open: OpenMode {
                read: true,
                write: true,
                truncate: kind.is_multiple_of(3),
            },
        },
        2 => MetaOp::Mkdir {
            parent,
            name,
            mode: 0o755,
        },
        3 => MetaOp::Unlink { parent, name },
        4 => MetaOp::Rmdir { parent, name },
        5 => MetaOp::Rename {
            parent,
            name,
            new_parent: parent,
            new_name: vec![b'a' + other % 6],
            flags: RenameFlags {
                exchange: other.is_multiple_of(5),
                no_replace: false,
            },
        },
        6 => MetaOp::Release { ino },
        _ => MetaOp::Update {
            ino,
            update: FileUpdate {
                appended: 0,
                size_at_least: u64::from(other) * 100,
                truncate_epoch: 0,
                allocated_delta: 1,
                written_at: Some(time(i64::from(other))),
                read_at: None,
            },
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn after_loss_of_power_the_counts_are_right_and_what_was_synced_is_there(
        ops in prop::collection::vec((any::<u8>(), any::<u8>(), any::<u8>(), 2u64..12), 1..80),
        sync_at in 0usize..80,
    ) {
        let fs = MemoryFs::new();
        let volume = create(&fs);
        let caller = Caller::root();
        let placement = Ok(Placement {
            layout: Layout::striped(1),
            view: 1,
            osds: vec![ServiceId([1; 16])],
        });
        let mut answered = Vec::new();
        let mut synced = 0;
        for (number, (kind, name, other, ino)) in ops.iter().enumerate() {
            let op = operation(*kind, *name, *other, *ino);
            let sequence = number as u64 + 1;
            let change = Change { op: &op, session: SESSION, sequence, answered: 0 };
            let parts = ContextParts {
                caller: &caller,
                trusted: true,
                time: time(sequence as i64),
                session: SESSION,
                session_epoch: 1,
                expires: time(0),
                placement: &placement,
            };
            let done = volume.change(&change, &parts);
            let key = keys::reply(SESSION, sequence);
            let stored = volume.view().get(Table::Sessions, &key).unwrap().is_some();
            if let (Ok(outcome), true) = (done, stored) {
                answered.push((sequence, outcome.reply));
            }
            if number == sync_at {
                volume.sync().unwrap();
                synced = answered.len();
            }
        }
        for crash in Crash::ALL {
            let image = fs.crash(crash);
            let after = Volume::open(Path::new(DIR), options(&image), TIMES, BOOT).unwrap();
            check_volume(&after.view());
            // Kept replies tell which changes survived: a prefix, with all that was synced in it.
            let survived = answered.iter().take_while(|(sequence, reply)| {
                let key = keys::reply(SESSION, *sequence);
                let bytes = after.view().get(Table::Sessions, &key).unwrap();
                bytes.is_some_and(|bytes| replies::decode(&bytes).unwrap() == *reply)
            });
            let survived = survived.count();
            prop_assert!(survived >= synced, "{crash:?}: {survived} of {synced} synced");
            if crash == Crash::Kept {
                prop_assert_eq!(survived, answered.len());
            }
            for (sequence, _) in &answered[survived..] {
                let key = keys::reply(SESSION, *sequence);
                prop_assert!(after.view().get(Table::Sessions, &key).unwrap().is_none());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_resumed_at_the_last_moment_lives_on() {
    let volume = create(&MemoryFs::new());
    tokio::time::advance(TIMES.session).await;
    assert_eq!(volume.overdue_sessions(), [SESSION]);
    let peer = Peer::Host("test".into());
    volume.resume_session(SESSION, &peer, &[7], None).unwrap();
    assert!(!volume.end_overdue_session(SESSION).unwrap());
    volume.touch(SESSION, &peer, None).unwrap();
    tokio::time::advance(TIMES.session).await;
    assert!(volume.end_overdue_session(SESSION).unwrap());
    let gone = volume.touch(SESSION, &peer, None).unwrap_err();
    assert_eq!(gone.code, Code::SessionExpired);
}

#[tokio::test(start_paused = true)]
async fn resuming_again_and_again_does_not_fill_the_memory() {
    let volume = create(&MemoryFs::new());
    let peer = Peer::Host("test".into());
    let resume = |part: u64| {
        let inos: Vec<_> = (part << 20..(part + 1) << 20).collect();
        volume.resume_session(SESSION, &peer, &inos, None)
    };
    resume(0).unwrap();
    resume(1).unwrap();
    assert_eq!(resume(2).unwrap_err().code, Code::Invalid);
    resume(1).unwrap();
    // It may open no more, and is not kept from closing.
    let run = |op: MetaOp, sequence| {
        let change = Change {
            op: &op,
            session: SESSION,
            sequence,
            answered: 0,
        };
        let caller = Caller::root();
        volume.change(&change, &ContextParts::of_the_mrc(&caller, time(1)))
    };
    let open = MetaOp::Open {
        ino: 7,
        open: OpenMode::default(),
    };
    assert_eq!(run(open, 1).err().unwrap().code, Code::Busy);
    run(MetaOp::Release { ino: 7 }, 2).unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_opening_waits_for_the_cut_of_a_truncation_that_has_no_answer_yet() {
    let volume = create(&MemoryFs::new());
    let caller = Caller::root();
    let placement = Ok(Placement {
        layout: Layout::striped(1),
        view: 1,
        osds: vec![ServiceId([1; 16])],
    });
    let run = |op: MetaOp, sequence| {
        let change = Change {
            op: &op,
            session: SESSION,
            sequence,
            answered: 0,
        };
        let parts = ContextParts {
            placement: &placement,
            ..ContextParts::of_the_mrc(&caller, time(1))
        };
        volume.change(&change, &parts).unwrap()
    };
    let open = OpenMode {
        read: true,
        write: true,
        truncate: false,
    };
    let created = run(
        MetaOp::Create {
            parent: ROOT_INO,
            name: "file".into(),
            mode: 0o644,
            exclusive: true,
            open,
        },
        1,
    );
    let MetaReply::Opened(opened) = created.reply else {
        panic!("{:?}", created.reply);
    };
    let ino = opened.entry.attr.ino;
    let sized = |size| MetaOp::Setattr {
        ino,
        set: xtfs_protocol::meta::SetAttr {
            size: Some(size),
            ..xtfs_protocol::meta::SetAttr::default()
        },
        by_handle: true,
    };
    run(sized(100), 2);
    run(sized(40), 3);
    // An OSD that were told of the cut now would not forget it with the volume.
    let open = MetaOp::Open { ino, open };
    assert!(run(open.clone(), 4).durable);
    assert!(run(open, 4).durable, "its answer may have been lost");
}
