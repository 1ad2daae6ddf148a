//! Counts what a thread has allocated, so that a test can say how much it took at most.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

pub struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    LIVE.set(LIVE.get() + bytes);
    PEAK.set(PEAK.get().max(LIVE.get()));
}

// SAFETY: everything is passed on to the allocator of the system. Counting touches two cells
// without destructors and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promised.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Bytes that `work` had allocated at most, beside what was there before. Only this thread counts.
pub fn peak(work: impl FnOnce()) -> usize {
    let before = LIVE.get();
    PEAK.set(before);
    work();
    (PEAK.get() - before).max(0) as usize
}
