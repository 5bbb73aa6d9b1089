// SPDX-License-Identifier: Apache-2.0
//! Randomness that comes of the seed and of what it is for, and of nothing that was drawn before: a fault that is left out changes no other draw,
//! so a failing list can be shortened.

use rand::{RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;

/// Numbers for a purpose.
pub fn of(seed: u64, what: &[u64]) -> SplitMix64 {
    let mixed = what.iter().fold(seed ^ 0x9e37_79b9_7f4a_7c15, |all, word| {
        let all = (all ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        all ^ all >> 32
    });
    SplitMix64::seed_from_u64(mixed)
}

/// Whether something happens that happens once in so many times.
pub fn one_in(seed: u64, n: u64, what: &[u64]) -> bool {
    of(seed, what).random_range(0..n) == 0
}

/// One of so many.
pub fn pick(seed: u64, n: usize, what: &[u64]) -> usize {
    of(seed, what).random_range(0..n.max(1))
}

/// Milliseconds that a message is on its way: mostly few.
pub fn delay(seed: u64, what: &[u64]) -> u64 {
    let mut rng = of(seed, what);
    match rng.random_range(0..100) {
        0 => rng.random_range(100..400),
        _ => rng.random_range(1..12),
    }
}
