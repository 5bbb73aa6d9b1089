// SPDX-License-Identifier: Apache-2.0
//! The atomics that order writer and readers: the standard ones, or loom's (`--cfg loom`), which try every order that the memory
//! model allows.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};

/// Publishes: what this thread stored before is seen by each reader that finds `value` with [`observe`].
#[inline(always)]
pub(crate) fn publish(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Release);
}

/// Loads a word that [`publish`] stores.
#[inline(always)]
pub(crate) fn observe(word: &AtomicU64) -> u64 {
    word.load(Ordering::Acquire)
}

/// Lets other threads go on, the longer the more often it was tried.
#[inline]
pub(crate) fn back_off(tries: u32) {
    #[cfg(loom)]
    {
        let _ = tries;
        loom::thread::yield_now();
    }
    #[cfg(not(loom))]
    match tries {
        0..64 => std::hint::spin_loop(),
        64..256 => std::thread::yield_now(),
        _ => std::thread::sleep(std::time::Duration::from_micros(50)),
    }
}
