// SPDX-License-Identifier: Apache-2.0
//! The fields: where each lies in a [`crate::Key`], what it is called, how it is written, and what a packet must be to have it.
use crate::key::{low128, Key, Mask};

/// How a field's value is written in text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Decimal.
    Dec,
    /// `0x…`.
    Hex,
    /// `0x…` with four digits.
    Hex4,
    /// A MAC address.
    Mac,
    /// An IPv4 address, with `/len` or `/mask`.
    Ipv4,
    /// An IPv6 address, with `/len` or `/mask`.
    Ipv6,
    /// A port by number or name.
    Port,
    /// Connection state flags (`+new-est`).
    CtState,
    /// TCP flags.
    TcpFlags,
    /// Tunnel flags.
    TunFlags,
    /// `no`, `yes`, `first`, `later`, `not_later`.
    Frag,
}

/// What a packet must be to have a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prereq {
    /// Anything.
    None,
    /// It has a VLAN tag.
    Vlan,
    /// It has an MPLS label.
    Mpls,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// IPv4 or IPv6.
    Ip,
    /// ARP or RARP.
    Arp,
    /// TCP over IP.
    Tcp,
    /// UDP over IP.
    Udp,
    /// SCTP over IP.
    Sctp,
    /// ICMP over IPv4.
    Icmp4,
    /// ICMPv6.
    Icmp6,
    /// A neighbour solicitation or advertisement.
    Nd,
    /// A neighbour solicitation.
    NdSol,
    /// A neighbour advertisement.
    NdAdv,
    /// A tracked connection.
    Ct,
}

/// A field's place and properties.
#[derive(Debug)]
pub struct FieldInfo {
    /// Its name as `ovs-ofctl` prints it.
    pub name: &'static str,
    /// Other names: OpenFlow 1.3 names and NXM/OXM identifiers.
    pub aliases: &'static [&'static str],
    /// First word in the key.
    pub word: u8,
    /// Lowest bit in that word.
    pub shift: u8,
    /// Bits that are stored.
    pub stored: u8,
    /// Bits that the protocol has; a range of bits in an action may go this far.
    pub bits: u8,
    /// How it is written.
    pub format: Format,
    /// What a packet must be to have it.
    pub prereq: Prereq,
    /// Whether a match may name it.
    pub readable: bool,
    /// Whether `set_field`, `load` and `move` may write it.
    pub writable: bool,
    /// Whether `exec` of `ct` may write it, and nobody else.
    pub ct_only: bool,
    /// Whether a match may mask it.
    pub maskable: bool,
    /// Whether no other field stands for the same bits more simply.
    pub primary: bool,
}

macro_rules! fields {
    ($($variant:ident: $name:literal [$($alias:literal),*] $word:literal $shift:literal $stored:literal $bits:literal $format:ident $prereq:ident $flags:literal;)*) => {
        /// A match field.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Field {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        static FIELDS: &[FieldInfo] = &[$(FieldInfo {
            name: $name,
            aliases: &[$($alias),*],
            word: $word,
            shift: $shift,
            stored: $stored,
            bits: $bits,
            format: Format::$format,
            prereq: Prereq::$prereq,
            readable: has($flags, b'R'),
            writable: has($flags, b'W'),
            ct_only: has($flags, b'C'),
            maskable: !has($flags, b'X'),
            primary: !has($flags, b'A'),
        }),*];

        static ALL: &[Field] = &[$(Field::$variant),*];
    };
}

const fn has(flags: &str, flag: u8) -> bool {
    let bytes = flags.as_bytes();
    let mut n = 0;
    while n < bytes.len() {
        if bytes[n] == flag {
            return true;
        }
        n += 1;
    }
    false
}

// Name, other names, word, shift, stored bits, bits, format, prerequisite, flags: R matchable, W writable, C only in exec of ct,
// X not maskable, A another field stands for the same bits.
fields! {
    Metadata: "metadata" ["OXM_OF_METADATA"] 0 0 64 64 Hex None "RW";
    TunId: "tun_id" ["tunnel_id", "NXM_NX_TUN_ID", "OXM_OF_TUNNEL_ID"] 1 0 64 64 Hex None "RW";
    TunSrc: "tun_src" ["NXM_NX_TUN_IPV4_SRC"] 2 32 32 32 Ipv4 None "RW";
    TunDst: "tun_dst" ["NXM_NX_TUN_IPV4_DST"] 2 0 32 32 Ipv4 None "RW";
    TunIpv6Src: "tun_ipv6_src" ["NXM_NX_TUN_IPV6_SRC"] 3 0 128 128 Ipv6 None "RW";
    TunIpv6Dst: "tun_ipv6_dst" ["NXM_NX_TUN_IPV6_DST"] 5 0 128 128 Ipv6 None "RW";
    TunFlags: "tun_flags" ["NXM_NX_TUN_FLAGS"] 7 48 16 16 TunFlags None "RW";
    TunTos: "tun_tos" [] 7 40 8 8 Hex None "RW";
    TunTtl: "tun_ttl" [] 7 32 8 8 Dec None "RW";
    TunGbpId: "tun_gbp_id" ["NXM_NX_TUN_GBP_ID"] 7 16 16 16 Hex None "RW";
    TunGbpFlags: "tun_gbp_flags" ["NXM_NX_TUN_GBP_FLAGS"] 7 8 8 8 Hex None "RW";
    // Which of the options behind it a packet carries: one that is 0 is there all the same.
    TunPresent: "tun_metadata_present" [] 7 0 4 4 Hex None "-";
    TunMetadata0: "tun_metadata0" ["NXM_NX_TUN_METADATA0"] 8 0 64 64 Hex None "RW";
    TunMetadata1: "tun_metadata1" ["NXM_NX_TUN_METADATA1"] 9 0 64 64 Hex None "RW";
    TunMetadata2: "tun_metadata2" ["NXM_NX_TUN_METADATA2"] 10 0 64 64 Hex None "RW";
    TunMetadata3: "tun_metadata3" ["NXM_NX_TUN_METADATA3"] 11 0 64 64 Hex None "RW";
    Reg0: "reg0" ["NXM_NX_REG0"] 12 32 32 32 Hex None "RW";
    Reg1: "reg1" ["NXM_NX_REG1"] 12 0 32 32 Hex None "RW";
    Reg2: "reg2" ["NXM_NX_REG2"] 13 32 32 32 Hex None "RW";
    Reg3: "reg3" ["NXM_NX_REG3"] 13 0 32 32 Hex None "RW";
    Reg4: "reg4" ["NXM_NX_REG4"] 14 32 32 32 Hex None "RW";
    Reg5: "reg5" ["NXM_NX_REG5"] 14 0 32 32 Hex None "RW";
    Reg6: "reg6" ["NXM_NX_REG6"] 15 32 32 32 Hex None "RW";
    Reg7: "reg7" ["NXM_NX_REG7"] 15 0 32 32 Hex None "RW";
    Reg8: "reg8" ["NXM_NX_REG8"] 16 32 32 32 Hex None "RW";
    Reg9: "reg9" ["NXM_NX_REG9"] 16 0 32 32 Hex None "RW";
    Reg10: "reg10" ["NXM_NX_REG10"] 17 32 32 32 Hex None "RW";
    Reg11: "reg11" ["NXM_NX_REG11"] 17 0 32 32 Hex None "RW";
    Reg12: "reg12" ["NXM_NX_REG12"] 18 32 32 32 Hex None "RW";
    Reg13: "reg13" ["NXM_NX_REG13"] 18 0 32 32 Hex None "RW";
    Reg14: "reg14" ["NXM_NX_REG14"] 19 32 32 32 Hex None "RW";
    Reg15: "reg15" ["NXM_NX_REG15"] 19 0 32 32 Hex None "RW";
    Xreg0: "xreg0" ["OXM_OF_PKT_REG0"] 12 0 64 64 Hex None "RWA";
    Xreg1: "xreg1" ["OXM_OF_PKT_REG1"] 13 0 64 64 Hex None "RWA";
    Xreg2: "xreg2" ["OXM_OF_PKT_REG2"] 14 0 64 64 Hex None "RWA";
    Xreg3: "xreg3" ["OXM_OF_PKT_REG3"] 15 0 64 64 Hex None "RWA";
    Xreg4: "xreg4" ["OXM_OF_PKT_REG4"] 16 0 64 64 Hex None "RWA";
    Xreg5: "xreg5" ["OXM_OF_PKT_REG5"] 17 0 64 64 Hex None "RWA";
    Xreg6: "xreg6" ["OXM_OF_PKT_REG6"] 18 0 64 64 Hex None "RWA";
    Xreg7: "xreg7" ["OXM_OF_PKT_REG7"] 19 0 64 64 Hex None "RWA";
    Xxreg0: "xxreg0" ["NXM_NX_XXREG0"] 12 0 128 128 Hex None "RWA";
    Xxreg1: "xxreg1" ["NXM_NX_XXREG1"] 14 0 128 128 Hex None "RWA";
    Xxreg2: "xxreg2" ["NXM_NX_XXREG2"] 16 0 128 128 Hex None "RWA";
    Xxreg3: "xxreg3" ["NXM_NX_XXREG3"] 18 0 128 128 Hex None "RWA";
    InPort: "in_port" ["NXM_OF_IN_PORT", "OXM_OF_IN_PORT", "in_port_oxm"] 20 0 16 16 Port None "RWX";
    CtZone: "ct_zone" ["NXM_NX_CT_ZONE"] 20 16 16 16 Hex None "RX";
    CtState: "ct_state" ["NXM_NX_CT_STATE"] 20 32 16 32 CtState None "R";
    CtNwProto: "ct_nw_proto" ["NXM_NX_CT_NW_PROTO"] 20 48 8 8 Dec Ct "RX";
    PktMark: "pkt_mark" ["NXM_NX_PKT_MARK"] 21 0 32 32 Hex None "RW";
    CtMark: "ct_mark" ["NXM_NX_CT_MARK"] 21 32 32 32 Hex None "RWC";
    CtLabel: "ct_label" ["NXM_NX_CT_LABEL"] 22 0 128 128 Hex None "RWC";
    ConjId: "conj_id" ["NXM_NX_CONJ_ID"] 24 0 32 32 Dec None "RX";
    SkbPriority: "skb_priority" [] 24 32 32 32 Hex None "RX";
    // No header: what `check_pkt_larger` and `recirc_id` ask about.
    PacketLen: "packet_len" [] 25 0 16 16 Dec None "-";
    RecircId: "recirc_id" [] 25 32 32 32 Hex None "-";
    EthDst: "dl_dst" ["eth_dst", "NXM_OF_ETH_DST", "OXM_OF_ETH_DST"] 26 16 48 48 Mac None "RW";
    EthType: "dl_type" ["eth_type", "NXM_OF_ETH_TYPE", "OXM_OF_ETH_TYPE"] 26 0 16 16 Hex None "RX";
    EthSrc: "dl_src" ["eth_src", "NXM_OF_ETH_SRC", "OXM_OF_ETH_SRC"] 27 16 48 48 Mac None "RW";
    VlanTpid: "vlan_tpid" [] 28 48 16 16 Hex None "-";
    VlanTci: "vlan_tci" ["NXM_OF_VLAN_TCI"] 28 32 16 16 Hex4 None "RWV";
    DlVlan: "dl_vlan" [] 28 32 12 12 Dec None "RXA";
    DlVlanPcp: "dl_vlan_pcp" [] 28 45 3 3 Dec None "RXA";
    VlanVid: "vlan_vid" ["OXM_OF_VLAN_VID"] 28 32 12 12 Dec None "RWA";
    VlanPcp: "vlan_pcp" ["OXM_OF_VLAN_PCP"] 28 45 3 3 Dec Vlan "RWA";
    InnerTpid: "inner_tpid" [] 28 16 16 16 Hex None "-";
    InnerTci: "inner_tci" [] 28 0 16 16 Hex4 None "-";
    MplsLabel: "mpls_label" ["OXM_OF_MPLS_LABEL"] 29 44 20 20 Dec Mpls "RWX";
    MplsTc: "mpls_tc" ["OXM_OF_MPLS_TC"] 29 41 3 3 Dec Mpls "RWX";
    MplsBos: "mpls_bos" ["OXM_OF_MPLS_BOS"] 29 40 1 1 Dec Mpls "RX";
    MplsTtl: "mpls_ttl" ["NXM_NX_MPLS_TTL"] 29 32 8 8 Dec Mpls "RWX";
    MplsLse0: "mpls_lse0" [] 29 32 32 32 Hex Mpls "-";
    MplsLse1: "mpls_lse1" [] 29 0 32 32 Hex Mpls "-";
    MplsLse2: "mpls_lse2" [] 30 32 32 32 Hex Mpls "-";
    NwSrc: "nw_src" ["ip_src", "NXM_OF_IP_SRC", "OXM_OF_IPV4_SRC"] 31 32 32 32 Ipv4 Ipv4 "RW";
    NwDst: "nw_dst" ["ip_dst", "NXM_OF_IP_DST", "OXM_OF_IPV4_DST"] 31 0 32 32 Ipv4 Ipv4 "RW";
    CtNwSrc: "ct_nw_src" ["NXM_NX_CT_NW_SRC"] 32 32 32 32 Ipv4 Ct "R";
    CtNwDst: "ct_nw_dst" ["NXM_NX_CT_NW_DST"] 32 0 32 32 Ipv4 Ct "R";
    Ipv6Src: "ipv6_src" ["NXM_NX_IPV6_SRC", "OXM_OF_IPV6_SRC"] 33 0 128 128 Ipv6 Ipv6 "RW";
    Ipv6Dst: "ipv6_dst" ["NXM_NX_IPV6_DST", "OXM_OF_IPV6_DST"] 35 0 128 128 Ipv6 Ipv6 "RW";
    CtIpv6Src: "ct_ipv6_src" ["NXM_NX_CT_IPV6_SRC"] 37 0 128 128 Ipv6 Ct "R";
    CtIpv6Dst: "ct_ipv6_dst" ["NXM_NX_CT_IPV6_DST"] 39 0 128 128 Ipv6 Ct "R";
    Ipv6Label: "ipv6_label" ["NXM_NX_IPV6_LABEL", "OXM_OF_IPV6_FLABEL"] 41 32 20 20 Hex Ipv6 "RW";
    NwFrag: "nw_frag" ["ip_frag", "NXM_NX_IP_FRAG"] 41 24 8 8 Frag Ip "R";
    NwTos: "nw_tos" ["NXM_OF_IP_TOS"] 41 16 8 8 Dec Ip "RWX";
    IpDscp: "ip_dscp" ["OXM_OF_IP_DSCP"] 41 18 6 6 Dec Ip "RWXA";
    NwEcn: "nw_ecn" ["ip_ecn", "NXM_NX_IP_ECN", "OXM_OF_IP_ECN"] 41 16 2 2 Dec Ip "RWXA";
    NwTtl: "nw_ttl" ["NXM_NX_IP_TTL"] 41 8 8 8 Dec Ip "RWX";
    NwProto: "nw_proto" ["ip_proto", "NXM_OF_IP_PROTO", "OXM_OF_IP_PROTO"] 41 0 8 8 Dec Ip "RX";
    ArpOp: "arp_op" ["NXM_OF_ARP_OP", "OXM_OF_ARP_OP"] 41 0 8 16 Dec Arp "RWXA";
    ArpSpa: "arp_spa" ["NXM_OF_ARP_SPA", "OXM_OF_ARP_SPA"] 31 32 32 32 Ipv4 Arp "RWA";
    ArpTpa: "arp_tpa" ["NXM_OF_ARP_TPA", "OXM_OF_ARP_TPA"] 31 0 32 32 Ipv4 Arp "RWA";
    NdTarget: "nd_target" ["NXM_NX_ND_TARGET", "OXM_OF_IPV6_ND_TARGET"] 42 0 128 128 Ipv6 Nd "RW";
    ArpSha: "arp_sha" ["NXM_NX_ARP_SHA", "OXM_OF_ARP_SHA"] 44 16 48 48 Mac Arp "RW";
    ArpTha: "arp_tha" ["NXM_NX_ARP_THA", "OXM_OF_ARP_THA"] 45 16 48 48 Mac Arp "RW";
    NdSll: "nd_sll" ["NXM_NX_ND_SLL", "OXM_OF_IPV6_ND_SLL"] 44 16 48 48 Mac NdSol "RWA";
    NdTll: "nd_tll" ["NXM_NX_ND_TLL", "OXM_OF_IPV6_ND_TLL"] 45 16 48 48 Mac NdAdv "RWA";
    TcpFlags: "tcp_flags" ["NXM_NX_TCP_FLAGS", "OXM_OF_TCP_FLAGS"] 44 0 12 12 TcpFlags Tcp "R";
    NdOptionsType: "nd_options_type" ["ERICOXM_OF_ICMPV6_ND_OPTIONS_TYPE"] 44 0 8 8 Dec Nd "RWXA";
    NdReserved: "nd_reserved" ["ERICOXM_OF_ICMPV6_ND_RESERVED"] 47 0 32 32 Hex Nd "RW";
    CtTpSrc: "ct_tp_src" ["NXM_NX_CT_TP_SRC"] 46 16 16 16 Dec Ct "R";
    CtTpDst: "ct_tp_dst" ["NXM_NX_CT_TP_DST"] 46 0 16 16 Dec Ct "R";
    TcpSrc: "tcp_src" ["OXM_OF_TCP_SRC", "NXM_OF_TCP_SRC"] 46 48 16 16 Dec Tcp "RW";
    TcpDst: "tcp_dst" ["OXM_OF_TCP_DST", "NXM_OF_TCP_DST"] 46 32 16 16 Dec Tcp "RW";
    UdpSrc: "udp_src" ["OXM_OF_UDP_SRC", "NXM_OF_UDP_SRC"] 46 48 16 16 Dec Udp "RWA";
    UdpDst: "udp_dst" ["OXM_OF_UDP_DST", "NXM_OF_UDP_DST"] 46 32 16 16 Dec Udp "RWA";
    SctpSrc: "sctp_src" ["OXM_OF_SCTP_SRC"] 46 48 16 16 Dec Sctp "RWA";
    SctpDst: "sctp_dst" ["OXM_OF_SCTP_DST"] 46 32 16 16 Dec Sctp "RWA";
    IcmpType: "icmp_type" ["icmpv4_type", "NXM_OF_ICMP_TYPE", "OXM_OF_ICMPV4_TYPE"] 46 48 8 8 Dec Icmp4 "RWA";
    IcmpCode: "icmp_code" ["icmpv4_code", "NXM_OF_ICMP_CODE", "OXM_OF_ICMPV4_CODE"] 46 32 8 8 Dec Icmp4 "RWA";
    Icmpv6Type: "icmpv6_type" ["NXM_NX_ICMPV6_TYPE", "OXM_OF_ICMPV6_TYPE"] 46 48 8 8 Dec Icmp6 "RWA";
    Icmpv6Code: "icmpv6_code" ["NXM_NX_ICMPV6_CODE", "OXM_OF_ICMPV6_CODE"] 46 32 8 8 Dec Icmp6 "RWA";
}

impl Field {
    /// Its place and properties.
    #[inline]
    pub fn info(self) -> &'static FieldInfo {
        &FIELDS[self as usize]
    }

    /// Every field.
    pub fn all() -> impl Iterator<Item = Field> {
        ALL.iter().copied()
    }

    /// The field of this name: as printed, or its OpenFlow 1.3 or NXM name, in capitals as those are written.
    pub fn named(name: &str) -> Option<Field> {
        static NAMES: std::sync::OnceLock<std::collections::HashMap<&'static str, Field>> = std::sync::OnceLock::new();
        let names = NAMES.get_or_init(|| {
            let named =
                |f: Field| std::iter::once(f.info().name).chain(f.info().aliases.iter().copied()).map(move |n| (n, f));
            Field::all().filter(|f| f.info().readable).flat_map(named).collect()
        });
        names.get(name).copied()
    }

    /// The whole field as a range of bits.
    pub fn whole(self) -> Subfield {
        Subfield { field: self, offset: 0, bits: self.info().bits }
    }

    /// The bit of [`Field::TunPresent`] that says that a packet carries this tunnel option; none for other fields.
    pub fn presence(self) -> Option<u128> {
        let first = Field::TunMetadata0 as usize;
        (first..first + 4).contains(&(self as usize)).then(|| 1 << (self as usize - first))
    }

    /// Register N.
    pub fn reg(n: u8) -> Field {
        ALL[Field::Reg0 as usize + usize::from(n % 16)]
    }
}

impl Prereq {
    /// Whether this packet is of that kind.
    pub fn holds(self, key: &Key) -> bool {
        let eth = key.get(Field::EthType);
        let proto = || key.get(Field::NwProto);
        let ip = || eth == 0x0800 || eth == 0x86dd;
        let whole = || key.get(Field::NwFrag) & 2 == 0;
        let nd = |kind: u128| {
            eth == 0x86dd && proto() == 58 && key.get(Field::TcpDst) == 0 && key.get(Field::TcpSrc) == kind
        };
        match self {
            Prereq::None => true,
            Prereq::Vlan => key.get(Field::VlanTci) & 0x1000 != 0,
            Prereq::Mpls => eth == 0x8847 || eth == 0x8848,
            Prereq::Ipv4 => eth == 0x0800,
            Prereq::Ipv6 => eth == 0x86dd,
            Prereq::Ip => ip(),
            Prereq::Arp => eth == 0x0806 || eth == 0x8035,
            Prereq::Tcp => ip() && proto() == 6 && whole(),
            Prereq::Udp => ip() && proto() == 17 && whole(),
            Prereq::Sctp => ip() && proto() == 132 && whole(),
            // As in Open vSwitch, only ports are missing in fragments: ICMP is not asked about them.
            Prereq::Icmp4 => eth == 0x0800 && proto() == 1,
            Prereq::Icmp6 => eth == 0x86dd && proto() == 58,
            Prereq::Nd => nd(135) || nd(136),
            Prereq::NdSol => nd(135),
            Prereq::NdAdv => nd(136),
            Prereq::Ct => key.get(Field::CtState) & 0x20 != 0,
        }
    }

    /// Adds the bits that [`Prereq::holds`] looks at.
    pub fn depends(self, mask: &mut Mask) {
        match self {
            Prereq::None => return,
            Prereq::Vlan => return mask.add_bits(Field::VlanTci, 0x1000),
            Prereq::Ct => return mask.add_bits(Field::CtState, 0x20),
            _ => mask.add(Field::EthType),
        }
        if !matches!(self, Prereq::Mpls | Prereq::Ipv4 | Prereq::Ipv6 | Prereq::Ip | Prereq::Arp) {
            mask.add(Field::NwProto);
        }
        if matches!(self, Prereq::Tcp | Prereq::Udp | Prereq::Sctp) {
            mask.add_bits(Field::NwFrag, 2);
        }
        if matches!(self, Prereq::Nd | Prereq::NdSol | Prereq::NdAdv) {
            mask.add(Field::TcpSrc);
            mask.add(Field::TcpDst);
        }
    }
}

/// A range of bits of a field, as `NXM_NX_REG0[0..15]` names one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Subfield {
    /// The field.
    pub field: Field,
    /// Its lowest bit.
    pub offset: u8,
    /// How many bits.
    pub bits: u8,
}

impl Subfield {
    /// The bits as a right-aligned mask of the field.
    pub fn field_mask(&self) -> u128 {
        let bits = low128(self.bits) << self.offset;
        // A flow's TOS is the DSCP in its place: ECN is a field of its own.
        if self.field == Field::NwTos {
            bits & 0xfc
        } else {
            bits
        }
    }

    /// Their value in a key, right-aligned.
    #[inline]
    pub fn read(&self, key: &Key) -> u128 {
        (key.get(self.field) & self.field_mask()) >> self.offset
    }

    /// Writes them.
    #[inline]
    pub fn write(&self, key: &mut Key, value: u128) {
        let mask = self.field_mask();
        let before = key.get(self.field);
        key.set(self.field, before & !mask | value << self.offset & mask);
    }

    /// Adds them to a mask.
    pub fn depends(&self, mask: &mut Mask) {
        mask.add_bits(self.field, self.field_mask());
    }
}

impl std::fmt::Display for Subfield {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let info = self.field.info();
        let name = info
            .aliases
            .iter()
            .find(|a| a.starts_with("NXM"))
            .or(info.aliases.iter().find(|a| a.contains("OXM")))
            .unwrap_or(&info.name);
        match (self.offset, self.bits) {
            (0, bits) if bits >= info.bits => write!(f, "{name}[]"),
            (n, 1) => write!(f, "{name}[{n}]"),
            (n, bits) => write!(f, "{name}[{n}..{}]", n + bits - 1),
        }
    }
}
