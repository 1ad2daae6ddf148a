//! When to fetch more than was asked for: a pure decision from the reads of one handle.

/// First window of a reader that turns out to be sequential.
const WINDOW_MIN: u64 = 256 << 10;

/// How far out of order reads may arrive and still count as sequential: the kernel sends several
/// at a time.
const DISORDER: u64 = 1 << 20;

/// What one handle read so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ahead {
    end: u64,
    window: u64,
}

impl Ahead {
    /// Notes a read; says up to which byte of the file to fetch ahead. A random reader gets the
    /// end of its own read.
    pub(crate) fn note(&mut self, offset: u64, length: u64, window_max: u64) -> u64 {
        let end = offset.saturating_add(length);
        let near = offset.abs_diff(self.end) <= DISORDER && (self.end != 0 || offset == 0);
        if !near {
            self.window = 0;
        } else if offset >= self.end && self.end != 0 {
            self.window = (self.window * 2).max(WINDOW_MIN).min(window_max);
        }
        self.end = if near { self.end.max(end) } else { end };
        if near {
            self.end.saturating_add(self.window)
        } else {
            end
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_of_a_sequential_reader_grows_to_its_bound() {
        let mut ahead = Ahead::default();
        let mut at = 0;
        let mut reached = 0;
        for _ in 0..20 {
            reached = ahead.note(at, 65_536, 4 << 20);
            at += 65_536;
        }
        assert_eq!(reached, at + (4 << 20));
    }

    #[test]
    fn a_random_reader_gets_what_it_asked_for() {
        let mut ahead = Ahead::default();
        ahead.note(0, 4096, 1 << 20);
        for offset in [900 << 20, 17 << 20, 400 << 20] {
            assert_eq!(ahead.note(offset, 4096, 1 << 20), offset + 4096);
        }
    }
}
