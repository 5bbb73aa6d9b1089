// SPDX-License-Identifier: Apache-2.0
//! Addresses and prefixes in a VPC as the chip's tables know them.

use std::hash::{BuildHasherDefault, Hasher};

/// Mixes a word (the finaliser of SplitMix64).
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A map by address or VPC. Its hash is quick and no secret: nobody from outside chooses what a plan is made of.
pub type Map<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<MixHasher>>;

/// The hash of [`Map`].
#[derive(Clone, Copy, Debug, Default)]
pub struct MixHasher(u64);

impl Hasher for MixHasher {
    fn finish(&self) -> u64 {
        mix(self.0)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64((*b).into()));
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(n.into());
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(29) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_u128(&mut self, n: u128) {
        self.write_u64((n >> 64) as u64);
        self.write_u64(n as u64);
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
}

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

    /// A number in the order of the values below a prefix of `len` bits, in which IPv4 addresses differ: what their place
    /// among IPv6 addresses has in common is left out. Far apart values may get the same number if both are IPv6.
    pub fn order(&self, len: u32) -> u64 {
        let of_vni = 24u32.saturating_sub(len);
        let left = 62 - of_vni;
        let (class, address) = match self.addr >> 32 {
            0xffff => (1, u64::from(self.addr as u32) << (left - 32)),
            n => (if n < 0xffff { 0 } else { 2 }, (self.addr >> (128 - left)) as u64),
        };
        u64::from(self.vni & ((1 << of_vni) - 1)) << (64 - of_vni).min(63) | class << left | address
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

/// A prefix over the pooled space: VNI and address, not an address alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyPrefix {
    /// First value.
    pub bits: Bits,
    /// Bits that count, at least 24 for a route.
    pub len: u32,
}

impl KeyPrefix {
    /// A route's prefix.
    pub fn route(vni: u32, v6: bool, addr: u128, len: u32) -> KeyPrefix {
        let bits = Address { vni, v6, addr }.pooled();
        let len = 24 + if v6 { len.min(128) } else { 96 + len.min(32) };
        KeyPrefix { bits: bits.first(len), len }
    }

    /// Whether the value lies in it.
    pub fn covers(&self, b: &Bits) -> bool {
        b.first(self.len) == self.bits
    }
}
