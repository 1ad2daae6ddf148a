//! Numbers of changing requests: each is used for one change, whatever happens on the way.

use std::collections::BTreeSet;

use parking_lot::Mutex;

/// Hands out numbers and knows which are still waiting for their answer.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    waiting: BTreeSet<u64>,
    durable: u64,
}

/// A number in use; given back when dropped.
#[derive(Debug)]
pub(crate) struct Number<'a> {
    numbers: &'a Numbers,
    value: u64,
}

impl Number<'_> {
    /// The number.
    pub(crate) fn value(&self) -> u64 {
        self.value
    }
}

impl Drop for Number<'_> {
    fn drop(&mut self) {
        self.numbers.state.lock().waiting.remove(&self.value);
    }
}

impl Numbers {
    /// The next number.
    pub(crate) fn next(&self) -> Number<'_> {
        let mut state = self.state.lock();
        state.last += 1;
        let value = state.last;
        state.waiting.insert(value);
        Number {
            numbers: self,
            value,
        }
    }

    /// Every number up to this one has its answer.
    pub(crate) fn answered(&self) -> u64 {
        let state = self.state.lock();
        state.waiting.first().map_or(state.last, |first| first - 1)
    }

    /// Up to where a sync that starts now makes changes durable; `None` when all are.
    pub(crate) fn undurable(&self) -> Option<u64> {
        let answered = self.answered();
        let state = self.state.lock();
        (state.durable < state.last).then_some(answered)
    }

    /// Everything answered up to this number is durable.
    pub(crate) fn made_durable(&self, number: u64) {
        let mut state = self.state.lock();
        state.durable = state.durable.max(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answered_stops_below_the_oldest_request_that_waits() {
        let numbers = Numbers::default();
        let first = numbers.next();
        let second = numbers.next();
        assert_eq!((first.value(), second.value()), (1, 2));
        drop(second);
        assert_eq!(numbers.answered(), 0);
        drop(first);
        assert_eq!(numbers.answered(), 2);
    }
}
