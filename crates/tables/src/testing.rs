// SPDX-License-Identifier: Apache-2.0
//! Seeds for the tests of this crate.

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
