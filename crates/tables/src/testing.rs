// SPDX-License-Identifier: Apache-2.0
//! Seeds and interruptions for the tests of this crate.

use rand_chacha::rand_core::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// A generator whose seed is printed, and is taken from TUNNY_SEED if that is set.
pub(crate) fn seeded(what: &str) -> (u64, ChaCha8Rng) {
    let seed = std::env::var("TUNNY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        now.as_nanos() as u64 % 1_000_000_007
    });
    eprintln!("{what}: TUNNY_SEED={seed}");
    (seed, ChaCha8Rng::seed_from_u64(seed))
}

thread_local! {
    /// Random state of this thread's interruptions, 0 = none.
    static PAUSES: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// From now on this thread is interrupted now and then wherever a reader says `pause!()`.
pub(crate) fn interrupt_this_thread(seed: u64) {
    PAUSES.set(seed | 1);
}

/// Interrupts the caller about once in 64 calls.
pub(crate) fn pause() {
    let x = PAUSES.get();
    if x == 0 {
        return;
    }
    let x = x ^ x << 13;
    let x = x ^ x >> 7;
    let x = x ^ x << 17;
    PAUSES.set(x);
    match x >> 40 & 255 {
        0 => std::thread::sleep(std::time::Duration::from_micros(20)),
        1..=3 => std::thread::yield_now(),
        _ => {}
    }
}

thread_local! {
    /// Stores that this thread makes before it dies; the largest number stands for ever.
    static STORES: std::cell::Cell<u64> = const { std::cell::Cell::new(u64::MAX) };
}

/// Lets this thread make so many stores into table memory and then end by a panic, as a process that is killed there. What `what` returns,
/// or None; and how many stores were left.
pub(crate) fn dies_after<T>(stores: u64, what: impl FnOnce() -> T) -> (Option<T>, u64) {
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
