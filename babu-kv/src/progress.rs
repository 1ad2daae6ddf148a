//! How far a long call has come, told to whoever asked for it.

/// How far a call has come that reads or copies many bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes done.
    pub done_bytes: u64,
    /// Bytes that there are to do, as far as is known now.
    pub total_bytes: u64,
}

/// Counts, and tells after each piece of at most 1 MiB. Whoever is told may sleep to slow the call
/// down: no lock is held meanwhile.
pub(crate) struct Meter<'a> {
    progress: Progress,
    observe: &'a mut dyn FnMut(Progress),
}

impl<'a> Meter<'a> {
    pub(crate) fn new(observe: &'a mut dyn FnMut(Progress)) -> Meter<'a> {
        Meter {
            progress: Progress::default(),
            observe,
        }
    }

    pub(crate) fn expect(&mut self, bytes: u64) {
        self.progress.total_bytes = self.progress.total_bytes.saturating_add(bytes);
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        self.progress.done_bytes = self.progress.done_bytes.saturating_add(bytes);
        (self.observe)(self.progress);
    }
}
