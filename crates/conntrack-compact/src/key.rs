// SPDX-License-Identifier: Apache-2.0
//! [`Key`]: what a state table knows a connection by. Words and hashes are described in `abi::states`.

use abi::{hash3, Vni, STATES_PAIR_OTHER, STATES_PAIR_V4};
use conntrack::{InnerKey, PairKey};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Upper half of the lower 64 bits of an IPv4-mapped IPv6 address.
const MAPPED: u64 = 0xffff << 32;

/// Key of a connection, one for both directions: the words of a session's inner key, the lower end (by address, then VNI, then port)
/// as the VM. Wide: IPv6; and connections between two VPCs of either family, with the other end's VNI in a word of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Key {
    /// IPv4 in one VPC: `vni << 40 | proto << 32 | address`, `address of the other end << 32 | port << 16 | its port`.
    V4([u64; 2]),
    /// `vni << 40 | proto << 32 | port << 16 | port of the other end`, upper and lower halves of both addresses (IPv4: mapped into
    /// IPv6), and 0 or the other end's VNI with STATES_PAIR_OTHER and, if the addresses are of IPv4, STATES_PAIR_V4.
    Wide([u64; 6]),
}

impl Key {
    /// An IPv4 key in one VPC.
    pub fn v4(vni: Vni, proto: u8, low: u32, low_port: u16, high: u32, high_port: u16) -> Key {
        InnerKey::v4(vni, proto, low, low_port, high, high_port).into()
    }

    /// An IPv6 key in one VPC.
    pub fn v6(vni: Vni, proto: u8, low: u128, low_port: u16, high: u128, high_port: u16) -> Key {
        InnerKey::v6(vni, proto, low, low_port, high, high_port).into()
    }

    /// Whether it takes the place of an IPv6 key.
    #[inline(always)]
    pub fn is_wide(&self) -> bool {
        matches!(self, Key::Wide(_))
    }

    /// The hash that chooses places, fingerprint and digest.
    #[inline(always)]
    pub fn hash(&self, salt: u64) -> u64 {
        match self {
            Key::V4(w) => hash3(0, w[0], w[1], salt),
            Key::Wide(w) => hash3(hash3(w[0], w[1], w[2], salt) ^ w[5], w[3], w[4], salt),
        }
    }

    /// VNI of the lower end.
    pub fn vni(&self) -> Vni {
        Vni((self.first() >> 40) as u32)
    }

    /// VNI of the other end.
    pub fn other_vni(&self) -> Vni {
        match self {
            Key::Wide(w) if w[5] & STATES_PAIR_OTHER != 0 => Vni(w[5] as u32 & 0xff_ffff),
            _ => self.vni(),
        }
    }

    /// Protocol.
    pub fn proto(&self) -> u8 {
        (self.first() >> 32) as u8
    }

    /// Addresses of both ends, the lower one first.
    pub fn ends(&self) -> [IpAddr; 2] {
        let v4 = |bits: u64| IpAddr::V4(Ipv4Addr::from_bits(bits as u32));
        match self {
            Key::V4(w) => [v4(w[0]), v4(w[1] >> 32)],
            Key::Wide(w) if w[5] & STATES_PAIR_V4 != 0 => [v4(w[2]), v4(w[4])],
            Key::Wide(w) => [(w[1], w[2]), (w[3], w[4])]
                .map(|(hi, lo)| IpAddr::V6(Ipv6Addr::from_bits(u128::from(hi) << 64 | u128::from(lo)))),
        }
    }

    /// Ports of both ends, in the same order.
    pub fn ports(&self) -> [u16; 2] {
        let word = match self {
            Key::V4(w) => w[1],
            Key::Wide(w) => w[0],
        };
        [(word >> 16) as u16, word as u16]
    }

    fn first(&self) -> u64 {
        match self {
            Key::V4(w) => w[0],
            Key::Wide(w) => w[0],
        }
    }
}

impl From<InnerKey> for Key {
    #[inline(always)]
    fn from(key: InnerKey) -> Key {
        match key {
            InnerKey::V4(w) => Key::V4(w),
            InnerKey::V6([a, b, c, d, e]) => Key::Wide([a, b, c, d, e, 0]),
        }
    }
}

impl From<&PairKey> for Key {
    #[inline(always)]
    fn from(pair: &PairKey) -> Key {
        let (inner, other) = (pair.inner(), pair.other());
        if other == inner.vni() {
            return inner.into();
        }
        let other = u64::from(other) | STATES_PAIR_OTHER;
        match inner {
            InnerKey::V4([a, b]) => {
                let first = a & !0xffff_ffff | b & 0xffff_ffff;
                Key::Wide([first, 0, MAPPED | a & 0xffff_ffff, 0, MAPPED | b >> 32, other | STATES_PAIR_V4])
            }
            InnerKey::V6([a, b, c, d, e]) => Key::Wide([a, b, c, d, e, other]),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let ([a, b], [p, q]) = (self.ends(), self.ports());
        write!(f, "vni {} proto {} {a}:{p} > ", self.vni(), self.proto())?;
        if self.other_vni() != self.vni() {
            write!(f, "vni {} ", self.other_vni())?;
        }
        write!(f, "{b}:{q}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_pair_is_told_from_every_other_and_read_back() {
        let four = [IpAddr::from([10, 0, 0, 5]), IpAddr::from([10, 0, 0, 6])];
        let mapped = four.map(|a| match a {
            IpAddr::V4(a) => IpAddr::V6(a.to_ipv6_mapped()),
            v6 => v6,
        });
        let mut seen = HashSet::new();
        for ends in [four, mapped] {
            for (vni, other) in [(1, 1), (1, 2), (2, 2), (2, 3), (0xff_fffe, 0xff_ffff)] {
                for echo in [false, true] {
                    let (vni, other) = (Vni(vni), Vni(other));
                    let (pair, _) = PairKey::new(6, (vni, ends[0], 7), (other, ends[1], 9), echo).unwrap();
                    let key = Key::from(&pair);
                    assert!(seen.insert(key), "{key:?} stands for two pairs");
                    assert_eq!((key.vni(), key.other_vni(), key.proto(), key.ends()), (vni, other, 6, ends));
                    assert_eq!(key.ports(), if echo { [7, 0] } else { [7, 9] });
                    assert_eq!(key.is_wide(), ends[0].is_ipv6() || vni != other);
                }
            }
        }
        assert_eq!(seen.len(), 20);
    }
}
