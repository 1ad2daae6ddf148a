//! The table of locks by itself: conflicts, waits, cycles, grace and bounds.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const ONE: SessionId = SessionId([1; 16]);
const TWO: SessionId = SessionId([2; 16]);
const INO: Ino = 5;

fn range(start: u64, end: u64) -> LockRange {
    LockRange { start, end }
}

fn target(space: LockSpace, owner: u64) -> LockTarget {
    LockTarget {
        ino: INO,
        space,
        owner,
        pid: 100 + owner as u32,
    }
}

fn set(owner: u64, range: LockRange, kind: Option<LockKind>, wait: Option<u64>) -> MetaOp {
    MetaOp::SetLock {
        target: target(LockSpace::Record, owner),
        range,
        kind,
        wait,
    }
}

fn whole(owner: u64, kind: LockKind, wait: Option<u64>) -> MetaOp {
    MetaOp::SetLock {
        target: target(LockSpace::Whole, owner),
        range: LockRange::ALL,
        kind: Some(kind),
        wait,
    }
}

fn state(answer: Result<MetaReply>) -> LockState {
    match answer {
        Ok(MetaReply::Lock(state)) => state,
        other => panic!("{other:?}"),
    }
}

fn code(answer: Result<MetaReply>) -> Code {
    answer.unwrap_err().code
}

fn two() -> Locks {
    let mut locks = Locks::restored([]);
    locks.add(ONE);
    locks.add(TWO);
    locks
}

const EX: Option<LockKind> = Some(LockKind::Exclusive);
const SH: Option<LockKind> = Some(LockKind::Shared);

#[test]
fn who_waits_longest_is_served_first_and_told() {
    let mut locks = two();
    assert_eq!(
        state(locks.answer(ONE, &set(1, range(0, 9), EX, None))),
        LockState::Held
    );
    assert_eq!(
        state(locks.answer(TWO, &set(1, range(5, 5), EX, Some(1)))),
        LockState::Waiting
    );
    assert_eq!(
        state(locks.answer(ONE, &set(2, range(5, 5), EX, Some(9)))),
        LockState::Waiting
    );
    assert_eq!(
        code(locks.answer(TWO, &set(1, range(5, 5), SH, None))),
        Code::WouldBlock
    );
    locks.answer(ONE, &set(1, range(0, 4), None, None)).unwrap();
    assert!(locks.take_given().is_empty());
    locks.answer(ONE, &set(1, range(5, 5), None, None)).unwrap();
    assert_eq!(locks.take_given(), [(TWO, 1)]);
    // Asked again, as when the push was lost.
    assert_eq!(
        state(locks.answer(TWO, &set(1, range(5, 5), EX, Some(1)))),
        LockState::Held
    );
    assert_eq!(
        state(locks.answer(ONE, &set(2, range(5, 5), EX, Some(9)))),
        LockState::Waiting
    );
    locks.end(TWO);
    assert_eq!(locks.take_given(), [(ONE, 9)]);
}

#[test]
fn a_wait_that_is_ended_too_late_has_the_lock() {
    let mut locks = two();
    let cancel = |wait| MetaOp::CancelLock { wait };
    locks
        .answer(ONE, &whole(1, LockKind::Exclusive, None))
        .unwrap();
    locks
        .answer(TWO, &whole(1, LockKind::Shared, Some(1)))
        .unwrap();
    locks
        .answer(TWO, &whole(2, LockKind::Exclusive, Some(2)))
        .unwrap();
    assert_eq!(state(locks.answer(TWO, &cancel(2))), LockState::Cancelled);
    assert_eq!(state(locks.answer(TWO, &cancel(3))), LockState::Cancelled);
    // A weaker lock in place of a stronger one lets the first in.
    locks
        .answer(ONE, &whole(1, LockKind::Shared, None))
        .unwrap();
    assert_eq!(locks.take_given(), [(TWO, 1)]);
    assert_eq!(state(locks.answer(TWO, &cancel(1))), LockState::Held);
    assert_eq!(
        code(locks.answer(ONE, &whole(1, LockKind::Exclusive, None))),
        Code::WouldBlock
    );
    let free = MetaOp::SetLock {
        target: target(LockSpace::Whole, 1),
        range: LockRange::ALL,
        kind: None,
        wait: None,
    };
    locks.answer(TWO, &free).unwrap();
    assert_eq!(
        state(locks.answer(ONE, &whole(1, LockKind::Exclusive, None))),
        LockState::Held
    );
}

#[test]
fn ranges_and_whole_files_do_not_see_each_other() {
    let mut locks = two();
    locks
        .answer(ONE, &whole(1, LockKind::Exclusive, None))
        .unwrap();
    assert_eq!(
        state(locks.answer(TWO, &set(1, LockRange::ALL, EX, None))),
        LockState::Held
    );
}

#[test]
fn what_is_in_the_way_is_told_with_its_process() {
    let mut locks = two();
    let get = |kind| MetaOp::GetLock {
        target: target(LockSpace::Record, 3),
        range: range(0, 100),
        kind,
    };
    locks.answer(ONE, &set(7, range(10, 19), SH, None)).unwrap();
    let Ok(MetaReply::Conflict(Some(lock))) = locks.answer(TWO, &get(LockKind::Exclusive)) else {
        panic!("nothing in the way");
    };
    assert_eq!((lock.range, lock.kind), (range(10, 19), LockKind::Shared));
    assert_eq!(lock.target.pid, 107);
    let shared = locks.answer(TWO, &get(LockKind::Shared)).unwrap();
    assert_eq!(shared, MetaReply::Conflict(None));
}

#[test]
fn a_wait_that_closes_a_cycle_over_any_number_of_owners_is_refused() {
    const OWNERS: u64 = 50;
    let session = |owner: u64| if owner.is_multiple_of(2) { ONE } else { TWO };
    let mut locks = two();
    for owner in 0..OWNERS {
        let own = set(owner, range(owner, owner), EX, None);
        assert_eq!(state(locks.answer(session(owner), &own)), LockState::Held);
    }
    for owner in 0..OWNERS - 1 {
        let next = set(owner, range(owner + 1, owner + 1), EX, Some(owner));
        assert_eq!(
            state(locks.answer(session(owner), &next)),
            LockState::Waiting
        );
    }
    let closing = set(OWNERS - 1, range(0, 0), SH, Some(OWNERS));
    assert_eq!(
        code(locks.answer(session(OWNERS - 1), &closing)),
        Code::Deadlock
    );
    // Not waiting, it finds no cycle; with one wait less there is none.
    let trying = set(OWNERS - 1, range(0, 0), SH, None);
    assert_eq!(
        code(locks.answer(session(OWNERS - 1), &trying)),
        Code::WouldBlock
    );
    let cancel = MetaOp::CancelLock { wait: 20 };
    locks.answer(session(20), &cancel).unwrap();
    assert_eq!(
        state(locks.answer(session(OWNERS - 1), &closing)),
        LockState::Waiting
    );
}

#[test]
fn in_the_grace_after_a_restart_only_what_is_known_counts() {
    let mut locks = Locks::restored([ONE, TWO]);
    let mine = FileLock {
        target: target(LockSpace::Record, 1),
        range: range(0, 9),
        kind: LockKind::Exclusive,
    };
    let reclaim = |locks: Vec<FileLock>, end| MetaOp::ReclaimLocks { locks, end };
    // Nothing before it has told all.
    assert_eq!(
        code(locks.answer(ONE, &set(1, range(0, 0), None, None))),
        Code::Busy
    );
    let lost = locks.answer(ONE, &reclaim(vec![mine], false)).unwrap();
    assert_eq!(lost, MetaReply::LostLocks(vec![]));
    assert_eq!(
        code(locks.answer(ONE, &set(1, range(0, 0), None, None))),
        Code::Busy
    );
    locks.answer(ONE, &reclaim(vec![], true)).unwrap();
    // What it has it may have weaker, or free; what is new may be the other's.
    assert_eq!(
        state(locks.answer(ONE, &set(1, range(0, 4), SH, None))),
        LockState::Held
    );
    let new = set(1, range(20, 29), EX, None);
    assert_eq!(code(locks.answer(ONE, &new)), Code::Busy);
    let waiting = set(1, range(20, 29), EX, Some(1));
    assert_eq!(state(locks.answer(ONE, &waiting)), LockState::Waiting);
    // Another one's lock that was told elsewhere is lost.
    let stolen = FileLock {
        range: range(2, 30),
        ..mine
    };
    let lost = locks.answer(TWO, &reclaim(vec![stolen], true)).unwrap();
    assert_eq!(lost, MetaReply::LostLocks(vec![stolen]));
    assert_eq!(locks.take_given(), [(ONE, 1)]);
    // Or when it runs out without a word.
    let mut locks = Locks::restored([ONE, TWO]);
    locks.answer(ONE, &reclaim(vec![], true)).unwrap();
    locks.answer(ONE, &waiting).unwrap();
    locks.end(TWO);
    assert_eq!(locks.take_given(), [(ONE, 1)]);
}

#[test]
fn a_new_session_gets_back_only_what_is_surely_free() {
    let lock = FileLock {
        target: target(LockSpace::Record, 1),
        range: range(0, 9),
        kind: LockKind::Shared,
    };
    let reclaim = MetaOp::ReclaimLocks {
        locks: vec![lock],
        end: true,
    };
    let mut locks = two();
    let answer = locks.answer(ONE, &reclaim).unwrap();
    assert_eq!(answer, MetaReply::LostLocks(vec![]));
    let mut locks = Locks::restored([TWO]);
    locks.add(ONE);
    let answer = locks.answer(ONE, &reclaim).unwrap();
    assert_eq!(answer, MetaReply::LostLocks(vec![lock]));
}

#[test]
fn a_session_that_ended_gets_nothing() {
    let mut locks = two();
    locks.end(ONE);
    let gone = locks
        .answer(ONE, &set(1, range(0, 0), EX, None))
        .unwrap_err();
    assert_eq!(
        (gone.code, gone.retry),
        (Code::SessionExpired, xtfs_protocol::Retry::Reopen)
    );
}

#[test]
fn locks_and_waits_are_bounded() {
    let limits = Limits {
        volume: 40,
        session: 20,
        file: 30,
        waits_of_volume: 5,
        waits_of_session: 3,
        waits_of_file: 4,
    };
    let mut locks = Locks::with_limits(limits, []);
    locks.add(ONE);
    locks.add(TWO);
    let fill = |locks: &mut Locks, session, ino| {
        let mut at = 0;
        loop {
            let op = MetaOp::SetLock {
                target: LockTarget {
                    ino,
                    ..target(LockSpace::Record, 1)
                },
                range: range(at, at),
                kind: SH,
                wait: None,
            };
            match locks.answer(session, &op) {
                Ok(_) => at += 2,
                Err(error) => {
                    assert_eq!(error.code, Code::NoLocks);
                    return at / 2;
                }
            }
        }
    };
    assert_eq!(fill(&mut locks, ONE, INO), 19);
    assert_eq!(fill(&mut locks, TWO, INO), 10);
    assert_eq!(fill(&mut locks, TWO, 77), 9);
    // Freeing everything always works, and makes room.
    locks
        .answer(ONE, &set(1, LockRange::ALL, None, None))
        .unwrap();
    assert_eq!(
        state(locks.answer(ONE, &set(1, range(0, 0), SH, None))),
        LockState::Held
    );
    assert_eq!(locks.ranges, 20);
    let wait = |number| set(number, range(0, 0), EX, Some(number));
    for number in 1..=3 {
        assert_eq!(state(locks.answer(ONE, &wait(number))), LockState::Waiting);
    }
    assert_eq!(code(locks.answer(ONE, &wait(4))), Code::NoLocks);
    assert_eq!(state(locks.answer(TWO, &wait(11))), LockState::Waiting);
    assert_eq!(code(locks.answer(TWO, &wait(12))), Code::NoLocks);
}

#[derive(Debug, Clone)]
enum Act {
    Set(u8, u64, u64, u8, bool),
    Cancel(u8),
    End(u8),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        12 => (0u8..6, 0u64..16, 0u64..16, 0u8..3, any::<bool>())
            .prop_map(|(owner, one, two, kind, wait)| Act::Set(owner, one, two, kind, wait)),
        2 => (0u8..40).prop_map(Act::Cancel),
        1 => (0u8..2).prop_map(Act::End),
    ]
}

proptest! {
    #[test]
    fn no_two_owners_ever_conflict_and_nobody_waits_for_what_is_free(
        acts in prop::collection::vec(act(), 1..60),
    ) {
        let mut locks = two();
        let session = |owner: u8| if owner < 3 { ONE } else { TWO };
        // What each owner was told that it has, byte by byte.
        let mut told: BTreeMap<u8, [Option<LockKind>; 16]> = BTreeMap::new();
        let mut waiting: BTreeMap<(SessionId, u64), (u8, LockRange, LockKind)> = BTreeMap::new();
        let fill = |told: &mut BTreeMap<u8, [Option<LockKind>; 16]>, owner, at: LockRange, kind| {
            told.entry(owner).or_insert([None; 16])[at.start as usize..=at.end as usize].fill(kind);
        };
        for (number, act) in acts.iter().enumerate() {
            match *act {
                Act::Set(owner, one, two, kind, wait) => {
                    let at = range(one.min(two), one.max(two));
                    let kind = [None, SH, EX][kind as usize];
                    let wait = wait.then_some(number as u64 % 40);
                    let op = set(u64::from(owner), at, kind, wait);
                    if wait.is_some_and(|wait| waiting.contains_key(&(session(owner), wait))) {
                        continue;
                    }
                    match locks.answer(session(owner), &op) {
                        Ok(MetaReply::Lock(LockState::Held)) => fill(&mut told, owner, at, kind),
                        Ok(MetaReply::Lock(LockState::Waiting)) => {
                            let wait = (session(owner), wait.unwrap());
                            waiting.insert(wait, (owner, at, kind.unwrap()));
                        }
                        Ok(other) => panic!("{other:?}"),
                        Err(error) => {
                            let code = error.code;
                            prop_assert!(matches!(code, Code::WouldBlock | Code::Deadlock));
                        }
                    }
                }
                Act::Cancel(wait) => {
                    for session in [ONE, TWO] {
                        let op = MetaOp::CancelLock { wait: u64::from(wait) };
                        prop_assert_eq!(state(locks.answer(session, &op)), LockState::Cancelled);
                        waiting.remove(&(session, u64::from(wait)));
                    }
                }
                Act::End(number) => {
                    let ended = [ONE, TWO][number as usize];
                    locks.end(ended);
                    locks.add(ended);
                    told.retain(|owner, _| session(*owner) != ended);
                    waiting.retain(|(session, _), _| *session != ended);
                }
            }
            for wait in locks.take_given() {
                let (owner, at, kind) = waiting.remove(&wait).unwrap();
                fill(&mut told, owner, at, Some(kind));
                let op = MetaOp::CancelLock { wait: wait.1 };
                prop_assert_eq!(state(locks.answer(wait.0, &op)), LockState::Held);
            }
            let free = |owner: u8, at: LockRange, kind: LockKind| {
                let others = told.iter().filter(|(other, _)| **other != owner);
                others.flat_map(|(_, bytes)| &bytes[at.start as usize..=at.end as usize]).all(
                    |held| match held {
                        None => true,
                        Some(held) => *held == LockKind::Shared && kind == LockKind::Shared,
                    },
                )
            };
            for (owner, bytes) in &told {
                for (at, kind) in bytes.iter().enumerate() {
                    if let Some(kind) = kind {
                        prop_assert!(free(*owner, range(at as u64, at as u64), *kind));
                    }
                }
            }
            for (owner, at, kind) in waiting.values() {
                prop_assert!(!free(*owner, *at, *kind), "{owner} waits for nothing");
            }
            // The table knows what was told, and counts it right.
            let ranges: usize = locks.files.values().flat_map(|held| held.owners.values())
                .map(|ranges| ranges.as_slice().len()).sum();
            prop_assert_eq!(ranges, locks.ranges);
            for owner in 0..6u8 {
                let empty = Ranges::default();
                let key = Owner { session: session(owner), number: u64::from(owner) };
                let held = locks.files.get(&(INO, LockSpace::Record));
                let held = held.and_then(|held| held.owners.get(&key)).unwrap_or(&empty);
                for at in 0..16u64 {
                    let kind = held.conflict(range(at, at), LockKind::Exclusive).map(|h| h.kind);
                    let wanted = told.get(&owner).and_then(|bytes| bytes[at as usize]);
                    prop_assert_eq!(kind, wanted, "owner {} byte {}", owner, at);
                }
            }
        }
    }
}
