// SPDX-License-Identifier: Apache-2.0
//! A small seeded generator: SplitMix64, whose numbers are what its paper says, and from them here what is drawn, so that a printed seed
//! gives the same packets with every version of every library.

use rand_xoshiro::rand_core::{Rng as _, SeedableRng};
use rand_xoshiro::SplitMix64;

/// The generator.
#[derive(Clone, Debug)]
pub struct Rng(SplitMix64);

impl Rng {
    /// From a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(SplitMix64::seed_from_u64(seed))
    }

    /// From TUNNY_SEED if that is set, else from the clock; printed either way.
    pub fn seeded(what: &str) -> (u64, Rng) {
        let given = std::env::var("TUNNY_SEED").ok().and_then(|s| s.parse().ok());
        let seed = given.unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.map_or(1, |d| d.as_nanos() as u64 % 1_000_000_007)
        });
        println!("{what}: TUNNY_SEED={seed} repeats this run");
        (seed, Rng::new(seed))
    }

    /// 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `n` (0 if `n` is 0).
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.word()) * n as u128) >> 64) as usize
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of these, which must not be empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
