//! In which order a client's writes belong.
//!
//! A client that gets no answer in time sends its write again, and goes on when that one is
//! answered. The first one may still be on its way, or wait here for the disk: carried out then, it
//! would undo what the client wrote after it. So every call of a client has a number, and what was
//! overtaken in a part of its range is not carried out. Its sender, if there still is one, sends it
//! again under a later number. Nothing of this outlives the process, and neither do the calls.

use std::collections::{BTreeMap, VecDeque};

use xtfs_protocol::ids::{ObjectId, SessionId};

/// Most objects whose last writes are remembered.
const OBJECTS_MAX: usize = 8192;

/// Most ranges of an object that are remembered.
const RANGES_MAX: usize = 32;

/// The place of a call among those of its client.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Turn {
    /// Names the client, whatever session it has.
    pub session: SessionId,
    /// Larger than those of all calls sent before; 0 has no place.
    pub number: u64,
}

/// A range that was written.
struct Written {
    number: u64,
    from: u32,
    to: u32,
}

/// The last writes of every client to the objects written last.
#[derive(Default)]
pub(crate) struct WriteOrder {
    objects: BTreeMap<(SessionId, ObjectId), Vec<Written>>,
    /// The same objects, those known longest first.
    known: VecDeque<(SessionId, ObjectId)>,
}

impl WriteOrder {
    /// Whether nothing overtook a write of `from..to`; if so, it has its turn now.
    pub(crate) fn admit(&mut self, turn: Turn, object: ObjectId, from: u32, to: u32) -> bool {
        if turn.number == 0 {
            return true;
        }
        let key = (turn.session, object);
        if !self.objects.contains_key(&key) {
            if self.known.len() >= OBJECTS_MAX
                && let Some(oldest) = self.known.pop_front()
            {
                self.objects.remove(&oldest);
            }
            self.known.push_back(key);
        }
        let written = self.objects.entry(key).or_default();
        let overtaken = |w: &Written| w.number > turn.number && w.from < to && from < w.to;
        if written.iter().any(overtaken) {
            return false;
        }
        written.retain(|w| w.from < from || to < w.to);
        if written.len() >= RANGES_MAX {
            written.remove(0);
        }
        written.push(Written {
            number: turn.number,
            from,
            to,
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtfs_protocol::ids::{FileId, VolumeId};

    fn object(number: u64) -> ObjectId {
        ObjectId {
            file: FileId {
                volume: VolumeId([1; 16]),
                data: 1,
            },
            object: number,
            shard: 0,
        }
    }

    fn turn(number: u64) -> Turn {
        Turn {
            session: SessionId([2; 16]),
            number,
        }
    }

    #[test]
    fn only_what_was_overtaken_in_its_range_by_the_same_client_is_held_back() {
        let mut order = WriteOrder::default();
        assert!(order.admit(turn(5), object(1), 0, 100));
        assert!(!order.admit(turn(4), object(1), 99, 200));
        assert!(order.admit(turn(4), object(1), 100, 200), "another range");
        assert!(order.admit(turn(4), object(2), 0, 100), "another object");
        assert!(order.admit(turn(5), object(1), 0, 100), "the same call");
        let other = Turn {
            session: SessionId([3; 16]),
            number: 1,
        };
        assert!(order.admit(other, object(1), 0, 100), "another client");
        assert!(order.admit(Turn::default(), object(1), 0, 100), "no order");
        assert!(order.admit(turn(6), object(1), 50, 60));
        assert!(!order.admit(turn(5), object(1), 0, 100), "partly overtaken");
    }

    #[test]
    fn what_is_remembered_has_bounds() {
        let mut order = WriteOrder::default();
        for number in 1..=3 * OBJECTS_MAX as u64 {
            assert!(order.admit(turn(number), object(number), 0, 1));
            assert!(order.admit(
                turn(number),
                object(0),
                number as u32 * 2,
                number as u32 * 2 + 1
            ));
        }
        assert_eq!(order.known.len(), OBJECTS_MAX);
        assert_eq!(order.objects.len(), OBJECTS_MAX);
        assert!(
            order
                .objects
                .values()
                .all(|written| written.len() <= RANGES_MAX)
        );
    }
}
