// SPDX-License-Identifier: Apache-2.0
//! The hasher of maps by numbers: the hash of the tables, salted where strangers choose the numbers.

use crate::hash::{hash1, hash3};
use std::hash::{BuildHasher, Hasher};

/// Builds hashers with this salt.
#[derive(Clone, Copy, Debug)]
pub struct Mix(pub u64);

impl Default for Mix {
    /// A salt for numbers that no stranger chooses. Not 0: whatever is made of zeroes alone would have the same hash.
    fn default() -> Mix {
        Mix(0x51ed)
    }
}

/// A hasher for a few numbers.
#[derive(Clone, Copy, Debug)]
pub struct MixHasher {
    hash: u64,
    salt: u64,
}

impl BuildHasher for Mix {
    type Hasher = MixHasher;

    #[inline]
    fn build_hasher(&self) -> MixHasher {
        // Not the salt in both: of a key of one number it would cancel itself.
        MixHasher { hash: 0, salt: self.0 }
    }
}

impl Hasher for MixHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.hash
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64((*b).into()));
    }

    #[inline]
    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }

    #[inline]
    fn write_u64(&mut self, n: u64) {
        self.hash = hash1(n ^ self.hash, self.salt);
    }

    #[inline]
    fn write_u128(&mut self, n: u128) {
        self.hash = hash3(self.hash, (n >> 64) as u64, n as u64, self.salt);
    }
}
