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
