// SPDX-License-Identifier: Apache-2.0
//! A packet as a list of layers, in which every field may be wrong on purpose.
//!
//! What is not said is what a correct sender would write: lengths, checksums, EtherTypes and protocol numbers are
//! computed unless a field overrides them. So a case names only what it is about. The encoder ([`crate::encode`]) shares
//! no code with crate `wire`, so that a slip there is not repeated in what the tests expect.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The address as the number that table memory holds (first octet uppermost).
    pub fn number(self) -> u64 {
        self.0.iter().fold(0, |n, &b| n << 8 | u64::from(b))
    }

    /// The address with this number.
    pub fn from_number(n: u64) -> Mac {
        let b = n.to_be_bytes();
        Mac([b[2], b[3], b[4], b[5], b[6], b[7]])
    }

    /// Reads `aa:bb:cc:dd:ee:ff`.
    pub fn parse(text: &str) -> Option<Mac> {
        let mut mac = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut mac {
            let part = parts.next()?;
            if part.len() != 2 {
                return None;
            }
            *byte = u8::from_str_radix(part, 16).ok()?;
        }
        parts.next().is_none().then_some(Mac(mac))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = self.0;
        write!(f, "{:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}", m[0], m[1], m[2], m[3], m[4], m[5])
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A checksum field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Csum {
    /// As it should be.
    #[default]
    Right,
    /// Certainly wrong, and not zero.
    Wrong,
    /// This value.
    Value(u16),
}

/// A UDP source port or an IPv6 flow label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entropy {
    /// This value.
    Value(u32),
    /// What the flow of the inner packet gives (RFC 7348 §5, RFC 6438; hashes of crate `abi`).
    Flow,
    /// The same, for a fragment: as the whole packet would have given.
    WholeFlow,
}

impl Default for Entropy {
    fn default() -> Self {
        Entropy::Value(0)
    }
}

/// Ethernet II.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Eth {
    /// Source.
    pub src: Mac,
    /// Destination.
    pub dst: Mac,
    /// EtherType, if it shall not follow from the next layer.
    pub ethertype: Option<u16>,
}

/// A VLAN tag; stands behind `Eth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// Tag control information.
    pub tci: u16,
    /// Tag protocol identifier, put into the Ethernet header.
    pub tpid: u16,
    /// EtherType behind the tag.
    pub ethertype: Option<u16>,
}

/// Which part of an IP payload a fragment carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Frag {
    /// Offset in bytes (a multiple of 8).
    pub offset: usize,
    /// If given, the payload is cut out of what follows: bytes `offset..end`.
    pub end: Option<usize>,
}

/// IPv4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    /// Source.
    pub src: Ipv4Addr,
    /// Destination.
    pub dst: Ipv4Addr,
    /// Type of service: DSCP and ECN.
    pub tos: u8,
    /// Identification.
    pub id: u16,
    /// Don't fragment.
    pub df: bool,
    /// More fragments.
    pub mf: bool,
    /// The reserved flag.
    pub rf: bool,
    /// Fragment offset, and the part that it carries.
    pub frag: Frag,
    /// Time to live.
    pub ttl: u8,
    /// Protocol, if it shall not follow from the next layer.
    pub proto: Option<u8>,
    /// Header checksum.
    pub csum: Csum,
    /// Total length, if it shall be another.
    pub len: Option<u16>,
    /// Version.
    pub version: u8,
    /// Header length in words, if it shall be another.
    pub ihl: Option<u8>,
    /// Options, padded to words with zeros.
    pub options: Vec<u8>,
}

impl Default for Ipv4 {
    fn default() -> Self {
        let any = Ipv4Addr::UNSPECIFIED;
        Ipv4 {
            src: any,
            dst: any,
            tos: 0,
            id: 0,
            df: false,
            mf: false,
            rf: false,
            frag: Frag::default(),
            ttl: 64,
            proto: None,
            csum: Csum::Right,
            len: None,
            version: 4,
            ihl: None,
            options: Vec::new(),
        }
    }
}

/// IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipv6 {
    /// Source.
    pub src: Ipv6Addr,
    /// Destination.
    pub dst: Ipv6Addr,
    /// Traffic class: DSCP and ECN.
    pub tc: u8,
    /// Flow label.
    pub label: Entropy,
    /// Hop limit.
    pub hop: u8,
    /// Next header, if it shall not follow from the next layer.
    pub next: Option<u8>,
    /// Payload length, if it shall be another.
    pub len: Option<u16>,
    /// Version.
    pub version: u8,
}

impl Default for Ipv6 {
    fn default() -> Self {
        let any = Ipv6Addr::UNSPECIFIED;
        let label = Entropy::default();
        Ipv6 { src: any, dst: any, tc: 0, label, hop: 64, next: None, len: None, version: 6 }
    }
}

/// An IPv6 extension header other than Fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ext {
    /// Its own number: 0 hop-by-hop, 43 routing, 51 authentication, 60 destination options, 135 mobility, 139 HIP, 140 Shim6.
    pub kind: u8,
    /// Next header, if it shall not follow from the next layer.
    pub next: Option<u8>,
    /// Length field, if it shall be another.
    pub len: Option<u8>,
    /// What follows the two first bytes; padded with zeros to whole eights.
    pub body: Vec<u8>,
}

/// The IPv6 Fragment header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Frag6 {
    /// Offset, and the part that it carries.
    pub frag: Frag,
    /// More fragments.
    pub mf: bool,
    /// Identification.
    pub id: u32,
    /// Next header, if it shall not follow from the next layer.
    pub next: Option<u8>,
}

/// UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Udp {
    /// Source port.
    pub src: Entropy,
    /// Destination port.
    pub dst: u16,
    /// Length, if it shall be another.
    pub len: Option<u16>,
    /// Checksum.
    pub csum: Csum,
}

/// TCP without options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Tcp {
    /// Source port.
    pub src: u16,
    /// Destination port.
    pub dst: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Flag bits (FIN is bit 0).
    pub flags: u8,
    /// Window.
    pub window: u16,
    /// Checksum.
    pub csum: Csum,
}

/// A transport header of which only the ports and the checksum matter, and what part of the packet that covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Covered {
    /// 33 DCCP, 136 UDP-Lite, 139 HIP (which has no ports).
    pub proto: u8,
    /// Source port.
    pub src: u16,
    /// Destination port.
    pub dst: u16,
    /// Coverage as the header says it: bytes (UDP-Lite), words of data and one (DCCP); 0: the whole packet.
    pub cover: u16,
    /// Checksum.
    pub csum: Csum,
}

/// VXLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vxlan {
    /// Network identifier.
    pub vni: u32,
    /// First byte; 0x08 is the I flag.
    pub flags: u8,
    /// The 24 reserved bits behind the flags.
    pub rsv1: u32,
    /// The last, reserved byte.
    pub rsv2: u8,
}

/// ARP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// Hardware type.
    pub htype: u16,
    /// Protocol type.
    pub ptype: u16,
    /// Hardware address length.
    pub hlen: u8,
    /// Protocol address length.
    pub plen: u8,
    /// Operation: 1 request, 2 reply.
    pub op: u16,
    /// Sender hardware address; none: that of the Ethernet header in front.
    pub sha: Option<Mac>,
    /// Sender protocol address.
    pub spa: Ipv4Addr,
    /// Target hardware address; none: zero in a request, that of the Ethernet header in front in a reply.
    pub tha: Option<Mac>,
    /// Target protocol address.
    pub tpa: Ipv4Addr,
}

impl Default for Arp {
    fn default() -> Self {
        let any = Ipv4Addr::UNSPECIFIED;
        Arp { htype: 1, ptype: 0x0800, hlen: 6, plen: 4, op: 1, sha: None, spa: any, tha: None, tpa: any }
    }
}

/// ICMP and ICMPv6 alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Icmp {
    /// ICMPv6 (checksum over a pseudo header).
    pub v6: bool,
    /// Type.
    pub ty: u8,
    /// Code.
    pub code: u8,
    /// Checksum.
    pub csum: Csum,
    /// The second word: identifier and sequence number, MTU, or unused.
    pub rest: u32,
    /// Of what follows, only so many bytes are carried (a quoted packet).
    pub keep: Option<usize>,
}

/// Neighbour solicitation (135) or advertisement (136).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nd {
    /// Type.
    pub ty: u8,
    /// Code.
    pub code: u8,
    /// Checksum.
    pub csum: Csum,
    /// The word behind the checksum: R, S and O flags of an advertisement.
    pub flags: u32,
    /// Target address.
    pub target: Ipv6Addr,
    /// Options as bytes.
    pub options: Vec<u8>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Layer {
    Eth(Eth),
    Vlan(Vlan),
    Ipv4(Ipv4),
    Ipv6(Ipv6),
    Ext(Ext),
    Frag6(Frag6),
    Udp(Udp),
    Tcp(Tcp),
    Covered(Covered),
    /// SCTP common header: ports; verification tag and checksum are zero.
    Sctp(u16, u16),
    Vxlan(Vxlan),
    Arp(Arp),
    Icmp(Icmp),
    Nd(Nd),
    /// `data N`: N bytes of a counting pattern.
    Data(usize),
    /// Raw bytes.
    Hex(Vec<u8>),
}

/// A frame: layers, and what is done to the bytes afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Packet {
    /// From the outermost to the innermost.
    pub layers: Vec<Layer>,
    /// The inner frame (behind VXLAN) ends after so many bytes; outer lengths follow.
    pub inner_cut: Option<usize>,
    /// Bytes behind the inner IP packet, within the inner frame.
    pub inner_pad: Vec<u8>,
    /// Bytes behind the outer IP packet.
    pub pad: Vec<u8>,
    /// The frame ends after so many bytes; lengths are as if it were whole.
    pub cut: Option<usize>,
    /// Bytes written over the frame last: offset, bytes.
    pub patches: Vec<(usize, Vec<u8>)>,
}

impl Packet {
    /// A frame of these layers.
    pub fn new(layers: Vec<Layer>) -> Packet {
        Packet { layers, ..Packet::default() }
    }

    /// Nothing but these bytes.
    pub fn raw(bytes: &[u8]) -> Packet {
        Packet::new(vec![Layer::Hex(bytes.to_vec())])
    }
}
