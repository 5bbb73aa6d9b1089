// SPDX-License-Identifier: Apache-2.0
//! The two keys of a session as the words that records hold and hashes take (layout: `abi::session`).

use crate::{Direction, Owner};
use abi::{hash3, Vni};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What the VM sends: (VNI, protocol, VM address and port, remote address and port). For ICMP echo `vm_port` is the identifier
/// and `remote_port` 0; for protocols without ports both are 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum InnerKey {
    /// IPv4: `vni << 40 | proto << 32 | vm`, `remote << 32 | vm_port << 16 | remote_port`.
    V4([u64; 2]),
    /// IPv6: `vni << 40 | proto << 32 | vm_port << 16 | remote_port`, then upper and lower halves of VM and remote.
    V6([u64; 5]),
}

/// What the Internet sends: (protocol, public address and port, remote address and port), as words like [`InnerKey`]'s with VNI 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum OuterKey {
    /// IPv4.
    V4([u64; 2]),
    /// IPv6.
    V6([u64; 5]),
}

fn ports(local: u16, remote: u16) -> u64 {
    u64::from(local) << 16 | u64::from(remote)
}

fn words4(vni: Vni, proto: u8, local: u32, local_port: u16, remote: u32, remote_port: u16) -> [u64; 2] {
    [
        u64::from(vni.0 & 0xff_ffff) << 40 | u64::from(proto) << 32 | u64::from(local),
        u64::from(remote) << 32 | ports(local_port, remote_port),
    ]
}

fn words6(vni: Vni, proto: u8, local: u128, local_port: u16, remote: u128, remote_port: u16) -> [u64; 5] {
    let first = u64::from(vni.0 & 0xff_ffff) << 40 | u64::from(proto) << 32 | ports(local_port, remote_port);
    [first, (local >> 64) as u64, local as u64, (remote >> 64) as u64, remote as u64]
}

fn hash6(w: &[u64; 5], salt: u64) -> u64 {
    hash3(hash3(w[0], w[1], w[2], salt), w[3], w[4], salt)
}

fn v6(hi: u64, lo: u64) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(u128::from(hi) << 64 | u128::from(lo)))
}

macro_rules! common {
    ($name:ident, $domain:literal) => {
        impl $name {
            /// Protocol number.
            #[inline(always)]
            pub fn proto(&self) -> u8 {
                (self.first() >> 32) as u8
            }

            /// First word.
            #[inline(always)]
            pub(crate) fn first(&self) -> u64 {
                match self {
                    Self::V4(w) => w[0],
                    Self::V6(w) => w[0],
                }
            }

            fn ports(&self) -> u64 {
                match self {
                    Self::V4(w) => w[1],
                    Self::V6(w) => w[0],
                }
            }

            /// Remote address.
            pub fn remote(&self) -> IpAddr {
                match self {
                    Self::V4(w) => IpAddr::V4(Ipv4Addr::from((w[1] >> 32) as u32)),
                    Self::V6(w) => v6(w[3], w[4]),
                }
            }

            /// Remote port.
            #[inline(always)]
            pub fn remote_port(&self) -> u16 {
                self.ports() as u16
            }

            fn local(&self) -> IpAddr {
                match self {
                    Self::V4(w) => IpAddr::V4(Ipv4Addr::from(w[0] as u32)),
                    Self::V6(w) => v6(w[1], w[2]),
                }
            }

            fn local_port(&self) -> u16 {
                (self.ports() >> 16) as u16
            }

            /// Whether it is of IPv6.
            #[inline(always)]
            pub fn is_v6(&self) -> bool {
                matches!(self, Self::V6(_))
            }

            /// The hash that chooses buckets and tag.
            #[inline(always)]
            pub fn hash(&self, salt: u64) -> u64 {
                match self {
                    Self::V4(w) => hash3($domain, w[0], w[1], salt),
                    Self::V6(w) => hash6(w, salt),
                }
            }
        }
    };
}

common!(InnerKey, 0);
common!(OuterKey, 1);

impl InnerKey {
    /// An IPv4 key.
    #[inline(always)]
    pub fn v4(vni: Vni, proto: u8, vm: u32, vm_port: u16, remote: u32, remote_port: u16) -> InnerKey {
        InnerKey::V4(words4(vni, proto, vm, vm_port, remote, remote_port))
    }

    /// An IPv6 key.
    #[inline(always)]
    pub fn v6(vni: Vni, proto: u8, vm: u128, vm_port: u16, remote: u128, remote_port: u16) -> InnerKey {
        InnerKey::V6(words6(vni, proto, vm, vm_port, remote, remote_port))
    }

    /// VNI.
    #[inline(always)]
    pub fn vni(&self) -> Vni {
        Vni((self.first() >> 40) as u32)
    }

    /// Address of the VM.
    pub fn vm(&self) -> IpAddr {
        self.local()
    }

    /// Port of the VM (ICMP echo: its identifier).
    #[inline(always)]
    pub fn vm_port(&self) -> u16 {
        self.local_port()
    }

    /// The outer key of a session that translates nothing (IPv6, or an elastic address that is the VM's own).
    pub fn untranslated(&self) -> OuterKey {
        const VNI: u64 = !0 << 40;
        match *self {
            InnerKey::V4(w) => OuterKey::V4([w[0] & !VNI, w[1]]),
            InnerKey::V6(w) => OuterKey::V6([w[0] & !VNI, w[1], w[2], w[3], w[4]]),
        }
    }
}

impl OuterKey {
    /// An IPv4 key.
    #[inline(always)]
    pub fn v4(proto: u8, public: u32, public_port: u16, remote: u32, remote_port: u16) -> OuterKey {
        OuterKey::V4(words4(Vni(0), proto, public, public_port, remote, remote_port))
    }

    /// An IPv6 key.
    #[inline(always)]
    pub fn v6(proto: u8, public: u128, public_port: u16, remote: u128, remote_port: u16) -> OuterKey {
        OuterKey::V6(words6(Vni(0), proto, public, public_port, remote, remote_port))
    }

    /// Public address.
    pub fn public(&self) -> IpAddr {
        self.local()
    }

    /// Of a pair: the other end's VNI.
    pub fn vni_bits(&self) -> Vni {
        Vni((self.first() >> 40) as u32)
    }

    /// Public port (ICMP echo: the identifier outside).
    #[inline(always)]
    pub fn public_port(&self) -> u16 {
        self.local_port()
    }
}

/// One end of a connection inside: VNI, address, port.
pub type End = (Vni, IpAddr, u16);

/// The one key of a pair of ends inside, whichever of them sends: the lower end (by address, then VNI, then port) stands as the VM
/// of an inner key, and the other end's VNI beside it. For ICMP echo the identifier is the lower end's port both ways.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PairKey {
    pub(crate) inner: InnerKey,
    pub(crate) other: Vni,
}

impl PairKey {
    /// The key of a packet, and whether it goes from the lower end (`Out`) or to it. None if the families differ.
    pub fn new(proto: u8, from: End, to: End, echo: bool) -> Option<(PairKey, Direction)> {
        let number = |addr: IpAddr| match addr {
            IpAddr::V4(a) => a.to_bits().into(),
            IpAddr::V6(a) => a.to_bits(),
        };
        let place = |(vni, addr, port): End| (number(addr), vni, if echo { 0 } else { port });
        let direction = if place(from) <= place(to) { Direction::Out } else { Direction::In };
        let ((vni, low, low_port), (other, high, high_port)) = match direction {
            Direction::Out => (from, to),
            Direction::In => (to, from),
        };
        let ports = if echo { (from.2, 0) } else { (low_port, high_port) };
        let inner = match (low, high) {
            (IpAddr::V4(a), IpAddr::V4(b)) => InnerKey::v4(vni, proto, a.to_bits(), ports.0, b.to_bits(), ports.1),
            (IpAddr::V6(a), IpAddr::V6(b)) => InnerKey::v6(vni, proto, a.to_bits(), ports.0, b.to_bits(), ports.1),
            _ => return None,
        };
        Some((PairKey { inner, other }, direction))
    }

    /// The key of a packet between a server behind a wire and anybody: the server's end stands as the VM, whatever its address, and
    /// the other one has no VNI, so that a packet that passes two inline pairs of a node has a session on each. `ports`: the
    /// server's, the other's (an echo identifier is the server's). None if the families differ.
    pub fn of_server(proto: u8, vni: Vni, server: IpAddr, remote: IpAddr, ports: (u16, u16)) -> Option<PairKey> {
        let inner = match (server, remote) {
            (IpAddr::V4(a), IpAddr::V4(b)) => InnerKey::v4(vni, proto, a.to_bits(), ports.0, b.to_bits(), ports.1),
            (IpAddr::V6(a), IpAddr::V6(b)) => InnerKey::v6(vni, proto, a.to_bits(), ports.0, b.to_bits(), ports.1),
            _ => return None,
        };
        Some(PairKey { inner, other: Vni(0) })
    }

    /// A pair of which the lower end is the VM of this inner key, and the other end is in this VPC.
    pub fn with(inner: InnerKey, other: Vni) -> PairKey {
        PairKey { inner, other }
    }

    /// The lower end and protocol, as an inner key.
    pub fn inner(&self) -> InnerKey {
        self.inner
    }

    /// VNI of the other end.
    pub fn other(&self) -> Vni {
        self.other
    }

    /// What stands in place of the outer key of such a session.
    pub fn outer(&self) -> OuterKey {
        let bits = u64::from(self.other.0 & 0xff_ffff) << 40;
        match self.inner.untranslated() {
            OuterKey::V4(w) => OuterKey::V4([w[0] | bits, w[1]]),
            OuterKey::V6(w) => OuterKey::V6([w[0] | bits, w[1], w[2], w[3], w[4]]),
        }
    }

    /// Of a session's two keys, the other way round.
    pub(crate) fn of(inner: InnerKey, outer: &OuterKey) -> PairKey {
        PairKey::of_session(inner, outer)
    }

    /// Of a pair's session: its inner key, and what stands in place of its outer key.
    pub fn of_session(inner: InnerKey, outer: &OuterKey) -> PairKey {
        PairKey { inner, other: Vni((outer.first() >> 40) as u32) }
    }

    /// The hash that chooses buckets and tag.
    #[inline(always)]
    pub fn hash(&self, salt: u64) -> u64 {
        let domain = 2 | u64::from(self.other) << 8;
        match &self.inner {
            InnerKey::V4(w) => hash3(domain, w[0], w[1], salt),
            InnerKey::V6(w) => hash3(hash3(w[0], w[1], w[2], salt) ^ domain, w[3], w[4], salt),
        }
    }
}

/// The hashes under which a session of this owner is entered: of a pair twice the same.
#[inline(always)]
pub(crate) fn hashes_of(owner: Owner, inner: &InnerKey, outer: &OuterKey, salt: u64) -> [u64; 2] {
    match owner {
        Owner::Filter => [PairKey::of(*inner, outer).hash(salt); 2],
        _ => [inner.hash(salt), outer.hash(salt)],
    }
}

/// Each of them once.
#[inline(always)]
pub(crate) fn distinct(hashes: &[u64; 2]) -> &[u64] {
    &hashes[..1 + usize::from(hashes[0] != hashes[1])]
}

impl fmt::Debug for InnerKey {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (vni, proto) = (self.vni(), self.proto());
        write!(f, "vni {vni} proto {proto} {}:{} > {}:{}", self.vm(), self.vm_port(), self.remote(), self.remote_port())
    }
}

impl fmt::Debug for OuterKey {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (public, port) = (self.public(), self.public_port());
        write!(f, "proto {} {public}:{port} > {}:{}", self.proto(), self.remote(), self.remote_port())
    }
}
