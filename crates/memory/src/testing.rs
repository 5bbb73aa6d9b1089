// SPDX-License-Identifier: Apache-2.0
//! Hooks for tests: a writer that dies at a chosen store, the list of addresses that were prefetched, and what happens at one of them.

use std::cell::{Cell, RefCell};

thread_local! {
    /// Stores that this thread makes before it dies; the largest number stands for no limit.
    static STORES: Cell<u64> = const { Cell::new(u64::MAX) };
    /// Addresses that this thread has prefetched, while [`prefetched`] runs.
    static PREFETCHED: RefCell<Option<Vec<usize>>> = const { RefCell::new(None) };
    /// What is to happen on this thread after so many prefetches more.
    static HAPPENS: RefCell<Option<(usize, Box<dyn FnOnce()>)>> = const { RefCell::new(None) };
}

/// Lets this thread make so many stores into table memory and then end by a panic, as a process that is killed there. What `what` returns,
/// or None; and how many stores were left.
pub fn dies_after<T>(stores: u64, what: impl FnOnce() -> T) -> (Option<T>, u64) {
    STORES.set(stores);
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(what));
    let left = STORES.replace(u64::MAX);
    assert!(done.is_ok() || left == 0, "it died of something else");
    (done.ok(), left)
}

/// Called before each store of the writer.
pub(crate) fn store() {
    match STORES.get() {
        u64::MAX => {}
        // Without a message: it is no failure.
        0 => std::panic::resume_unwind(Box::new("killed")),
        n => STORES.set(n - 1),
    }
}

/// Called with each address that this thread prefetches.
pub(crate) fn note(at: usize) {
    PREFETCHED.with_borrow_mut(|list| list.iter_mut().for_each(|list| list.push(at)));
    let now = HAPPENS.with_borrow_mut(|happens| match happens {
        Some((0, _)) => happens.take(),
        Some((n, _)) => {
            *n -= 1;
            None
        }
        None => None,
    });
    if let Some((_, what)) = now {
        what();
    }
}

/// Lets something happen at a prefetch of this thread while `during` runs: so a reader is interrupted between two of its loads, the same
/// ones each time. False if there were no more than `prefetches` of them.
pub fn happens_at(prefetches: usize, what: impl FnOnce() + 'static, during: impl FnOnce()) -> bool {
    HAPPENS.set(Some((prefetches, Box::new(what))));
    during();
    HAPPENS.take().is_none()
}

/// The addresses that are prefetched meanwhile, in their order.
pub fn prefetched(what: impl FnOnce()) -> Vec<usize> {
    PREFETCHED.set(Some(Vec::new()));
    what();
    PREFETCHED.take().unwrap_or_default()
}

/// How many addresses this thread has prefetched since [`prefetched`] began.
pub fn prefetched_so_far() -> usize {
    PREFETCHED.with_borrow(|list| list.as_ref().map_or(0, Vec::len))
}
