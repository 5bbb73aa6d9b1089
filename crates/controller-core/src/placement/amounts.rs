// SPDX-License-Identifier: Apache-2.0
//! What clusters have and tenants need: a number for each resource.

pub use model::{Resource, RESOURCES};
use std::iter::Sum;
use std::ops::{Add, AddAssign, Index, IndexMut, Sub, SubAssign};

/// A number for each resource. Sums stay at the largest number instead of beginning anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts(pub [u64; RESOURCES]);

impl Amounts {
    /// Nothing of anything.
    pub const ZERO: Amounts = Amounts([0; RESOURCES]);

    /// Entries of all tables.
    pub fn entries(&self) -> u64 {
        Resource::TABLES.iter().fold(0, |sum, r| sum.saturating_add(self[*r]))
    }

    /// Whether nothing is more than in `other`.
    pub fn within(&self, other: &Amounts) -> bool {
        self.0.iter().zip(&other.0).all(|(a, b)| a <= b)
    }

    /// The larger of each.
    pub fn max(&self, other: &Amounts) -> Amounts {
        self.with(other, u64::max)
    }

    /// The smaller of each.
    pub fn min(&self, other: &Amounts) -> Amounts {
        self.with(other, u64::min)
    }

    /// What is left of each after `other`, nothing at least.
    pub fn beyond(&self, other: &Amounts) -> Amounts {
        self.with(other, u64::saturating_sub)
    }

    /// Two numbers of each resource made one.
    pub fn with(&self, other: &Amounts, f: impl Fn(u64, u64) -> u64) -> Amounts {
        Amounts(std::array::from_fn(|r| f(self.0[r], other.0[r])))
    }

    /// Each number with its resource.
    pub fn iter(self) -> impl Iterator<Item = (Resource, u64)> {
        Resource::ALL.into_iter().map(move |r| (r, self[r]))
    }

    /// So many thousandths of each, rounded down.
    pub fn permille(&self, of: &[u16; RESOURCES]) -> Amounts {
        Amounts(std::array::from_fn(|r| (u128::from(self.0[r]) * u128::from(of[r]) / 1000) as u64))
    }
}

impl serde::Serialize for Amounts {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(self.iter())
    }
}

impl Index<Resource> for Amounts {
    type Output = u64;
    fn index(&self, r: Resource) -> &u64 {
        &self.0[r as usize]
    }
}

impl IndexMut<Resource> for Amounts {
    fn index_mut(&mut self, r: Resource) -> &mut u64 {
        &mut self.0[r as usize]
    }
}

impl Add for Amounts {
    type Output = Amounts;
    fn add(self, other: Amounts) -> Amounts {
        self.with(&other, u64::saturating_add)
    }
}

impl Sub for Amounts {
    type Output = Amounts;
    fn sub(self, other: Amounts) -> Amounts {
        self.beyond(&other)
    }
}

impl AddAssign for Amounts {
    fn add_assign(&mut self, other: Amounts) {
        *self = *self + other;
    }
}

impl SubAssign for Amounts {
    fn sub_assign(&mut self, other: Amounts) {
        *self = *self - other;
    }
}

impl Sum for Amounts {
    fn sum<I: Iterator<Item = Amounts>>(iter: I) -> Amounts {
        iter.fold(Amounts::ZERO, Add::add)
    }
}
