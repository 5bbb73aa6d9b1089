// SPDX-License-Identifier: Apache-2.0
//! What a flow matches: a value and a mask.
use crate::field::Field;
use crate::key::{Key, Mask};

/// A value under a mask. Bits of the value outside the mask are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Match {
    /// The value.
    pub key: Key,
    /// Which bits of it count.
    pub mask: Mask,
}

impl Match {
    /// Requires a field to have this value.
    pub fn exact(&mut self, field: Field, value: u128) {
        self.masked(field, value, u128::MAX);
    }

    /// Requires these bits of a field.
    pub fn masked(&mut self, field: Field, value: u128, mask: u128) {
        self.mask.add_bits(field, mask);
        let old = self.key.get(field);
        self.key.set(field, old & !mask | value & mask);
    }

    /// The whole value of a field, if all its bits count.
    pub fn exactly(&self, field: Field) -> Option<u128> {
        let mut whole = Mask::default();
        whole.add(field);
        (self.mask.get(field) == whole.get(field)).then(|| self.key.get(field))
    }

    /// Whether a packet matches.
    pub fn matches(&self, key: &Key) -> bool {
        self.key.agrees(key, &self.mask)
    }
}
