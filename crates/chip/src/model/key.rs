// SPDX-License-Identifier: Apache-2.0
//! Addresses and prefixes in a VPC as the chip's tables know them.

use super::rng::mix;

/// An address in a VPC. IPv4 lies in the low 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// VNI.
    pub vni: u32,
    /// IPv6.
    pub v6: bool,
    /// Address.
    pub addr: u128,
}

impl Address {
    /// A hash of the whole; each salt is a function of its own.
    pub fn hash(&self, salt: u64) -> u64 {
        let head = u64::from(self.vni) << 1 | u64::from(self.v6);
        mix(mix(mix(head ^ salt).wrapping_add((self.addr >> 64) as u64)).wrapping_add(self.addr as u64)
            ^ salt.rotate_left(32))
    }

    /// The address in the space that routes of both families share: IPv4 as ::ffff:a.b.c.d.
    pub fn pooled(&self) -> Bits {
        let addr = if self.v6 { self.addr } else { MAPPED | self.addr };
        Bits { vni: self.vni, addr }
    }
}

/// ::ffff:0:0, where IPv4 lies.
pub const MAPPED: u128 = 0xffff << 32;

/// 152 bits: VNI and 128 bits of address, compared as one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bits {
    /// The 24 leading bits.
    pub vni: u32,
    /// The others.
    pub addr: u128,
}

/// Bits in all.
pub const BITS: u32 = 152;

impl Bits {
    /// The first `len` bits, the others 0.
    pub fn first(&self, len: u32) -> Bits {
        match len {
            0 => Bits { vni: 0, addr: 0 },
            n if n <= 24 => Bits { vni: self.vni & (u32::MAX << (24 - n)) & 0xff_ffff, addr: 0 },
            n if n >= BITS => *self,
            n => Bits { vni: self.vni, addr: self.addr & (u128::MAX << (BITS - n)) },
        }
    }

    /// The last value with the same first `len` bits.
    pub fn last(&self, len: u32) -> Bits {
        match len {
            n if n <= 24 => Bits { vni: (self.vni | ((1u64 << (24 - n)) - 1) as u32) & 0xff_ffff, addr: u128::MAX },
            n if n >= BITS => *self,
            n => Bits { vni: self.vni, addr: self.addr | !(u128::MAX << (BITS - n)) },
        }
    }

    /// The value behind this one; None behind the last.
    pub fn next(&self) -> Option<Bits> {
        match self.addr.checked_add(1) {
            Some(addr) => Some(Bits { vni: self.vni, addr }),
            None if self.vni < 0xff_ffff => Some(Bits { vni: self.vni + 1, addr: 0 }),
            None => None,
        }
    }

    /// Bit `n` from the left.
    pub fn bit(&self, n: u32) -> bool {
        if n < 24 {
            self.vni >> (23 - n) & 1 == 1
        } else {
            self.addr >> (BITS - 1 - n) & 1 == 1
        }
    }
}

/// A prefix over the pooled space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    /// First value.
    pub bits: Bits,
    /// Bits that count, at least 24 for a route.
    pub len: u32,
}

impl Prefix {
    /// A route's prefix.
    pub fn route(vni: u32, v6: bool, addr: u128, len: u32) -> Prefix {
        let bits = Address { vni, v6, addr }.pooled();
        let len = 24 + if v6 { len.min(128) } else { 96 + len.min(32) };
        Prefix { bits: bits.first(len), len }
    }

    /// Whether the value lies in it.
    pub fn covers(&self, b: &Bits) -> bool {
        b.first(self.len) == self.bits
    }
}
