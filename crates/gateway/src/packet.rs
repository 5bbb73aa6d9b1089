// SPDX-License-Identifier: Apache-2.0
//! What the stages know about one packet: two cache lines and a bit, kept between stages while the batch passes.

use abi::{DropReason, LineNo, NcId, VmId, Vni};
use conntrack::{nat::PublicEndpoint, Candidates, Direction};
use conntrack_compact::{Answer, Key};
use tables::{BucketRef, Circuit, Tenant, VmEntry, Walk};

use crate::connections::Known;
use crate::frame::Frame;
use crate::handover::Mark;
use crate::l4::L4;

/// What the inner frame is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    /// To be routed.
    #[default]
    Ipv4,
    /// To be routed.
    Ipv6,
    /// Answered or dropped.
    Arp,
    /// Neighbour discovery: answered or dropped.
    Nd,
}

/// An address of either family: IPv4 in the lower 32 bits of `lo`, `hi` zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Addr {
    pub hi: u64,
    pub lo: u64,
}

impl Addr {
    #[inline(always)]
    pub fn v4(a: u32) -> Addr {
        Addr { hi: 0, lo: a as u64 }
    }

    #[inline(always)]
    pub fn v6(a: u128) -> Addr {
        Addr { hi: (a >> 64) as u64, lo: a as u64 }
    }

    /// Of either family.
    pub fn of(a: std::net::IpAddr) -> Addr {
        match a {
            std::net::IpAddr::V4(a) => Addr::v4(a.to_bits()),
            std::net::IpAddr::V6(a) => Addr::v6(a.to_bits()),
        }
    }

    /// Upper and lower half.
    #[inline(always)]
    pub fn halves(self) -> (u64, u64) {
        (self.hi, self.lo)
    }

    #[inline(always)]
    pub fn as_v4(self) -> u32 {
        self.lo as u32
    }

    #[inline(always)]
    pub fn as_v6(self) -> u128 {
        (self.hi as u128) << 64 | self.lo as u128
    }

    /// For display.
    pub fn ip(self, v6: bool) -> std::net::IpAddr {
        match v6 {
            true => std::net::Ipv6Addr::from(self.as_v6()).into(),
            false => std::net::Ipv4Addr::from(self.as_v4()).into(),
        }
    }
}

/// What the route stage waits for: each is a line that is being loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing: it has not begun.
    Nothing,
    /// A level of a route tree.
    Tree(Walk),
    /// The record of a peer VPC, at this line.
    Peer {
        /// The peer's VNI.
        vni: Vni,
        /// Where its lookup begins.
        bucket: LineNo,
    },
    /// The VM-NC bucket that may prove the route in the peer VPC.
    Proof,
    /// It has ended: the route is local.
    Done,
    /// It has ended: the route leads to the Internet, and the VPC has a way there.
    Internet,
}

/// What is known beforehand of a packet that has waited.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Resumed {
    /// It has not: it comes by a port.
    No,
    /// A fragment that came before its first one: the ports and the protocol that this told. It was counted when it came.
    Fragment(Known),
    /// The agent on another host says this of its connection.
    Answered(Key, Answer),
}

/// The state of one packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    // Written by parse for every packet.
    /// Outer source address.
    pub source: Addr,
    /// Inner destination address.
    pub target: Addr,
    /// Hash of the inner flow.
    pub flow: u64,
    /// Where the lookup of the target in the VM-NC table begins (IPv4).
    pub vm_bucket: BucketRef,
    /// Where the lookup of the tenant begins.
    pub tenant_bucket: LineNo,
    /// Where the lookup of the sender begins.
    pub member_bucket: LineNo,
    /// VNI that the packet came with.
    pub vni: Vni,
    /// Offset of the inner Ethernet header from the start of the packet.
    pub inner: u16,
    /// Bytes of the inner frame.
    pub inner_len: u16,
    /// DSCP and ECN of the outer header.
    pub outer_tos: u8,
    /// DSCP and ECN of the inner header.
    pub inner_tos: u8,
    /// The inner ECN that results from both.
    pub ecn: u8,
    /// Inner TTL or hop limit.
    pub ttl: u8,
    /// What the inner frame is.
    pub kind: Kind,
    /// The outer header is IPv6.
    pub source_v6: bool,
    /// What is wrong with the inner frame, reported once the tenant is known.
    pub inner_error: Option<DropReason>,
    /// Drops are counted for the VNI.
    pub attributed: bool,
    /// The packet has its verdict.
    pub done: bool,
    /// The VM-NC entry is in `vm`: it proved the route.
    pub located: bool,
    /// A route tree is walked by the upper half of an IPv6 address.
    pub upper: bool,
    /// Its place in the batch.
    pub index: u8,
    /// Peer hops taken. If there are any, `peer` is the VPC that the destination is in.
    pub hops: u8,
    /// Bytes of an inner packet that fit the way to the destination, if this one does not.
    pub room: u16,

    /// The circuit that it came by. None: it came in a tunnel, or plain.
    pub came: Option<Circuit>,
    /// It came by a VM's port: that VM's MAC address. Then the circuit is the port.
    pub guest: Option<u64>,
    /// It has another source MAC address than the circuit's CE.
    pub strange: bool,
    /// It is for the routing daemon behind that circuit's TAP.
    pub control: bool,
    /// The classes of the shaper of what the VM that sends it gets, and of what it sends; 0: that is not shaped.
    pub back: u16,
    pub sends: u16,
    /// The class of what the VM gets that it is for.
    pub gets: u16,
    /// The circuit that it leaves by, and the MAC address of the CE. None: it goes to a VM, or to the Internet.
    pub leaves: Option<(Circuit, u64)>,

    /// It is plain, from the Internet (or a hairpin), for a VM; its Ethernet header is to be replaced.
    pub inward: bool,
    /// It came from a VM and goes in again by a public address.
    pub hairpin: bool,
    /// It passes an inline pair: from the server, or to it. None: it came by an uplink.
    pub server: Option<Direction>,
    /// Another gateway has handed it over.
    pub mark: Mark,
    /// Line of its session's record, once that is known.
    pub session: LineNo,
    /// POLICY word of the VPC at hand, where nat has asked for it.
    pub policy: u64,
    /// What its session is known by, and where the lookup of that begins: of nat, if its VPC goes to the Internet, and of the filter,
    /// if groups are asked about it, once it is located.
    pub prefetched: Option<(L4, Candidates)>,
    /// What the translator gave for a session that is yet to be made.
    pub public: Option<PublicEndpoint>,

    // Written by tenant.
    /// Id of the sending NC, if its address is IPv6.
    pub source_nc: Option<NcId>,
    /// The VPC that the packet came from.
    pub tenant: Tenant,

    // Written by route.
    /// The VPC that peer routes lead to.
    pub peer: Tenant,
    /// What the route stage does next, if the VM-NC entry did not prove the route.
    pub next: Next,

    // Written by route or locate.
    /// VM-NC entry of the destination.
    pub vm: VmEntry,

    // Written by who hands it in, and taken back.
    /// What is known of it because it has waited.
    pub resumed: Resumed,
}

const NO_TENANT: Tenant = Tenant::NONE;
const NO_VM: VmEntry = VmEntry { mac: 0, vm: VmId(0), nc: NcId(0), flags: 0 };

/// Bytes of the frame around an IP packet, for `Packet::inner_len`. The longest packets leave no room for the Ethernet header in 16 bits;
/// no link takes them, and a length that wraps would let them look short.
pub(crate) fn framed(ip_len: usize) -> u16 {
    (wire::ethernet::HEADER_LEN + ip_len).min(usize::from(u16::MAX)) as u16
}

impl Packet {
    /// Nothing is known yet.
    pub const EMPTY: Packet = Packet {
        source: Addr { hi: 0, lo: 0 },
        target: Addr { hi: 0, lo: 0 },
        flow: 0,
        vm_bucket: BucketRef::NONE,
        tenant_bucket: LineNo(0),
        member_bucket: LineNo(0),
        vni: Vni(0),
        inner: 0,
        inner_len: 0,
        outer_tos: 0,
        inner_tos: 0,
        ecn: 0,
        ttl: 0,
        kind: Kind::Ipv4,
        source_v6: false,
        inner_error: None,
        attributed: false,
        done: false,
        located: false,
        upper: false,
        index: 0,
        hops: 0,
        room: 0,
        came: None,
        guest: None,
        strange: false,
        control: false,
        back: 0,
        sends: 0,
        gets: 0,
        leaves: None,
        inward: false,
        hairpin: false,
        server: None,
        mark: Mark::None,
        session: LineNo(0),
        policy: 0,
        prefetched: None,
        public: None,
        source_nc: None,
        tenant: NO_TENANT,
        peer: NO_TENANT,
        next: Next::Nothing,
        vm: NO_VM,
        resumed: Resumed::No,
    };

    /// Forgets the packet before: what stages read without having written it.
    #[inline(always)]
    pub fn reset(&mut self) {
        self.inner = 0;
        self.kind = Kind::Ipv4;
        self.source_v6 = false;
        self.inner_error = None;
        self.attributed = false;
        self.located = false;
        self.next = Next::Nothing;
        self.hops = 0;
        self.room = 0;
        self.came = None;
        self.guest = None;
        self.control = false;
        self.strange = false;
        (self.back, self.sends, self.gets) = (0, 0, 0);
        self.leaves = None;
        self.inward = false;
        self.hairpin = false;
        self.server = None;
        self.mark = Mark::None;
        self.policy = 0;
        self.prefetched = None;
        self.public = None;
    }

    /// Ports and protocol of a fragment that waited for its first one.
    pub fn known(&self) -> Option<Known> {
        match self.resumed {
            Resumed::Fragment(known) => Some(known),
            _ => None,
        }
    }

    /// The inner packet is IPv6.
    #[inline(always)]
    pub fn v6(&self) -> bool {
        matches!(self.kind, Kind::Ipv6 | Kind::Nd)
    }

    /// The VPC that the destination is in, as far as the route is known.
    #[inline(always)]
    pub fn dst_vpc(&self) -> &Tenant {
        match self.hops {
            0 => &self.tenant,
            _ => &self.peer,
        }
    }

    /// The inner frame of a packet that was parsed and not rewritten.
    #[inline(always)]
    pub fn inner_frame<'a>(&self, f: &'a Frame<'_>) -> &'a [u8] {
        let start = self.inner as usize;
        f.data().get(start..start + self.inner_len as usize).unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::region::*;

    /// What a stage reads without having written it is as of a packet of which nothing is known, whatever the packet before was.
    #[test]
    fn nothing_is_left_of_the_packet_before() {
        let packet = [0x45, 0, 0, 20, 0, 0, 0, 0, 9, 99, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        let l4 = L4::read(&packet, false).unwrap();
        let rig = Rig::new();
        let tenant = rig.gateway.tables().tenant(RED).unwrap();
        let peer = rig.gateway.tables().tenant(BLUE).unwrap();
        let mut p = Packet {
            source: Addr::v4(1),
            inner: 50,
            kind: Kind::Nd,
            source_v6: true,
            inner_error: Some(DropReason::InnerMartian),
            attributed: true,
            located: true,
            next: Next::Done,
            hops: 2,
            room: 1400,
            came: Some(Circuit::default()),
            guest: Some(1),
            back: 1,
            sends: 2,
            gets: 3,
            leaves: Some((Circuit::default(), 1)),
            inward: true,
            hairpin: true,
            server: Some(Direction::Out),
            mark: Mark::Handed,
            policy: 7,
            prefetched: Some((l4, Candidates::default())),
            public: Some(PublicEndpoint { addr: [9, 9, 9, 9].into(), port: 1 }),
            tenant,
            peer,
            ..Packet::EMPTY
        };
        assert_eq!((p.dst_vpc().vni, p.v6()), (BLUE, true));
        p.reset();
        let none = Packet::EMPTY;
        assert_eq!(
            (p.inner, p.kind, p.source_v6, p.inner_error),
            (none.inner, none.kind, none.source_v6, none.inner_error)
        );
        assert_eq!((p.attributed, p.located, p.next, p.hops, p.room), (false, false, Next::Nothing, 0, 0));
        assert_eq!((p.inward, p.hairpin, p.policy, p.prefetched.is_none(), p.public), (false, false, 0, true, None));
        assert_eq!((p.back, p.sends, p.gets), (0, 0, 0));
        assert_eq!((p.server, p.mark, p.came, p.guest, p.leaves), (None, Mark::None, None, None, None));
        assert_eq!((p.dst_vpc().vni, p.v6()), (RED, false));
    }

    #[test]
    fn addresses_keep_their_halves_and_family() {
        let six = 0x1111_2222_3333_4444_5555_6666_7777_8888;
        let (a, b) = (Addr::v4(0x0102_0304), Addr::v6(six));
        assert_eq!((a.halves(), a.as_v4(), a.as_v6()), ((0, 0x0102_0304), 0x0102_0304, 0x0102_0304));
        assert_eq!((b.halves(), b.as_v6()), ((0x1111_2222_3333_4444, 0x5555_6666_7777_8888), six));
        assert_eq!((a.ip(false), b.ip(true)), ([1, 2, 3, 4].into(), ip6(six)));
        assert_eq!((Addr::of(ip4(0x0102_0304)), Addr::of(ip6(six))), (a, b));
        assert_eq!([0, 20, 65_520, 65_521, 65_522, 100_000].map(framed), [14, 34, 65_534, 65_535, 65_535, 65_535]);
    }
}
