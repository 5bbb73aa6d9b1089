// SPDX-License-Identifier: Apache-2.0
//! Mixing and repeatable randomness: the seed comes in as an argument.

/// Mixes a word (the finaliser of SplitMix64).
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A sequence from a seed.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// From this seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next word.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Less than `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        (u128::from(self.word()) * u128::from(n) >> 64) as u64
    }

    /// From 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }
}
